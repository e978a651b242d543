package mongodb_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

// rename renames a collection of the source.
func (w *world) rename(from, to string, dropTarget bool) {
	w.Helper()
	w.run(w.src.Client().Database("admin"), d("renameCollection", w.src.Name()+"."+from, "to", w.src.Name()+"."+to, "dropTarget", dropTarget))
}

// renames are renames of every kind: within the scope, in circles, out of it, into it, and between names with different filters.
func (w *world) renames() {
	w.Helper()
	w.rename("a", "tmp", false)
	w.rename("b", "a", false)
	w.rename("tmp", "b", false)
	w.insert("a", many(1000, 1010)...)
	w.insert("b", many(2000, 2010)...)
	w.rename("leaves", "out1", false)
	w.rename("out2", "comes", false)
	w.rename("whole", "few.1", false)
	w.rename("few.2", "all", false)
	w.insert("few.1", many(3000, 3020)...)
	w.update("comes", 3, d("$set", d("x", 1)))
	w.update("all", 4, d("$set", d("x", 1)))
	w.rename("out3", "over", true)
	w.rename("over2", "out4", true)
	w.rename("out5", "passing", false) // into the scope under a name that another one has had, and on
	w.rename("kept", "kept2", false)
	w.rename("passing", "kept", false)
	w.insert("kept2", many(4000, 4010)...)
	w.run(w.src, d("drop", "anew"))
	w.insert("anew", many(5000, 5020)...)
	w.run(w.src, d("drop", "gone"))
}

func (w *world) renamable() {
	w.Helper()
	w.cfg.Scope.Exclude = []string{w.src.Name() + ".out*"}
	w.cfg.Scope.Filters = []scope.Filter{{Pattern: "*.few.*", Query: raw(w, d("n", 1))}}
	for i, coll := range strings.Fields("a b leaves out2 whole few.2 out3 over over2 out4 out5 kept anew gone") {
		w.insert(coll, many(0, 50+i)...)
	}
}

func (w *world) renamed() {
	w.Helper()
	w.insert("end", d("_id", 1))
	w.equal("end", "a", "b", "comes", "all", "over", "kept", "kept2", "anew")
	few := func(doc bson.Raw) bool { n, _ := doc.Lookup("n").AsInt64OK(); return n == 1 }
	w.await("few.1 has what matches", func() bool { return w.difference("few.1", few) == "" })
	if got, want := sorted(w.names(w.dst)), "a all anew b comes end few.1 kept kept2 over"; got != want {
		w.Errorf("the destination has %s, want %s", got, want)
	}
}

// TestRenamesOfEveryKindFollow while the route is live, as one batch after a pause, and in the middle of the copy.
func TestRenamesOfEveryKindFollow(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"live", "after a pause", "during the copy"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, replicator.Config{Window: 10, Readers: 1})
			w.renamable()
			var once sync.Once
			if when == "during the copy" {
				w.cfg.Hooks.OnCopied = func(int64, int64, int64) { once.Do(w.renames) }
			}
			r := w.start()
			r.phase(replicator.PhaseLive)
			switch when {
			case "live":
				w.renames()
			case "after a pause":
				r.paused(w.renames)
			}
			w.renamed()
			if s := r.Status(); s.Letters != 0 || s.Phase != replicator.PhaseLive && s.Phase != replicator.PhaseCatchingUp {
				t.Errorf("phase %s, %d dead letters", s.Phase, s.Letters)
			}
		})
	}
}

// TestADeadLetterFollowsARename, and goes with its collection.
func TestADeadLetterFollowsARename(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	unique := func(coll string) {
		w.run(w.dst, d("createIndexes", coll, "indexes", bson.A{d("key", d("k", 1), "name", "k", "unique", true, "sparse", true)}))
	}
	w.insert("a", many(0, 10)...)
	w.insert("gone", many(0, 10)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	unique("a")
	unique("gone")
	w.insert("a", d("_id", "x", "k", 1), d("_id", "y", "k", 1))
	w.insert("gone", d("_id", "x", "k", 1), d("_id", "y", "k", 1))
	w.await("two dead letters", func() bool { return r.Status().Letters == 2 })
	w.rename("a", "b", false)
	w.run(w.src, d("drop", "gone"))
	w.await("the drop is applied", func() bool { return w.names(w.dst) == "b" })
	w.await("one dead letter", func() bool { return r.Status().Letters == 1 })
	if done, left, err := r.Retry(t.Context()); err != nil || done != 0 || left != 1 {
		t.Errorf("a retry in vain: %d, %d, %v", done, left, err)
	}
	w.run(w.dst, d("dropIndexes", "b", "index", "k"))
	if done, left, err := r.Retry(t.Context()); err != nil || done != 1 || left != 0 {
		t.Errorf("a retry: %d, %d, %v", done, left, err)
	}
	w.equal("b")
}

// indexed reports whether the destination has an index.
func (w *world) indexed(coll, index string) bool {
	w.Helper()
	cur, err := w.dst.Collection(coll).Indexes().List(w.Context())
	must(w, err)
	var specs []bson.Raw
	must(w, cur.All(w.Context(), &specs))
	for _, s := range specs {
		if s.Lookup("name").StringValue() == index {
			return true
		}
	}
	return false
}

// TestAUniqueIndexThatIsNotPossibleYetIsMadeLater: an index was made at the source when the destination has newer versions of some documents
// and older ones of others, with equal values among them. It is made when they have caught up, also in another process.
func TestAUniqueIndexThatIsNotPossibleYetIsMadeLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", d("_id", 1, "u", "a"), d("_id", 2, "u", "b"))
	w.insert("b", d("_id", 1, "u", "a"), d("_id", 2, "u", "b"))
	r := w.start()
	r.phase(replicator.PhaseLive)
	u := bson.A{d("key", d("u", 1), "name", "u", "unique", true)}
	r.paused(func() {
		for _, coll := range []string{"a", "b"} {
			w.update(coll, 2, d("$set", d("x", 1)))
			w.run(w.src, d("createIndexes", coll, "indexes", u))
			w.update(coll, 1, d("$set", d("u", "c")))
			w.update(coll, 2, d("$set", d("u", "a")))
		}
		w.rename("b", "c", false)
		// And of the destination's own: it stays until a person removes it.
		_, err := w.dst.Collection("b").InsertMany(t.Context(), []any{d("_id", "other", "u", "a")})
		must(t, err)
	})
	w.equal("a")
	w.await("the index is made", func() bool { return w.indexed("a", "u") })
	w.await("the other collection has its new name", func() bool { return sorted(w.names(w.dst)) == "a c" })
	w.await("a note says what waits", func() bool {
		s := r.Status()
		return len(s.Notes) > 0 && strings.Contains(s.Notes[len(s.Notes)-1], w.dst.Name()+".c") && s.Phase == replicator.PhaseLive
	})
	if err := r.Finalize(t.Context()); err == nil || !strings.Contains(err.Error(), "createIndexes") {
		t.Errorf("a route is finalized whose destination lacks an index: %v", err)
	}
	<-r.done
	if failed := (*replicator.FailedError)(nil); !errors.As(r.err, &failed) {
		t.Errorf("got %v", r.err)
	}
	if w.indexed("c", "u") {
		t.Fatal("the index is there")
	}
	_, err := w.dst.Collection("c").DeleteOne(t.Context(), d("_id", "other"))
	must(t, err)
	r = w.start()
	w.await("the index is made", func() bool { return w.indexed("c", "u") })
	w.equal("c")
	w.await("nothing waits any more", func() bool {
		s, err := w.open().Store.Load(t.Context(), w.route)
		return err == nil && len(s.Delayed) == 0
	})
}

// TestWhatIsHeldBackGoesWithItsIndex: an expiry that is changed, dropped, renamed or taken away at the source while it is held back.
func TestWhatIsHeldBackGoesWithItsIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	ttl := func(coll string) {
		w.run(w.src, d("createIndexes", coll, "indexes", bson.A{d("key", d("t", 1), "name", "ttl", "expireAfterSeconds", 3600)}))
	}
	for _, coll := range []string{"changed", "dropped", "unindexed", "renamed"} {
		ttl(coll)
	}
	w.run(w.src, d("create", "clustered", "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 3600))
	w.run(w.src, d("create", "off", "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 3600))
	r := w.start()
	r.phase(replicator.PhaseLive)
	if got := r.Status().HeldTTL; got != 6 {
		t.Errorf("%d are held back, want 6", got)
	}
	w.run(w.src, d("collMod", "changed", "index", d("name", "ttl", "expireAfterSeconds", 70)))
	w.run(w.src, d("drop", "dropped"))
	w.run(w.src, d("dropIndexes", "unindexed", "index", "ttl"))
	w.rename("renamed", "there", false)
	w.run(w.src, d("collMod", "clustered", "expireAfterSeconds", 80))
	w.run(w.src, d("collMod", "off", "expireAfterSeconds", "off"))
	w.insert("end", d("_id", 1))
	w.equal("end")
	if got := r.Status().HeldTTL; got != 3 {
		t.Errorf("%d are held back, want 3", got)
	}
	must(t, r.Finalize(t.Context()))
	<-r.done
	must(t, r.err)
	if a, b := w.ttl("changed"), w.ttl("there"); a != 70 || b != 3600 {
		t.Errorf("expiry %d and %d, want 70 and 3600", a, b)
	}
	for coll, want := range map[string]bool{"clustered": true, "off": false} {
		specs, err := w.dst.ListCollectionSpecifications(t.Context(), d("name", coll))
		must(t, err)
		if v, err := specs[0].Options.LookupErr("expireAfterSeconds"); (err == nil) != want || want && v.AsInt64() != 80 {
			t.Errorf("%s: %v", coll, specs[0].Options)
		}
	}
}

// TestADatabaseThatIsDroppedAndMadeAnewGoesOn: trap 3.20. The change stream of the database is invalid after that.
func TestADatabaseThatIsDroppedAndMadeAnewGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, replicator.Config{})
	w.insert("a", many(0, 20)...)
	w.insert("b", many(0, 20)...)
	r := w.start()
	r.phase(replicator.PhaseLive)
	again := func(from int) {
		must(t, w.src.Drop(t.Context()))
		w.insert("a", many(from, from+15)...)
		w.insert("c", many(from, from+15)...)
	}
	again(100)
	w.equal("a", "c")
	r.paused(func() { again(200); again(300) })
	w.equal("a", "c")
	must(t, r.end())
	again(400)
	r = w.start()
	w.equal("a", "c")
	r.phase(replicator.PhaseLive)
	if got := sorted(w.names(w.dst)); got != "a c" {
		t.Errorf("the destination has %s, want a c", got)
	}
	w.insert("a", many(500, 510)...)
	w.equal("a")
}
