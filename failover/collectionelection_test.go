package failover

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// inserting writes batches and single documents to c, numbered from 1, until it is stopped.
func inserting(c *collection) *writer {
	w := &writer{stop: make(chan struct{}), done: make(chan error, 1), acked: make(chan int64, 1)}
	go func() {
		for n := 1; ; n += 11 {
			select {
			case <-w.stop:
				w.done <- nil
				return
			default:
			}
			if _, err := c.w.InsertMany(c.t.Context(), items(n, 10)); err != nil {
				w.done <- err
				return
			}
			if err := c.w.InsertOne(c.t.Context(), item(n+10)); err != nil {
				w.done <- err
				return
			}
			w.sent = int64(n + 10)
			select {
			case w.acked <- w.sent:
			default:
			}
		}
	}()
	return w
}

// I1: each fault strikes a writer to an ordinary collection in full flight.
func TestElectionsLoseAndRepeatNoDocument(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	for name, strike := range map[string]func(context.Context, *localcluster.Cluster) (heal func() error, err error){
		"step down": func(ctx context.Context, c *localcluster.Cluster) (func() error, error) {
			_, err := c.StepDown(ctx, "primary")
			return func() error { return nil }, err
		},
		"kill -9": func(ctx context.Context, c *localcluster.Cluster) (func() error, error) {
			m, err := c.Kill(ctx, "primary")
			return func() error { _, err := c.Start(ctx, m.Name); return err }, err
		},
		"freeze": func(ctx context.Context, c *localcluster.Cluster) (func() error, error) {
			m, err := c.Freeze(ctx, "primary")
			return func() error { _, err := c.Thaw(ctx, m.Name); return err }, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollection(t, d, d.Options(), Config{AttemptTimeout: time.Second})
			w := inserting(c)
			w.progress(t, 10)
			heal, err := strike(t.Context(), d.Cluster)
			if err != nil {
				t.Fatal(err)
			}
			w.progress(t, 10) // goes on without the member
			if err := heal(); err != nil {
				t.Fatal(err)
			}
			w.progress(t, 20)
			c.has(1, int(w.finish(t)))
		})
	}
}

// reconfigure changes the set's members, trying again until a majority has taken it.
func reconfigure(t *testing.T, admin *mongo.Database, edit func(members bson.A) bson.A) {
	t.Helper()
	for begun := time.Now(); ; {
		err := func() error {
			var reply struct{ Config bson.M }
			if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
				return err
			}
			version, _ := reply.Config["version"].(int32)
			reply.Config["version"] = version + 1
			members, _ := reply.Config["members"].(bson.A)
			reply.Config["members"] = edit(members)
			return admin.RunCommand(t.Context(), bson.D{{Key: "replSetReconfig", Value: reply.Config}, {Key: "maxTimeMS", Value: 20000}}).Err()
		}()
		if err == nil {
			return
		}
		if time.Since(begun) > 2*time.Minute {
			t.Fatal(err)
		}
	}
}

// A member is taken out of the set while writers write, and comes back as another one: nothing is lost and
// nothing fails. Reads that go to secondaries go on.
func TestMembersComeAndGoWhileWriting(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	admin := d.DB(t).Client().Database("admin")
	s := newStream(t, d, Config{AttemptTimeout: time.Second})
	c := newCollection(t, d, d.Options(), Config{AttemptTimeout: time.Second})
	sw, cw := startWriter(s), inserting(c)
	read := func() {
		t.Helper()
		if _, err := c.l.FindOne(t.Context(), c.coll.Database().Name(), "c", ReadConfig{Preference: readpref.SecondaryPreferred()}, bson.D{}); err != nil {
			t.Error(err)
		}
	}
	sw.progress(t, 5)
	cw.progress(t, 5)
	read()
	gone := addrOf(t, d, localcluster.RoleSecondary)
	var member any
	reconfigure(t, admin, func(members bson.A) bson.A {
		return slices.DeleteFunc(members, func(m any) bool {
			for _, e := range m.(bson.D) {
				if e.Key == "host" && e.Value == gone {
					member = m
					return true
				}
			}
			return false
		})
	})
	if member == nil {
		t.Fatalf("%s is no member", gone)
	}
	sw.progress(t, 5)
	cw.progress(t, 5)
	read()
	reconfigure(t, admin, func(members bson.A) bson.A {
		added := slices.Clone(member.(bson.D))
		for i := range added {
			if added[i].Key == "_id" {
				added[i].Value = 17
			}
		}
		return append(members, added)
	})
	sw.progress(t, 5)
	cw.progress(t, 5)
	read()
	s.ok("a", sw.finish(t))
	c.has(1, int(cw.finish(t)))
}

// I1: a network that breaks at any place, again and again.
func TestAFlakyNetworkLosesAndDoublesNoDocument(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	l, b := plugged(t, d, Config{AttemptTimeout: 300 * time.Millisecond}, "flaky")
	coll := d.DB(t).Collection("c")
	c := &collection{t: t, coll: coll, l: l, w: l.Collection(coll.Database().Name(), "c", CollectionConfig{})}
	p := b.To(d.Cluster.Members()[0].Addr)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer p.Heal()
		for ctx.Err() == nil {
			[]func(){func() { p.SilenceAfter(rnd.Int64N(150_000)) }, p.SwallowReplies, p.BlackHole, p.Cut}[rnd.IntN(4)]()
			time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
			p.Heal()
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
	}()
	next := 1
	for begun := time.Now(); next < 2000 && time.Since(begun) < 15*time.Second; next += 50 {
		docs := make([]bson.Raw, 50)
		for i := range docs {
			docs[i] = encode(bson.D{{Key: "_id", Value: next + i}, {Key: "n", Value: next + i}, {Key: "data", Value: make([]byte, 2<<10)}})
		}
		if outcomes, err := c.w.InsertMany(t.Context(), docs); err != nil {
			t.Errorf("%v, %v", states(outcomes), err)
			break
		}
	}
	cancel()
	<-done
	c.has(1, next-1)
}

// I8: whatever the server does, every call of the layer returns by its deadline.
func TestEveryCallOnACollectionReturnsByItsDeadline(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 1})
	const limit = 1500 * time.Millisecond
	cfg := Config{AttemptTimeout: 400 * time.Millisecond, Budget: limit}
	c, cold := newCollection(t, d, d.Options(), cfg), newCollection(t, d, d.Options(), cfg)
	if _, err := c.w.InsertMany(t.Context(), items(1, 10)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Cluster.Freeze(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	db := c.coll.Database().Name()
	for name, tt := range map[string]struct {
		limit time.Duration
		call  func(ctx context.Context) error
	}{
		"InsertOne":                {limit, func(ctx context.Context) error { return c.w.InsertOne(ctx, item(11)) }},
		"InsertMany":               {limit, func(ctx context.Context) error { _, err := c.w.InsertMany(ctx, items(12, 20000)); return err }},
		"InsertMany, context":      {limit / 3, func(ctx context.Context) error { _, err := c.w.InsertMany(ctx, items(12, 10)); return err }},
		"InsertOne, no connection": {limit, func(ctx context.Context) error { return cold.w.InsertOne(ctx, item(11)) }},
		"Find":                     {limit, func(ctx context.Context) error { _, err := c.l.Find(ctx, db, "c", ReadConfig{}, bson.D{}); return err }},
		"Find, context":            {limit / 3, func(ctx context.Context) error { _, err := c.l.Find(ctx, db, "c", ReadConfig{}, bson.D{}); return err }},
		"Do, with another's client": {limit, func(ctx context.Context) error {
			return c.l.Do(ctx, "x", func(ctx context.Context) error { _, err := c.coll.InsertOne(ctx, bson.D{}); return err })
		}},
	} {
		var err error
		took, late := overrun(tt.limit, func() {
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			err = tt.call(ctx)
		})
		if took > tt.limit+slack+2*late {
			t.Errorf("%s: returned after %v, the deadline was %v (a control timer was %v late)", name, took, tt.limit, late)
		}
		if err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errBudget) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Cluster.Thaw(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
}

// Wrong credentials and certificates are said at the first answer, and not tried until the budget ends; nothing
// is said to be unknown.
func TestWhoIsNotLetInIsToldAtOnce(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 1, Auth: true, TLS: true})
	wrong := d.Options().SetAuth(options.Credential{Username: "nobody", Password: "wrong", AuthSource: "admin"})
	expired := d.Options()
	expired.SetTLSConfig(expired.TLSConfig.Clone())
	expired.TLSConfig.Time = func() time.Time { return time.Now().AddDate(200, 0, 0) } // the server's certificate is not valid any more
	for name, opts := range map[string]*options.ClientOptions{"wrong password": wrong, "expired certificate": expired} {
		var seen attempts
		c := newCollection(t, d, opts, Config{Hooks: Hooks{OnAttempt: seen.add}})
		s := newStream(t, d, Config{})
		s.use(opts, c.l.cfg)
		for call, f := range map[string]func() error{
			"InsertOne":  func() error { return c.w.InsertOne(t.Context(), item(1)) },
			"InsertMany": func() error { _, err := c.w.InsertMany(t.Context(), items(1, 3)); return err },
			"Find": func() error {
				_, err := c.l.Find(t.Context(), c.coll.Database().Name(), "c", ReadConfig{}, bson.D{})
				return err
			},
			"WriteBatch": func() error { _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 3)); return err },
		} {
			err := f()
			_, unknown := errors.AsType[*record.UnknownOutcomeError](err)
			if n := len(seen.drain()); err == nil || unknown || n > 2 || name == "wrong password" && !mongoerr.BadCredentials(err) {
				t.Errorf("%s, %s: %v after %d attempts", name, call, err, n)
			}
		}
	}
}
