package verify_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/verify"
)

// change is one write: the document's new content, nil for none.
type change struct {
	id  any
	doc bson.D
	at  time.Time
}

func (c change) apply(ctx context.Context, to *mongo.Collection) error {
	var err error
	if c.doc == nil {
		_, err = to.DeleteOne(ctx, bson.D{{Key: "_id", Value: c.id}})
	} else {
		_, err = to.ReplaceOne(ctx, bson.D{{Key: "_id", Value: c.id}}, c.doc, options.Replace().SetUpsert(true))
	}
	return err
}

// lag is how far the copier of a live test is behind.
const lag = 200 * time.Millisecond

// live writes to the source, and a naive copier makes the same changes at the target a while later, until stop is called, which
// waits for both.
func live(t *testing.T, s sides, next func(i int) change) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	queue := make(chan change, 100_000)
	var g errgroup.Group
	g.Go(func() error {
		defer close(queue)
		for i := 0; ctx.Err() == nil; i++ {
			c := next(i)
			if err := c.apply(ctx, s.source.Collection("c")); err != nil {
				return err
			}
			c.at = time.Now()
			queue <- c
		}
		return nil
	})
	g.Go(func() error {
		for c := range queue {
			select {
			case <-time.After(time.Until(c.at.Add(lag))):
			case <-ctx.Done():
				return nil
			}
			if err := c.apply(ctx, s.target.Collection("c")); err != nil {
				return err
			}
		}
		return nil
	})
	return func() {
		cancel()
		for range queue { // the copier may have ended first
		}
		if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestALiveCopyIsEqualWhileItFollows(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	const n = 20_000
	insert(t, "c", numbered(n), s.source, s.target)
	stop := live(t, s, func(i int) change {
		id := rand.IntN(n + n/10) // some are new
		if rand.IntN(4) == 0 {
			return change{id: id}
		}
		return change{id: id, doc: bson.D{{Key: "_id", Value: id}, {Key: "version", Value: i}}}
	})
	cfg := s.config()
	cfg.Quiet, cfg.Settle, cfg.Range = false, 20*time.Second, 3000
	for range 3 {
		expect(t, s.run(t, cfg))
	}
	stop()
}

func TestALiveRunStillFindsWhatDiffersAndNamesWhatChangesAllTheTime(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	insert(t, "c", numbered(3000), s.source, s.target)
	for id, doc := range map[int]bson.D{17: nil, 18: {{Key: "_id", Value: 18}, {Key: "other", Value: true}}, 4000: {{Key: "_id", Value: 4000}}} {
		do(t, change{id: id, doc: doc}.apply(t.Context(), s.target.Collection("c")))
	}
	stop := live(t, s, func(i int) change {
		return change{id: 500, doc: bson.D{{Key: "_id", Value: 500}, {Key: "version", Value: i}}}
	})
	cfg := s.config()
	cfg.Quiet, cfg.Settle = false, 2*time.Second
	expect(t, s.run(t, cfg), `missing {"$numberInt":"17"}`, `different {"$numberInt":"18"}`, `extra {"$numberInt":"4000"}`, `changing {"$numberInt":"500"}`)
	stop()
}

// interrupted runs a comparison that ends after some windows, as a crash would end it, and returns how many documents were
// looked at.
func interrupted(t *testing.T, s sides, cfg verify.Config, windows int64) int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var n, documents atomic.Int64
	cfg.Hooks.OnWindow = func(_ record.Namespace, d, _ int64) {
		documents.Add(d)
		if n.Add(1) == windows {
			cancel()
		}
	}
	v, err := verify.New(s.from.Options(), s.to.Options(), cfg)
	do(t, err)
	if _, err := v.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("the run was not interrupted: %v", err)
	}
	return documents.Load()
}

func TestAnInterruptedRunGoesOnBehindItsLastWindow(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	want, equal := plant(t, r, 6000, s.source.Collection("c"), s.target.Collection("c"), true, false)
	cfg := s.config()
	cfg.Progress = filepath.Join(t.TempDir(), "progress")
	cfg.Range, cfg.Window, cfg.Workers, cfg.MaxDifferences = 700, 5000, 1, 1_000_000
	first := interrupted(t, s, cfg, 30)
	first += interrupted(t, s, cfg, 20)
	var second atomic.Int64
	cfg.Hooks.OnWindow = func(_ record.Namespace, d, _ int64) { second.Add(d) }
	rep := s.run(t, cfg)
	expect(t, rep, want...)
	n := rep.Namespaces[0]
	if !rep.Resumed || n.Equal != equal || first == 0 {
		t.Errorf("resumed %v, %d equal, want %d, after %d documents", rep.Resumed, n.Equal, equal, first)
	}
	// What a killed run repeats is what it had not saved: at the end of a run that was asked to stop, nothing.
	if all := first + second.Load(); all != n.SourceDocuments {
		t.Errorf("%d documents were looked at in three runs, of %d", all, n.SourceDocuments)
	}
	if _, err := os.Stat(cfg.Progress); err == nil {
		t.Error("the file is left over")
	}
}

func TestTheProgressOfAnotherComparisonIsRefused(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	insert(t, "c", numbered(5000), s.source, s.target)
	cfg := s.config()
	cfg.Progress, cfg.Window = filepath.Join(t.TempDir(), "progress"), 5000
	interrupted(t, s, cfg, 3)
	other := cfg
	other.Scope.Exclude = []string{"x.*"}
	v, err := verify.New(s.from.Options(), s.to.Options(), other)
	do(t, err)
	if _, err := v.Run(t.Context()); !errors.As(err, new(*verify.ProgressError)) {
		t.Errorf("got %v", err)
	}
	do(t, os.WriteFile(cfg.Progress, []byte("no progress"), 0o600))
	v, err = verify.New(s.from.Options(), s.to.Options(), cfg)
	do(t, err)
	if _, err := v.Run(t.Context()); !errors.As(err, new(*verify.ProgressError)) {
		t.Errorf("got %v", err)
	}
}

// TestAReplacedCollectionIsComparedFromTheStart: progress belongs to a collection and not to its name.
func TestAReplacedCollectionIsComparedFromTheStart(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	insert(t, "c", numbered(5000), s.source, s.target)
	cfg := s.config()
	cfg.Progress, cfg.Window, cfg.Workers = filepath.Join(t.TempDir(), "progress"), 5000, 1
	interrupted(t, s, cfg, 8)
	do(t, s.target.Collection("c").Drop(t.Context()))
	insert(t, "c", numbered(5000)[1:], s.target)
	expect(t, s.run(t, cfg), `missing {"$numberInt":"0"}`)
}

// TestElectionsAndFrozenServersOnEitherSideOnlySlowARunDown breaks both sides at moments that are not chosen.
func TestElectionsAndFrozenServersOnEitherSideOnlySlowARunDown(t *testing.T) {
	t.Parallel()
	s := sides{from: mongotest.Own(t, localcluster.Config{Members: 3}), to: mongotest.Own(t, localcluster.Config{Members: 1})}
	s.source, s.target = s.from.DB(t), s.to.DB(t)
	docs := numbered(60_000)
	insert(t, "c", docs, s.source)
	insert(t, "c", docs[1:], s.target)
	capped := options.CreateCollection().SetCapped(true).SetSizeInBytes(16 << 20)
	for _, db := range []*mongo.Database{s.source, s.target} {
		do(t, db.CreateCollection(t.Context(), "d", capped))
	}
	insert(t, "d", docs, s.source, s.target)
	cfg := s.config()
	cfg.Window, cfg.AttemptTimeout, cfg.Workers, cfg.Patience = 20_000, 3*time.Second, 1, 3*time.Minute
	harm := breaker{t: t, sides: s}
	cfg.Hooks.OnWindow = func(ns record.Namespace, _, _ int64) { harm.window(ns.Coll) }
	rep := s.run(t, cfg)
	harm.mended.Wait()
	expect(t, rep, `c missing {"$numberInt":"0"}`)
	if harm.done != 6 {
		t.Errorf("only %d things were broken in %d and %d windows", harm.done, harm.windows["c"], harm.windows["d"])
	}
}

// breaker breaks a side after some windows, and mends it a while later. window is called by one goroutine at a time.
type breaker struct {
	t       *testing.T
	sides   sides
	windows map[string]int
	done    int
	mended  sync.WaitGroup
}

func (b *breaker) window(coll string) {
	if b.windows == nil {
		b.windows = make(map[string]int)
	}
	b.windows[coll]++
	source, target := b.sides.from, b.sides.to
	harm := map[string]func() error{
		"c10": func() error { _, err := source.Cluster.StepDown(b.t.Context(), "primary"); return err },
		"c20": func() error { return b.freeze(target, 5*time.Second) },
		"c30": func() error { return b.freeze(source, 10*time.Second) },
		"c40": func() error { return b.kill(source) },
		"d2":  func() error { _, err := source.Cluster.StepDown(b.t.Context(), "primary"); return err },
		"d4":  func() error { return b.freeze(target, 5*time.Second) },
	}[fmt.Sprint(coll, b.windows[coll])]
	if harm == nil {
		return
	}
	b.done++
	if err := harm(); err != nil {
		b.t.Errorf("harm %d: %v", b.done, err)
	}
}

// freeze stops the process of a primary for a while.
func (b *breaker) freeze(d *mongotest.Deployment, length time.Duration) error {
	m, err := d.Cluster.Freeze(b.t.Context(), "primary")
	b.mended.Go(func() {
		time.Sleep(length)
		if _, err := d.Cluster.Thaw(b.t.Context(), m.Name); err != nil {
			b.t.Error(err)
		}
	})
	return err
}

// kill ends the process of a primary, and starts it again.
func (b *breaker) kill(d *mongotest.Deployment) error {
	m, err := d.Cluster.Kill(b.t.Context(), "primary")
	b.mended.Go(func() {
		if _, err := d.Cluster.Start(b.t.Context(), m.Name); err != nil {
			b.t.Error(err)
		}
	})
	return err
}
