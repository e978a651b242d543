package main

import (
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/replicator/statefile"
)

func TestReplicateKeepsItsCheckpointInAFile(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	source, target := d.DB(t), d.DB(t)
	path := filepath.Join(t.TempDir(), "routes.json")
	args := []string{"replicate", "--source-uri", d.URI, "--target-uri", d.URI, "--include", source.Name() + ".*",
		"--rename", source.Name() + "=" + target.Name(), "--name", source.Name(), "--until", "live", "--state-file", path}
	for i := range int64(2) {
		if _, err := source.Collection("orders").InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
		// The second run would refuse what the destination has, if it did not know where it was.
		if _, stderr, code := capstan(t, "", args...); code != exitOK {
			t.Fatalf("code %d: %s", code, stderr)
		}
		if n, err := target.Collection("orders").CountDocuments(t.Context(), bson.D{}); err != nil || n != i+1 {
			t.Errorf("%d documents, %v", n, err)
		}
	}
	states, err := statefile.New(path, statefile.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := states.Load(t.Context(), source.Name()); err != nil || !st.Clean || st.Copies != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	_, stderr, code := capstan(t, "", "replicate", "--source-uri", d.URI, "--target-uri", d.URI, "--stream", "a.b", "--state-file", path)
	if code != exitUsage || !strings.Contains(stderr, "--state-file is for collections") {
		t.Errorf("with --stream: code %d: %s", code, stderr)
	}
}
