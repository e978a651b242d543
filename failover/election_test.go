package failover

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// writer writes batches of src "a" until it is stopped.
type writer struct {
	stop chan struct{}
	done chan error
	sent int64 // valid after done
	// acked has one entry per batch that was acknowledged; a test waits for it to see progress.
	acked chan int64
}

func startWriter(s *stream) *writer {
	w := &writer{stop: make(chan struct{}), done: make(chan error, 1), acked: make(chan int64, 1)}
	go func() {
		for seq := int64(1); ; {
			select {
			case <-w.stop:
				w.done <- nil
				return
			default:
			}
			n, err := s.w.WriteBatch(s.t.Context(), messages("a", int(seq), 20))
			seq += int64(n)
			w.sent = seq - 1
			if err != nil {
				w.done <- err
				return
			}
			select {
			case w.acked <- w.sent:
			default:
			}
		}
	}()
	return w
}

// progress waits for n more acknowledged batches.
func (w *writer) progress(t *testing.T, n int) {
	t.Helper()
	select { // one that is old
	case <-w.acked:
	default:
	}
	deadline := time.After(2 * time.Minute)
	for range n {
		select {
		case <-w.acked:
		case err := <-w.done:
			t.Fatalf("the writer gave up: %v", err)
		case <-deadline:
			t.Fatal("no acknowledgement in two minutes")
		}
	}
}

// finish stops the writer and returns how many messages were acknowledged.
func (w *writer) finish(t *testing.T) int64 {
	t.Helper()
	close(w.stop)
	if err := <-w.done; err != nil {
		t.Fatal(err)
	}
	return w.sent
}

// I1, I4: each fault strikes a writer in full flight, twice.
func TestElectionsLoseAndRepeatNothing(t *testing.T) {
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
			var outages []Outage
			s := newStream(t, d, Config{AttemptTimeout: time.Second, Hooks: Hooks{OnOutage: func(o Outage) { outages = append(outages, o) }}})
			w := startWriter(s)
			for range 2 {
				w.progress(t, 20)
				heal, err := strike(t.Context(), d.Cluster)
				if err != nil {
					t.Fatal(err)
				}
				w.progress(t, 20) // goes on without the member
				if err := heal(); err != nil {
					t.Fatal(err)
				}
			}
			w.progress(t, 50)
			n := w.finish(t)
			s.ok("a", n)
			for _, o := range outages {
				t.Logf("outage of %v, %d attempts", o.Took.Round(time.Millisecond), o.Attempts)
			}
			t.Logf("%d messages", n)
		})
	}
}

// Inserts that a frozen primary has in its socket run after it goes on, on what is by then a former
// primary; none of them may be acknowledged there or come back.
func TestLateExecutionAfterAThawIsRolledBack(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	s := newStream(t, d, Config{AttemptTimeout: 500 * time.Millisecond})
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 100)); err != nil {
		t.Fatal(err)
	}
	frozen, err := d.Cluster.Freeze(t.Context(), "primary")
	if err != nil {
		t.Fatal(err)
	}
	if applied, err := s.w.WriteBatch(t.Context(), messages("a", 101, 1000)); err != nil || applied != 1000 {
		t.Fatalf("applied %d, %v", applied, err)
	}
	if _, err := d.Cluster.Thaw(t.Context(), frozen.Name); err != nil {
		t.Fatal(err)
	}
	if applied, err := s.w.WriteBatch(t.Context(), messages("a", 1101, 100)); err != nil || applied != 100 {
		t.Fatalf("applied %d, %v", applied, err)
	}
	s.ok("a", 1200)
}

// On a single server what is in the sockets of a frozen process stays valid: the attempts that were
// given up all run after the thaw, and the messages are stored once all the same.
func TestLateExecutionOnASingleServerStoresNothingTwice(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 1})
	attempts := make(chan Attempt, 1000)
	s := newStream(t, d, Config{AttemptTimeout: 300 * time.Millisecond, Hooks: Hooks{OnAttempt: func(a Attempt) { attempts <- a }}})
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
		t.Fatal(err)
	}
	frozen, err := d.Cluster.Freeze(t.Context(), "primary")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.w.WriteBatch(t.Context(), messages("a", 11, 2000))
		done <- err
	}()
	for unanswered := 0; unanswered < 4; {
		if a := <-attempts; a.Err != nil {
			unanswered++
		}
	}
	if _, err := d.Cluster.Thaw(t.Context(), frozen.Name); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.ok("a", 2010)
}

// I1, and a negative control: with w: 1 a primary whose secondaries do not follow acknowledges what
// the next election takes away, and the oracle says so. With the majority it does not acknowledge.
func TestWithoutTheMajorityTheOracleFindsLoss(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	for _, wc := range []WriteConcern{Majority, One} {
		s := newStream(t, d, Config{AttemptTimeout: 300 * time.Millisecond, Budget: 900 * time.Millisecond, WriteConcern: wc})
		s.elected()
		if _, err := s.l.Stream(s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid}).WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
			t.Fatal(err)
		}
		resume := s.stopReplication(d)
		n, err := s.w.WriteBatch(t.Context(), messages("a", 11, 5))
		if _, unknown := errors.AsType[*record.UnknownOutcomeError](err); wc == Majority && (n != 0 || !unknown) || wc == One && n != 5 {
			t.Fatalf("write concern %d: %d acknowledged, %v", wc, n, err)
		}
		primary, err := d.Cluster.Kill(t.Context(), "primary")
		if err != nil {
			t.Fatal(err)
		}
		resume()
		s.elected() // and it has written, so the old primary cannot bring its own back
		if _, err := d.Cluster.Start(t.Context(), primary.Name); err != nil {
			t.Fatal(err)
		}
		wrong := judge(s.stored(), "a", int64(10+n))
		if wc == Majority && len(wrong) > 0 || wc == One && len(wrong) != 5 {
			t.Errorf("write concern %d: the oracle says %v", wc, wrong)
		}
	}
}

// Where the majority is away for a while, nothing is acknowledged, and the write goes on by itself.
func TestAMajorityThatComesBackIsWaitedFor(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: testCommands})
	retries := make(chan Retry, 1000)
	s := newStream(t, d, Config{AttemptTimeout: 500 * time.Millisecond, Hooks: Hooks{OnRetry: func(r Retry) { retries <- r }}})
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
		t.Fatal(err)
	}
	resume := s.stopReplication(d)
	done := make(chan error, 1)
	go func() {
		_, err := s.w.WriteBatch(t.Context(), messages("a", 11, 500))
		done <- err
	}()
	for range 5 {
		select {
		case r := <-retries:
			if !r.Unknown {
				t.Errorf("the outcome is not said to be open: %+v", r)
			}
		case err := <-done:
			t.Fatalf("it ended without a majority: %v", err)
		}
	}
	resume()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.ok("a", 510)
}

// stopReplication keeps the secondaries from following the primary, while they stay alive.
func (s *stream) stopReplication(d *mongotest.Deployment) (resume func()) {
	t := s.t
	t.Helper()
	var members []*mongo.Client
	for _, m := range d.Cluster.Status(t.Context()) {
		if m.Role != localcluster.RoleSecondary {
			continue
		}
		c, err := mongo.Connect(options.Client().SetHosts([]string{m.Addr}).SetDirect(true))
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, c)
	}
	set := func(mode string) {
		for _, c := range members {
			if err := c.Database("admin").RunCommand(context.WithoutCancel(t.Context()), bson.D{{Key: "configureFailPoint", Value: "stopReplProducer"}, {Key: "mode", Value: mode}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("alwaysOn")
	return func() {
		set("off")
		for _, c := range members {
			_ = c.Disconnect(context.WithoutCancel(t.Context()))
		}
	}
}

// elected waits until a primary takes a write of the majority.
func (s *stream) elected() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	for i := 0; ; i++ {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := s.coll.Database().Collection("elected").InsertOne(attempt, bson.D{{Key: "n", Value: i}})
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			s.t.Fatal(err)
		}
	}
}

// Negative control: a client that makes a new _id for each attempt stores a message twice when an
// answer is lost, and the oracle sees it although every _id is there once.
func TestWithAFreshIDPerAttemptTheOracleFindsDuplicates(t *testing.T) {
	t.Parallel()
	s := newStream(t, mongotest.Standalone(t), Config{})
	for range 2 { // the answer of the first is lost
		if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if wrong := judge(s.stored(), "a", 1); len(wrong) != 1 {
		t.Errorf("the oracle says %v", wrong)
	}
}

// lossy is a server whose answers are lost, and after which others write.
type lossy struct {
	server
	answers int  // to lose
	before  bool // lose the inserts as well
	then    func(ctx context.Context) error
}

func (l *lossy) held() bool { return false }

func (l *lossy) member() string { return "" }

func (l *lossy) direct(context.Context, bson.Raw, time.Time) (bson.Raw, error) {
	return nil, wire.ErrReleased
}

func (l *lossy) insert(ctx context.Context, cmd bson.Raw) (bson.Raw, error) {
	if l.answers == 0 || !l.before {
		if reply, err := l.server.insert(ctx, cmd); err != nil || l.answers == 0 {
			return reply, err
		}
	}
	l.answers--
	if err := l.then(ctx); err != nil {
		return nil, err
	}
	return nil, errLost
}

// I1: an evicted _id can be inserted again, so it is not.
func TestAnEvictedMessageIsNotSentAgain(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*mongotest.Deployment{"standalone": mongotest.Standalone(t), "replica set": mongotest.ReplicaSet(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, d, Config{})
			if err := s.coll.Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.create(4096)
			flood := func(ctx context.Context) error {
				docs := messages("other", 1, 200)
				_, err := s.coll.InsertMany(ctx, docs)
				return err
			}
			l := &lossy{server: &database{layer: s.l, name: s.coll.Database().Name()}, answers: 1, then: flood}
			w := newStreamWriter(s.l, l, s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid})
			docs := messages("a", 1, 3)
			start := time.Now()
			applied, err := w.WriteBatch(t.Context(), docs)
			if took := time.Since(start); took > DefaultBudget/5 {
				t.Errorf("the eviction rule ended the call after %v, as if it were patience that ended", took)
			}
			var unknown *record.UnknownOutcomeError
			if applied != 0 || !errors.As(err, &unknown) || !errors.Is(err, errEvicted) || len(unknown.IDs) != 3 {
				t.Fatalf("applied %d, %v", applied, err)
			}
			for _, doc := range s.stored() {
				if doc.Lookup("src").StringValue() == "a" {
					t.Error("the evicted message was inserted again")
				}
			}
		})
	}
}

// What a lost answer was about is found, and nothing is sent twice, where the stream still has it.
func TestALostAnswerIsReadBack(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]*mongotest.Deployment{"standalone": mongotest.Standalone(t), "replica set": mongotest.ReplicaSet(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStream(t, d, Config{})
			l := &lossy{server: &database{layer: s.l, name: s.coll.Database().Name()}, answers: 1, then: func(context.Context) error { return nil }}
			w := newStreamWriter(s.l, l, s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid})
			sent := 0
			s.l.cfg.Hooks.OnAttempt = func(a Attempt) { sent += a.Documents }
			applied, err := w.WriteBatch(t.Context(), messages("a", 1, 100))
			if err != nil || applied != 100 || sent != 100 {
				t.Fatalf("applied %d, %v; %d documents were sent", applied, err, sent)
			}
			s.ok("a", 100)
		})
	}
}

func TestTwoWritersOnOneStreamLoseNothing(t *testing.T) {
	t.Parallel()
	s := newStream(t, mongotest.ReplicaSet(t), Config{})
	done := make(chan error, 2)
	for _, src := range []string{"a", "b"} {
		go func() {
			w := s.l.Stream(s.coll.Database().Name(), "s", StreamConfig{UUID: s.uuid})
			for i := range 20 {
				if _, err := w.WriteBatch(t.Context(), messages(src, 1+10*i, 10)); err != nil {
					done <- fmt.Errorf("%s: %w", src, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, src := range []string{"a", "b"} {
		for _, wrong := range judge(s.stored(), src, 200) {
			t.Error(src, wrong)
		}
	}
}

// majorityOf returns coll for reading what the majority has.
func majorityOf(coll *mongo.Collection) *mongo.Collection {
	return coll.Clone(options.Collection().SetReadConcern(readconcern.Majority()))
}

func unique() *options.IndexOptionsBuilder { return options.Index().SetUnique(true) }
