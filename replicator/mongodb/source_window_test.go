package mongodb_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// variants are the kinds of collections whose index on _id differs.
var variants = map[string]*options.CreateCollectionOptionsBuilder{
	"plain":     options.CreateCollection(),
	"collation": options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2}),
	"numeric":   options.CreateCollection().SetCollation(&options.Collation{Locale: "en", NumericOrdering: true}),
	"clustered": options.CreateCollection().SetClusteredIndex(bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}}),
}

// oddIDsIn is oddIDs without what a collation refuses.
func oddIDsIn(variant string) []any {
	return slices.DeleteFunc(oddIDs(), func(id any) bool {
		_, symbol := id.(bson.Symbol)
		return symbol && (variant == "collation" || variant == "numeric")
	})
}

func TestEveryTypeOfIDIsReadOnceWhereverTheRangesAreCut(t *testing.T) {
	t.Parallel()
	for variant, o := range variants {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			d, db := database(t)
			must(t, db.CreateCollection(t.Context(), "c", o))
			coll := db.Collection("c")
			for _, id := range oddIDsIn(variant) {
				_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "v", Value: fmt.Sprint(id)}})
				must(t, err)
			}
			s := newSource(t, d.Options(), mongodb.SourceConfig{})
			c, want, at := describe(t, s, coll), stored(t, coll, bson.D{}), now(t, s)
			filters := []bson.Raw{nil, raw(t, bson.D{{Key: "v", Value: bson.D{{Key: "$exists", Value: true}}}})}
			// Two ranges cut at each _id that exists, read in windows of several sizes, with a filter and without.
			for _, cut := range want {
				at2 := record.IDOf(cut.Lookup("_id"))
				for _, limit := range []int{1, 3, 100} {
					for _, filter := range filters {
						low, endLow := walk(t, s, c, replicator.Range{To: at2}, limit, filter, at, nil)
						high, endHigh := walk(t, s, c, replicator.Range{From: at2}, limit, filter, at, nil)
						sameDocuments(t, slices.Concat(low, high), want)
						if n := endLow.Scanned + endHigh.Scanned; n != int64(len(want)) {
							t.Errorf("cut at %s, windows of %d, filter %v: %d documents count as looked at, want %d", at2, limit, filter != nil, n, len(want))
						}
					}
				}
			}
		})
	}
}

func TestRangesHoldEveryDocumentOnce(t *testing.T) {
	t.Parallel()
	for variant, o := range variants {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			d, db := database(t)
			must(t, db.CreateCollection(t.Context(), "c", o))
			coll := db.Collection("c")
			const n = 24_000
			docs := make([]any, 0, n)
			for i := range n {
				var id any
				switch i % 4 {
				case 0:
					id = i
				case 1:
					id = fmt.Sprintf("%c%d", 'A'+i%50, i)
				case 2:
					id = bson.NewObjectID()
				case 3:
					id = bson.D{{Key: "z", Value: i}}
				}
				docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "i", Value: i}, {Key: "pad", Value: string(make([]byte, 100))}})
			}
			for part := range slices.Chunk(docs, 6000) {
				_, err := coll.InsertMany(t.Context(), part)
				must(t, err)
			}
			for _, id := range oddIDsIn(variant) {
				_, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}}, bson.D{{Key: "$set", Value: bson.D{{Key: "odd", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
				must(t, err)
			}
			s := newSource(t, d.Options(), mongodb.SourceConfig{})
			c := describe(t, s, coll)
			want := stored(t, coll, bson.D{})
			c.Bytes = 64 << 20 // so that it is cut
			rs, err := s.Split(t.Context(), c, 4)
			must(t, err)
			if len(rs) != 4 {
				t.Fatalf("the collection is cut into %d ranges, want 4", len(rs))
			}
			var all []bson.Raw
			for _, r := range rs {
				some, _ := walk(t, s, c, r, 1000, nil, now(t, s), nil)
				if len(some) < len(want)/5 || len(some) > len(want)/3 {
					t.Errorf("a range of four has %d of %d documents", len(some), len(want))
				}
				all = append(all, some...)
			}
			sameDocuments(t, all, want)
		})
	}
}

func TestSmallAndEmptyCollectionsAreOneRange(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	must(t, db.CreateCollection(t.Context(), "empty"))
	fill(t, db.Collection("small"), 100, 10)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	for _, coll := range []*mongo.Collection{db.Collection("empty"), db.Collection("small")} {
		c := describe(t, s, coll)
		rs, err := s.Split(t.Context(), c, 8)
		must(t, err)
		if len(rs) != 1 {
			t.Errorf("%s is cut into %d ranges, want 1", coll.Name(), len(rs))
		}
		docs, _ := walkAll(t, s, c, 8, 30, nil)
		sameDocuments(t, docs, stored(t, coll, bson.D{}))
	}
}

func TestWindowsGoOnBehindWhatWasReadWhateverIsWrittenMeanwhile(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := db.Collection("c")
	fill(t, coll, 1000, 10)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, coll)
	n := 0
	docs, end := walk(t, s, c, replicator.Range{}, 100, nil, now(t, s), func(r *replicator.Range) {
		// What was read last goes, something comes before it and behind it: each is a change, and none ends the walk or
		// makes it miss what was there from the beginning.
		if r.Done {
			return
		}
		n++
		_, err := coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: r.At.RawValue()}})
		must(t, err)
		_, err = coll.InsertMany(t.Context(), []any{bson.D{{Key: "_id", Value: -n}}, bson.D{{Key: "_id", Value: 100_000 + n}}, bson.D{{Key: "_id", Value: name("s%d", n)}}})
		must(t, err)
	})
	seen := map[int64]int{}
	for _, doc := range docs {
		if id, ok := doc.Lookup("_id").AsInt64OK(); ok && id >= 0 && id < 1000 {
			seen[id]++
		}
	}
	if len(seen) != 1000 || end.Scanned < 1000 {
		t.Errorf("%d of 1000 documents were read, %d count as looked at", len(seen), end.Scanned)
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("document %d was read %d times", id, times)
		}
	}
}

func TestAFilterThatMatchesNothingMovesOnInBoundedWindows(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := db.Collection("c")
	const n = 50_000
	fill(t, coll, n, 10)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c, at := describe(t, s, coll), now(t, s)
	filter := raw(t, bson.D{{Key: "k", Value: "nobody"}})
	windows := 0
	docs, end := walk(t, s, c, replicator.Range{}, 4000, filter, at, func(r *replicator.Range) {
		if windows++; !r.Done && r.Scanned != int64(4000*windows) {
			t.Errorf("after %d windows %d documents count as looked at", windows, r.Scanned)
		}
	})
	if len(docs) != 0 || end.Scanned != n || windows != n/4000+1 {
		t.Errorf("%d documents matched, %d were looked at in %d windows; want 0, %d, %d", len(docs), end.Scanned, windows, n, n/4000+1)
	}
	// One that matches a tenth.
	filter = raw(t, bson.D{{Key: "k", Value: 3}})
	docs, end = walk(t, s, c, replicator.Range{}, 7000, filter, at, nil)
	sameDocuments(t, docs, stored(t, coll, filter))
	if end.Scanned != n {
		t.Errorf("%d documents count as looked at, want %d", end.Scanned, n)
	}
}

func TestAnEmptyFilterIsNoFilter(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	fill(t, db.Collection("c"), 10, 10)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	docs, scanned := walkAll(t, s, describe(t, s, db.Collection("c")), 1, 4, raw(t, bson.D{}))
	if len(docs) != 10 || scanned != 10 {
		t.Errorf("%d documents were read, %d looked at; want 10", len(docs), scanned)
	}
}

func TestDocumentsOf16MBAreReadOnceAndInWindowsThatFitIntoMemory(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := db.Collection("big")
	largest := 16<<20 - len(raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "pad", Value: ""}}))
	for i := range 8 {
		pad := largest
		if i%2 == 1 {
			pad = 100
		}
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "k", Value: 1}, {Key: "pad", Value: string(make([]byte, pad))}})
		must(t, err)
	}
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c, at := describe(t, s, coll), now(t, s)
	for _, filter := range []bson.Raw{nil, raw(t, bson.D{{Key: "k", Value: 1}})} {
		var ids []int64
		r := replicator.Range{}
		for !r.Done {
			w, err := s.Window(t.Context(), c, r, 1000, filter, at)
			must(t, err)
			size := 0
			for _, doc := range w.Documents {
				size += len(doc)
				ids = append(ids, doc.Lookup("_id").AsInt64())
			}
			if size > 34<<20 {
				t.Errorf("a window holds %d MB", size>>20)
			}
			r.At, r.Done, r.Scanned = w.At, w.Done, r.Scanned+w.Scanned
		}
		if !slices.Equal(ids, []int64{0, 1, 2, 3, 4, 5, 6, 7}) || r.Scanned != 8 {
			t.Errorf("documents %v were read, %d looked at", ids, r.Scanned)
		}
	}
	ids := make([]bson.RawValue, 0, 8)
	for i := range 8 {
		ids = append(ids, raw(t, bson.D{{Key: "v", Value: i}}).Lookup("v"))
	}
	docs, err := s.Fetch(t.Context(), c.Name, "", ids, nil, at)
	must(t, err)
	if len(docs) != 8 {
		t.Errorf("%d documents were fetched, want 8", len(docs))
	}
}

func TestACollectionThatIsGoneIsSaidAndOneThatWasRenamedIsRead(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	fill(t, db.Collection("c"), 10, 10)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, s, db.Collection("c"))
	filters := []bson.Raw{nil, raw(t, bson.D{{Key: "k", Value: bson.D{{Key: "$exists", Value: true}}}})}
	must(t, d.DB(t).Client().Database("admin").RunCommand(t.Context(), bson.D{{Key: "renameCollection", Value: db.Name() + ".c"}, {Key: "to", Value: db.Name() + ".other"}}).Err())
	fill(t, db.Collection("c"), 3, 10) // another collection under the name
	for _, filter := range filters {
		w, err := s.Window(t.Context(), c, replicator.Range{}, 100, filter, now(t, s))
		must(t, err)
		if len(w.Documents) != 10 {
			t.Errorf("a window of a renamed collection has %d documents, want 10", len(w.Documents))
		}
	}
	must(t, db.Collection("other").Drop(t.Context()))
	for _, filter := range filters {
		if _, err := s.Window(t.Context(), c, replicator.Range{}, 100, filter, now(t, s)); !errors.Is(err, replicator.ErrGone) {
			t.Errorf("a window of a dropped collection: %v, want ErrGone", err)
		}
	}
	if _, err := s.Fetch(t.Context(), c.Name, c.UUID, []bson.RawValue{raw(t, bson.D{{Key: "v", Value: 1}}).Lookup("v")}, nil, now(t, s)); !errors.Is(err, replicator.ErrGone) {
		t.Errorf("fetch from a dropped collection: %v, want ErrGone", err)
	}
}

func TestFetchReturnsThePresentVersionsOnce(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := db.Collection("c")
	for _, id := range oddIDs() {
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "k", Value: 1}})
		must(t, err)
	}
	fill(t, db.Collection("many"), 3000, 10)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	at := now(t, s)
	var ids []bson.RawValue
	for _, id := range append(oddIDs(), 5.0, int64(5), "none", 77) {
		v := raw(t, bson.D{{Key: "v", Value: id}}).Lookup("v")
		ids = append(ids, v)
	}
	want := stored(t, coll, bson.D{})
	ids = ids[:0]
	for _, doc := range want {
		ids = append(ids, doc.Lookup("_id"))
	}
	for _, id := range []any{5.0, int64(5), "none", 77} {
		ids = append(ids, raw(t, bson.D{{Key: "v", Value: id}}).Lookup("v"))
	}
	docs, err := s.Fetch(t.Context(), record.Namespace{DB: db.Name(), Coll: "c"}, "", ids, nil, at)
	must(t, err)
	sameDocuments(t, docs, want)
	docs, err = s.Fetch(t.Context(), record.Namespace{DB: db.Name(), Coll: "c"}, "", ids, raw(t, bson.D{{Key: "k", Value: 2}}), at)
	must(t, err)
	sameDocuments(t, docs, nil)
	// Numbers of several types, in several commands.
	ids = ids[:0]
	for i := range 3000 {
		ids = append(ids, raw(t, bson.D{{Key: "v", Value: i}}).Lookup("v"))
	}
	for i := range 3000 {
		ids = append(ids, raw(t, bson.D{{Key: "v", Value: float64(i)}}).Lookup("v"))
	}
	docs, err = s.Fetch(t.Context(), record.Namespace{DB: db.Name(), Coll: "many"}, "", ids, nil, at)
	must(t, err)
	sameDocuments(t, docs, stored(t, db.Collection("many"), bson.D{}))
	docs, err = s.Fetch(t.Context(), record.Namespace{DB: db.Name(), Coll: "many"}, "", nil, nil, at)
	must(t, err)
	sameDocuments(t, docs, nil)
}

func TestFetchComparesByTheCollationOfTheCollection(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	must(t, db.CreateCollection(t.Context(), "c", variants["collation"]))
	_, err := db.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "Street"}})
	must(t, err)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	docs, err := s.Fetch(t.Context(), record.Namespace{DB: db.Name(), Coll: "c"}, "", []bson.RawValue{raw(t, bson.D{{Key: "v", Value: "STREET"}}).Lookup("v")}, nil, now(t, s))
	must(t, err)
	if len(docs) != 1 {
		t.Errorf("%d documents were fetched, want 1", len(docs))
	}
}
