package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// TestTransientFaultsLoseNoDocument goes through the error table for ordinary collections, as
// TestTransientFaultsLoseNothing does for streams.
func TestTransientFaultsLoseNoDocument(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	admin := d.DB(t).Client().Database("admin")
	faults := map[string]bson.D{
		"connection closed":              {{Key: "closeConnection", Value: true}},
		"answer later than the deadline": {{Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 1500}},
	}
	for _, code := range []int{6, 50, 91, 112, 189, 262, 10107, 11600, 11602, 13435, 13436, 14031} {
		faults[fmt.Sprintf("code %d", code)] = bson.D{{Key: "errorCode", Value: code}}
	}
	for _, code := range []int{50, 64, 91, 189, 11602} {
		faults[fmt.Sprintf("write concern error %d", code)] = concernError(code)
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) { // one at a time: a server has one such fail point
			retries := 0
			c := newCollection(t, d, d.Options().SetAppName(name), Config{AttemptTimeout: time.Second, Hooks: Hooks{OnRetry: func(Retry) { retries++ }}})
			if _, err := c.w.InsertMany(t.Context(), items(1, 10)); err != nil {
				t.Fatal(err)
			}
			failInserts(t, admin, name, 2, fault)
			outcomes, err := c.w.InsertMany(t.Context(), items(11, 20))
			if err != nil || states(outcomes)[Applied] != 20 || retries == 0 {
				t.Fatalf("%v, %v, %d retries", states(outcomes), err, retries)
			}
			if err := c.w.InsertOne(t.Context(), item(31)); err != nil {
				t.Fatal(err)
			}
			c.has(1, 31)
		})
	}
}

// Errors that another try would meet again, and what is certain after them.
func TestFinalErrorsSayWhatIsCertainOfEachDocument(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	admin := d.DB(t).Client().Database("admin")
	for _, tt := range []struct {
		name  string
		fault bson.D
		want  State
		code  int
	}{
		{"not authorised", bson.D{{Key: "errorCode", Value: 13}}, NotApplied, 13},
		{"unknown code", bson.D{{Key: "errorCode", Value: 8}}, Unknown, 8},
		{"write concern that the set never satisfies", concernError(100), Unknown, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCollection(t, d, d.Options().SetAppName(tt.name), Config{})
			failInserts(t, admin, tt.name, 2, tt.fault)
			docs := items(1, 20)
			outcomes, err := c.w.InsertMany(t.Context(), docs)
			var unknown *record.UnknownOutcomeError
			if states(outcomes)[tt.want] != 20 || errors.As(err, &unknown) != (tt.want == Unknown) || mongoerr.Classify(err).Code != tt.code {
				t.Fatalf("%v, %v", states(outcomes), err)
			}
			if unknown != nil && !slices.Equal(unknown.IDs, idsOf(docs)) {
				t.Errorf("%d ids are unknown, want 20", len(unknown.IDs))
			}
			if err := c.w.InsertOne(t.Context(), docs[0]); err == nil || errors.As(err, &unknown) != (tt.want == Unknown) {
				t.Errorf("one document: %v", err)
			}
			if outcomes, err := c.w.InsertMany(t.Context(), docs); err != nil || states(outcomes)[Applied] != 20 {
				t.Errorf("the same again: %v, %v", states(outcomes), err)
			}
			c.has(1, 20)
		})
	}
}

// A majority that does not come back within the budget: unknown, with all ids, on streams and collections (I1).
func TestAMajorityThatStaysAwayMakesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	cfg := Config{AttemptTimeout: 400 * time.Millisecond, Budget: 1500 * time.Millisecond}
	s := newStream(t, d, cfg)
	s.elected()
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 5)); err != nil {
		t.Fatal(err)
	}
	c := newCollection(t, d, d.Options(), cfg)
	if _, err := c.w.InsertMany(t.Context(), items(1, 5)); err != nil {
		t.Fatal(err)
	}
	resume := s.stopReplication(d)
	onStream, docs := messages("a", 6, 5), items(6, 5)
	n, err := s.w.WriteBatch(t.Context(), onStream)
	unknown, ok := errors.AsType[*record.UnknownOutcomeError](err)
	if n != 0 || !ok || !slices.Equal(unknown.IDs, idsOf(onStream)) || !errors.Is(err, errBudget) {
		t.Errorf("stream: %d applied, %v", n, err)
	}
	outcomes, err := c.w.InsertMany(t.Context(), docs)
	if unknown, ok = errors.AsType[*record.UnknownOutcomeError](err); states(outcomes)[Unknown] != 5 || !ok || !slices.Equal(unknown.IDs, idsOf(docs)) || !errors.Is(err, errBudget) {
		t.Errorf("collection: %v, %v", states(outcomes), err)
	}
	if err := c.w.InsertOne(t.Context(), item(11)); !errors.As(err, &unknown) || len(unknown.IDs) != 1 {
		t.Errorf("one document: %v", err)
	}
	resume()
	s.elected()
	repeat(t, s, onStream)
	s.ok("a", 10)
	if outcomes, err := c.w.InsertMany(t.Context(), docs); err != nil || states(outcomes)[Applied] != 5 {
		t.Errorf("the same again: %v, %v", states(outcomes), err)
	}
	c.has(1, 11)
}

// The budget ends in the middle of a batch of several commands: what was acknowledged is applied, what was
// sent is unknown, with exactly its ids, and what was never sent is not applied. The same again is stored once.
func TestABudgetThatEndsMidBatchSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	cfg := Config{AttemptTimeout: 500 * time.Millisecond, Budget: 1500 * time.Millisecond}
	sized := func(n int) bson.Raw {
		return encode(bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "n", Value: n}, {Key: "src", Value: "a"}, {Key: "seq", Value: int64(n)},
			{Key: "ts", Value: bson.Timestamp{}}, {Key: "data", Value: string(make([]byte, 1<<20))}})
	}
	d := mongotest.Standalone(t)
	s := newStream(t, d, Config{})
	var p atomic.Pointer[faultnet.Proxy]
	first := 0
	cfg.Hooks.OnAttempt = func(a Attempt) {
		if proxy := p.Load(); proxy != nil && a.Kind == KindInsert && a.Err == nil && first == 0 {
			first = a.Documents
			proxy.BlackHole()
		}
	}
	b := s.plug(d, cfg)
	proxy := b.To(d.Cluster.Members()[0].Addr)
	var docs []bson.Raw
	for i := range 10 { // three to a command
		docs = append(docs, sized(11+i))
	}
	p.Store(proxy)
	applied, err := s.w.WriteBatch(t.Context(), docs)
	unknown, ok := errors.AsType[*record.UnknownOutcomeError](err)
	if first == 0 || applied != first || !ok || len(unknown.IDs) == 0 || len(unknown.IDs) >= 10-first || !slices.Equal(unknown.IDs, idsOf(docs[applied:applied+len(unknown.IDs)])) {
		t.Errorf("stream: %d applied of %d acknowledged, %v", applied, first, err)
	}
	proxy.Heal()
	repeat(t, s, docs[applied:])
	s.ok("a", 20)

	p.Store(nil)
	c := &collection{t: t, coll: s.coll.Database().Collection("c"), l: s.l}
	c.w = s.l.Collection(s.coll.Database().Name(), "c", CollectionConfig{})
	for begun := time.Now(); c.w.InsertOne(t.Context(), item(1)) != nil; { // it has reconnected
		if time.Since(begun) > time.Minute {
			t.Fatal("no connection in a minute")
		}
	}
	docs, first = nil, 0
	for i := range 10 {
		docs = append(docs, sized(2+i))
	}
	p.Store(proxy)
	outcomes, err := c.w.InsertMany(t.Context(), docs)
	unknown, ok = errors.AsType[*record.UnknownOutcomeError](err)
	if first == 0 || !ok || states(outcomes) != [3]int{len(unknown.IDs), first, 10 - first - len(unknown.IDs)} || states(outcomes)[NotApplied] == 0 {
		t.Errorf("collection: %v, %d acknowledged, %v", states(outcomes), first, err)
	}
	for i, o := range outcomes {
		if (o.State == Unknown) != (unknown != nil && slices.Contains(unknown.IDs, idOf(docs[i]))) || (o.State == Applied) != (i < first) || (o.Err == nil) != (o.State == Applied) {
			t.Errorf("document %d: %+v", i, o)
		}
	}
	proxy.Heal()
	for begun := time.Now(); ; {
		if _, err := c.w.InsertMany(t.Context(), docs); err == nil {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("not written in a minute")
		}
	}
	c.has(1, 11)
}

// lossyCollection is a collection whose writer's first answers are lost; before is called instead of the first
// insert where it is not nil, then after the lost answers.
func lossyCollection(t *testing.T, d *mongotest.Deployment, cfg Config, l *lossy) *collection {
	t.Helper()
	c := newCollection(t, d, d.Options(), cfg)
	name := c.coll.Database().Name()
	l.server = &database{layer: c.l, name: name, plain: true}
	c.w = newCollectionWriter(c.l, func(bool) server { return l }, name, "c", CollectionConfig{})
	return c
}

// I1: a call that is cancelled between an attempt and its resolution does not know, and says so.
func TestACancelledCallBetweenAttemptAndResolutionIsUnknown(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	cause := errors.New("the user has had enough")
	t.Run("collection", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		l := &lossy{answers: 1, then: func(context.Context) error { cancel(cause); return nil }}
		c := lossyCollection(t, d, Config{}, l)
		docs := items(1, 10)
		outcomes, err := c.w.InsertMany(ctx, docs)
		unknown, ok := errors.AsType[*record.UnknownOutcomeError](err)
		if states(outcomes)[Unknown] != 10 || !ok || !slices.Equal(unknown.IDs, idsOf(docs)) || !errors.Is(err, cause) {
			t.Errorf("%v, %v", states(outcomes), err)
		}
		c.has(1, 10)
	})
	t.Run("collection, after a duplicate", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		c := newCollection(t, d, d.Options(), Config{})
		docs := items(1, 2)
		if err := c.w.InsertOne(t.Context(), docs[0]); err != nil {
			t.Fatal(err)
		}
		c.l.cfg.Hooks.OnAttempt = func(a Attempt) {
			if a.Kind == KindInsert {
				cancel(cause)
			}
		}
		outcomes, err := c.w.InsertMany(ctx, docs)
		unknown, ok := errors.AsType[*record.UnknownOutcomeError](err)
		if states(outcomes) != [3]int{1, 1, 0} || !ok || !slices.Equal(unknown.IDs, idsOf(docs[:1])) || !errors.Is(err, cause) {
			t.Errorf("%v, %v", states(outcomes), err)
		}
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		s := newStream(t, d, Config{})
		l := &lossy{server: &database{layer: s.l, name: s.coll.Database().Name()}, answers: 1, then: func(context.Context) error { cancel(cause); return nil }}
		w := newStreamWriter(s.l, l, s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid})
		docs := messages("a", 1, 10)
		applied, err := w.WriteBatch(ctx, docs)
		unknown, ok := errors.AsType[*record.UnknownOutcomeError](err)
		if applied != 0 || !ok || !slices.Equal(unknown.IDs, idsOf(docs)) || !errors.Is(err, cause) {
			t.Errorf("%d applied, %v", applied, err)
		}
		s.ok("a", 10)
	})
}

// A document that the validator or a unique index refuses after an attempt that may have stored it: a read
// decides which of the two is true.
func TestARefusalAfterAnUnknownAttemptIsResolvedByARead(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	for _, stored := range []bool{true, false} {
		t.Run(fmt.Sprintf("collection, stored %v", stored), func(t *testing.T) {
			t.Parallel()
			var c *collection
			forbid := func(ctx context.Context) error {
				return c.coll.Database().RunCommand(ctx, bson.D{{Key: "collMod", Value: "c"}, {Key: "validator", Value: bson.D{{Key: "n", Value: 0}}}}).Err()
			}
			l := &lossy{answers: 1, before: !stored, then: forbid}
			c = lossyCollection(t, d, Config{}, l)
			if err := c.coll.Database().CreateCollection(t.Context(), "c"); err != nil {
				t.Fatal(err)
			}
			docs := items(1, 3)
			outcomes, err := c.w.InsertMany(t.Context(), docs)
			if stored {
				if err != nil || states(outcomes)[Applied] != 3 {
					t.Errorf("%v, %v", states(outcomes), err)
				}
				c.has(1, 3)
				return
			}
			if _, ok := errors.AsType[*record.RejectedError](err); !ok || states(outcomes)[NotApplied] != 3 {
				t.Errorf("%v, %v", states(outcomes), err)
			}
			c.has(1, 0)
		})
		t.Run(fmt.Sprintf("stream, stored %v", stored), func(t *testing.T) {
			t.Parallel()
			s := newStream(t, d, Config{})
			forbid := func(ctx context.Context) error {
				return s.coll.Database().RunCommand(ctx, bson.D{{Key: "collMod", Value: "s"}, {Key: "validator", Value: bson.D{{Key: "n", Value: 0}}}}).Err()
			}
			l := &lossy{server: &database{layer: s.l, name: s.coll.Database().Name()}, answers: 1, before: !stored, then: forbid}
			w := newStreamWriter(s.l, l, s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid})
			applied, err := w.WriteBatch(t.Context(), messages("a", 1, 3))
			if _, ok := errors.AsType[*record.RejectedError](err); stored && (applied != 3 || err != nil) || !stored && (applied != 0 || !ok) {
				t.Errorf("%d applied, %v", applied, err)
			}
		})
	}
	t.Run("unique index", func(t *testing.T) {
		t.Parallel()
		var c *collection
		other := item(2)
		l := &lossy{answers: 1, before: true, then: func(ctx context.Context) error { _, err := c.coll.InsertOne(ctx, other); return err }}
		c = lossyCollection(t, d, Config{}, l)
		index := mongo.IndexModel{Keys: bson.D{{Key: "n", Value: 1}}, Options: unique()}
		if _, err := c.coll.Indexes().CreateOne(t.Context(), index); err != nil {
			t.Fatal(err)
		}
		outcomes, err := c.w.InsertMany(t.Context(), items(1, 3))
		rejected, ok := errors.AsType[*record.RejectedError](err)
		if !ok || rejected.Index != 1 || errors.Is(err, record.ErrExists) || states(outcomes) != [3]int{0, 2, 1} {
			t.Errorf("%v, %v", states(outcomes), err)
		}
		c.has(1, 3)
	})
}

// Two writers with the same _ids: of the same content both are told it is applied, and it is stored once; of
// other content exactly one of them is told of the conflict.
func TestTwoWritersWithTheSameIDs(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	s := newStream(t, d, Config{})
	docs := messages("a", 1, 200)
	together(t, func() error {
		_, err := s.l.Stream(s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid}).WriteBatch(t.Context(), docs)
		return err
	})
	s.ok("a", 200)

	c := newCollection(t, d, d.Options(), Config{})
	same := items(1, 200)
	together(t, func() error { _, err := c.w.InsertMany(t.Context(), same); return err })
	c.has(1, 200)

	var mu sync.Mutex
	var all [2][]Outcome
	n := 0
	together(t, func() error {
		mu.Lock()
		me := n
		n++
		mu.Unlock()
		mine := make([]bson.Raw, 200)
		for i := range mine {
			mine[i] = encode(bson.D{{Key: "_id", Value: i}, {Key: "by", Value: me}})
		}
		outcomes, err := c.w.InsertMany(t.Context(), mine)
		all[me] = outcomes
		if _, ok := errors.AsType[*ConflictError](err); err != nil && !ok {
			return err
		}
		return nil
	})
	for i := range 200 {
		a, b := all[0][i], all[1][i]
		if a.State == Unknown || b.State == Unknown || (a.State == Applied) == (b.State == Applied) {
			t.Errorf("document %d: %+v and %+v", i, a, b)
		}
	}
}

// together runs f twice at the same time.
func together(t *testing.T, f func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A connection string that names a dead member first is as good as any.
func TestADeadMemberNamedFirstCostsNothingButTime(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	opts := d.Options()
	opts.SetHosts(append([]string{"127.0.0.1:1"}, opts.Hosts...))
	c := newCollection(t, d, opts, Config{})
	if _, err := c.w.InsertMany(t.Context(), items(1, 10)); err != nil {
		t.Fatal(err)
	}
	c.has(1, 10)
	s := newStream(t, d, Config{})
	s.use(opts, Config{})
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
		t.Fatal(err)
	}
	s.ok("a", 10)
	if docs, err := s.l.Find(t.Context(), s.coll.Database().Name(), "s", ReadConfig{}, bson.D{{Key: "src", Value: "a"}}); err != nil || len(docs) != 10 {
		t.Errorf("%d documents, %v", len(docs), err)
	}
}
