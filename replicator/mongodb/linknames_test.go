package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// rewind takes a route that does not run back to a position, with what the destination has now: everything comes again.
func (w *world) rewind(store replicator.Store, to record.Position) {
	w.Helper()
	now, err := store.Acquire(w.Context(), w.route, "a test", true)
	must(w, err)
	now.Position = to
	now, err = store.Save(w.Context(), now)
	must(w, err)
	must(w, store.Release(w.Context(), now))
}

// TestNamesThatWereUsedAgainConverge: creations of collections that have gone come again, when others have their names (trap 3.7).
func TestNamesThatWereUsedAgainConverge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	ctx := t.Context()
	w.insert("a", many(0, 10)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	must(t, r.end())
	store := w.open().Store
	old, err := store.Load(ctx, w.route)
	must(t, err)
	r = w.start()
	drop := func(name string) { w.run(w.src, d("drop", name)) }
	for i := range 3 {
		drop("a")
		w.run(w.src, d("create", "a"))
		w.insert("a", many(100*i, 100*i+10)...)
	}
	w.run(w.src, d("createIndexes", "a", "indexes", bson.A{d("key", d("n", 1), "name", "n")}))
	w.run(w.src, d("create", "v", "viewOn", "a", "pipeline", bson.A{}))
	drop("v")
	w.run(w.src, d("create", "v"))
	w.insert("v", many(0, 10)...)
	for range 2 {
		w.insert("x", many(0, 20)...)
		w.run(w.src.Client().Database("admin"), d("renameCollection", w.src.Name()+".x", "to", w.src.Name()+".y", "dropTarget", true))
		w.insert("x", many(50, 60)...)
		drop("x")
	}
	w.run(w.src, d("create", "z", "viewOn", "a", "pipeline", bson.A{}))
	drop("z")
	w.insert("zz", many(0, 5)...)
	w.run(w.src.Client().Database("admin"), d("renameCollection", w.src.Name()+".zz", "to", w.src.Name()+".z"))
	w.run(w.src, d("create", "x")) // empty: nothing in the destination tells it from one that is to be made
	w.run(w.src, d("createIndexes", "x", "indexes", bson.A{d("key", d("n", 1), "name", "n")}))
	all := []string{"a", "v", "x", "y", "z"}
	same := func() {
		t.Helper()
		r.phase(replicator.PhaseLive)
		w.equal(all...)
		w.await("the index of x", func() bool { return w.indexed("x", "n") })
		if got := sorted(w.names(w.dst)); got != "a v x y z" || !w.indexed("a", "n") {
			t.Errorf("collections %s, want a v x y z; index %t", got, w.indexed("a", "n"))
		}
		must(t, r.end())
	}
	same()
	w.rewind(store, old.Position)
	r = w.start()
	w.await("it has caught up", func() bool {
		s := r.Status()
		return s.LagSeconds != nil && *s.LagSeconds < 1 && s.Phase == replicator.PhaseLive
	})
	w.insert("y", d("_id", "last"))
	same()
}

// parts are what a route is made of, for a test that puts something of its own between them.
func (w *world) parts() (*mongodb.Source, *mongodb.Target, *mongodb.Store) {
	w.Helper()
	source, err := mongodb.NewSource(w.set.Options(), mongodb.SourceConfig{})
	must(w, err)
	w.Cleanup(func() { must(w, source.Close(context.Background())) })
	target, err := mongodb.NewTarget(w.to.Options(), mongodb.TargetConfig{})
	must(w, err)
	w.Cleanup(func() { must(w, target.Close(context.Background())) })
	store, err := mongodb.NewStore(target, mongodb.StoreConfig{Lease: 3 * time.Second})
	must(w, err)
	return source, target, store
}

// restless is a source in which something happens just before its collections are listed for the first time.
type restless struct {
	*mongodb.Source
	once   sync.Once
	happen func()
}

func (s *restless) Collections(ctx context.Context, set *scope.Set) ([]replicator.Collection, error) {
	s.once.Do(s.happen)
	return s.Source.Collections(ctx, set)
}

// TestNamesThatChangeWhileTheyAreListedConverge: the position and the clock are taken before the listing, so that the listing shows what is
// told by changes afterwards, and sometimes what comes after those.
func TestNamesThatChangeWhileTheyAreListedConverge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	ctx, admin := t.Context(), w.src.Client().Database("admin")
	w.insert("a", many(0, 10)...)
	w.insert("b", many(10, 20)...)
	w.insert("c", many(20, 30)...)
	rename := func(from, to string) {
		w.run(admin, d("renameCollection", w.src.Name()+"."+from, "to", w.src.Name()+"."+to))
	}
	source, target, store := w.parts()
	busy := &restless{Source: source, happen: func() {
		rename("a", "x") // there and back, and another one gets the name between
		rename("x", "a")
		w.insert("x", many(100, 110)...)
		w.insert("y", many(200, 210)...) // goes again, and another one gets its name
		w.run(w.src, d("drop", "y"))
		rename("b", "y")
		rename("c", "b") // a circle
		rename("y", "c")
		w.insert("y", many(300, 310)...)
	}}
	link, err := replicator.New(w.route, busy, target, store, mongodb.NewLetters(target), w.cfg)
	must(t, err)
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- link.Run(run) }()
	w.await("live", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the route ended: %v", err)
		default:
		}
		return link.Status().Phase == replicator.PhaseLive
	})
	for _, name := range []string{"a", "b", "c", "x", "y"} {
		w.insert(name, d("_id", "last"))
	}
	w.equal("a", "b", "c", "x", "y")
	if got := sorted(w.names(w.dst)); got != "a b c x y" {
		t.Errorf("collections %s, want a b c x y", got)
	}
	stop()
	must(t, <-ended)
}

// crashTarget is a destination for a process that ends after the destination has renamed a collection, and before it has stored that.
type crashTarget struct {
	*mongodb.Target
	gone chan struct{}
}

var errCrashed = errors.New("this process has ended")

func (c *crashTarget) Change(ctx context.Context, change replicator.DDL, hold bool) ([]replicator.Held, []string, error) {
	if ended(c.gone) {
		return nil, nil, errCrashed
	}
	held, notes, err := c.Target.Change(ctx, change, hold)
	if change.Op == "rename" && err == nil {
		close(c.gone)
		return nil, nil, errCrashed
	}
	return held, notes, err
}

// crashStore stores nothing from then on.
type crashStore struct {
	replicator.Store
	gone chan struct{}
}

func (c *crashStore) Save(ctx context.Context, s replicator.State) (replicator.State, error) {
	if ended(c.gone) {
		return s, errCrashed
	}
	return c.Store.Save(ctx, s)
}

func (c *crashStore) Release(ctx context.Context, s replicator.State) error {
	if ended(c.gone) {
		return errCrashed
	}
	return c.Store.Release(ctx, s)
}

func ended(gone chan struct{}) bool {
	select {
	case <-gone:
		return true
	default:
		return false
	}
}

// TestARenameThatWasNotStoredComesAgain: the changes before it, which are not stored either, do not go to the old name, and what it replaced is
// not dropped again, as that would be the renamed one.
func TestARenameThatWasNotStoredComesAgain(t *testing.T) {
	t.Parallel()
	for _, over := range []bool{false, true} {
		t.Run(fmt.Sprint("over ", over), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, replicator.Config{})
			w.cfg.SaveEvery = time.Hour // what is stored is stored because of a change of a collection
			w.insert("a", many(0, 10)...)
			if over {
				w.insert("b", many(50, 60)...)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			source, target, store := w.parts()
			gone := make(chan struct{})
			link, err := replicator.New(w.route, source, &crashTarget{target, gone}, &crashStore{store, gone}, mongodb.NewLetters(target), w.cfg)
			must(t, err)
			result := make(chan error, 1)
			go func() { result <- link.Run(ctx) }()
			w.await("live", func() bool { return link.Status().Phase == replicator.PhaseLive })
			w.insert("a", many(100, 110)...)
			w.await("the insert is there", func() bool { return w.difference("a", nil) == "" })
			w.run(w.src.Client().Database("admin"), d("renameCollection", w.src.Name()+".a", "to", w.src.Name()+".b", "dropTarget", over))
			w.await("the rename", func() bool { return ended(gone) })
			stop()
			<-result
			w.cfg.SaveEvery = 100 * time.Millisecond
			r := w.start()
			r.phase(replicator.PhaseLive)
			w.insert("b", d("_id", "last"))
			w.equal("b")
			if got := sorted(w.names(w.dst)); got != "b" {
				t.Errorf("collections %s, want b", got)
			}
		})
	}
}
