package mongodb_test

import (
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/fidelity"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// TestEveryDocumentArrivesByteForByte is the fidelity suite of the destination.
func TestEveryDocumentArrivesByteForByte(t *testing.T) {
	t.Parallel()
	table := slices.DeleteFunc(fidelity.Documents(), func(doc fidelity.Document) bool { return doc.Large })
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
			docs := make([]bson.Raw, len(table))
			older := make([]bson.Raw, len(table))
			all := map[replicator.Verb][]replicator.Op{}
			for i, doc := range table {
				docs[i] = doc.Raw
				id := doc.ID()
				older[i] = raw(t, bson.D{{Key: "_id", Value: id}, {Key: "old", Value: int32(i)}})
				for _, v := range []replicator.Verb{replicator.Insert, replicator.Put, replicator.Remove} {
					all[v] = append(all[v], op(v, doc.Raw))
				}
			}
			for _, ordered := range []bool{false, true} {
				c := func(what string) (*mongo.Collection, record.Namespace) {
					n := fmt.Sprintf("%s ordered %v", what, ordered)
					return db.Collection(n), namespace(db, n)
				}
				coll, ns := c("insert")
				for range 2 { // and its replay
					refusals, err := tg.Insert(t.Context(), ns, docs, ordered)
					none(t, refusals, err)
					same(t, coll, table)
				}
				coll, ns = c("insert over older")
				refusals, err := tg.Insert(t.Context(), ns, older, ordered)
				none(t, refusals, err)
				refusals, err = tg.Insert(t.Context(), ns, docs, ordered)
				none(t, refusals, err)
				same(t, coll, table)
				for verb, name := range map[replicator.Verb]string{replicator.Insert: "apply insert", replicator.Put: "put"} {
					coll, ns = c(name)
					for range 2 {
						refusals, err := tg.Apply(t.Context(), 1, ns, all[verb], ordered)
						none(t, refusals, err)
						same(t, coll, table)
					}
					coll, ns = c(name + " over older")
					refusals, err := tg.Insert(t.Context(), ns, older, ordered)
					none(t, refusals, err)
					refusals, err = tg.Apply(t.Context(), 1, ns, all[verb], ordered)
					none(t, refusals, err)
					same(t, coll, table)
					refusals, err = tg.Apply(t.Context(), 1, ns, all[replicator.Remove], ordered)
					none(t, refusals, err)
					same(t, coll, nil)
				}
			}
		})
	}
}

// TestLargeDocumentsArrive uses the largest documents that a set stores. Its servers have so little cache that some replacements
// of them do not fit.
func TestLargeDocumentsArrive(t *testing.T) {
	t.Parallel()
	table := slices.DeleteFunc(fidelity.Documents(), func(doc fidelity.Document) bool { return !doc.Large })
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
			coll, ns := db.Collection("large"), namespace(db, "large")
			for _, doc := range table {
				refusals, err := tg.Insert(t.Context(), ns, []bson.Raw{doc.Raw}, false)
				none(t, refusals, err)
				same(t, coll, []fidelity.Document{doc})
				refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{op(replicator.Put, raw(t, bson.D{{Key: "_id", Value: doc.ID()}, {Key: "old", Value: 1}}))}, false)
				none(t, refusals, err)
				refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{op(replicator.Put, doc.Raw)}, false)
				none(t, refusals, err)
				same(t, coll, []fidelity.Document{doc})
				refusals, err = tg.Apply(t.Context(), 0, ns, []replicator.Op{op(replicator.Remove, doc.Raw)}, false)
				none(t, refusals, err)
			}
		})
	}
}
