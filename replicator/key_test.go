package replicator

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func value(t testing.TB, v any) bson.RawValue {
	t.Helper()
	doc, err := bson.Marshal(bson.D{{Key: "v", Value: v}})
	if err != nil {
		t.Fatal(err)
	}
	return bson.Raw(doc).Lookup("v")
}

func decimal(t testing.TB, s string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOneKeyIsOneIDOfTheServers puts pairs of values into a collection of the server: the second is refused as a duplicate if and only
// if both have one key.
func TestOneKeyIsOneIDOfTheServers(t *testing.T) {
	t.Parallel()
	values := []any{
		int32(7), int64(7), 7.0, decimal(t, "7"), decimal(t, "7.00"), decimal(t, "70E-1"), 7.5, decimal(t, "7.5"), "7",
		int32(0), math.Copysign(0, -1), decimal(t, "-0"), decimal(t, "0E+10"), math.NaN(), decimal(t, "NaN"), math.Inf(1), decimal(t, "Infinity"),
		math.Inf(-1), int64(math.MaxInt64), float64(1 << 63), int64(1<<53 + 1), float64(1 << 53), 0.1, decimal(t, "0.1"),
		math.SmallestNonzeroFloat64, math.MaxFloat64, decimal(t, "1E+6144"), decimal(t, "1E-6176"),
		"a", bson.Symbol("a"), bson.D{{Key: "a", Value: int32(1)}}, bson.D{{Key: "a", Value: 1.0}}, bson.D{{Key: "b", Value: 1.0}},
		bson.D{{Key: "a", Value: bson.A{int32(1), "x"}}}, bson.D{{Key: "a", Value: bson.A{int64(1), bson.Symbol("x")}}},
		bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: int32(2)}}, bson.D{{Key: "b", Value: int32(2)}, {Key: "a", Value: int32(1)}},
		bson.D{}, nil, true, false, bson.MinKey{}, bson.MaxKey{}, bson.NewDateTimeFromTime(time.Unix(7, 0)), bson.Timestamp{T: 7},
		bson.Binary{Data: []byte{7}}, bson.Binary{Subtype: 4, Data: []byte{7}}, bson.ObjectID{7}, bson.CodeWithScope{Code: "a", Scope: bson.D{}}, bson.JavaScript("a"),
	}
	db := mongotest.Standalone(t).DB(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	n := 0
	for i, a := range values {
		for j, b := range values[i+1:] {
			if random.IntN(3) > 0 && i+1+j > 12 && i > 12 {
				continue // a third of the dull pairs is enough
			}
			n++
			va, vb := value(t, a), value(t, b)
			if got, want := canonical(va) == canonical(vb), oneID(t, db.Collection(fmt.Sprintf("pair%d", n%50)), va, vb); got != want {
				t.Errorf("%v and %v (%s, %s): one key %t, one _id %t", a, b, va.Type, vb.Type, got, want)
			}
		}
	}
}

func oneID(t *testing.T, c *mongo.Collection, a, b bson.RawValue) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.DeleteMany(ctx, bson.D{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: a}}); err != nil {
		t.Fatalf("_id %v: %v", a, err)
	}
	_, err := c.InsertOne(ctx, bson.D{{Key: "_id", Value: b}})
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		t.Fatalf("_id %v: %v", b, err)
	}
	return err != nil
}
