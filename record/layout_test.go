package record_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

func message(t testing.TB, extra ...bson.E) bson.Raw {
	t.Helper()
	doc := append(bson.D{
		{Key: "_id", Value: bson.ObjectID{1, 2, 3}},
		{Key: "time", Value: int64(1764532800123456)},
		{Key: "src", Value: "orders/5f3a"},
		{Key: "seq", Value: int64(42)},
		{Key: "ts", Value: bson.Timestamp{T: 1764532800, I: 7}},
		{Key: "subject", Value: "orders.eu.created"},
	}, extra...)
	raw, err := bson.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestDecodeReadsTheLayout(t *testing.T) {
	raw := message(t,
		bson.E{Key: "headers", Value: bson.D{{Key: "k", Value: "v"}}},
		bson.E{Key: "data", Value: bson.D{{Key: "n", Value: int32(1)}}})
	r, err := record.Decode(raw, record.Interner{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Src != "orders/5f3a" || r.Seq != 42 || r.Time != 1764532800123456 || r.Subject != "orders.eu.created" || !r.Ours() {
		t.Errorf("got %+v", r)
	}
	if want := (record.Timestamp{T: 1764532800, I: 7}); r.Position.TS != want {
		t.Errorf("ts %v, want %v", r.Position.TS, want)
	}
	if r.Position.ID != record.ObjectID(bson.ObjectID{1, 2, 3}) {
		t.Errorf("id %v", r.Position.ID)
	}
	if got := r.Data().String(); got != `{"n": {"$numberInt":"1"}}` {
		t.Errorf("data %s", got)
	}
	if got := r.Headers().String(); got != `{"k": "v"}` {
		t.Errorf("headers %s", got)
	}
}

func TestDecodeTakesOtherProgramsDocuments(t *testing.T) {
	for name, doc := range map[string]bson.D{
		"nothing of ours":   {{Key: "_id", Value: "x"}, {Key: "msg", Value: "hello"}},
		"wrong types":       {{Key: "_id", Value: int32(7)}, {Key: "src", Value: 3}, {Key: "seq", Value: "1"}, {Key: "time", Value: "now"}, {Key: "ts", Value: 1.5}, {Key: "subject", Value: nil}},
		"src without seq":   {{Key: "_id", Value: "y"}, {Key: "src", Value: "a"}},
		"seq without src":   {{Key: "_id", Value: "z"}, {Key: "seq", Value: int64(3)}},
		"seq not positive":  {{Key: "_id", Value: "z"}, {Key: "src", Value: "a"}, {Key: "seq", Value: int64(0)}},
		"every other type":  {{Key: "_id", Value: nil}, {Key: "a", Value: bson.Regex{Pattern: "x", Options: "i"}}, {Key: "b", Value: bson.JavaScript("f")}, {Key: "c", Value: bson.CodeWithScope{Code: "f", Scope: bson.D{}}}, {Key: "d", Value: bson.DBPointer{DB: "d"}}, {Key: "e", Value: bson.Symbol("s")}, {Key: "f", Value: bson.MinKey{}}, {Key: "g", Value: bson.MaxKey{}}, {Key: "h", Value: bson.Undefined{}}, {Key: "i", Value: bson.Decimal128{}}, {Key: "j", Value: true}, {Key: "k", Value: bson.A{1, "2"}}, {Key: "l", Value: bson.DateTime(3)}},
		"without any field": {},
	} {
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		r, err := record.Decode(raw, record.Interner{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.Ours() || r.Src != "" || r.Seq != 0 || r.Subject != "" {
			t.Errorf("%s: decoded as ours: %+v", name, r)
		}
	}
}

func TestDecodeRefusesDamagedBytesAndNeverPanics(t *testing.T) {
	whole := message(t, bson.E{Key: "data", Value: "payload"})
	for n := range whole {
		if _, err := record.Decode(whole[:n], record.Interner{}); !errors.Is(err, record.ErrMalformed) {
			t.Fatalf("the first %d bytes: %v, want ErrMalformed", n, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := append([]byte(nil), whole...)
		for range rapid.IntRange(1, 4).Draw(t, "flips") {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "to")
		}
		if _, err := record.Decode(b, record.Interner{}); err != nil && !errors.Is(err, record.ErrMalformed) {
			t.Fatal(err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(message(f)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := record.Decode(b, record.Interner{}); err == nil {
			_ = r.Position.String()
			_ = r.Data()
			_ = r.Headers()
		}
	})
}

func TestDecodeAllocatesNothingPerMessage(t *testing.T) {
	raw, in := message(t, bson.E{Key: "data", Value: "payload"}), record.Interner{}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := record.Decode(raw, in); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per message, want 0", n)
	}
}

func TestThePrimerIsToldFromMessages(t *testing.T) {
	primer, err := bson.Marshal(bson.D{{Key: "_id", Value: record.PrimerID}, {Key: "time", Value: int64(0)}})
	if err != nil {
		t.Fatal(err)
	}
	if !record.IsPrimer(primer) {
		t.Error("the primer is not recognised")
	}
	if record.IsPrimer(message(t)) || record.IsPrimer(nil) || record.IsPrimer(primer[:10]) {
		t.Error("something else is taken for the primer")
	}
}

func BenchmarkDecode(b *testing.B) {
	raw, in := message(b, bson.E{Key: "data", Value: "payload of a usual size, some tens of bytes"}), record.Interner{}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := record.Decode(raw, in); err != nil {
			b.Fatal(err)
		}
	}
}
