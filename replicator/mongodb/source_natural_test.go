package mongodb_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

func newCapped(t testing.TB, db *mongo.Database, size int64, most int64) *mongo.Collection {
	t.Helper()
	o := options.CreateCollection().SetCapped(true).SetSizeInBytes(size)
	if most > 0 {
		o.SetMaxDocuments(most)
	}
	must(t, db.CreateCollection(t.Context(), "capped", o))
	return db.Collection("capped")
}

// put inserts documents with the given numbers in one order, and _ids in another.
func put(t testing.TB, coll *mongo.Collection, first, n int) {
	t.Helper()
	docs := make([]any, n)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: (first + i) * 7919 % 10007}, {Key: "n", Value: first + i}}
	}
	_, err := coll.InsertMany(t.Context(), docs)
	must(t, err)
}

func numbers(docs []bson.Raw) []int64 {
	out := make([]int64, len(docs))
	for i, d := range docs {
		out[i] = d.Lookup("n").AsInt64()
	}
	return out
}

func oneRange(t testing.TB, s *mongodb.Source, c replicator.Collection) replicator.Range {
	t.Helper()
	rs, err := s.Split(t.Context(), c, 8)
	must(t, err)
	if len(rs) != 1 || !rs[0].Natural {
		t.Fatalf("a capped collection is cut into %v, want one natural range", rs)
	}
	return rs[0]
}

func TestACappedCollectionIsReadInItsOrderAndEndsWhereItsRangeWasMade(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 1<<20, 0)
	put(t, coll, 0, 1000)
	want := stored(t, coll, bson.D{})
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, coll)
	r := oneRange(t, s, c)
	more := 1000
	for _, limit := range []int{1, 7, 999, 1000, 5000} {
		docs, end := walk(t, s, c, r, limit, nil, now(t, s), func(r *replicator.Range) {
			if more < 1500 { // what comes later is a change
				put(t, coll, more, 1)
				more++
			}
			at, err := record.ParseID(r.At.String()) // as a stored state would have it
			if err != nil || at != r.At {
				t.Fatalf("the place %s does not survive: %v", r.At, err)
			}
		})
		if !slices.EqualFunc(docs, want, func(a, b bson.Raw) bool { return string(a) == string(b) }) {
			t.Errorf("windows of %d: other documents, or in another order", limit)
		}
		if end.Scanned != 1000 {
			t.Errorf("windows of %d: %d documents count as looked at", limit, end.Scanned)
		}
	}
}

func TestAFilterOnACappedCollectionKeepsItsOrder(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 1<<20, 0)
	put(t, coll, 0, 1000)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, coll)
	filter := raw(t, bson.D{{Key: "n", Value: bson.D{{Key: "$mod", Value: bson.A{3, 0}}}}})
	docs, end := walk(t, s, c, oneRange(t, s, c), 100, filter, now(t, s), nil)
	if got := numbers(docs); len(got) != 334 || !slices.IsSorted(got) || end.Scanned != 1000 {
		t.Errorf("%d documents matched, in order %v, %d looked at", len(got), slices.IsSorted(got), end.Scanned)
	}
	docs, end = walk(t, s, c, oneRange(t, s, c), 100, raw(t, bson.D{{Key: "n", Value: -1}}), now(t, s), nil)
	if len(docs) != 0 || end.Scanned != 1000 {
		t.Errorf("%d documents matched, %d looked at", len(docs), end.Scanned)
	}
}

func TestACappedCollectionThatIsOverrunIsBegunAgainAndEnds(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 1<<20, 500)
	put(t, coll, 0, 500)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, coll)
	r := oneRange(t, s, c)
	next := 500
	overrun := func(n int) func(*replicator.Range) {
		return func(*replicator.Range) {
			put(t, coll, next, n)
			next += n
		}
	}
	// A third is overwritten behind the reader: it goes on where it was.
	docs, _ := walk(t, s, c, r, 100, nil, now(t, s), overrun(30))
	if got := numbers(docs); !slices.IsSorted(got) || got[len(got)-1] != 499 {
		t.Errorf("the reader was not overrun and read %v", got)
	}
	// Its place is overwritten each time, as is all that was there when the range was made: then the range is over.
	r = oneRange(t, s, c)
	newest := int64(next - 1)
	windows := 0
	docs, _ = walk(t, s, c, r, 50, nil, now(t, s), func(r *replicator.Range) {
		windows++
		overrun(150)(r)
	})
	if windows > 6 {
		t.Errorf("the range took %d windows to end", windows)
	}
	for _, n := range numbers(docs) {
		if n > newest {
			t.Errorf("document %d came after the range was made", n)
		}
	}
	// Its place is overwritten once: from the oldest on, to the end.
	r = oneRange(t, s, c)
	oldest, last := int64(next-500), int64(next-1)
	once := false
	docs, _ = walk(t, s, c, r, 100, nil, now(t, s), func(r *replicator.Range) {
		if !once {
			once = true
			overrun(200)(r)
		}
	})
	seen := map[int64]bool{}
	for _, n := range numbers(docs) {
		seen[n] = true
	}
	for n := oldest + 200; n <= last; n++ {
		if !seen[n] {
			t.Fatalf("document %d was not read", n)
		}
	}
}

func TestTheFirstDocumentIsAPlaceToo(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 1<<20, 5)
	put(t, coll, 0, 5)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, coll)
	docs, _ := walk(t, s, c, oneRange(t, s, c), 1, nil, now(t, s), nil)
	if got := numbers(docs); !slices.Equal(got, []int64{0, 1, 2, 3, 4}) {
		t.Errorf("read %v", got)
	}
}

func TestAnEmptyCappedCollectionIsDone(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 1<<20, 0)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	if r := oneRange(t, s, describe(t, s, coll)); !r.Done {
		t.Error("there is nothing to read and the range is not done")
	}
}

// Each member numbers the records of a capped collection by itself. Here a place is taken from a collection whose numbers
// are other ones: it must not be believed.
func TestAPlaceOfAMemberWithAnotherOrderIsNotBelieved(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 1<<20, 0)
	put(t, coll, 0, 100)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, coll)
	r := oneRange(t, s, c)
	w, err := s.Window(t.Context(), c, r, 50, nil, now(t, s))
	must(t, err)
	// The same collection with its records numbered anew, by 20 documents that are there no more.
	must(t, coll.Drop(t.Context()))
	must(t, db.CreateCollection(t.Context(), "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20).SetMaxDocuments(100)))
	put(t, coll, 5000, 20)
	put(t, coll, 0, 100)
	c = describe(t, s, coll)
	r.At = w.At
	docs, _ := walk(t, s, c, r, 50, nil, now(t, s), nil)
	if got := numbers(docs); len(got) != 100 || got[0] != 0 || !slices.IsSorted(got) {
		t.Errorf("read %v, want everything from the oldest on", got)
	}
}

func TestACappedCollectionIsReadFromASecondary(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 1<<20, 0)
	put(t, coll, 0, 1000)
	s := newSource(t, d.Options().SetReadPreference(readpref.Secondary()), mongodb.SourceConfig{})
	pos, err := s.Position(t.Context(), setOf(t, db.Name()))
	must(t, err)
	c := describe(t, s, coll)
	docs, _ := walk(t, s, c, oneRange(t, s, c), 33, nil, pos.TS, nil)
	seen := map[int64]bool{}
	for _, n := range numbers(docs) {
		seen[n] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d documents were read, want 1000", len(seen))
	}
}

func TestLargeDocumentsOfACappedCollectionDoNotEndItsRange(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := newCapped(t, db, 128<<20, 0)
	for i := range 4 {
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i}, {Key: "pad", Value: string(make([]byte, 16<<20-60))}})
		must(t, err)
	}
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, coll)
	docs, _ := walk(t, s, c, oneRange(t, s, c), 100, nil, now(t, s), nil)
	if got := numbers(docs); !slices.Equal(got, []int64{0, 1, 2, 3}) {
		t.Errorf("read %v", got)
	}
}
