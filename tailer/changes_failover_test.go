package tailer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Trap 3.24: whatever happens to the primary, every insert that was acknowledged comes once, in order, also to a
// reader that is restarted from the position of what it read last, and to one that reads a secondary.
func TestChangesSurviveFailovers(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("s", mongoCollectionMajority())
	w := &writer{coll: coll, src: "a/1"}
	w.send(t, 1) // the collection exists
	db := coll.Database().Name()
	c := watchOpen(t, d, db, "s", ChangesConfig{Progress: 100 * time.Millisecond})
	spare, err := NewChanges(d.Options().SetReadPreference(readpref.SecondaryPreferred()), db, "s", ChangesConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer spare.Close()
	if err := spare.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	defer func() { stop(); sending.Wait() }()
	sending.Go(func() {
		for ctx.Err() == nil {
			if err := w.insert(context.WithoutCancel(ctx), []bson.D{w.doc(""), w.doc("")}); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	seq, spareSeq := int64(1), int64(1)
	take := func(c *Changes, seq *int64, until int64) record.Position {
		t.Helper()
		var at record.Position
		for *seq < until {
			r := pullNext(t, c)
			if r.Position.Compare(at) < 0 {
				t.Fatalf("back to %s from %s", r.Position, at)
			}
			at = r.Position
			if r.Kind != record.KindChange {
				continue
			}
			got := r.Change.Document.Lookup("seq").AsInt64()
			if got == 1 && *seq == 1 {
				continue // "latest" on a secondary is that member's: it may not have had the first one yet
			}
			if got != *seq+1 {
				t.Fatalf("seq %d after %d", got, *seq)
			}
			*seq++
		}
		return at
	}
	faults := []func() (localcluster.Member, error){
		func() (localcluster.Member, error) { return d.Cluster.StepDown(t.Context(), "primary") },
		func() (localcluster.Member, error) { return d.Cluster.Kill(t.Context(), "primary") },
		func() (localcluster.Member, error) { return d.Cluster.Freeze(t.Context(), "primary") },
		func() (localcluster.Member, error) { return d.Cluster.Kill(t.Context(), "secondary") },
		func() (localcluster.Member, error) { return d.Cluster.Freeze(t.Context(), "secondary") },
	}
	for i, fault := range faults {
		take(c, &seq, seq+50)
		m, err := fault()
		if err != nil {
			t.Fatalf("fault %d: %v", i, err)
		}
		at := take(c, &seq, seq+200)
		take(spare, &spareSeq, seq)
		_ = c.Close()
		c = watchUnopened(t, d, db, "s", ChangesConfig{Start: after(at), Progress: 100 * time.Millisecond})
		switch i {
		case 1, 3:
			_, err = d.Cluster.Start(t.Context(), m.Name)
		case 2, 4:
			_, err = d.Cluster.Thaw(t.Context(), m.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stop()
	sending.Wait()
	take(c, &seq, w.seq)
	take(spare, &spareSeq, w.seq)
	noChange(t, c)
	noChange(t, spare)
}

// The watchdog: a server that falls silent in the middle of a getMore, without another one to go to.
func TestAFrozenServerDoesNotHoldAChangeStream(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("s")
	insertDoc(t, coll, 0)
	var why reasons
	member := memberOf(t, d, coll)
	direct := func(cfg ChangesConfig) *Changes {
		cfg.AttemptTimeout = time.Second
		c, err := NewChanges(member, coll.Database().Name(), "s", cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c, lasting := direct(ChangesConfig{Hooks: Hooks{OnReopen: why.add}}), direct(ChangesConfig{MaxOutage: 3 * time.Second})
	for _, c := range []*Changes{c, lasting} {
		if err := c.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m, err := d.Cluster.Freeze(t.Context(), "primary")
	if err != nil {
		t.Fatal(err)
	}
	var outage *OutageError
	if _, err := tryNext(t, lasting); !errors.As(err, &outage) {
		t.Errorf("got %v", err)
	}
	if len(why.all()) == 0 {
		t.Error("the watchdog did not notice")
	}
	begun := time.Now()
	closing := direct(ChangesConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	_ = closing.Open(ctx)
	cancel()
	_ = closing.Close()
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("closing took %s", took)
	}
	if _, err := d.Cluster.Thaw(t.Context(), m.Name); err != nil {
		t.Fatal(err)
	}
	insertEventually(t, coll, 1)
	if rs := events(t, c, 1); key(rs[0]) != 1 {
		t.Errorf("got %d", key(rs[0]))
	}
}

// memberOf returns options for a direct connection to the primary.
func memberOf(t testing.TB, d *mongotest.Deployment, coll *mongo.Collection) *options.ClientOptions {
	t.Helper()
	var hello struct{ Primary string }
	if err := coll.Database().RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	return only(d.Options(), hello.Primary)
}

func insertEventually(t testing.TB, coll *mongo.Collection, id any) {
	t.Helper()
	w := &writer{coll: coll}
	if err := w.insert(t.Context(), []bson.D{doc(id)}); err != nil {
		t.Fatal(err)
	}
}

// Traps 3.17 and 3.18: behind a rollover of the oplog an old position is lost, once and for good; the one
// that moved while the collection was idle is not.
func TestTheOplogRollsOverAnOldPositionAndNotOverAFreshOne(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, OplogMB: 1})
	db := d.DB(t)
	quiet, busy := db.Collection("quiet"), db.Collection("busy")
	insertDoc(t, quiet, 0)
	idle := watchOpen(t, d, db.Name(), "quiet", ChangesConfig{Progress: time.Millisecond})
	insertDoc(t, quiet, 1)
	old := events(t, idle, 1)[0].Position
	ended := make(chan struct{})
	fresh := make(chan record.Position)
	go func() { // the idle reader, whose position moves
		at := record.Position{}
		for {
			r, err := idle.Next(t.Context())
			if err != nil {
				return
			}
			at = r.Position
			select {
			case <-ended:
				fresh <- at
				return
			default:
			}
		}
	}()
	pad := make([]byte, 1<<20)
	deadline := time.Now().Add(3 * time.Minute)
	for n := 0; !rolled(t, db, old); n++ {
		if time.Now().After(deadline) {
			t.Fatal("the oplog does not roll over")
		}
		insertDoc(t, busy, n, bson.E{Key: "pad", Value: pad})
	}
	close(ended)
	insertDoc(t, busy, "last", bson.E{Key: "pad", Value: pad})
	at := <-fresh
	_ = idle.Close()
	var opened int
	for _, start := range []record.Start{after(old), {Where: record.AtTime, Time: time.Unix(int64(old.TS.T), 0)}} {
		c := watchUnopened(t, d, db.Name(), "quiet", ChangesConfig{Start: start, Hooks: Hooks{OnCommand: func(name string) {
			if name == "aggregate" {
				opened++
			}
		}}})
		for range 2 {
			_, err := tryNext(t, c)
			var lost *HistoryLostError
			if !errors.As(err, &lost) || lost.Position.TS.T != old.TS.T || !lost.HistoryLost() {
				t.Fatalf("%v: got %v", start, err)
			}
		}
	}
	if opened > 2 {
		t.Errorf("a lost position was opened %d times", opened)
	}
	c := watchOpen(t, d, db.Name(), "quiet", ChangesConfig{Start: after(at)})
	insertDoc(t, quiet, 2)
	if rs := events(t, c, 1); key(rs[0]) != 2 {
		t.Fatalf("behind the fresh position came %d", key(rs[0]))
	}
	earliest := watchOpen(t, d, db.Name(), "quiet", ChangesConfig{Start: record.Start{Where: record.Earliest}})
	if rs := events(t, earliest, 1); key(rs[0]) != 2 {
		t.Fatalf("from the earliest on came %d", key(rs[0]))
	}
}

// rolled reports whether the oplog's oldest entry is behind p.
func rolled(t testing.TB, db *mongo.Database, p record.Position) bool {
	t.Helper()
	var first struct{ TS bson.Timestamp }
	err := db.Client().Database("local").Collection("oplog.rs").FindOne(t.Context(), bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}})).Decode(&first)
	if err != nil {
		return false // it went while it was read
	}
	return record.Timestamp{T: first.TS.T, I: first.TS.I}.Compare(p.TS) > 0
}
