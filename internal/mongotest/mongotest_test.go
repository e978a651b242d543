package mongotest

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestMain(m *testing.M) { Main(m) }

func TestEveryDatabaseIsEmptyAndItsTestsAlone(t *testing.T) {
	for _, get := range []func(testing.TB) *Deployment{Standalone, ReplicaSet} {
		d := get(t)
		a, b := d.DB(t), d.DB(t)
		if a.Name() == b.Name() {
			t.Fatalf("both are %s", a.Name())
		}
		if _, err := a.Collection("c").InsertOne(t.Context(), bson.D{{Key: "x", Value: 1}}); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Collection("c").CountDocuments(t.Context(), bson.D{}); err != nil || n != 0 {
			t.Fatalf("count %d, %v", n, err)
		}
	}
}
