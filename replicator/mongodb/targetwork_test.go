package mongodb_test

import (
	"bytes"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// inNaturalOrder returns the documents of a collection as they lie there.
func inNaturalOrder(t testing.TB, c *mongo.Collection) []bson.Raw {
	t.Helper()
	cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetSort(d("$natural", 1)))
	if err != nil {
		t.Fatal(err)
	}
	var docs []bson.Raw
	if err := cur.All(t.Context(), &docs); err != nil {
		t.Fatal(err)
	}
	return docs
}

func TestAnIdOfTheSameValueEndsAsTheNewestBytes(t *testing.T) {
	t.Parallel()
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
			collated := options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})
			clustered := options.CreateCollection().SetClusteredIndex(d("key", d("_id", 1), "unique", true))
			for _, c := range []struct {
				name       string
				o          *options.CreateCollectionOptionsBuilder
				old, newer any
			}{
				{"number", options.CreateCollection(), int64(7), 7.0},
				{"number in a clustered collection", clustered, int32(7), int64(7)},
				{"text", collated, "a", "A"},
				{"document", collated, d("x", "a"), d("x", "A")},
			} {
				for _, verb := range []replicator.Verb{replicator.Insert, replicator.Put} {
					for _, ordered := range []bool{false, true} {
						coll := c.name + string('0'+rune(verb)) + map[bool]string{true: "o", false: "u"}[ordered]
						if err := db.CreateCollection(t.Context(), coll, c.o); err != nil {
							t.Fatal(err)
						}
						ns := namespace(db, coll)
						refusals, err := tg.Insert(t.Context(), ns, []bson.Raw{raw(t, d("_id", c.old, "v", 1))}, ordered)
						none(t, refusals, err)
						want := raw(t, d("_id", c.newer, "v", 2))
						refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{op(verb, want)}, ordered)
						none(t, refusals, err)
						if docs := inNaturalOrder(t, db.Collection(coll)); len(docs) != 1 || !bytes.Equal(docs[0], want) {
							t.Errorf("%s: got %v", coll, docs)
						}
					}
				}
			}
		})
	}
}

func TestAUniqueIndexRefusesWithTheHolder(t *testing.T) {
	t.Parallel()
	dep := mongotest.ReplicaSet(t)
	db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
	c, ns := db.Collection("c"), namespace(db, "c")
	for _, m := range []mongo.IndexModel{
		{Keys: d("u", 1), Options: options.Index().SetUnique(true).SetSparse(true)},
		{Keys: d("a.b", 1, "c", -1), Options: options.Index().SetUnique(true).SetPartialFilterExpression(d("c", d("$exists", true)))},
		{Keys: d("t", 1), Options: options.Index().SetUnique(true).SetSparse(true).SetCollation(&options.Collation{Locale: "en", Strength: 2})},
	} {
		if _, err := c.Indexes().CreateOne(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	holders := []bson.D{d("_id", 1, "u", "x"), d("_id", d("s", 2), "a", bson.A{d("b", 5), d("b", 6)}, "c", nil), d("_id", 3, "t", "Text")}
	var docs []bson.Raw
	for _, h := range holders {
		docs = append(docs, raw(t, h))
	}
	refusals, err := tg.Insert(t.Context(), ns, docs, false)
	none(t, refusals, err)
	rivals := []bson.D{d("_id", 11, "u", "x"), d("_id", 12, "a", d("b", 6), "c", nil), d("_id", 13, "t", "tEXT"), d("_id", 14)}
	for _, verb := range []replicator.Verb{replicator.Insert, replicator.Put} {
		var ops []replicator.Op
		for _, r := range rivals {
			ops = append(ops, op(verb, raw(t, r)))
		}
		refusals, err = tg.Apply(t.Context(), 0, ns, ops, false)
		if err != nil || len(refusals) != 3 {
			t.Fatalf("%v, refusals: %v", err, refusals)
		}
		for _, r := range refusals {
			if want := docs[r.Index].Lookup("_id"); !r.Holder.Equal(want) || r.Err == nil {
				t.Errorf("op %d: holder %v, want %v: %v", r.Index, r.Holder, want, r.Err)
			}
		}
	}
	// Within one call what frees the value comes first, and what becomes possible by the rest is done.
	refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{putOp(t, rivals[0]), op(replicator.Remove, docs[0]), putOp(t, d("_id", 3, "t", "other")), op(replicator.Insert, raw(t, rivals[2]))}, false)
	none(t, refusals, err)
	refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{putOp(t, d("_id", 21, "u", "y")), putOp(t, d("_id", 11, "u", "z"))}, false)
	none(t, refusals, err)
	refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{putOp(t, d("_id", 22, "u", "z")), putOp(t, d("_id", 11, "u", "w"))}, false)
	none(t, refusals, err)
}

func TestAValidatorIsBypassed(t *testing.T) {
	t.Parallel()
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
			if err := db.CreateCollection(t.Context(), "c", options.CreateCollection().SetValidator(d("good", true))); err != nil {
				t.Fatal(err)
			}
			ns := namespace(db, "c")
			for _, ordered := range []bool{false, true} {
				refusals, err := tg.Insert(t.Context(), ns, []bson.Raw{raw(t, d("_id", 1, "good", true)), raw(t, d("_id", 2)), raw(t, d("_id", 3, "good", true))}, ordered)
				none(t, refusals, err)
				refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{putOp(t, d("_id", 2, "v", 2)), op(replicator.Insert, raw(t, d("_id", 4))), putOp(t, d("_id", 1))}, ordered)
				none(t, refusals, err)
			}
			if n := len(inNaturalOrder(t, db.Collection("c"))); n != 4 {
				t.Errorf("%d documents", n)
			}
		})
	}
}

func TestWhatCannotBeStoredIsRefusedAloneAndTheRestIsWritten(t *testing.T) {
	t.Parallel()
	dep := mongotest.ReplicaSet(t)
	db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
	if _, err := db.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: d("at", "2dsphere")}); err != nil {
		t.Fatal(err)
	}
	ns := namespace(db, "c")
	docs := []bson.Raw{raw(t, d("_id", 1)), raw(t, d("_id", bson.A{1})), raw(t, d("_id", 2, "at", "nowhere")), raw(t, d("_id", 3, "b", make([]byte, 16<<20))), raw(t, d("_id", 4))}
	for _, ordered := range []bool{false, true} {
		refusals, err := tg.Insert(t.Context(), ns, docs, ordered)
		if err != nil || len(refusals) != 3 {
			t.Fatalf("%v, refusals: %v", err, refusals)
		}
		for _, r := range refusals {
			if r.Index < 1 || r.Index > 3 || r.Err == nil || r.Holder.Type != 0 {
				t.Errorf("%+v", r)
			}
		}
		if n := len(inNaturalOrder(t, db.Collection("c"))); n != 2 {
			t.Errorf("%d documents", n)
		}
	}
}

func TestACappedCollectionKeepsItsOrder(t *testing.T) {
	t.Parallel()
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{Operations: 3})
			if err := db.CreateCollection(t.Context(), "c", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20)); err != nil {
				t.Fatal(err)
			}
			ns := namespace(db, "c")
			var docs []bson.Raw
			for i := range 500 {
				docs = append(docs, raw(t, d("_id", (i*7919)%500, "v", i)))
			}
			refusals, err := tg.Insert(t.Context(), ns, docs[:300], true)
			none(t, refusals, err)
			refusals, err = tg.Insert(t.Context(), ns, docs[200:400], true) // half of it is a replay
			none(t, refusals, err)
			docs[10] = raw(t, d("_id", docs[10].Lookup("_id"), "v", "changed, and longer than before"))
			ops := []replicator.Op{op(replicator.Put, docs[10])}
			for _, doc := range docs[400:450] {
				ops = append(ops, op(replicator.Insert, doc))
			}
			ops = append(ops, op(replicator.Remove, docs[20]))
			for _, doc := range docs[450:] {
				ops = append(ops, op(replicator.Insert, doc))
			}
			refusals, err = tg.Apply(t.Context(), 0, ns, ops, true)
			none(t, refusals, err)
			docs = append(docs[:20:20], docs[21:]...)
			have := inNaturalOrder(t, db.Collection("c"))
			if len(have) != len(docs) {
				t.Fatalf("%d documents, want %d", len(have), len(docs))
			}
			for i := range docs {
				if !bytes.Equal(have[i], docs[i]) {
					t.Fatalf("at %d: got %v, want %v", i, have[i], docs[i])
				}
			}
		})
	}
}

func TestIDsSeesEveryTypeInTheOrderOfTheIndex(t *testing.T) {
	t.Parallel()
	dep := mongotest.ReplicaSet(t)
	db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
	for _, clustered := range []bool{false, true} {
		coll := map[bool]string{false: "plain", true: "clustered"}[clustered]
		o := options.CreateCollection()
		if clustered {
			o.SetClusteredIndex(d("key", d("_id", 1), "unique", true))
		}
		if err := db.CreateCollection(t.Context(), coll, o); err != nil {
			t.Fatal(err)
		}
		ns := namespace(db, coll)
		values := []any{bson.MinKey{}, nil, int32(1), int64(2), 2.5, "a", "s", d("a", 1), bson.Binary{Data: []byte{1}}, bson.NewObjectID(), false, true, bson.DateTime(5), bson.Timestamp{T: 1, I: 1}, bson.MaxKey{}}
		var ids []record.ID
		for i, v := range values {
			doc := raw(t, d("_id", v, "n", i))
			ids = append(ids, record.IDOf(doc.Lookup("_id")))
			refusals, err := tg.Insert(t.Context(), ns, []bson.Raw{doc}, false)
			none(t, refusals, err)
		}
		check := func(from, to int, fromID, toID record.ID) {
			t.Helper()
			for _, limit := range []int{1000, 3} {
				got, err := tg.IDs(t.Context(), ns, fromID, toID, limit)
				if err != nil {
					t.Fatal(err)
				}
				want := ids[from:min(to, from+limit)]
				if len(got) != len(want) {
					t.Fatalf("%s (%v, %v]: %d, want %d", coll, fromID, toID, len(got), len(want))
				}
				for i := range got {
					if record.IDOf(got[i]) != want[i] {
						t.Errorf("%s (%v, %v]: at %d %v", coll, fromID, toID, i, got[i])
					}
				}
			}
		}
		check(0, len(ids), record.ID{}, record.ID{})
		for i := range ids {
			check(i+1, len(ids), ids[i], record.ID{})
			check(0, i+1, record.ID{}, ids[i])
			check(3, max(3, i+1), ids[2], ids[i])
		}
	}
}

func TestAFencedProcessWritesNothingMore(t *testing.T) {
	t.Parallel()
	dep := mongotest.ReplicaSet(t)
	db := dep.DB(t)
	old, ns := target(t, dep, mongodb.TargetConfig{}), namespace(db, "c")
	sessions, err := old.Fence(t.Context(), nil, 2)
	if err != nil || len(sessions) < 3 {
		t.Fatal(err, sessions)
	}
	write := func(tg *mongodb.Target, worker int, v string) error {
		_, err := tg.Apply(t.Context(), worker, ns, []replicator.Op{putOp(t, d("_id", worker, "v", v))}, false)
		return err
	}
	if err := errors.Join(write(old, 0, "old"), write(old, 1, "old")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // two successors at once, or one that had to begin again
		heir := target(t, dep, mongodb.TargetConfig{})
		if _, err := heir.Fence(t.Context(), sessions, 2); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(write(heir, 0, "new"), write(heir, 1, "new")); err != nil {
			t.Fatal(err)
		}
	}
	for worker := range 2 {
		if err := write(old, worker, "late"); !errors.Is(err, mongodb.ErrTakenOver) {
			t.Errorf("worker %d: %v", worker, err)
		}
	}
	if _, err := old.Insert(t.Context(), ns, []bson.Raw{raw(t, d("_id", 9))}, false); !errors.Is(err, mongodb.ErrTakenOver) {
		t.Errorf("copy: %v", err)
	}
	for _, doc := range inNaturalOrder(t, db.Collection("c")) {
		if doc.Lookup("v").StringValue() != "new" {
			t.Errorf("got %v", doc)
		}
	}
}

func TestAStandaloneServerNeedsNoFence(t *testing.T) {
	t.Parallel()
	tg := target(t, mongotest.Standalone(t), mongodb.TargetConfig{})
	if ids, err := tg.Fence(t.Context(), nil, 3); err != nil || len(ids) > 0 {
		t.Error(ids, err)
	}
	id, err := tg.Identity(t.Context())
	if err != nil || id.SetName != "" || id.Version == "" {
		t.Errorf("%+v %v", id, err)
	}
	id, err = target(t, mongotest.ReplicaSet(t), mongodb.TargetConfig{}).Identity(t.Context())
	if err != nil || id.SetName == "" || len(id.SetID) != 24 || id.Version == "" {
		t.Errorf("%+v %v", id, err)
	}
}

// A pipeline that gives an existing document two fields of one name ends mongod 6.0.5.
func TestADocumentThatWouldEndTheServerIsRefused(t *testing.T) {
	t.Parallel()
	set := mongotest.ReplicaSet(t)
	db := set.DB(t)
	tg := target(t, set, mongodb.TargetConfig{})
	ns := record.Namespace{DB: db.Name(), Coll: "c"}
	doc := func(id int) bson.Raw {
		return raw(t, bson.D{{Key: "_id", Value: id}, {Key: "ts", Value: bson.Timestamp{}}, {Key: "a", Value: 1}, {Key: "a", Value: 2}})
	}
	plain := raw(t, bson.D{{Key: "_id", Value: 7}, {Key: "a", Value: 1}, {Key: "a", Value: 2}})
	var ops []replicator.Op
	for _, d := range []bson.Raw{doc(1), plain, doc(2)} {
		ops = append(ops, replicator.Op{Verb: replicator.Put, ID: d.Lookup("_id"), Document: d})
	}
	for range 2 { // the second time the plain one is there
		refused, err := tg.Apply(t.Context(), 0, ns, ops, false)
		if err != nil || len(refused) != 2 || refused[0].Index != 0 || refused[1].Index != 2 {
			t.Fatalf("refused %v, %v; want the first and the third", refused, err)
		}
	}
	if n, err := db.Collection("c").CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 {
		t.Errorf("%d documents, %v; want 1", n, err)
	}
}
