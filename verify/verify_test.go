package verify_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func numbered(n int) []any {
	docs := make([]any, n)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "text", Value: fmt.Sprintf("document %d of %d", i, n)}}
	}
	return docs
}

func TestEqualCollectionsAreEqual(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	insert(t, "a", numbered(12_345), s.source, s.target)
	rep := s.run(t, s.config())
	expect(t, rep)
	if rep.Documents != 12_345 || rep.Collections != 1 {
		t.Errorf("got %d documents of %d collections", rep.Documents, rep.Collections)
	}
}

func TestMissingExtraAndDifferentDocumentsAreFound(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	docs := numbered(5000)
	insert(t, "a", docs, s.source, s.target)
	insert(t, "a", []any{bson.D{{Key: "_id", Value: "only here"}}}, s.source)
	insert(t, "a", []any{bson.D{{Key: "_id", Value: bson.MaxKey{}}}}, s.target)
	ctx := t.Context()
	if _, err := s.target.Collection("a").DeleteOne(ctx, bson.D{{Key: "_id", Value: 4321}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.target.Collection("a").UpdateByID(ctx, 17, bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	rep := s.run(t, s.config())
	expect(t, rep, `missing {"$numberInt":"4321"}`, `missing "only here"`, `extra {"$maxKey":1}`, `different {"$numberInt":"17"}`)
	n := rep.Namespaces[0]
	if n.Missing != 2 || n.Extra != 1 || n.Different != 1 || n.Equal != 4998 || n.SourceDocuments != 5001 || n.TargetDocuments != 5000 {
		t.Errorf("got %+v", n)
	}
}
