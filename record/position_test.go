package record_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

// ids draws an ID of any type that can stand in an _id.
func ids() *rapid.Generator[record.ID] {
	return rapid.Custom(func(t *rapid.T) record.ID {
		var v any
		switch rapid.IntRange(0, 8).Draw(t, "type") {
		case 0:
			v = rapid.String().Draw(t, "string")
		case 1:
			v = rapid.Int32().Draw(t, "int32")
		case 2:
			v = rapid.Int64().Draw(t, "int64")
		case 3:
			v = rapid.Float64().Draw(t, "double")
		case 4:
			v = bson.D{{Key: "a", Value: rapid.Int32().Draw(t, "nested")}}
		case 5:
			v = bson.Binary{Subtype: 4, Data: rapid.SliceOf(rapid.Byte()).Draw(t, "binary")}
		case 6:
			v = rapid.Bool().Draw(t, "bool")
		default:
			var oid bson.ObjectID
			copy(oid[:], rapid.SliceOfN(rapid.Byte(), 12, 12).Draw(t, "oid"))
			v = oid
		}
		typ, val, err := bson.MarshalValue(v)
		if err != nil {
			t.Fatal(err)
		}
		return record.IDOf(bson.RawValue{Type: typ, Value: val})
	})
}

func TestPositionsSurviveTheirTextForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := record.Position{
			TS: record.Timestamp{T: rapid.Uint32().Draw(t, "t"), I: rapid.Uint32().Draw(t, "i")},
			ID: ids().Draw(t, "id"),
		}
		q, err := record.ParsePosition(p.String())
		if err != nil {
			t.Fatalf("parse %q: %v", p, err)
		}
		if p != q {
			t.Fatalf("%q became %q", p, q)
		}
	})
}

func TestIDsAreEqualExactlyWhenTypeAndBytesAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := ids().Draw(t, "a"), ids().Draw(t, "b")
		same := a.RawValue().Type == b.RawValue().Type && string(a.RawValue().Value) == string(b.RawValue().Value)
		if (a == b) != same {
			t.Fatalf("%v == %v is %v", a, b, a == b)
		}
	})
}

func TestABadPositionIsATypedError(t *testing.T) {
	for _, s := range []string{
		"x", "1-", "1.2", "1.2-zz", "-1.2-692c9e80a1b2c3d4e5f60718", "1.2-692c9e80a1b2c3d4e5f607",
		"99999999999.1-692c9e80a1b2c3d4e5f60718", "1.2-1~AA", "1.2-10~AA", "1.2-zz~AA", "1.2-10~%%",
	} {
		if p, err := record.ParsePosition(s); !errors.Is(err, record.ErrBadPosition) {
			t.Errorf("ParsePosition(%q) = %q, %v; want ErrBadPosition", s, p, err)
		}
	}
}

func TestAPositionWithoutIDIsATimeOnly(t *testing.T) {
	p, err := record.ParsePosition("17.3-")
	if err != nil || p.TS != (record.Timestamp{T: 17, I: 3}) || !p.ID.IsZero() {
		t.Fatalf("got %v, %v", p, err)
	}
}

func TestPositionsOrderByTimestamp(t *testing.T) {
	a := record.Position{TS: record.Timestamp{T: 1, I: 9}}
	b := record.Position{TS: record.Timestamp{T: 2, I: 1}}
	if a.Compare(b) >= 0 || b.Compare(a) <= 0 || a.Compare(a) != 0 {
		t.Fatal("1.9 must come before 2.1")
	}
}
