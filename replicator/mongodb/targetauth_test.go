package mongodb_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// TestAUserOfFewRightsIsToldWhatIsMissing: readWrite suffices for the writes and the fence; what a validator refuses is refused, and
// what may not be written at all ends the call.
func TestAUserOfFewRightsIsToldWhatIsMissing(t *testing.T) {
	t.Parallel()
	dep := mongotest.Own(t, localcluster.Config{Members: 3, Auth: true})
	root := dep.DB(t)
	command(t, root, d("create", "strict", "validator", d("good", true)))
	command(t, root.Client().Database("admin"), d("createUser", "few", "pwd", "few", "roles", bson.A{d("role", "readWrite", "db", root.Name()), d("role", "readWrite", "db", "capstan")},
		"writeConcern", d("w", "majority")))
	tg, err := mongodb.NewTarget(dep.Options().SetAuth(options.Credential{Username: "few", Password: "few"}), mongodb.TargetConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tg.Close(t.Context()) }()
	if id, err := tg.Identity(t.Context()); err != nil || id.SetID != id.SetName || id.SetName == "" {
		t.Errorf("%+v %v", id, err)
	}
	ids, err := tg.Fence(t.Context(), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	refusals, err := tg.Insert(t.Context(), namespace(root, "strict"), []bson.Raw{raw(t, d("_id", 1, "good", true)), raw(t, d("_id", 2))}, false)
	if err != nil || len(refusals) != 1 || refusals[0].Index != 1 || !strings.Contains(refusals[0].Err.Error(), "bypassDocumentValidation") {
		t.Errorf("refusals %v, %v", refusals, err)
	}
	if _, err = tg.Apply(t.Context(), 0, record.Namespace{DB: "other", Coll: "c"}, []replicator.Op{putOp(t, d("_id", 1))}, false); err == nil || !strings.Contains(err.Error(), "readWrite") {
		t.Errorf("got %v", err)
	}
	if _, err := tg.Fence(t.Context(), ids, 1); err != nil {
		t.Error(err)
	}
	if cs := describeTarget(t, tg, root, "strict"); len(cs) != 1 || cs[0].Documents != 1 {
		t.Errorf("got %v", cs)
	}
}
