package verify_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// randomID returns an _id of any type that a server takes. n makes it unlike every other one of the same test.
func randomID(r *rand.Rand, n int, symbols bool) any {
	switch k := r.IntN(18); k {
	case 0:
		return int32(n)
	case 1:
		return int64(n)<<20 + 1<<40
	case 2:
		return float64(n) + 0.5
	case 3:
		return bson.NewDecimal128(0x3040000000000000-0x0002000000000000, uint64(n)*10+3) // n.3
	case 4, 5:
		return fmt.Sprintf("%c%d", "aBcDé"[r.IntN(4)], n)
	case 6:
		return bson.D{{Key: "b", Value: n}, {Key: "a", Value: "x"}}
	case 7:
		return bson.D{{Key: "a", Value: bson.A{n, nil}}}
	case 8:
		return bson.Binary{Subtype: byte(r.IntN(3)), Data: fmt.Append(nil, n)}
	case 9:
		return bson.Binary{Subtype: 4, Data: fmt.Appendf(nil, "%016d", n)}
	case 10, 11:
		id := bson.NewObjectID()
		return id
	case 12:
		return time.UnixMilli(int64(n) - 1000)
	case 13:
		return bson.Timestamp{T: uint32(n), I: 1}
	case 14:
		return bson.JavaScript(fmt.Sprint(n))
	case 15:
		if !symbols { // an index with a collation takes none
			return int32(-n)
		}
		return bson.Symbol(fmt.Sprintf("sy%d", n))
	case 16:
		return -float64(n) * 1e300
	}
	return int32(-n)
}

// rareIDs are those of which there is only one.
var rareIDs = []any{bson.MinKey{}, bson.MaxKey{}, nil, true, false, math.NaN(), math.Inf(1), math.Inf(-1), "", bson.D{}, bson.Binary{}, bson.ObjectID{}, math.MinInt64, math.MaxInt64}

// otherNumber returns the same number in another type, if id is one that has one.
func otherNumber(id any) (any, bool) {
	switch v := id.(type) {
	case int32:
		return float64(v), true
	case int64:
		return float64(v), int64(float64(v)) == v && v != math.MaxInt64
	case bson.D:
		if len(v) == 2 {
			return bson.D{{Key: "b", Value: int64(v[0].Value.(int))}, v[1]}, true
		}
	}
	return nil, false
}

func idJSON(t *testing.T, id any) string {
	t.Helper()
	b, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: id}}, true, false)
	do(t, err)
	return string(b[len(`{"v":`) : len(b)-1])
}

// plant fills two collections with documents of all types of _id, and returns what differs.
func plant(t *testing.T, r *rand.Rand, n int, source, target *mongo.Collection, symbols, collated bool) (want []string, equal int64) {
	t.Helper()
	var src, dst []any
	rate := []int{3, 50, 1000}[r.IntN(3)] // one in so many differs
	for i := range n + len(rareIDs) {
		var id any
		if i < len(rareIDs) {
			id = rareIDs[i]
		} else {
			id = randomID(r, i, symbols)
		}
		doc := func(id, v any) bson.D {
			return bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}, {Key: "pad", Value: strings.Repeat("p", i%97)}}
		}
		if r.IntN(rate) > 0 {
			src, dst, equal = append(src, doc(id, i)), append(dst, doc(id, i)), equal+1
			continue
		}
		switch other, ok := otherNumber(id); {
		case r.IntN(4) == 0:
			src, want = append(src, doc(id, i)), append(want, "missing "+idJSON(t, id))
		case r.IntN(3) == 0:
			dst, want = append(dst, doc(id, i)), append(want, "extra "+idJSON(t, id))
		case ok && r.IntN(2) == 0:
			src, dst, want = append(src, doc(id, i)), append(dst, doc(other, i)), append(want, "different "+idJSON(t, id))
		default:
			if s, ok := id.(string); ok && collated && s != "" { // the same _id to the server
				src, dst = append(src, doc(s, i)), append(dst, doc(strings.ToUpper(s), i))
				if strings.ToUpper(s) == s {
					equal++
					continue
				}
			} else {
				src, dst = append(src, doc(id, i)), append(dst, doc(id, int64(i)))
			}
			want = append(want, "different "+idJSON(t, id))
		}
	}
	for _, c := range []struct {
		coll *mongo.Collection
		docs []any
	}{{source, src}, {target, dst}} {
		r.Shuffle(len(c.docs), func(i, j int) { c.docs[i], c.docs[j] = c.docs[j], c.docs[i] })
		if len(c.docs) > 0 {
			_, err := c.coll.InsertMany(t.Context(), c.docs)
			do(t, err)
		}
	}
	slices.Sort(want)
	return want, equal
}

func TestRandomDifferencesAreFoundExactly(t *testing.T) {
	t.Parallel()
	collation := options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})
	for name, o := range map[string]*options.CreateCollectionOptionsBuilder{
		"plain":     options.CreateCollection(),
		"clustered": options.CreateCollection().SetClusteredIndex(bson.D{{Key: "key", Value: byID}, {Key: "unique", Value: true}}),
		"collated":  collation,
		"filtered":  options.CreateCollection(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			defer func() {
				if t.Failed() {
					t.Logf("the seed is %d", seed)
				}
			}()
			r := rand.New(rand.NewPCG(seed, 0))
			for range 4 {
				s := newSides(t)
				do(t, s.source.CreateCollection(t.Context(), "c", o))
				do(t, s.target.CreateCollection(t.Context(), "c", o))
				want, equal := plant(t, r, 200+r.IntN(4000), s.source.Collection("c"), s.target.Collection("c"), name != "collated", name == "collated")
				cfg := s.config()
				cfg.Range, cfg.Workers, cfg.Window, cfg.MaxDifferences = 50+r.IntN(1000), 1+r.IntN(4), 1+r.IntN(100_000), 1_000_000
				if name == "filtered" {
					cfg.Scope.Filters = append(cfg.Scope.Filters, filter(t, "*", bson.D{{Key: "v", Value: bson.D{{Key: "$gte", Value: 0}}}}))
					_, err := s.source.Collection("c").InsertMany(t.Context(), []any{bson.D{{Key: "v", Value: -1}}, bson.D{{Key: "v", Value: "no"}}})
					do(t, err)
				}
				rep := s.run(t, cfg)
				expect(t, rep, want...)
				if got := rep.Namespaces[0].Equal; got != equal {
					t.Errorf("%d are equal, want %d", got, equal)
				}
			}
		})
	}
}

// TestCollectionsOfUnlikeCollationsAreComparedAllTheSame: the two servers order the _ids differently.
func TestCollectionsOfUnlikeCollationsAreComparedAllTheSame(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	do(t, s.source.CreateCollection(t.Context(), "c", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 3})))
	do(t, s.target.CreateCollection(t.Context(), "c", options.CreateCollection()))
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	want, equal := plant(t, r, 1500, s.source.Collection("c"), s.target.Collection("c"), false, false)
	cfg := s.config()
	cfg.NoIndexes, cfg.MaxDifferences = true, 1_000_000
	rep := s.run(t, cfg)
	expect(t, rep, append(want, "option collation: differs")...)
	if got := rep.Namespaces[0].Equal; got != equal {
		t.Errorf("%d are equal, want %d", got, equal)
	}
}
