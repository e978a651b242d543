package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

func at(cp record.Checkpoint, n int64) record.Checkpoint {
	cp = cp.Clone()
	cp.Position = record.Position{TS: record.Timestamp{T: 1_700_000_000, I: uint32(n)}}
	cp.Marks = map[string]int64{"a.b/1": n}
	return cp
}

// holder saves again and again, as a consumer does, until ctx ends. It never gives up on an error
// other than being fenced.
func holder(ctx context.Context, t *testing.T, m *checkpoint.Mongo, name string, saved *atomic.Int64) error {
	cp, err := m.Acquire(ctx, name, "shop.orders", "holder of "+name)
	for err != nil && ctx.Err() == nil {
		cp, err = m.Acquire(ctx, name, "shop.orders", "holder of "+name)
	}
	var failing int
	for n := int64(1); ctx.Err() == nil; n++ {
		next, err := m.Save(ctx, at(cp, n))
		if _, fenced := errors.AsType[*record.FencedError](err); fenced {
			return err
		}
		if err != nil {
			failing++
			continue // the same revision with a later position, as the contract says
		}
		if stored, err := m.Load(ctx, name); err == nil && stored.Marks["a.b/1"] < n {
			return fmt.Errorf("after Save of %d the store holds %d", n, stored.Marks["a.b/1"])
		}
		cp = next
		saved.Store(n)
	}
	t.Logf("%s: %d saves, %d of them failed", name, saved.Load()+int64(failing), failing)
	return nil
}

// Whatever happens to the servers, a lone holder is never fenced (by its own late writes), what it
// was told is stored stays stored, and nothing goes back.
func TestMongoALoneHolderSurvivesElectionsAndFreezesUnfenced(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("checkpoints")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const holders = 4
	var wg sync.WaitGroup
	saved := make([]atomic.Int64, holders)
	errs := make([]error, holders)
	for i := range holders {
		m, err := checkpoint.NewMongo(coll, doer(t, 500*time.Millisecond), checkpoint.MongoConfig{Timeout: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 { // this one gives up before an election is over, so that outcomes stay unknown
			m, err = checkpoint.NewMongo(coll, doer(t, 200*time.Millisecond), checkpoint.MongoConfig{Timeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() { errs[i] = holder(ctx, t, m, fmt.Sprintf("name %d", i), &saved[i]) })
	}
	progress := func() {
		t.Helper()
		before := make([]int64, holders)
		for i := range before {
			before[i] = saved[i].Load()
		}
		deadline := time.Now().Add(time.Minute)
		for i := range before {
			for saved[i].Load() < before[i]+3 {
				if time.Now().After(deadline) {
					t.Fatalf("no save of holder %d in a minute after %d: %v", i, before[i], errs[i])
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
	fault := func(what string, f func(context.Context, string) (localcluster.Member, error), who string) string {
		t.Helper()
		m, err := f(t.Context(), who)
		if err != nil {
			t.Fatalf("%s %s: %v", what, who, err)
		}
		return m.Name
	}
	progress()
	fault("step down", d.Cluster.StepDown, "primary")
	progress()
	frozen := fault("freeze", d.Cluster.Freeze, "primary")
	progress()
	fault("thaw", d.Cluster.Thaw, frozen) // its late writes come now
	progress()
	killed := fault("kill", d.Cluster.Kill, "primary")
	progress()
	fault("start", d.Cluster.Start, killed)
	progress()
	stop()
	wg.Wait()
	for i := range holders {
		if _, fenced := errors.AsType[*record.FencedError](errs[i]); fenced {
			t.Errorf("holder %d was fenced, by nobody: %v", i, errs[i])
		} else if errs[i] != nil && !errors.Is(errs[i], context.Canceled) {
			t.Errorf("holder %d: %v", i, errs[i])
		}
	}
	m, err := checkpoint.NewMongo(coll, doer(t, 0), checkpoint.MongoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range holders {
		cp, err := m.Load(t.Context(), fmt.Sprintf("name %d", i))
		if err != nil || cp.Marks["a.b/1"] < saved[i].Load() { // I2's other half: what was acknowledged is there
			t.Errorf("holder %d: %d was acknowledged, %v is stored, error %v", i, saved[i].Load(), cp.Marks, err)
		}
	}
}

func TestMongoEveryCallReturnsByItsDeadlineWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{})
	m, err := checkpoint.NewMongo(d.DB(t).Collection("checkpoints"), doer(t, 500*time.Millisecond), checkpoint.MongoConfig{Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := m.Acquire(t.Context(), "a", "shop.orders", "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Cluster.Freeze(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"Save":    func(ctx context.Context) error { _, err := m.Save(ctx, at(cp, 1)); return err },
		"Acquire": func(ctx context.Context) error { _, err := m.Acquire(ctx, "b", "", "one"); return err },
		"Load":    func(ctx context.Context) error { _, err := m.Load(ctx, "a"); return err },
		"List":    func(ctx context.Context) error { _, err := m.List(ctx); return err },
		"Set":     func(ctx context.Context) error { return m.Set(ctx, at(cp, 2)) },
		"Delete":  func(ctx context.Context) error { return m.Delete(ctx, "c") },
	} {
		// Timers of this process say how late it is, so that a loaded machine does not count.
		stop, worst := make(chan struct{}), make(chan time.Duration)
		go func() {
			var late time.Duration
			for {
				const step = 20 * time.Millisecond
				begun := time.Now()
				select {
				case <-time.After(step):
					late = max(late, time.Since(begun)-step)
				case <-stop:
					worst <- late
					return
				}
			}
		}()
		begun := time.Now()
		err := call(t.Context())
		took := time.Since(begun)
		close(stop)
		late := <-worst
		// The call passes through several goroutines that may each be late by that.
		if err == nil || took > 2*time.Second+250*time.Millisecond+4*late { // I8
			t.Errorf("%s: error %v after %s (a timer was %s late)", name, err, took, late)
		}
	}
	if _, err := d.Cluster.Thaw(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		next, err := m.Save(t.Context(), at(cp, 3))
		if err == nil {
			if stored, err := m.Load(t.Context(), "a"); err != nil || stored.Marks["a.b/1"] != 3 || stored.Revision != next.Revision {
				// Set was interrupted too, and may have been stored: then this save is fenced, below.
				t.Errorf("stored %+v, error %v", stored, err)
			}
			return
		}
		if fenced, ok := errors.AsType[*record.FencedError](err); ok {
			if fenced.Owner != checkpoint.OwnerByHand && fenced.Owner != "one" {
				t.Errorf("fenced by %q", fenced.Owner)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestMongoADamagedDocumentIsReportedAndNeverEmpty(t *testing.T) {
	t.Parallel()
	coll := mongotest.Standalone(t).DB(t).Collection("checkpoints")
	m, err := checkpoint.NewMongo(coll, doer(t, 0), checkpoint.MongoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Acquire(t.Context(), "good", "shop.orders", "one"); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]bson.D{
		"position":  {{Key: "position", Value: "tomorrow"}},
		"version":   {{Key: "version", Value: 2}},
		"marks":     {{Key: "marks", Value: "none"}},
		"two marks": {{Key: "marks", Value: bson.A{bson.D{{Key: "src", Value: "a"}, {Key: "seq", Value: 1}}, bson.D{{Key: "src", Value: "a"}, {Key: "seq", Value: 2}}}}},
		"revision":  {{Key: "revision", Value: "x"}},
	} {
		cp, err := m.Acquire(t.Context(), name, "shop.orders", "one")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: name}}, bson.D{{Key: "$set", Value: change}}); err != nil {
			t.Fatal(err)
		}
		for what, call := range map[string]func() error{
			"Load":    func() error { _, err := m.Load(t.Context(), name); return err },
			"Acquire": func() error { _, err := m.Acquire(t.Context(), name, "", "two"); return err },
			"List":    func() error { _, err := m.List(t.Context()); return err },
		} {
			if _, ok := errors.AsType[*checkpoint.CorruptError](call()); !ok {
				t.Errorf("%s of a document with a bad %s: error %v", what, name, call())
			}
		}
		if list, _ := m.List(t.Context()); len(list) == 0 || list[0].Name != "good" {
			t.Errorf("List with a bad %s hides the others: %v", name, list)
		}
		if err := m.Set(t.Context(), at(cp, 5)); err != nil {
			t.Errorf("Set over a bad %s: %v", name, err)
		}
		if got, err := m.Load(t.Context(), name); err != nil || got.Marks["a.b/1"] != 5 {
			t.Errorf("after Set over a bad %s: %+v, error %v", name, got, err)
		}
	}
}

func TestMongoStoresWhatPeopleCanRead(t *testing.T) {
	t.Parallel()
	coll := mongotest.Standalone(t).DB(t).Collection("checkpoints")
	m, err := checkpoint.NewMongo(coll, doer(t, 0), checkpoint.MongoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := m.Acquire(t.Context(), "a", "shop.orders", "one")
	if err != nil {
		t.Fatal(err)
	}
	cp = at(cp, 7)
	cp.Position.ID = record.ObjectID(bson.ObjectID{0xab})
	if _, err := m.Save(t.Context(), cp); err != nil {
		t.Fatal(err)
	}
	filter := bson.D{{Key: "_id", Value: "a"}, {Key: "position", Value: "1700000000.7-ab0000000000000000000000"},
		{Key: "marks", Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "src", Value: "a.b/1"}, {Key: "seq", Value: 7}}}}}}
	if n, err := coll.CountDocuments(t.Context(), filter); err != nil || n != 1 {
		t.Errorf("%d documents match %v, error %v", n, filter, err)
	}
}
