package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

func TestWhatIsThereIsCopiedAndWhatChangesFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Window: 100})
	w.insert("orders", many(0, 1500)...)
	w.insert("people", d("_id", "a"), d("_id", nil), d("_id", 7.5), d("_id", d("b", 1, "a", 2)), d("_id", bson.MaxKey{}), d("_id", bson.MinKey{}), d("_id", true))
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.equal("orders", "people")
	c := w.src.Collection("orders")
	ctx := t.Context()
	for _, do := range []func() error{
		func() error {
			_, err := c.UpdateOne(ctx, d("_id", 3), d("$set", d("a.b", 1, "arr", bson.A{1, 2, 3})))
			return err
		},
		func() error { _, err := c.UpdateOne(ctx, d("_id", 3), d("$unset", d("n", 1))); return err },
		func() error { _, err := c.ReplaceOne(ctx, d("_id", 4), d("_id", int64(4), "z", 1, "a", 2)); return err },
		func() error { _, err := c.DeleteOne(ctx, d("_id", 5)); return err },
		func() error { _, err := c.UpdateMany(ctx, d("n", 2), d("$inc", d("x", 1))); return err },
		func() error { _, err := c.InsertMany(ctx, many(2000, 2500)); return err },
		func() error {
			_, err := c.UpdateOne(ctx, d("_id", 3), mongo.Pipeline{d("$set", d("arr", d("$slice", bson.A{"$arr", 1})))})
			return err
		},
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	w.equal("orders")
	s := r.Status()
	if s.Copy.Scanned != 1507 || s.Copy.Matched != 1507 || s.LagSeconds == nil || s.Letters != 0 {
		t.Errorf("status %+v", s)
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	// What happens while it is down is applied by the next run.
	if _, err := c.DeleteMany(ctx, d("n", 3)); err != nil {
		t.Fatal(err)
	}
	r = w.start()
	r.phase(replicator.PhaseLive)
	w.equal("orders", "people")
	if got := r.Status().Copy.Scanned; got != 1507 {
		t.Errorf("after a restart %d documents were looked at for the copy, want 1507 as before", got)
	}
}

func TestACopyThatWasKilledGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Window: 50, Readers: 1})
	w.insert("orders", many(0, 5000)...)
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	w.cfg.Hooks.OnCopied = func(int64, int64, int64) {
		// As a kill -9 would: nothing is released.
		if n, _ := w.dst.Collection("orders").EstimatedDocumentCount(ctx); n > 1000 {
			cancel(stop)
		}
	}
	route := w.open()
	if err := route.Link.Run(ctx); err != nil {
		t.Fatal(err)
	}
	before := route.Link.Status()
	if before.Copy.Scanned < 1000 || before.Copy.Scanned >= 5000 {
		t.Fatalf("the first run looked at %d documents", before.Copy.Scanned)
	}
	w.cfg.Hooks = replicator.Hooks{}
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.equal("orders")
	if got := r.Status().Copy.Scanned; got != 5000 {
		t.Errorf("both runs looked at %d documents, want 5000: each once", got)
	}
}

// TestADocumentThatLeavesTheFilterIsDeleted: trap 3.14.
func TestADocumentThatLeavesTheFilterIsDeleted(t *testing.T) {
	t.Parallel()
	for _, filter := range []bson.D{
		d("open", true), // capstan's own matcher knows it
		d("$expr", d("$eq", bson.A{"$open", true})), // only the server does
	} {
		query, err := bson.Marshal(filter)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, replicator.Config{})
		w.cfg.Scope.Filters = []scope.Filter{{Pattern: "*.orders", Query: query}}
		keep := func(doc bson.Raw) bool { v, _ := doc.Lookup("open").BooleanOK(); return v }
		w.insert("orders", many(0, 100, "open", true)...)
		w.insert("orders", many(100, 200, "open", false)...)
		r := w.start()
		r.phase(replicator.PhaseLive)
		if diff := w.difference("orders", keep); diff != "" {
			t.Fatal(diff)
		}
		c, ctx := w.src.Collection("orders"), t.Context()
		for _, do := range []func() error{
			func() error {
				_, err := c.UpdateMany(ctx, d("_id", d("$lt", 30)), d("$set", d("open", false)))
				return err
			},
			func() error {
				_, err := c.UpdateMany(ctx, d("_id", d("$gte", 190)), d("$set", d("open", true)))
				return err
			},
			func() error { _, err := c.DeleteMany(ctx, d("_id", d("$in", bson.A{50, 60, 150, 10}))); return err },
			func() error { _, err := c.ReplaceOne(ctx, d("_id", 70), d("open", false)); return err },
			func() error { _, err := c.ReplaceOne(ctx, d("_id", 170), d("open", true)); return err },
			func() error { _, err := c.InsertMany(ctx, many(300, 310, "open", false)); return err },
			func() error { _, err := c.InsertMany(ctx, many(310, 320, "open", true)); return err },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		w.await("only what matches is at the destination", func() bool { return w.difference("orders", keep) == "" })
		if s := r.Status(); s.Copy.Scanned != 200 || s.Copy.Matched != 100 {
			t.Errorf("%d looked at and %d matched, want 200 and 100", s.Copy.Scanned, s.Copy.Matched)
		}
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAFilterThatMatchesNothingMovesTheCheckpoint: trap 3.30.
func TestAFilterThatMatchesNothingMovesTheCheckpoint(t *testing.T) {
	t.Parallel()
	query, err := bson.Marshal(d("no", "such"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, replicator.Config{Window: 500})
	w.cfg.Scope.Filters = []scope.Filter{{Pattern: "*", Query: query}}
	w.insert("orders", many(0, 3000)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	before := r.Status().Checkpoint
	for i := range 5 {
		w.insert("orders", many(10_000+100*i, 10_100+100*i)...)
	}
	w.await("the checkpoint passes changes that do not match", func() bool {
		return r.Status().Checkpoint.Unix > before.Unix || r.Status().Totals.Read >= 500 && r.Status().Checkpoint.Time != before.Time
	})
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); s.Copy.Scanned != 3000 || s.Copy.Matched != 0 {
		t.Errorf("%d looked at and %d matched, want 3000 and 0", s.Copy.Scanned, s.Copy.Matched)
	}
}

func TestChangesOfCollectionsFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", many(0, 50)...)
	w.insert("gone", many(0, 5)...)
	w.insert("replaced", many(0, 5)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.run(w.src, d("create", "new", "validator", d("n", d("$exists", true)), "collation", d("locale", "en", "strength", 2)))
	w.run(w.src, d("create", "capped", "capped", true, "size", 1<<20, "max", 10))
	w.run(w.src, d("create", "open", "viewOn", "a", "pipeline", bson.A{d("$match", d("n", 1))}))
	w.run(w.src, d("createIndexes", "a", "indexes", bson.A{d("key", d("n", 1), "name", "by_n"), d("key", d("u", 1), "name", "u", "unique", true, "sparse", true)}))
	w.insert("new", d("_id", "x", "n", 1), d("_id", "y", "n", 2))
	w.insert("capped", many(0, 25)...)
	w.run(w.src, d("drop", "gone"))
	w.run(w.src.Client().Database("admin"), d("renameCollection", w.src.Name()+".a", "to", w.src.Name()+".replaced", "dropTarget", true))
	w.insert("a", many(1000, 1010)...)
	w.insert("replaced", many(500, 510)...)
	w.run(w.src, d("dropIndexes", "replaced", "index", "by_n"))
	w.run(w.src, d("collMod", "new", "validator", d()))
	w.insert("end", d("_id", 1))
	w.equal("end", "new", "a", "replaced")
	w.await("the same collections", func() bool { return sorted(w.names(w.src)) == sorted(w.names(w.dst)) })
	a, err := allOf(t.Context(), w.src.Collection("capped"), true)
	if err != nil {
		t.Fatal(err)
	}
	b, err := allOf(t.Context(), w.dst.Collection("capped"), true)
	if err != nil || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("capped: %v\nand %v, %v", a, b, err)
	}
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}

// TestUniqueValuesThatMoveBetweenDocuments: trap 3.10.
func TestUniqueValuesThatMoveBetweenDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Workers: 8})
	w.run(w.src, d("createIndexes", "u", "indexes", bson.A{d("key", d("u", 1), "name", "u", "unique", true)}))
	var docs []any
	for i := range 200 {
		docs = append(docs, d("_id", i, "u", i))
	}
	w.insert("u", docs...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	if err := r.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, ctx := w.src.Collection("u"), t.Context()
	for i := 0; i+1 < 200; i += 2 { // swap the values of two documents
		for _, u := range []bson.D{d("_id", i), d("_id", i+1), d("_id", i)} {
			_ = u
		}
		if _, err := c.UpdateOne(ctx, d("_id", i), d("$set", d("u", -1))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.UpdateOne(ctx, d("_id", i+1), d("$set", d("u", i))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.UpdateOne(ctx, d("_id", i), d("$set", d("u", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < 100; i += 5 { // a value goes to a new document
		if _, err := c.DeleteOne(ctx, d("_id", i)); err != nil {
			t.Fatal(err)
		}
		u := i + 1
		if i%2 == 1 {
			u = i - 1
		}
		if _, err := c.InsertOne(ctx, d("_id", 1000+i, "u", u)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.equal("u")
	if s := r.Status(); s.Letters != 0 || s.Totals.Conflicts == 0 {
		t.Errorf("%d dead letters, %d conflicts; want none, and some", s.Letters, s.Totals.Conflicts)
	}
}

// TestAnOldPositionConverges: traps 3.4 (an old change meets a newer document) and 3.7 (a create that comes again drops nothing).
func TestAnOldPositionConverges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	c, ctx := w.src.Collection("a"), t.Context()
	w.insert("a", d("_id", 1, "a", d("x", d("y", 1)), "arr", bson.A{1, 2, 3, 4, 5, 6}), d("_id", 2), d("_id", 3))
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a")
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	store := w.open().Store
	old, err := store.Load(ctx, w.route)
	if err != nil {
		t.Fatal(err)
	}
	r = w.start()
	r.phase(replicator.PhaseLive)
	for _, u := range []any{
		d("$set", d("a.x.b", 1)), d("$set", d("a.x", nil)), d("$push", d("arr", d("$each", bson.A{}, "$slice", 2))), d("$set", d("arr", 5)), d("$unset", d("a", 1)), d("$set", d("z", 1, "a", 2)),
	} {
		if _, err := c.UpdateOne(ctx, d("_id", 1), u); err != nil {
			t.Fatal(err)
		}
	}
	w.run(w.src, d("create", "b"))
	w.insert("b", many(0, 10)...)
	w.run(w.src, d("create", "created"))
	w.insert("created", many(0, 10)...)
	w.run(w.src.Client().Database("admin"), d("renameCollection", w.src.Name()+".b", "to", w.src.Name()+".c"))
	w.insert("c", many(30, 40)...)
	if _, err := c.DeleteOne(ctx, d("_id", 2)); err != nil {
		t.Fatal(err)
	}
	w.equal("a", "c", "created")
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	w.rewind(store, old.Position)
	r = w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a", "c", "created")
	if got := sorted(w.names(w.dst)); got != "a c created" {
		t.Errorf("collections %s, want a c created", got)
	}
}

// TestASecondProcessIsRefusedAndMayTakeOver: trap 3.29.
func TestASecondProcessIsRefusedAndMayTakeOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", many(0, 10)...)
	first := w.start()
	first.phase(replicator.PhaseLive)
	if err := w.open().Link.Run(t.Context()); !errors.As(err, new(*replicator.BusyError)) {
		t.Fatalf("a second process got %v, want *BusyError", err)
	}
	w.cfg.TakeOver = true
	second := w.start()
	second.phase(replicator.PhaseLive)
	<-first.done
	if !errors.As(first.err, new(*record.FencedError)) {
		t.Errorf("the first process ended with %v, want *FencedError", first.err)
	}
	w.insert("a", many(10, 20)...)
	w.equal("a")
}

func TestADestinationWithDataIsRefusedUnlessTold(t *testing.T) {
	t.Parallel()
	for _, existing := range []replicator.Existing{replicator.RefuseExisting, replicator.MergeExisting, replicator.DropExisting} {
		w := newWorld(t, replicator.Config{Existing: existing, Window: 10})
		w.insert("a", many(0, 100)...)
		if _, err := w.dst.Collection("a").InsertMany(t.Context(), append(many(50, 60, "other", 1), many(500, 520)...)); err != nil {
			t.Fatal(err)
		}
		r := w.start()
		if existing == replicator.RefuseExisting {
			<-r.done
			if !errors.Is(r.err, replicator.ErrNotEmpty) || !strings.Contains(r.err.Error(), w.dst.Name()+".a") {
				t.Errorf("got %v, want ErrNotEmpty that names the collection", r.err)
			}
			continue
		}
		r.phase(replicator.PhaseLive)
		w.equal("a")
	}
}

func TestAnotherScopeUnderTheSameNameIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Until: replicator.UntilLive})
	w.insert("a", many(0, 10)...)
	r := w.start()
	<-r.done
	if r.err != nil {
		t.Fatal(r.err)
	}
	w.cfg.Scope.Exclude = []string{"*.b"}
	r = w.start()
	<-r.done
	if !errors.As(r.err, new(*replicator.MismatchError)) {
		t.Fatalf("got %v, want *MismatchError", r.err)
	}
	w.cfg.Resync = true
	r = w.start()
	<-r.done
	if r.err != nil {
		t.Fatal(r.err)
	}
}

func TestPausedStaysPausedAndResyncMends(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Window: 7})
	w.insert("a", many(0, 100)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	if err := r.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.insert("a", many(100, 110)...)
	if s := r.Status(); s.Phase != replicator.PhasePaused || s.Paused != replicator.PhaseLive {
		t.Fatalf("phase %s (%s)", s.Phase, s.Paused)
	}
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	r = w.start()
	r.phase(replicator.PhasePaused)
	if n, err := w.dst.Collection("a").CountDocuments(t.Context(), d()); err != nil || n != 100 {
		t.Fatalf("%d documents while paused, %v", n, err)
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.equal("a")
	// Somebody spoils the destination.
	if _, err := w.dst.Collection("a").DeleteMany(t.Context(), d("n", 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dst.Collection("a").InsertMany(t.Context(), many(1000, 1100)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dst.Collection("a").UpdateMany(t.Context(), d("n", 4), d("$set", d("spoilt", 1))); err != nil {
		t.Fatal(err)
	}
	if err := r.Resync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.phase(replicator.PhaseLive)
	w.equal("a")
}

func TestTTLIsHeldBackUntilTheRouteIsFinalized(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.run(w.src, d("createIndexes", "a", "indexes", bson.A{d("key", d("t", 1), "name", "ttl", "expireAfterSeconds", 3600)}))
	w.insert("a", d("_id", 1, "t", bson.NewDateTimeFromTime(time.Now())))
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.run(w.src, d("createIndexes", "b", "indexes", bson.A{d("key", d("t", 1), "name", "ttl", "expireAfterSeconds", 60)}))
	w.insert("b", d("_id", 1))
	w.equal("a", "b")
	if a, b := w.ttl("a"), w.ttl("b"); a != 1<<31-1 || b != 1<<31-1 {
		t.Errorf("expiry %d and %d while live", a, b)
	}
	if got := r.Status().HeldTTL; got != 2 {
		t.Errorf("%d held", got)
	}
	w.insert("a", many(10, 20)...)
	if err := r.Finalize(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-r.done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if a, b := w.ttl("a"), w.ttl("b"); a != 3600 || b != 60 {
		t.Errorf("expiry %d and %d after finalize, want 3600 and 60", a, b)
	}
	if diff := w.difference("a", nil); diff != "" {
		t.Error(diff)
	}
	r = w.start()
	<-r.done
	if !errors.Is(r.err, replicator.ErrFinalized) {
		t.Errorf("a finalized route ran again: %v", r.err)
	}
}

func TestADocumentThatIsRefusedIsADeadLetterAndARetryMendsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", many(0, 10)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	// The destination alone demands something.
	w.run(w.dst, d("createIndexes", "a", "indexes", bson.A{d("key", d("k", 1), "name", "k", "unique", true, "sparse", true)}))
	w.insert("a", d("_id", "x", "k", 1), d("_id", "y", "k", 1), d("_id", "z", "k", 2))
	w.await("a dead letter", func() bool { return r.Status().Letters == 1 })
	w.insert("a", d("_id", "after"))
	w.await("what comes after it goes on", func() bool { return w.dst.Collection("a").FindOne(t.Context(), d("_id", "after")).Err() == nil })
	if n, err := w.dst.Collection("a").CountDocuments(t.Context(), d("k", 1)); err != nil || n != 1 {
		t.Errorf("%d documents with the value, %v", n, err)
	}
	if done, left, err := r.Retry(t.Context()); err != nil || done != 0 || left != 1 {
		t.Errorf("a retry in vain: %d, %d, %v", done, left, err)
	}
	w.run(w.dst, d("dropIndexes", "a", "index", "k"))
	if done, left, err := r.Retry(t.Context()); err != nil || done != 1 || left != 0 {
		t.Errorf("a retry: %d, %d, %v", done, left, err)
	}
	w.equal("a")
}
