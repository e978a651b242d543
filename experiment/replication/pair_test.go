package replication

import (
	"testing"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func TestASetOfOneHasAnOplog(t *testing.T) {
	t.Parallel()
	mongotest.Mongod(t)
	p, err := StartPair(t.Context(), 1, 0, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Down(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := p.From.Database("a").Collection("b").InsertOne(t.Context(), bson.D{}); err != nil {
		t.Fatal(err)
	}
	n, err := p.From.Database("local").Collection("oplog.rs").CountDocuments(t.Context(), bson.D{{Key: "ns", Value: "a.b"}})
	if err != nil || n == 0 {
		t.Fatalf("%d entries, %v", n, err)
	}
}
