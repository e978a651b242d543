package record_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

// Tokens of a real server (mongod 6.0.5), in the order of their stream: a token of no event, an insert,
// two operations of one transaction, and a later token of no event.
var tokens = []string{
	"82692D9E80000000012B0229296E04",
	"82692D9E80000000012B022C0100296E5A1004E2A2D9A7C7B14D1F9C4B0C9B8F6C2A3D461E5F6964002B020004",
	"82692D9E80000000022B022C0100296E5A1004E2A2D9A7C7B14D1F9C4B0C9B8F6C2A3D461E5F6964002B040004",
	"82692D9E80000000022B022C0101296E5A1004E2A2D9A7C7B14D1F9C4B0C9B8F6C2A3D461E5F6964002B020004",
	"82692D9E81000000012B0229296E04",
}

func token(t testing.TB, data any) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(bson.D{{Key: "_data", Value: data}})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func positionOf(t testing.TB, data string) record.Position {
	t.Helper()
	p, err := record.PositionOfToken(token(t, data))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestATokenIsAPositionAndComesBackFromItsText(t *testing.T) {
	for i, data := range tokens {
		p := positionOf(t, data)
		if p.TS.T != 0x692D9E80 && p.TS.T != 0x692D9E81 || p.TS.I == 0 {
			t.Errorf("token %d: time %v", i, p.TS)
		}
		read, err := record.ParsePosition(p.String())
		if err != nil || read != p {
			t.Fatalf("token %d: %v, %v from its text", i, read, err)
		}
		back, ok := record.TokenOf(read)
		if !ok || string(back) != string(token(t, data)) {
			t.Errorf("token %d: %s back, %v", i, back, ok)
		}
	}
}

func TestPositionsOfTokensCompareAsTheTokensDo(t *testing.T) {
	for i := range tokens {
		for j := range tokens {
			got := positionOf(t, tokens[i]).Compare(positionOf(t, tokens[j]))
			if want := strings.Compare(tokens[i], tokens[j]); got != want {
				t.Errorf("token %d with token %d: %d, want %d", i, j, got, want)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) { // an order, whatever the types of the ids
		ps := make([]record.Position, 3)
		for i := range ps {
			ps[i] = record.Position{ID: ids().Draw(t, "id")}
		}
		a, b, c := ps[0], ps[1], ps[2]
		if a.Compare(b) != -b.Compare(a) || a.Compare(b) <= 0 && b.Compare(c) <= 0 && a.Compare(c) > 0 {
			t.Fatalf("%v, %v, %v are in no order", a, b, c)
		}
	})
}

func TestATokenOfAnotherShapeIsKeptWhole(t *testing.T) {
	raw, err := bson.Marshal(bson.D{{Key: "_data", Value: tokens[1]}, {Key: "_typeBits", Value: []byte{1}}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := record.PositionOfToken(raw)
	if err != nil || p.TS != positionOf(t, tokens[1]).TS {
		t.Fatalf("got %v, %v", p, err)
	}
	if back, ok := record.TokenOf(p); !ok || string(back) != string(raw) {
		t.Errorf("got %s, %v", back, ok)
	}
}

func TestWhatIsNoTokenIsSaidSo(t *testing.T) {
	for name, raw := range map[string]bson.Raw{"nothing": nil, "empty": {5, 0, 0, 0, 0}, "torn": token(t, tokens[0])[:20]} {
		if _, err := record.PositionOfToken(raw); !errors.Is(err, record.ErrBadToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, text, err := bson.MarshalValue("order-77")
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]record.Position{
		"nothing": {}, "a time": {TS: record.Timestamp{T: 1}}, "a message": {ID: record.NewID()},
		"a message whose _id is a string": {ID: record.IDOf(bson.RawValue{Type: bson.TypeString, Value: text})},
	} {
		if _, ok := record.TokenOf(p); ok {
			t.Errorf("%s is taken for a token", name)
		}
	}
}

func event(t testing.TB, extra ...bson.E) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(append(bson.D{
		{Key: "_id", Value: bson.D{{Key: "_data", Value: tokens[1]}}},
		{Key: "operationType", Value: "update"},
		{Key: "clusterTime", Value: bson.Timestamp{T: 0x692D9E80, I: 1}},
		{Key: "collectionUUID", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}},
		{Key: "wallTime", Value: bson.DateTime(1764597376123)},
		{Key: "fullDocument", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "ns", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "coll", Value: "a.b"}}},
		{Key: "documentKey", Value: bson.D{{Key: "_id", Value: int64(7)}}},
	}, extra...))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestDecodeChangeReadsAnEvent(t *testing.T) {
	r, err := record.DecodeChange(event(t,
		bson.E{Key: "updateDescription", Value: bson.D{{Key: "updatedFields", Value: bson.D{{Key: "x", Value: 1}}}}},
		bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: []byte("sessionsessionid")}}, {Key: "uid", Value: []byte{1}}}},
		bson.E{Key: "txnNumber", Value: int64(258)},
	), record.Interner{})
	if err != nil {
		t.Fatal(err)
	}
	c := r.Change
	switch {
	case r.Kind != record.KindChange || r.Kind.String() != "change" || r.Position != positionOf(t, tokens[1]):
		t.Errorf("kind %s at %s", r.Kind, r.Position)
	case c.Op != record.OpUpdate || !c.OnDocument() || c.Namespace.String() != "shop.a.b" || c.UUID != "30313233343536373839616263646566":
		t.Errorf("got %+v", c)
	case c.Time != (record.Timestamp{T: 0x692D9E80, I: 1}) || !c.Wall.Equal(time.UnixMilli(1764597376123)):
		t.Errorf("times %v and %v", c.Time, c.Wall)
	case c.Document != nil || c.Key.AsInt64() != 7 || c.Description.Lookup("updatedFields", "x").AsInt64() != 1:
		t.Errorf("document %s, key %s, description %s", c.Document, c.Key, c.Description)
	case c.Txn != "73657373696f6e73657373696f6e69640000000000000102":
		t.Errorf("transaction %s", c.Txn)
	}
	own := r.Own()
	for i := range r.Raw {
		r.Raw[i] = 0
	}
	if own.Change.Key.AsInt64() != 7 || own.Change.Description.Lookup("updatedFields", "x").AsInt64() != 1 {
		t.Error("an owned record shares the memory of the first")
	}
}

func TestDecodeChangeSaysWhatIsNoEvent(t *testing.T) {
	good := event(t)
	if _, err := record.DecodeChange(good[:len(good)-3], record.Interner{}); !errors.Is(err, record.ErrMalformed) {
		t.Errorf("torn: %v", err)
	}
	raw, err := bson.Marshal(bson.D{{Key: "operationType", Value: "insert"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := record.DecodeChange(raw, record.Interner{}); !errors.Is(err, record.ErrBadToken) {
		t.Errorf("without a token: %v", err)
	}
}

// Whatever bytes come, it answers.
func FuzzDecodeChange(f *testing.F) {
	f.Add([]byte(event(f)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := record.DecodeChange(b, record.Interner{}); err == nil {
			_ = r.Own()
		}
	})
}

func TestATokenSaysWhetherItIsThatOfAnEvent(t *testing.T) {
	for data, want := range map[string]record.TokenKind{
		tokens[0]: record.TokenOfTime, tokens[1]: record.TokenOfEvent, tokens[4]: record.TokenOfTime,
		"82692D9E80000000012B0429296E1404":      record.TokenOfTime,
		"82692d9e80000000012b042c0100296e5a10":  record.TokenOfEvent,
		"82692D9E8000000001":                    record.TokenUnknown,
		"82692D9E80000000012B0629296E1404":      record.TokenUnknown, // a version that nobody has seen
		"82692D9E80000000012B022C0200296E5A100": record.TokenUnknown,
		"no token":                              record.TokenUnknown,
	} {
		if got := record.KindOfToken(positionOf(t, data)); got != want {
			t.Errorf("%s is of kind %d, want %d", data, got, want)
		}
	}
	if got := record.KindOfToken(record.Position{TS: record.Timestamp{T: 1}}); got != record.TokenUnknown {
		t.Errorf("a time alone is of kind %d", got)
	}
}
