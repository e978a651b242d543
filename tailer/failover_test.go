package tailer

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// T15, T16, T17 and section 4.1: whatever happens to the primary, every message that was acknowledged
// by a majority is delivered once, in the order of its src, and nothing hangs (I1, I4).
func TestFailoversCostNothing(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("s", mongoCollectionMajority())
	makeStream(t, coll, 16<<20, 0)
	var moves atomic.Int64
	hooks := Hooks{OnMove: func(string, string) { moves.Add(1) }}
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Hooks: hooks})
	late := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Visibility: Local, Await: 200 * time.Millisecond})

	ctx, stop := context.WithCancel(t.Context())
	ws := []*writer{{coll: coll, src: "a/1"}, {coll: coll, src: "b/1"}, {coll: coll, src: "c/1"}}
	var sending sync.WaitGroup
	var slowest atomic.Int64 // ms: the set's own outage, as a writer sees it
	defer func() { stop(); sending.Wait() }()
	for i, w := range ws {
		sending.Go(func() {
			for ctx.Err() == nil {
				docs := make([]bson.D, 1+2*i)
				for j := range docs {
					docs[j] = w.doc("")
				}
				begun := time.Now()
				// A batch that is begun is finished: the test checks what was acknowledged.
				if err := w.insert(context.WithoutCancel(ctx), docs); err != nil {
					t.Error(err)
					return
				}
				for took := time.Since(begun).Milliseconds(); ; {
					if old := slowest.Load(); took <= old || slowest.CompareAndSwap(old, took) {
						break
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	a := newTally()
	faults := []func() (localcluster.Member, error){
		func() (localcluster.Member, error) { return d.Cluster.StepDown(t.Context(), "primary") },
		func() (localcluster.Member, error) { return d.Cluster.Kill(t.Context(), "primary") },
		func() (localcluster.Member, error) { return d.Cluster.Freeze(t.Context(), "primary") },
		func() (localcluster.Member, error) { return d.Cluster.Stop(t.Context(), "primary") },
	}
	for i, fault := range faults {
		from := a.last["a/1"]
		a.until(t, s, "a/1", from+50)
		m, err := fault()
		if err != nil {
			t.Fatalf("fault %d: %v", i, err)
		}
		slowest.Store(0)
		from = a.last["a/1"]
		gap := time.Duration(0)
		for last := time.Now(); a.last["a/1"] < from+200; last = time.Now() {
			a.until(t, s, "a/1", a.last["a/1"]+1)
			gap = max(gap, time.Since(last))
		}
		outage := time.Duration(slowest.Load()) * time.Millisecond
		t.Logf("fault %d: longest wait of a writer %s, of the tail %s", i, outage, gap)
		if gap > 2*outage+5*time.Second {
			t.Errorf("fault %d: the tail waited %s, the writers %s", i, gap, outage)
		}
		switch i {
		case 1, 3:
			_, err = d.Cluster.Start(t.Context(), m.Name)
		case 2:
			_, err = d.Cluster.Thaw(t.Context(), m.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stop()
	sending.Wait()
	b := newTally()
	for _, w := range ws {
		a.until(t, s, w.src, w.seq)
		b.until(t, late, w.src, w.seq)
	}
	if len(a.gaps) != 0 || len(b.gaps) != 0 || moves.Load() == 0 {
		t.Fatalf("gaps %v %v, %d moves", a.gaps, b.gaps, moves.Load())
	}
	silent(t, s)
}

// A server that is killed, frozen, or gone while a getMore waits (section 4.1), on a standalone.
func TestAServerThatGoesAwayCostsNothing(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{})
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1"}
	var why reasons
	s := open(t, d, coll, Config{AttemptTimeout: time.Second, Hooks: Hooks{OnReopen: why.add}})
	a := newTally()
	step := func(name string) {
		w.send(t, 10)
		a.until(t, s, "a/1", w.seq)
		t.Log(name, why.all())
	}
	must := func(_ localcluster.Member, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step("start")
	must(d.Cluster.Stop(t.Context(), "m0"))
	must(d.Cluster.Start(t.Context(), "m0"))
	step("restarted")
	must(d.Cluster.Kill(t.Context(), "m0"))
	must(d.Cluster.Start(t.Context(), "m0"))
	step("killed")
	n := len(why.all())
	must(d.Cluster.Freeze(t.Context(), "m0"))
	why.wait(t, n+1) // the watchdog, not TCP
	must(d.Cluster.Thaw(t.Context(), "m0"))
	step("thawed")
	silent(t, s)
	if a.delivered["a/1"] != 40 || len(a.gaps) != 0 {
		t.Fatalf("got %v %v", a.delivered, a.gaps)
	}
	// Close does not wait for a server that does not answer.
	must(d.Cluster.Freeze(t.Context(), "m0"))
	start := time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Fatalf("Close took %s", took)
	}
	must(d.Cluster.Thaw(t.Context(), "m0"))
}

// Rule 3: with several writers a later message can be committed before an earlier one. Small batches of
// many writers and w:1 are where a majority cursor lost messages for good.
func TestMajorityWithManyWritersDeliversEverything(t *testing.T) {
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s", mongoCollectionOne())
	makeStream(t, coll, 16<<20, 0)
	s := open(t, d, coll, Config{Visibility: Majority})
	const n = 300
	var sending sync.WaitGroup
	srcs := []string{"a/1", "b/1", "c/1", "d/1", "e/1", "f/1"}
	for _, src := range srcs {
		sending.Go(func() {
			w := &writer{coll: coll, src: src}
			for range n / 5 {
				w.send(t, 5)
			}
		})
	}
	a := newTally()
	for _, src := range srcs {
		a.until(t, s, src, n)
	}
	sending.Wait()
	for _, src := range srcs {
		if a.delivered[src] != n {
			t.Errorf("%s: %d of %d", src, a.delivered[src], n)
		}
	}
	if len(a.gaps) != 0 {
		t.Errorf("got %v", a.gaps)
	}
}

func TestAFirstConnectionThatFailsIsAnErrorAndNotAWait(t *testing.T) {
	o := mongotest.Standalone(t).Options().SetHosts([]string{"127.0.0.1:1"})
	s, err := New(o, "db", "c", Config{ConnectTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Next(t.Context())
	if !mongoerr.CannotConnect(err) {
		t.Fatalf("got %v", err)
	}
}

func mongoCollectionMajority() *options.CollectionOptionsBuilder {
	return options.Collection().SetWriteConcern(writeconcern.Majority())
}

func mongoCollectionOne() *options.CollectionOptionsBuilder {
	return options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 1})
}
