package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/fidelity"
	"github.com/seed-12ef14e5/capstan/scope"
)

// The numbers of traps are those of the list of known failures of replicators that the package is built against: damage to single
// documents here, routes that get stuck in linkstuck_test.go, broken servers in linkfaults_test.go, collections in linkddl_test.go.

// update updates one document at the source.
func (w *world) update(coll string, id, update any) {
	w.Helper()
	if _, err := w.src.Collection(coll).UpdateOne(w.Context(), d("_id", id), update); err != nil {
		w.Fatal(err)
	}
}

// paused does something at the source while the route does nothing, so that all of it is applied as one batch.
func (r *runningLink) paused(do func()) {
	r.w.Helper()
	if err := r.Pause(r.w.Context()); err != nil {
		r.w.Fatal(err)
	}
	do()
	if err := r.Resume(r.w.Context()); err != nil {
		r.w.Fatal(err)
	}
}

// TestArraysThatShrinkKeepTheirDocuments: traps 3.1 (a cut array comes as a replacement, as a whole array, or as a length alone),
// 3.2 (a replacement is no $set) and 3.3 (one update cuts a large array and sets many of its elements).
func TestArraysThatShrinkKeepTheirDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	long := func(n int) (a bson.A) {
		for i := range n {
			a = append(a, fmt.Sprintf("%060d", i))
		}
		return a
	}
	w.insert("a",
		d("_id", "s", "arr", bson.A{1, 2, 3}, "k", 1),
		d("_id", "short", "pad", strings.Repeat("x", 5000), "arr", bson.A{1, 2, 3}, "keep", "value"),
		d("_id", "long", "arr", long(500), "keep", "value"),
		d("_id", "nested", "a", d("b", d("arr", long(500), "keep", 1)), "keep", "value"),
		d("_id", "large", "arr", long(40_000), "keep", "value"),
		d("_id", "classic", "arr", long(500), "keep", "value"),
		d("_id", "hole", "arr", bson.A{1}, "keep", "value"),
		d("_id", "replaced", "a", 1, "meta", d("x", 1)))
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a")
	events, err := w.src.Collection("a").Watch(t.Context(), mongo.Pipeline{})
	must(t, err)
	defer func() { _ = events.Close(t.Context()) }()
	cut := func(field string, n int) mongo.Pipeline {
		return mongo.Pipeline{d("$set", d(field, d("$slice", bson.A{"$" + field, n})))}
	}
	w.update("a", "s", cut("arr", 1))
	w.update("a", "short", cut("arr", 1))
	w.update("a", "long", cut("arr", 450))
	w.update("a", "nested", cut("a.b.arr", 450))
	w.update("a", "large", mongo.Pipeline{d("$set", d("arr", d("$map", d("input", d("$range", bson.A{0, 39_000}), "in",
		d("$cond", bson.A{d("$eq", bson.A{d("$mod", bson.A{"$$this", 2}), 0}), "$$this", d("$arrayElemAt", bson.A{"$arr", "$$this"})})))))})
	w.update("a", "classic", d("$push", d("arr", d("$each", bson.A{}, "$slice", 2))))
	w.update("a", "hole", d("$set", d("arr.5", 1)))
	w.update("a", "hole", d("$unset", d("arr.0", 1)))
	_, err = w.src.Collection("a").ReplaceOne(t.Context(), d("_id", "replaced"), d("a", 2))
	must(t, err)
	w.equal("a")
	shapes := map[string]bool{}
	for range 9 {
		if !events.Next(t.Context()) {
			t.Fatal(events.Err())
		}
		id, _ := events.Current.Lookup("documentKey", "_id").StringValueOK()
		op, _ := events.Current.Lookup("operationType").StringValueOK()
		cuts, _ := events.Current.Lookup("updateDescription", "truncatedArrays").ArrayOK()
		sets, _ := events.Current.Lookup("updateDescription", "updatedFields").DocumentOK()
		n, _ := sets.Elements()
		shapes[fmt.Sprintf("%s %s cut %v set %v many %v", id, op, len(cuts) > 5, len(n) > 0, len(n) > 10_000)] = true
	}
	for _, shape := range []string{"s replace cut false set false many false", "short update cut false set true many false",
		"long update cut true set false many false", "nested update cut true set false many false", "large update cut true set true many true"} {
		if !shapes[shape] {
			t.Errorf("the source sent no event %q, but %v", shape, shapes)
		}
	}
}

// TestFieldsKeepTheirOrder: trap 3.12, also where an update adds several fields at once, which the server sorts and a pipeline
// does not; the order in an _id tells documents apart.
func TestFieldsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", d("_id", 1, "z", 1, "a", 1, "m", 1), d("_id", d("b", 1, "a", 2), "x", 1), d("_id", d("a", 2, "b", 1), "x", 2), d("_id", 2, "s", d("q", 1)))
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a")
	change := func(round int) {
		f := func(s string) string { return fmt.Sprintf("%s%d", s, round) }
		w.update("a", 1, d("$set", d(f("y"), 1, f("b"), 2, f("x10"), d("z", 1, "a", 1), f("x9"), 1)))
		w.update("a", 1, mongo.Pipeline{d("$set", d(f("pz"), 1, f("pa"), d("z", 1, "a", 2), f("pm"), 1))})
		w.update("a", 2, mongo.Pipeline{d("$set", d("s."+f("z"), 1, "s."+f("a"), 1)), d("$unset", "s.q")})
		w.update("a", 2, d("$rename", d("s."+f("z"), f("moved")), "$set", d("s.z.z", 1, "s.z.a", 2)))
		w.update("a", d("b", 1, "a", 2), d("$set", d(f("z"), 1, f("a"), 1)))
		w.update("a", d("a", 2, "b", 1), d("$inc", d("x", 1)))
		_, err := w.src.Collection("a").ReplaceOne(t.Context(), d("_id", 3), d("_id", 3, "z", round, "a", d("z", 1, "b", 2)), options.Replace().SetUpsert(true))
		must(t, err)
	}
	change(0)
	w.equal("a")
	r.paused(func() { change(1) })
	w.equal("a")
	must(t, r.end())
	change(2)
	r = w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a")
}

// TestEveryDocumentGoesThroughTheRouteByteForByte sends the fidelity table through the copy, and as inserts, replacements and updates at
// the source: traps 3.12, 3.13 (every type of _id in one collection) and 3.15 (number types).
func TestEveryDocumentGoesThroughTheRouteByteForByte(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Window: 50})
	table := slices.DeleteFunc(fidelity.Documents(), func(doc fidelity.Document) bool { return doc.Large })
	place := func(coll string, doc fidelity.Document) {
		_, err := w.src.Collection(coll).UpdateOne(t.Context(), d("_id", doc.ID()), doc.Place(), options.UpdateOne().SetUpsert(true))
		must(t, err)
	}
	insert := func(coll string) {
		var docs []any
		for _, doc := range table {
			if doc.Placed {
				place(coll, doc)
			} else {
				docs = append(docs, doc.Raw)
			}
		}
		w.insert(coll, docs...)
	}
	insert("copied")
	var older []any
	for i, doc := range table {
		older = append(older, d("_id", doc.ID(), "old", i))
	}
	for _, coll := range []string{"replaced", "updated", "deleted"} {
		w.insert(coll, older...)
	}
	r := w.start()
	r.phase(replicator.PhaseLive)
	same(t, w.dst.Collection("copied"), table)
	insert("inserted")
	replace := func(coll string, doc fidelity.Document) {
		if _, err := w.src.Collection(coll).ReplaceOne(t.Context(), d("_id", doc.ID()), doc.Raw); err != nil {
			t.Fatal(doc.Name, err)
		}
	}
	for _, doc := range table {
		// mongod 6.0.5 ends (an invariant of its document diff) when a pipeline gives a document that exists two fields of one name.
		if strings.Contains(doc.Name, "twice") || strings.Contains(doc.Name, "of one key") {
			replace("updated", doc)
		} else {
			place("updated", doc)
		}
		if _, err := w.src.Collection("deleted").DeleteOne(t.Context(), d("_id", doc.ID())); err != nil {
			t.Fatal(err)
		}
		if doc.Placed {
			place("replaced", doc)
		} else {
			replace("replaced", doc)
		}
	}
	w.equal("copied", "inserted", "replaced", "updated", "deleted")
	for _, coll := range []string{"inserted", "replaced", "updated"} {
		same(t, w.dst.Collection(coll), table)
	}
	if s := r.Status(); s.Letters != 0 || s.Copy.Scanned != int64(4*len(table)) {
		t.Errorf("%d dead letters, %d documents copied of %d", s.Letters, s.Copy.Scanned, 4*len(table))
	}
}

// TestChangesDuringTheCopyConverge changes documents while the copy is between them and those it has read: traps 3.4 (an old change meets a newer
// document), 3.10 (values of a unique index are swapped, and move, across what is copied and what is not) and 3.11.
func TestChangesDuringTheCopyConverge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Window: 20, Readers: 1})
	const n = 400
	w.run(w.src, d("createIndexes", "u", "indexes", bson.A{d("key", d("u", 1), "name", "u", "unique", true)}))
	var docs []any
	for i := range n {
		docs = append(docs, d("_id", i, "u", i, "a", d("x", d("y", 1)), "arr", bson.A{1, 2, 3, 4}))
	}
	w.insert("u", docs...)
	c, ctx := w.src.Collection("u"), t.Context()
	var once sync.Once
	change := func() {
		for i := range 40 {
			far := n - 1 - i
			for _, id := range []int{i, far} {
				w.update("u", id, d("$set", d("a.x.b", 1)))
				w.update("u", id, d("$set", d("a.x", nil)))
				w.update("u", id, d("$push", d("arr", d("$each", bson.A{}, "$slice", 1))))
				w.update("u", id, d("$set", d("arr", 5)))
			}
			switch i % 4 {
			case 0: // two documents swap their values
				w.update("u", i, d("$set", d("u", -1)))
				w.update("u", far, d("$set", d("u", i)))
				w.update("u", i, d("$set", d("u", far)))
			case 1: // a value goes to a new document
				_, err := c.DeleteOne(ctx, d("_id", far))
				must(t, err)
				w.insert("u", d("_id", n+i, "u", far))
			case 2: // from one that is not copied to one that is
				_, err := c.DeleteOne(ctx, d("_id", far))
				must(t, err)
				w.update("u", i, d("$set", d("u", far)))
			default: // and the other way round
				_, err := c.DeleteOne(ctx, d("_id", i))
				must(t, err)
				w.update("u", far, d("$set", d("u", i)))
			}
		}
	}
	w.cfg.Hooks.OnCopied = func(int64, int64, int64) { once.Do(change) }
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.equal("u")
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}

// TestAnUpdateOfWhatIsGoneIsNoError: trap 3.11. The document cannot be read any more when its update is applied; it is missing only
// because its delete follows, and what comes after that counts.
func TestAnUpdateOfWhatIsGoneIsNoError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{Batch: 1}) // each change by itself
	w.insert("a", many(0, 20)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	c, ctx := w.src.Collection("a"), t.Context()
	r.paused(func() {
		for i := range 10 {
			w.update("a", i, d("$set", d("x", 1)))
			w.update("a", i, d("$set", d("x", 2)))
			_, err := c.DeleteOne(ctx, d("_id", i))
			must(t, err)
			if i%2 == 0 {
				w.insert("a", d("_id", int64(i), "again", 1))
				w.update("a", i, d("$inc", d("again", 1)))
			}
		}
	})
	w.equal("a")
	r.phase(replicator.PhaseLive)
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}

// TestTransactionsAreAppliedWhole: trap 3.16, over two collections, with one that takes several entries of the oplog.
func TestTransactionsAreAppliedWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", many(0, 50)...)
	w.insert("b", many(0, 50)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	ctx := t.Context()
	transaction := func(size, n int) {
		must(t, w.src.Client().UseSession(ctx, func(ctx context.Context) error {
			_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
				a, b := w.src.Collection("a"), w.src.Collection("b")
				if _, err := a.UpdateMany(ctx, d("n", 3), d("$inc", d("x", 1))); err != nil {
					return nil, err
				}
				if _, err := b.DeleteMany(ctx, d("n", 2)); err != nil {
					return nil, err
				}
				for i := range n {
					doc := d("_id", fmt.Sprintf("%d of %d", i, size), "pad", strings.Repeat("x", size))
					if _, err := []*mongo.Collection{a, b}[i%2].InsertOne(ctx, doc); err != nil {
						return nil, err
					}
				}
				_, err := b.UpdateMany(ctx, d("n", 4), d("$set", d("t", size)))
				return nil, err
			})
			return err
		}))
	}
	transaction(10, 20)
	w.equal("a", "b")
	transaction(1_500_000, 14) // 21 MB: an entry holds 16 MB
	w.equal("a", "b")
	must(t, r.end())
	transaction(20, 20)
	r = w.start()
	r.phase(replicator.PhaseLive)
	w.equal("a", "b")
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}

// TestARetriedWriteIsNoConflictWithItself: trap 3.25. Documents that are there already, as after a reply that was lost, are replaced by the same.
func TestARetriedWriteIsNoConflictWithItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.run(w.src, d("createIndexes", "u", "indexes", bson.A{d("key", d("u", 1), "name", "u", "unique", true)}))
	r := w.start()
	r.phase(replicator.PhaseLive)
	w.await("the collection is there", func() bool { return w.names(w.dst) == "u" })
	r.paused(func() {
		w.insert("u", d("_id", 1, "u", 1), d("_id", 2, "u", 2), d("_id", 3, "u", 3))
		// What an attempt has written of which nobody has heard; and an earlier version.
		_, err := w.dst.Collection("u").InsertMany(t.Context(), []any{d("_id", 1, "u", 1), d("_id", 3, "u", 7)})
		must(t, err)
	})
	w.equal("u")
	if s := r.Status(); s.Letters != 0 {
		t.Errorf("%d dead letters", s.Letters)
	}
}

// TestAFilterThatDoesNotParseEndsTheRouteBeforeAnythingIsWritten, and one that is corrected under the same name runs.
func TestAFilterThatDoesNotParseEndsTheRouteBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		w := newWorld(t, replicator.Config{Until: replicator.UntilLive})
		if there {
			w.insert("a", many(0, 10)...)
		}
		w.cfg.Scope.Filters = []scope.Filter{{Pattern: "*.a", Query: raw(t, d("n", d("$foo", 1)))}}
		r := w.start()
		<-r.done
		failed := (*replicator.FailedError)(nil)
		if !errors.As(r.err, &failed) || !strings.Contains(r.err.Error(), "$foo") || !strings.Contains(r.err.Error(), "filter") {
			t.Errorf("got %v", r.err)
		}
		if got := w.names(w.dst); got != "" {
			t.Errorf("the destination has %s", got)
		}
		if _, err := w.open().Store.Load(t.Context(), w.route); !errors.Is(err, replicator.ErrNoRoute) {
			t.Errorf("a state was stored: %v", err)
		}
		w.cfg.Scope.Filters[0].Query = raw(t, d("n", d("$gt", 3)))
		r = w.start()
		<-r.done
		must(t, r.err)
	}
}
