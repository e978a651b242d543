package mongodb_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// seed returns the seed of a random test: CAPSTAN_SEED, or a new one. It is printed.
func seed(t testing.TB) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(os.Getenv("CAPSTAN_SEED"), 10, 64)
	if err != nil {
		n = rand.Uint64()
	}
	t.Logf("CAPSTAN_SEED=%d", n)
	return n
}

// applier applies random operations to its own part of the keys, and knows what must come of them.
type applier struct {
	worker, workers, keys int
	rnd                   *rand.Rand
	want                  map[int32]bson.Raw
	version               int32
}

func (a *applier) batch(t testing.TB) []replicator.Op {
	var ops []replicator.Op
	for k := a.worker; k < a.keys; k += a.workers {
		id := int32(k)
		if a.rnd.IntN(3) == 0 {
			continue
		}
		a.version++
		doc := raw(t, d("_id", id, "v", a.version, "pad", string(make([]byte, a.rnd.IntN(200)))))
		verb := replicator.Put
		switch exists := a.want[id] != nil; {
		case a.rnd.IntN(3) == 0:
			verb = replicator.Remove
		case !exists && a.rnd.IntN(4) > 0:
			verb = replicator.Insert
		}
		if verb == replicator.Remove {
			delete(a.want, id)
		} else {
			a.want[id] = doc
		}
		ops = append(ops, op(verb, doc))
	}
	return ops
}

// trouble makes faults until ctx ends, and mends each.
func trouble(ctx context.Context, c *localcluster.Cluster, rnd *rand.Rand, faults *atomic.Int64) error {
	wait := func(most time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rnd.Int64N(int64(most))) + 50*time.Millisecond):
		}
	}
	for ctx.Err() == nil {
		wait(time.Second)
		mend := context.WithoutCancel(ctx)
		var m localcluster.Member
		var err error
		switch rnd.IntN(4) {
		case 0:
			m, err = c.StepDown(ctx, "primary")
		case 1:
			if m, err = c.Kill(ctx, "primary"); err == nil {
				wait(2 * time.Second)
				_, err = c.Start(mend, m.Name)
			}
		case 2: // longer than an election takes
			if m, err = c.Freeze(ctx, "primary"); err == nil {
				wait(4 * time.Second)
				_, err = c.Thaw(mend, m.Name)
			}
		default: // shorter: what lies in its sockets is executed late
			if m, err = c.Freeze(ctx, "primary"); err == nil {
				wait(800 * time.Millisecond)
				_, err = c.Thaw(mend, m.Name)
			}
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		faults.Add(1)
	}
	return nil
}

// TestWritesSurviveEveryFaultExactly applies random operations while primaries step down, die and freeze: what is
// there in the end is what the last operation on each document left (I1, I8).
func TestWritesSurviveEveryFaultExactly(t *testing.T) {
	t.Parallel()
	n := seed(t)
	dep := mongotest.Own(t, localcluster.Config{Members: 3})
	tg := target(t, dep, mongodb.TargetConfig{Operations: 50, Failover: failover.Config{AttemptTimeout: 400 * time.Millisecond, Budget: 2 * time.Minute}})
	if _, err := tg.Fence(t.Context(), nil, 3); err != nil {
		t.Fatal(err)
	}
	const workers, keys, rounds = 3, 600, 40
	ns := record.Namespace{DB: "model", Coll: "c"}
	ctx, stop := context.WithCancel(t.Context())
	var faults atomic.Int64
	troubled := make(chan error, 1)
	go func() { troubled <- trouble(ctx, dep.Cluster, rand.New(rand.NewPCG(n, 0)), &faults) }()
	appliers := make([]*applier, workers)
	g, gctx := errgroup.WithContext(t.Context())
	for w := range appliers {
		a := &applier{worker: w, workers: workers, keys: keys, rnd: rand.New(rand.NewPCG(n, uint64(w+1))), want: map[int32]bson.Raw{}}
		appliers[w] = a
		g.Go(func() error {
			for r := 0; r < rounds || faults.Load() < 5; r++ {
				refusals, err := tg.Apply(gctx, a.worker, ns, a.batch(t), false)
				if err != nil {
					return fmt.Errorf("worker %d: %w", a.worker, err)
				}
				if len(refusals) > 0 {
					return fmt.Errorf("worker %d: refusals: %v", a.worker, refusals)
				}
			}
			return nil
		})
	}
	copied := record.Namespace{DB: "model", Coll: "copied"}
	copies := make([]bson.Raw, 8000)
	for i := range copies {
		copies[i] = raw(t, d("_id", int32(i), "pad", string(make([]byte, 100))))
	}
	g.Go(func() error {
		for at := 0; at < len(copies); at += 500 {
			refusals, err := tg.Insert(gctx, copied, copies[at:at+500], at%1000 == 0)
			if err != nil {
				return fmt.Errorf("copy: %w", err)
			}
			if len(refusals) > 0 {
				return fmt.Errorf("copy: refusals: %v", refusals)
			}
		}
		return nil
	})
	err := g.Wait()
	stop()
	if terr := <-troubled; terr != nil {
		t.Error("the faults: ", terr)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d faults", faults.Load())
	client, err := mongo.Connect(dep.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(t.Context()) }()
	want := map[record.ID]bson.Raw{}
	for _, a := range appliers {
		for _, doc := range a.want {
			want[record.IDOf(doc.Lookup("_id"))] = doc
		}
	}
	equal(t, storedByID(t, client.Database(ns.DB).Collection(ns.Coll)), want)
	want = map[record.ID]bson.Raw{}
	for _, doc := range copies {
		want[record.IDOf(doc.Lookup("_id"))] = doc
	}
	equal(t, storedByID(t, client.Database(copied.DB).Collection(copied.Coll)), want)
}

func equal(t testing.TB, have, want map[record.ID]bson.Raw) {
	t.Helper()
	if len(have) != len(want) {
		t.Errorf("%d documents, want %d", len(have), len(want))
	}
	for id, doc := range want {
		if !bytes.Equal(have[id], doc) {
			t.Errorf("%v: got %v, want %v", id, have[id], doc)
		}
	}
	for id := range have {
		if want[id] == nil {
			t.Errorf("%v is there and must not be", id)
		}
	}
}

// TestASaveSurvivesFaults saves while primaries step down and freeze: nobody is fenced off by himself, and no revision is lost.
func TestASaveSurvivesFaults(t *testing.T) {
	t.Parallel()
	n := seed(t)
	dep := mongotest.Own(t, localcluster.Config{Members: 3})
	s, err := mongodb.NewStore(target(t, dep, mongodb.TargetConfig{Failover: failover.Config{AttemptTimeout: 400 * time.Millisecond, Budget: 2 * time.Minute}}), mongodb.StoreConfig{})
	if err != nil {
		t.Fatal(err)
	}
	st := acquire(t, s, "r", "one")
	ctx, stop := context.WithCancel(t.Context())
	var faults atomic.Int64
	troubled := make(chan error, 1)
	go func() { troubled <- trouble(ctx, dep.Cluster, rand.New(rand.NewPCG(n, 0)), &faults) }()
	rnd := rand.New(rand.NewPCG(n, 1))
	last := st.Revision
	for i := int64(1); faults.Load() < 6; i++ {
		st.Totals.Applied = i
		// Some calls end before their outcome is known.
		cctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rnd.IntN(2000))*time.Millisecond)
		next, err := s.Save(cctx, st)
		cancel()
		if err == nil {
			if next.Revision <= last {
				t.Errorf("revision %d after %d", next.Revision, last)
			}
			st, last = next, next.Revision
			continue
		}
		if cctx.Err() == nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-troubled; err != nil {
		t.Error("the faults: ", err)
	}
	st.Totals.Applied = -1
	if st, err = s.Save(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Load(t.Context(), "r"); err != nil || got.Revision != st.Revision || got.Totals.Applied != -1 {
		t.Errorf("%+v, %v", got, err)
	}
}
