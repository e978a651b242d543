package mongodb_test

import (
	"bytes"
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/fidelity"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

var _ replicator.Target = (*mongodb.Target)(nil)

// target returns a Target at d that is closed when the test ends.
func target(t testing.TB, d *mongotest.Deployment, cfg mongodb.TargetConfig) *mongodb.Target {
	t.Helper()
	tg, err := mongodb.NewTarget(d.Options(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tg.Close(context.WithoutCancel(t.Context())) })
	return tg
}

func putOp(t testing.TB, v any) replicator.Op { return op(replicator.Put, raw(t, v)) }

func op(verb replicator.Verb, doc bson.Raw) replicator.Op {
	o := replicator.Op{Verb: verb, ID: doc.Lookup("_id"), Document: doc}
	if verb == replicator.Remove {
		o.Document = nil
	}
	return o
}

func namespace(db *mongo.Database, coll string) record.Namespace {
	return record.Namespace{DB: db.Name(), Coll: coll}
}

// stored returns the documents of a collection by their _id.
func storedByID(t testing.TB, c *mongo.Collection) map[record.ID]bson.Raw {
	t.Helper()
	cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetSort(d("$natural", 1)))
	if err != nil {
		t.Fatal(err)
	}
	docs := map[record.ID]bson.Raw{}
	for cur.Next(t.Context()) {
		docs[record.IDOf(cur.Current.Lookup("_id"))] = append(bson.Raw(nil), cur.Current...)
	}
	if cur.Err() != nil {
		t.Fatal(cur.Err())
	}
	return docs
}

// same compares byte for byte.
func same(t testing.TB, c *mongo.Collection, want []fidelity.Document) {
	t.Helper()
	have := storedByID(t, c)
	if len(have) != len(want) {
		t.Errorf("%s holds %d documents, want %d", c.Name(), len(have), len(want))
	}
	for _, w := range want {
		if got := have[record.IDOf(w.ID())]; !bytes.Equal(got, w.Raw) {
			t.Errorf("%s: %s: got %.60x, want %.60x", c.Name(), w.Name, []byte(got), []byte(w.Raw))
		}
	}
}

func none(t testing.TB, refusals []replicator.Refusal, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refusals {
		t.Errorf("op %d was refused: %.300s", r.Index, r.Err)
	}
}

func deployments(t *testing.T) map[string]*mongotest.Deployment {
	t.Helper()
	return map[string]*mongotest.Deployment{"set": mongotest.ReplicaSet(t), "standalone": mongotest.Standalone(t)}
}
