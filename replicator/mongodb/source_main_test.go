package mongodb_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

var _ replicator.Source = (*mongodb.Source)(nil)

func newSource(t testing.TB, opts *options.ClientOptions, cfg mongodb.SourceConfig) *mongodb.Source {
	t.Helper()
	s, err := mongodb.NewSource(opts, cfg)
	if err != nil {
		t.Fatal(err)
	}
	base := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(base, 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close the source: %v", err)
		}
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func setOf(t testing.TB, include ...string) *scope.Set {
	t.Helper()
	set, err := scope.Compile(scope.Config{Include: include})
	must(t, err)
	return set
}

func raw(t testing.TB, doc any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(doc)
	must(t, err)
	return b
}

// fill inserts n documents with the _ids 0 to n-1 and pad bytes each, committed by the majority.
func fill(t testing.TB, coll *mongo.Collection, n, pad int) {
	t.Helper()
	const per = 5000
	docs := make([]any, 0, per)
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i % 10}, {Key: "pad", Value: string(make([]byte, pad))}})
		if len(docs) == per || i == n-1 {
			_, err := coll.InsertMany(t.Context(), docs)
			must(t, err)
			docs = docs[:0]
		}
	}
}

// describe returns the one collection as the source sees it.
func describe(t testing.TB, s *mongodb.Source, coll *mongo.Collection) replicator.Collection {
	t.Helper()
	all, err := s.Collections(t.Context(), setOf(t, coll.Database().Name()+"."+coll.Name()))
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("%d collections are found, want 1", len(all))
	}
	return all[0]
}

// now is a time that everything written so far is not later than.
func now(t testing.TB, s *mongodb.Source) record.Timestamp {
	t.Helper()
	c, err := s.Clock(t.Context(), record.Position{})
	must(t, err)
	return c.Head
}

// walk reads a range to its end by windows and returns their documents; between is called between the windows, with
// the range as it would be stored.
func walk(t testing.TB, s *mongodb.Source, c replicator.Collection, r replicator.Range, limit int, filter bson.Raw, at record.Timestamp, between func(*replicator.Range)) (docs []bson.Raw, end replicator.Range) {
	t.Helper()
	for n := 0; !r.Done; n++ {
		w, err := s.Window(t.Context(), c, r, limit, filter, at)
		if err != nil {
			t.Fatalf("window %d behind %s: %v", n, r.At, err)
		}
		if len(w.Documents) > limit+1 {
			t.Fatalf("a window has %d documents, asked were %d", len(w.Documents), limit)
		}
		if !w.Done && w.At == r.At {
			t.Fatalf("a window does not move on from %s", r.At)
		}
		docs = append(docs, w.Documents...)
		r.At, r.Done = w.At, w.Done
		r.Scanned += w.Scanned
		if between != nil {
			between(&r)
		}
	}
	return docs, r
}

// walkAll splits a collection and reads all of its ranges.
func walkAll(t testing.TB, s *mongodb.Source, c replicator.Collection, n, limit int, filter bson.Raw) (docs []bson.Raw, scanned int64) {
	t.Helper()
	rs, err := s.Split(t.Context(), c, n)
	must(t, err)
	for _, r := range rs {
		some, end := walk(t, s, c, r, limit, filter, record.Timestamp{}, nil)
		docs = append(docs, some...)
		scanned += end.Scanned
	}
	return docs, scanned
}

// sameDocuments fails the test unless got and want hold the same documents, byte for byte, in any order.
func sameDocuments(t testing.TB, got, want []bson.Raw) {
	t.Helper()
	count := map[string]int{}
	for _, d := range want {
		count[string(d)]++
	}
	for _, d := range got {
		count[string(d)]--
	}
	for d, n := range count {
		if n != 0 {
			t.Fatalf("%d documents were read and %d exist; one is read %d times too few: %.200s", len(got), len(want), n, bson.Raw(d).String())
		}
	}
}

func stored(t testing.TB, coll *mongo.Collection, filter any) []bson.Raw {
	t.Helper()
	cur, err := coll.Find(t.Context(), filter, options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}}))
	must(t, err)
	var docs []bson.Raw
	must(t, cur.All(t.Context(), &docs))
	return docs
}

// oddIDs are one _id of each type, and some that are close to one another.
func oddIDs() []any {
	dec, _ := bson.ParseDecimal128("5.50")
	return []any{
		bson.MinKey{}, nil, 5, int64(1) << 60, -1.5, dec, "", "s", "t", bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 2}}, bson.D{{Key: "x.y", Value: 1}},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.NewObjectID(), bson.NewObjectID(), false, true, bson.DateTime(-5), bson.DateTime(5),
		bson.Timestamp{T: 5, I: 1}, bson.Symbol("sym"), bson.JavaScript("x()"), bson.MaxKey{},
	}
}

// eventually waits until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("a minute has passed, and still not: %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func database(t testing.TB) (*mongotest.Deployment, *mongo.Database) {
	t.Helper()
	d := mongotest.ReplicaSet(t)
	return d, d.DB(t)
}

func name(format string, args ...any) string { return fmt.Sprintf(format, args...) }
