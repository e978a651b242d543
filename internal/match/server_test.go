package match_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/internal/match"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// TestMatchGivesTheAnswerOfMongod asks a real mongod and this package the same question about the
// same documents.
func TestMatchGivesTheAnswerOfMongod(t *testing.T) {
	t.Parallel()
	coll := mongotest.Standalone(t).DB(t).Collection("docs")
	rapid.Check(t, func(rt *rapid.T) {
		docs := rapid.SliceOfN(rapid.Custom(genDocument), 1, 12).Draw(rt, "documents")
		query := genQuery(rt, 2)
		want, serverErr := ask(t, coll, docs, query)
		raw, err := bson.Marshal(query)
		if err != nil {
			rt.Fatal(err)
		}
		m, err := match.Compile(raw)
		if (err != nil) != (serverErr != nil) {
			rt.Fatalf("query %s: mongod says %v, Compile says %v", bson.Raw(raw), serverErr, err)
		}
		if err != nil {
			return
		}
		for i, d := range docs {
			b, err := bson.Marshal(slices.Concat(bson.D{{Key: "_id", Value: int32(i)}}, d))
			if err != nil {
				rt.Fatal(err)
			}
			if got := m.Match(b); got != want[i] {
				rt.Errorf("query %s\ndocument %s\nmongod matches: %v, Match: %v", bson.Raw(raw), bson.Raw(b), want[i], got)
			}
		}
	})
}

// ask returns which documents mongod's matcher accepts.
func ask(t *testing.T, coll *mongo.Collection, docs []bson.D, query bson.D) (map[int]bool, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := coll.DeleteMany(ctx, bson.D{}); err != nil {
		t.Fatal(err)
	}
	var in []any
	for i, d := range docs {
		in = append(in, slices.Concat(bson.D{{Key: "_id", Value: int32(i)}}, d))
	}
	if _, err := coll.InsertMany(ctx, in); err != nil {
		t.Fatal(err)
	}
	cur, err := coll.Find(ctx, query)
	if err != nil {
		return nil, err
	}
	var found []struct {
		ID int `bson:"_id"`
	}
	if err := cur.All(ctx, &found); err != nil {
		t.Fatal(err)
	}
	out := map[int]bool{}
	for _, f := range found {
		out[f.ID] = true
	}
	return out, nil
}

func decimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return d
}

// scalars meet each other at the edges: equal numbers of four types, and neighbours of each.
var scalars = []any{
	int32(0), int32(1), int32(2), int64(1), int64(1 << 53), int64(1<<53 + 1), int64(math.MaxInt64),
	0.0, math.Copysign(0, -1), 0.1, 1.0, 1.5, float64(1 << 53), float64(1 << 63), math.NaN(), math.Inf(1), math.Inf(-1),
	decimal("1"), decimal("1.00"), decimal("0.1"), decimal("9007199254740993"), decimal("NaN"), decimal("Infinity"), decimal("-Infinity"), decimal("1E+6000"), decimal("-0"),
	"", "a", "ab", "b", "A", "a\nb", "é", nil, true, false,
	bson.ObjectID{1}, bson.ObjectID{2}, bson.DateTime(-1), bson.DateTime(1), bson.Timestamp{T: 1, I: 2}, bson.Timestamp{T: 2, I: 1},
	bson.Binary{Subtype: 0, Data: []byte("a")}, bson.Binary{Subtype: 5, Data: []byte("a")}, bson.Binary{Subtype: 0, Data: []byte("ab")},
	bson.MinKey{}, bson.MaxKey{}, bson.JavaScript("a"), bson.Symbol("a"), bson.Undefined{},
	bson.Regex{Pattern: "a"}, bson.Regex{Pattern: "^b", Options: "i"},
}

var keys = []string{"a", "b", "0", "1"}

func genValue(t *rapid.T, depth int) any {
	kind := rapid.IntRange(0, 9).Draw(t, "kind")
	switch {
	case kind <= 4 || depth == 0:
		return rapid.SampledFrom(scalars).Draw(t, "scalar")
	case kind <= 7:
		a := bson.A{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			a = append(a, genValue(t, depth-1))
		}
		return a
	}
	return genFields(t, depth-1)
}

func genFields(t *rapid.T, depth int) bson.D {
	d := bson.D{}
	for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 2, rapid.ID).Draw(t, "keys") {
		d = append(d, bson.E{Key: k, Value: genValue(t, depth)})
	}
	return d
}

func genDocument(t *rapid.T) bson.D { return genFields(t, 3) }

var paths = []string{"a", "b", "a.b", "a.a", "a.0", "a.1", "a.0.b", "a.0.0", "a.b.0", "a.b.a", "b.0.1", "a.00", "missing", "a.missing", "0", "a.0.0.b"}

func genQuery(t *rapid.T, depth int) bson.D {
	q := bson.D{}
	for range rapid.IntRange(1, 2).Draw(t, "terms") {
		if depth > 0 && rapid.IntRange(0, 4).Draw(t, "logic") == 0 {
			parts := bson.A{}
			for range rapid.IntRange(1, 2).Draw(t, "parts") {
				parts = append(parts, genQuery(t, depth-1))
			}
			q = append(q, bson.E{Key: rapid.SampledFrom([]string{"$and", "$or", "$nor"}).Draw(t, "op"), Value: parts})
			continue
		}
		path := rapid.SampledFrom(paths).Draw(t, "path")
		if rapid.IntRange(0, 3).Draw(t, "plain") == 0 {
			q = append(q, bson.E{Key: path, Value: genValue(t, 2)})
		} else {
			q = append(q, bson.E{Key: path, Value: genOperators(t, 2)})
		}
	}
	return q
}

func genOperators(t *rapid.T, depth int) bson.D {
	var d bson.D
	ops := []string{"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$type", "$size", "$regex", "$all", "$not", "$elemMatch"}
	if depth == 0 {
		ops = ops[:11]
	}
	for _, op := range rapid.SliceOfNDistinct(rapid.SampledFrom(ops), 1, 2, rapid.ID).Draw(t, "operators") {
		d = append(d, bson.E{Key: op, Value: genArgument(t, op, depth)})
	}
	return d
}

func genArgument(t *rapid.T, op string, depth int) any {
	switch op {
	case "$in", "$nin", "$all":
		a := bson.A{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			a = append(a, genValue(t, 1))
		}
		return a
	case "$exists":
		return rapid.SampledFrom([]any{true, false, int32(0), int32(1), nil, 0.0}).Draw(t, "truth")
	case "$type":
		return rapid.SampledFrom([]any{"string", "number", "array", "object", "null", int32(1), int32(-1), bson.A{"int", "bool"}, "undefined", "date", "regex", "nonsense"}).Draw(t, "type")
	case "$size":
		return rapid.SampledFrom([]any{int32(0), int64(1), 2.0, 1.5, int32(-1)}).Draw(t, "size")
	case "$regex":
		return rapid.SampledFrom([]string{"a", "^a", "b$", "^A", "^$", "."}).Draw(t, "pattern")
	case "$not":
		return genOperators(t, depth-1)
	case "$elemMatch":
		if rapid.Bool().Draw(t, "query") {
			return genQuery(t, 0)
		}
		return genOperators(t, depth-1)
	}
	return genValue(t, 2)
}
