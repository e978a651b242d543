package mongodb_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// timeOf reads a point of a status.
func timeOf(t testing.TB, p replicator.Point) (ts record.Timestamp) {
	t.Helper()
	if p.Time == "" {
		return ts
	}
	if _, err := fmt.Sscanf(p.Time, "%d.%d", &ts.T, &ts.I); err != nil {
		t.Fatal(err)
	}
	return ts
}

// roll writes to a database of its own until the oplog has nothing of the time any more.
func (w *world) roll(past record.Timestamp) {
	w.Helper()
	busy := w.set.DB(w).Collection("busy")
	pad := make([]byte, 1<<20)
	w.await("the oplog rolls over", func() bool {
		_, err := busy.InsertOne(w.Context(), d("pad", pad))
		must(w, err)
		var first struct{ TS bson.Timestamp }
		err = busy.Database().Client().Database("local").Collection("oplog.rs").FindOne(w.Context(), d(),
			options.FindOne().SetSort(d("$natural", 1))).Decode(&first)
		return err == nil && record.Timestamp{T: first.TS.T, I: first.TS.I}.Compare(past) > 0
	})
}

// TestTheOplogRollsOver: an idle route keeps its place (traps 3.17, 3.22, 3.30), a position that is lost is a state and an error once, with a way on
// (3.18, 3.19), and a first copy that took longer than the oplog reaches back begins again by itself (3.23).
func TestTheOplogRollsOver(t *testing.T) {
	t.Parallel()
	dep := mongotest.Own(t, localcluster.Config{Members: 1, Set: "small", OplogMB: 1,
		ExtraArgs: []string{"--syncdelay", "1"}}) // what no checkpoint of the server has stays in the oplog
	w := newWorldOn(t, dep, replicator.Config{Window: 50})
	w.insert("a", many(0, 200)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	before := timeOf(t, r.Status().Checkpoint)
	w.roll(before)
	w.await("the checkpoint moves while the route is idle", func() bool { return timeOf(t, r.Status().Checkpoint).Compare(before) > 0 })
	// The server still cuts its oplog for what was written: the route ends with a checkpoint that is behind nothing of it.
	idle := timeOf(t, r.Status().Read)
	w.update("a", 2, d("$set", d("last", 1)))
	w.await("the checkpoint passes what rolled the oplog", func() bool { return timeOf(t, r.Status().Checkpoint).Compare(idle) > 0 && w.difference("a", nil) == "" })
	must(t, r.end())
	w.insert("a", many(200, 210)...)
	r = w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a")
	if s := r.Status(); s.Copy.Scanned != 200 {
		t.Errorf("it was copied again: %d documents looked at", s.Copy.Scanned)
	}
	must(t, r.end())
	w.lose(r)
	t.Run("and a copy is late", func(t *testing.T) {
		w := newWorldOn(t, dep, replicator.Config{Window: 50, Readers: 1})
		w.insert("a", many(0, 200)...)
		var once sync.Once
		var r *runningLink
		started := make(chan struct{})
		w.cfg.Hooks.OnCopied = func(int64, int64, int64) {
			once.Do(func() {
				<-started
				w.update("a", 3, d("$set", d("lost", 1)))
				w.roll(timeOf(t, r.Status().Read))
			})
		}
		r = w.start()
		close(started)
		r.phase(replicator.PhaseLive)
		w.equal("a")
		must(t, r.end())
		if s, err := w.open().Store.Load(t.Context(), w.route); err != nil || s.Copies != 2 || !s.WasLive {
			t.Errorf("%d copies, live %v, %v", s.Copies, s.WasLive, err)
		}
	})
}

// lose lets the oplog roll over the position of a route that has ended, in every way that a route is run.
func (w *world) lose(r *runningLink) {
	w.Helper()
	roll := func(id int) {
		_, err := w.src.Collection("a").DeleteOne(w.Context(), d("_id", id))
		must(w, err)
		w.roll(timeOf(w, r.Status().Checkpoint))
	}
	roll(1)
	for range 2 { // and it is still so the next time
		r = w.start()
		<-r.done
		if lost := (*replicator.LostError)(nil); !errors.As(r.err, &lost) || errors.As(r.err, new(*replicator.FailedError)) {
			w.Fatalf("got %v, want *LostError", r.err)
		}
		if s := r.Status(); s.Phase != replicator.PhaseLostHistory || s.Reason == "" {
			w.Errorf("phase %s, reason %q", s.Phase, s.Reason)
		}
		if s, err := w.open().Store.Load(w.Context(), w.route); err != nil || s.Phase != replicator.PhaseLostHistory || !s.Clean {
			w.Errorf("stored: %s, clean %v, %v", s.Phase, s.Clean, err)
		}
	}
	w.cfg.Stay = true
	r = w.start()
	r.phase(replicator.PhaseLostHistory)
	if s := r.Status(); s.Reason == "" {
		w.Error("no reason is said")
	}
	if err := r.Resume(w.Context()); err == nil {
		w.Error("a route without a position resumes")
	}
	must(w, r.Resync(w.Context()))
	r.phase(replicator.PhaseLive)
	w.equal("a")
	must(w, r.end())
	roll(2)
	w.cfg.Stay, w.cfg.OnLost = false, replicator.ResyncOnLost
	var mu sync.Mutex
	copies := 0
	w.cfg.Hooks.OnPhase = func(p replicator.Phase) {
		mu.Lock()
		defer mu.Unlock()
		if p == replicator.PhaseCopying {
			copies++
		}
	}
	r = w.start()
	w.equal("a")
	r.phase(replicator.PhaseLive)
	must(w, r.end())
	if mu.Lock(); copies != 1 {
		w.Errorf("it was copied %d times", copies)
	}
	mu.Unlock()
}

// TestTheCheckpointDoesNotPassARefusedDocument: traps 3.5 (other workers have succeeded meanwhile) and 3.8. A route that may set nothing aside ends before the checkpoint passes it.
func TestTheCheckpointDoesNotPassARefusedDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{MaxLetters: -1})
	w.insert("a", many(0, 10)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.run(w.dst, d("createIndexes", "a", "indexes", bson.A{d("key", d("k", 1), "name", "k", "unique", true, "sparse", true)}))
	w.insert("a", d("_id", "x", "k", 1), d("_id", "y", "k", 1))
	w.insert("a", many(20, 30)...)
	for range 2 {
		<-r.done
		if failed := (*replicator.FailedError)(nil); !errors.As(r.err, &failed) || !errors.Is(r.err, replicator.ErrTooManyLetters) {
			t.Fatalf("got %v, want ErrTooManyLetters", r.err)
		}
		if s := r.Status(); s.Phase != replicator.PhaseFailed || s.Reason == "" {
			t.Errorf("phase %s, reason %q", s.Phase, s.Reason)
		}
		r = w.start() // it is still refused
	}
	<-r.done
	w.run(w.dst, d("dropIndexes", "a", "index", "k"))
	r = w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a")
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}

// TestARouteThatIsBehindSaysSo: trap 3.27. A route that was live and ended is not complete: it catches up first, and cannot be finalized before.
func TestARouteThatIsBehindSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", many(0, 50)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	must(t, r.Pause(t.Context()))
	w.insert("a", many(50, 100)...)
	if err := r.Finalize(t.Context()); !errors.Is(err, replicator.ErrNotLive) {
		t.Errorf("a paused route is finalized: %v", err)
	}
	must(t, r.end())
	w.insert("a", many(100, 150)...)
	var mu sync.Mutex
	var phases []replicator.Phase
	w.cfg.Hooks.OnPhase = func(p replicator.Phase) {
		mu.Lock()
		defer mu.Unlock()
		phases = append(phases, p)
	}
	r = w.start()
	r.phase(replicator.PhasePaused)
	if err := r.Finalize(t.Context()); !errors.Is(err, replicator.ErrNotLive) {
		t.Errorf("a paused route is finalized: %v", err)
	}
	must(t, r.Resume(t.Context()))
	r.phase(replicator.PhaseLive)
	if diff := w.difference("a", nil); diff != "" {
		t.Error("it is live, and not complete: ", diff)
	}
	must(t, r.Finalize(t.Context()))
	<-r.done
	must(t, r.err)
	mu.Lock()
	defer mu.Unlock()
	if want := []replicator.Phase{replicator.PhasePaused, replicator.PhaseCatchingUp, replicator.PhaseLive}; !slices.Equal(phases[:min(3, len(phases))], want) {
		t.Errorf("phases %v, want %v first", phases, want)
	}
}

// TestAStatusMovesForwardOnly looks at a busy route all the while: traps 3.6 and 3.26 (nothing is passed before it is applied, and the route
// waits for nothing that it writes itself), 3.28 (the lag comes from what is applied, on a timer) and 3.31 (what is stored never goes back).
func TestAStatusMovesForwardOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Batch: 50})
	w.insert("a", many(0, 100)...)
	var mu sync.Mutex
	var saved record.Position
	w.cfg.Hooks.OnSaved = func(p record.Position) {
		mu.Lock()
		defer mu.Unlock()
		if p.Compare(saved) < 0 {
			t.Errorf("stored %s after %s", p, saved)
		}
		saved = p
	}
	r := w.start()
	r.phase(replicator.PhaseLive)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range 60 {
			if _, err := w.src.Collection("a").InsertMany(t.Context(), many(1000+50*i, 1050+50*i)); err != nil {
				t.Error(err)
			}
			if _, err := w.src.Collection("a").UpdateMany(t.Context(), d("n", i%7), d("$inc", d("x", 1))); err != nil {
				t.Error(err)
			}
		}
	}()
	watch := statusWatch{t: t}
	for done := false; !done; {
		select {
		case <-written:
			done = true
		case <-time.After(2 * time.Millisecond):
		}
		watch.look(r.Status())
	}
	w.equal("a")
	w.await("the lag is nothing", func() bool {
		s := r.Status()
		watch.look(s)
		return s.LagSeconds != nil && *s.LagSeconds == 0 && s.LagOperations != nil && *s.LagOperations == 0
	})
	must(t, r.Pause(t.Context()))
	w.insert("a", d("_id", "a"))
	// The lag has whole seconds of the source's clock.
	w.await("the lag grows while nothing is applied", func() bool {
		w.insert("a", d("n", 1))
		s := r.Status()
		watch.look(s)
		return s.LagSeconds != nil && *s.LagSeconds >= 1 && s.LagOperations != nil && *s.LagOperations > 0 && s.OplogLeftSeconds != nil
	})
	must(t, r.Resume(t.Context()))
	w.await("the lag is nothing again", func() bool {
		s := r.Status()
		watch.look(s)
		return s.LagSeconds != nil && *s.LagSeconds == 0
	})
	must(t, r.end())
	watch.look(r.Status())
	r = w.start()
	r.phase(replicator.PhaseLive)
	watch.look(r.Status())
}

// statusWatch compares each status with the one before.
type statusWatch struct {
	t                               testing.TB
	read, applied, checkpoint, head record.Timestamp
}

func (w *statusWatch) look(s replicator.Status) {
	w.t.Helper()
	for _, one := range []struct {
		what string
		last *record.Timestamp
		now  replicator.Point
	}{{"read", &w.read, s.Read}, {"applied", &w.applied, s.Applied}, {"checkpoint", &w.checkpoint, s.Checkpoint}, {"source head", &w.head, s.Head}} {
		now := timeOf(w.t, one.now)
		if now.Compare(*one.last) < 0 {
			w.t.Errorf("%s goes from %v back to %v", one.what, *one.last, now)
		}
		*one.last = now
	}
	if w.checkpoint.Compare(w.applied) > 0 || w.applied.Compare(w.read) > 0 {
		w.t.Errorf("checkpoint %v, applied %v, read %v", w.checkpoint, w.applied, w.read)
	}
}

// TestTheLargestDocumentsGoThroughTheRoute: trap 3.21. Documents as large as a server stores, whose events are larger than a reply: by the copy, an insert,
// and an update that gives up one large field for another.
func TestTheLargestDocumentsGoThroughTheRoute(t *testing.T) {
	t.Parallel()
	// The tests' own servers have so little cache that some of these writes do not fit.
	w := newWorldOn(t, mongotest.Own(t, localcluster.Config{Members: 1, Set: "large", CacheMB: 1024}), replicator.Config{})
	const most = 16 << 20
	large := func(id, field string) bson.Raw {
		rest := most - len(raw(t, d("_id", id, field, ""))) - len(id) // an entry of the oplog has the _id twice
		return raw(t, d("_id", id, field, strings.Repeat("x", rest)))
	}
	longID := strings.Repeat("i", 1<<20)
	w.insert("a", large("copied", "x"))
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.insert("a", large("inserted", "x"))
	w.update("a", "copied", d("$unset", d("x", 1), "$set", d("y", strings.Repeat("y", most-1000))))
	w.insert("a", d("_id", "after"))
	w.equal("a")
	// The event has the _id twice more, in its token, and no server can send it: no endless attempts at it, but a state with a way on.
	w.insert("b", large(longID, "x"))
	<-r.done
	if !errors.As(r.err, new(*replicator.LostError)) || !strings.Contains(r.err.Error(), "very large _id") {
		t.Fatalf("got %v, want *LostError", r.err)
	}
	w.cfg.OnLost = replicator.ResyncOnLost
	r = w.start()
	w.equal("a", "b")
	r.phase(replicator.PhaseLive)
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}
