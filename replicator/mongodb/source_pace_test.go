package mongodb

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

func TestACommandThatIsTooMuchGetsSmallerAndGrowsAgain(t *testing.T) {
	t.Parallel()
	var p pace
	ns := record.Namespace{DB: "a", Coll: "b"}
	other := record.Namespace{DB: "a", Coll: "c"}
	const attempt = time.Second
	if n := p.limit(ns, 2000); n != 2000 {
		t.Fatalf("nothing has happened and the limit is %d", n)
	}
	p.slower(ns, 2000)
	p.slower(ns, 1000)
	if n, o := p.limit(ns, 2000), p.limit(other, 2000); n != 500 || o != 2000 {
		t.Errorf("after two deadlines the limit is %d, of another collection %d", n, o)
	}
	if n := p.limit(ns, 10); n != 10 {
		t.Errorf("asked for 10, the limit is %d", n)
	}
	p.faster(ns, 10, 0, attempt) // says nothing about 500
	p.faster(ns, 500, attempt/2, attempt)
	if n := p.limit(ns, 2000); n != 500 {
		t.Errorf("an answer that took half of an attempt makes the limit %d", n)
	}
	p.faster(ns, 500, attempt/10, attempt)
	if n := p.limit(ns, 2000); n != 1000 {
		t.Errorf("a quick answer makes the limit %d", n)
	}
	for range 40 {
		p.slower(ns, p.limit(ns, 2000))
	}
	if n := p.limit(ns, 2000); n != 1 {
		t.Errorf("the least limit is %d", n)
	}
	for range 40 {
		p.faster(ns, p.limit(ns, 1<<30), 0, attempt)
	}
	if n := p.limit(ns, 1<<30); n != 1<<30 {
		t.Errorf("after many quick answers the limit is still %d", n)
	}
}

func TestASampleCutsEveryTypeToo(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("c")
	docs := make([]any, 0, 3000)
	for i := range 1500 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}}, bson.D{{Key: "_id", Value: bson.NewObjectID()}})
	}
	if _, err := coll.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	s, err := NewSource(d.Options(), SourceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
	c := replicator.Collection{Name: record.Namespace{DB: coll.Database().Name(), Coll: "c"}, Kind: replicator.KindCollection}
	ids, err := s.sample(t.Context(), c, 8)
	if err != nil || len(ids) != 7 {
		t.Fatalf("%d bounds: %v", len(ids), err)
	}
	n := 0
	for _, r := range ranges(ids) {
		for !r.Done {
			w, err := s.Window(t.Context(), c, r, 500, nil, record.Timestamp{})
			if err != nil {
				t.Fatal(err)
			}
			n += len(w.Documents)
			r.At, r.Done = w.At, w.Done
		}
	}
	if n != 3000 {
		t.Errorf("the ranges hold %d documents, want 3000", n)
	}
}

func TestRepeatedAndExtremeBoundsMakeNoRange(t *testing.T) {
	t.Parallel()
	one, two := record.NewID(), record.NewID()
	got := ranges([]record.ID{minKey, one, one, two, two, maxKey})
	if len(got) != 3 || got[0].To != one || got[1].From != one || got[1].To != two || got[2].From != two || !got[2].To.IsZero() {
		t.Errorf("ranges are %+v", got)
	}
}
