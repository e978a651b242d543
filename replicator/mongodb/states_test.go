package mongodb_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/replicator/statefile"
	"github.com/seed-12ef14e5/capstan/scope"
)

func stateFile(t testing.TB, path string) *statefile.Store {
	t.Helper()
	s, err := statefile.New(path, statefile.Config{Lease: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestARouteStoppedInTheCopyGoesOnFromItsFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Window: 50, Readers: 1})
	path := filepath.Join(t.TempDir(), "routes.json")
	w.states = stateFile(t, path)
	w.insert("orders", many(0, 5000)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.cfg.Hooks.OnCopied = func(int64, int64, int64) {
		if n, _ := w.dst.Collection("orders").EstimatedDocumentCount(ctx); n > 1000 {
			cancel()
		}
	}
	route := w.open()
	if err := route.Link.Run(ctx); err != nil {
		t.Fatal(err)
	}
	before := route.Link.Status().Copy.Scanned
	if before < 1000 || before >= 5000 {
		t.Fatalf("the first run looked at %d documents", before)
	}
	st, err := stateFile(t, path).Load(t.Context(), w.route)
	if err != nil || st.Phase != replicator.PhaseCopying || !st.Clean || st.Target.SetID == "" {
		t.Fatalf("the file has %+v, %v", st, err)
	}
	there := store(t, w.set, mongodb.StoreConfig{})
	if _, err := there.Load(t.Context(), w.route); !errors.Is(err, replicator.ErrNoRoute) {
		t.Errorf("the destination has a checkpoint too: %v", err)
	}
	w.insert("orders", many(9000, 9100)...) // between the runs
	w.cfg.Hooks = replicator.Hooks{}
	w.states = stateFile(t, path)
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.equal("orders")
	if got := r.Status().Copy.Scanned; got < 5000 || got > 5100 {
		t.Errorf("both runs looked at %d documents, want each of 5000 (and of 100 newer ones) at most once", got)
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	w.insert("orders", many(9100, 9200)...)
	r = w.start()
	r.phase(replicator.PhaseLive)
	w.equal("orders")
}

// A checkpoint at the destination cannot be used for another one. In a file it could: the other one would get the changes only.
func TestACheckpointInAFileIsRefusedForAnotherDestination(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]*mongotest.Deployment{"a standalone server": mongotest.Standalone(t), "another set": mongotest.Own(t, localcluster.Config{})} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, replicator.Config{Until: replicator.UntilLive})
			w.states = stateFile(t, filepath.Join(t.TempDir(), "routes.json"))
			w.insert("orders", many(0, 100)...)
			if err := w.open().Link.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			to := other.DB(t)
			run := func(route string, resync bool) error {
				cfg := w.cfg
				cfg.Scope.Rename, cfg.Resync = []scope.Rename{{From: w.src.Name() + ".*", To: w.dst.Name() + ".*"}}, resync
				r, err := mongodb.OpenRoute(w.set.Options(), other.Options(), route, cfg, mongodb.RouteConfig{States: w.states})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = r.Close(t.Context()) }()
				return r.Link.Run(t.Context())
			}
			for _, resync := range []bool{false, true} {
				err := run(w.route, resync)
				if m, ok := errors.AsType[*replicator.MismatchError](err); !ok || m.What != replicator.MismatchTarget || m.Stored == m.Now {
					t.Errorf("resync %v: %v", resync, err)
				}
			}
			// The same names at two destinations are no overlap, so under another name it goes.
			if err := run(w.route+"2", false); err != nil {
				t.Error(err)
			}
			if n, err := to.Client().Database(w.dst.Name()).Collection("orders").CountDocuments(t.Context(), d()); err != nil || n != 100 {
				t.Errorf("%d documents, %v", n, err)
			}
			if err := to.Client().Database(w.dst.Name()).Drop(t.Context()); err != nil {
				t.Error(err)
			}
			if err := w.open().Link.Run(t.Context()); err != nil { // the first is as it was
				t.Error(err)
			}
		})
	}
}

func TestARouteWithAFileSeesThoseAtTheDestination(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Until: replicator.UntilLive, Existing: replicator.MergeExisting})
	w.insert("orders", many(0, 10)...)
	if err := w.open().Link.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.route += "2"
	w.states = stateFile(t, filepath.Join(t.TempDir(), "routes.json"))
	if err := w.open().Link.Run(t.Context()); !errors.Is(err, replicator.ErrOverlap) {
		t.Errorf("got %v", err)
	}
}
