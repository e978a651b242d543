package producer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

func value(t testing.TB, v any) bson.RawValue {
	t.Helper()
	typ, b, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: typ, Value: b}
}

func document(t testing.TB, v any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encoded(t testing.TB, l layout, m Message) ([]byte, int) {
	t.Helper()
	d := draft{Message: m}
	if err := l.prepare(&d); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, d.size)
	return b, l.encode(b, &d)
}

func TestAMessageHasTheFieldsOfTheLayoutInTheirOrder(t *testing.T) {
	l := newLayout("lines/abc", DefaultMaxMessageBytes)
	headers, data := document(t, bson.D{{Key: "trace", Value: "x"}}), value(t, bson.D{{Key: "n", Value: int32(1)}})
	for _, id := range []record.ID{record.NewID(), record.IDOf(value(t, "a string")), record.IDOf(value(t, int64(7))), record.IDOf(value(t, bson.D{{Key: "a", Value: 1}}))} {
		got, seqAt := encoded(t, l, Message{ID: id, Time: 1234567, Subject: "a.bç", Headers: headers, Data: data})
		want := document(t, bson.D{
			{Key: "_id", Value: id.RawValue()}, {Key: "time", Value: int64(1234567)}, {Key: "src", Value: "lines/abc"}, {Key: "seq", Value: int64(0)},
			{Key: "ts", Value: bson.Timestamp{}}, {Key: "subject", Value: "a.bç"}, {Key: "headers", Value: headers}, {Key: "data", Value: data},
		})
		if diff := cmp.Diff(want, bson.Raw(got)); diff != "" {
			t.Errorf("_id %s: %s", id, diff)
		}
		if l.idOf(got, seqAt) != id {
			t.Errorf("_id %s came back as %s", id, l.idOf(got, seqAt))
		}
	}
	got, _ := encoded(t, l, Message{})
	fields, err := bson.Raw(got).Elements()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range fields {
		names = append(names, f.Key())
	}
	if s := strings.Join(names, " "); s != "_id time src seq ts" {
		t.Errorf("an empty message has the fields %q", s)
	}
}

// anyValue draws a value of one of the types that a payload may have.
func anyValue(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		n := 13
		if depth == 0 {
			n = 11
		}
		switch rapid.IntRange(0, n).Draw(t, "type") {
		case 0:
			return rapid.Float64().Draw(t, "float")
		case 1:
			return rapid.String().Draw(t, "string")
		case 2:
			return bson.Binary{Subtype: rapid.Byte().Draw(t, "subtype"), Data: rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")}
		case 3:
			return rapid.Bool().Draw(t, "bool")
		case 4:
			return bson.Regex{Pattern: "a.*", Options: "i"}
		case 5:
			return bson.CodeWithScope{Code: "x", Scope: bson.D{{Key: "y", Value: 1}}}
		case 6:
			return bson.DBPointer{DB: "a.b", Pointer: bson.NewObjectID()}
		case 7:
			return rapid.Int64().Draw(t, "int")
		case 8:
			return bson.NewDecimal128(rapid.Uint64().Draw(t, "high"), rapid.Uint64().Draw(t, "low"))
		case 9:
			return bson.Null{}
		case 10:
			return bson.MinKey{}
		case 11:
			return bson.JavaScript("1")
		case 12:
			return bson.A(rapid.SliceOfN(anyValue(depth-1), 0, 4).Draw(t, "array"))
		default:
			d := bson.D{}
			for i, v := range rapid.SliceOfN(anyValue(depth-1), 0, 4).Draw(t, "doc") {
				d = append(d, bson.E{Key: fmt.Sprint(i), Value: v})
			}
			return d
		}
	})
}

func TestAnyPayloadIsStoredByteByByte(t *testing.T) {
	l := newLayout("p/1", DefaultMaxMessageBytes)
	rapid.Check(t, func(rt *rapid.T) {
		data := value(t, anyValue(3).Draw(rt, "data"))
		doc, _ := encoded(t, l, Message{Data: data})
		if err := bson.Raw(doc).Validate(); err != nil {
			rt.Fatal(err)
		}
		r, err := record.Decode(doc, record.Interner{})
		if err != nil {
			rt.Fatal(err)
		}
		if got := r.Data(); got.Type != data.Type || string(got.Value) != string(data.Value) {
			rt.Fatalf("sent %v, stored %v", data, got)
		}
	})
}

func TestMalformedPayloadsAreRefused(t *testing.T) {
	// Whatever passes our check must pass the driver's too, however bytes are mangled.
	rapid.Check(t, func(rt *rapid.T) {
		doc := []byte(document(t, bson.D{{Key: "v", Value: anyValue(3).Draw(rt, "value")}}))
		for range rapid.IntRange(1, 4).Draw(rt, "changes") {
			doc[rapid.IntRange(0, len(doc)-1).Draw(rt, "at")] = rapid.Byte().Draw(rt, "byte")
		}
		doc = doc[:rapid.IntRange(0, len(doc)).Draw(rt, "cut")]
		if why := checkValue(bson.TypeEmbeddedDocument, doc, 0); why == "" {
			if err := bson.Raw(doc).Validate(); err != nil {
				rt.Fatalf("accepted %x, which is %v", doc, err)
			}
		}
	})
}

func nested(t testing.TB, levels int) bson.Raw {
	doc := document(t, bson.D{})
	for range levels - 1 {
		doc = document(t, bson.D{{Key: "d", Value: doc}})
	}
	return doc
}

func TestInvalidMessagesAreRefusedBeforeTheyAreBuffered(t *testing.T) {
	p, err := New(&memory{}, Config{MaxMessageBytes: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for name, c := range map[string]struct {
		m     Message
		field string // "" = accepted
	}{
		"no payload":              {Message{}, ""},
		"subject":                 {Message{Subject: "a.b-c.d_1"}, ""},
		"subject, UTF-8":          {Message{Subject: "größe.日本"}, ""},
		"empty first token":       {Message{Subject: ".a"}, "subject"},
		"empty last token":        {Message{Subject: "a."}, "subject"},
		"empty middle token":      {Message{Subject: "a..b"}, "subject"},
		"only a dot":              {Message{Subject: "."}, "subject"},
		"star":                    {Message{Subject: "a.*"}, "subject"},
		"star inside a token":     {Message{Subject: "a*b"}, "subject"},
		"rest wildcard":           {Message{Subject: "a.>"}, "subject"},
		"space":                   {Message{Subject: "a b"}, "subject"},
		"tab":                     {Message{Subject: "a\tb"}, "subject"},
		"NUL":                     {Message{Subject: "a\x00b"}, "subject"},
		"no-break space":          {Message{Subject: "a\u00a0b"}, "subject"},
		"invalid UTF-8":           {Message{Subject: "a\xffb"}, "subject"},
		"empty timestamp":         {Message{Data: value(t, bson.Timestamp{})}, "data"},
		"other timestamp":         {Message{Data: value(t, bson.Timestamp{T: 1})}, ""},
		"nested empty timestamp":  {Message{Data: value(t, bson.D{{Key: "ts", Value: bson.Timestamp{}}})}, ""},
		"headers with timestamp":  {Message{Headers: document(t, bson.D{{Key: "ts", Value: bson.Timestamp{}}})}, ""},
		"data too short":          {Message{Data: bson.RawValue{Type: bson.TypeInt64, Value: []byte{1}}}, "data"},
		"data too long":           {Message{Data: bson.RawValue{Type: bson.TypeInt32, Value: make([]byte, 5)}}, "data"},
		"data of no known type":   {Message{Data: bson.RawValue{Type: 0x77, Value: make([]byte, 5)}}, "data"},
		"string without its NUL":  {Message{Data: bson.RawValue{Type: bson.TypeString, Value: []byte{1, 0, 0, 0, 'x'}}}, "data"},
		"headers are no document": {Message{Headers: bson.Raw{5, 0}}, "headers"},
		"99 levels":               {Message{Data: value(t, nested(t, 99))}, ""},
		"100 levels":              {Message{Data: value(t, nested(t, 100))}, "data"},
		"_id is a regex":          {Message{ID: record.IDOf(value(t, bson.Regex{Pattern: "x"}))}, "id"},
		"_id is an array":         {Message{ID: record.IDOf(value(t, bson.A{1}))}, "id"},
	} {
		err := p.TrySend(c.m, nil)
		var invalid *InvalidError
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.field != "" && (!errors.As(err, &invalid) || invalid.Field != c.field):
			t.Errorf("%s: got %v, want *InvalidError of %s", name, err, c.field)
		}
	}
	before, _ := p.Buffered()
	var size *SizeError
	if err := p.TrySend(Message{Data: value(t, strings.Repeat("x", 10_000))}, nil); !errors.As(err, &size) || size.Limit != 10_000 || size.Size <= 10_000 {
		t.Errorf("got %v, want *SizeError with both sizes", err)
	}
	if after, _ := p.Buffered(); after != before {
		t.Errorf("a message that is too large was buffered")
	}
}

func TestTheLargestMessageIsExactlyMaxMessageBytes(t *testing.T) {
	l := newLayout("p/1", 1000)
	_, base := 0, 0
	doc, _ := encoded(t, l, Message{Data: value(t, "")})
	base = len(doc)
	if doc, _ := encoded(t, l, Message{Data: value(t, strings.Repeat("x", 1000-base))}); len(doc) != 1000 {
		t.Errorf("got %d bytes, want 1000", len(doc))
	}
	d := draft{Message: Message{Data: value(t, strings.Repeat("x", 1001-base))}}
	var size *SizeError
	if err := l.prepare(&d); !errors.As(err, &size) || *size != (SizeError{Size: 1001, Limit: 1000}) {
		t.Errorf("got %v", err)
	}
}

func TestTheZeroConfigIsValidAndBadOnesNameTheField(t *testing.T) {
	p, err := New(&memory{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(p.Src(), DefaultName+"/") {
		t.Errorf("src is %q", p.Src())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for field, c := range map[string]Config{
		"Name": {Name: "a/b"}, "Config.Name": {Name: "a\x00"}, "UTF-8": {Name: "\xff"}, "MaxBuffered": {MaxBuffered: -1}, "MaxBufferedBytes": {MaxBufferedBytes: -1},
		"MaxMessageBytes": {MaxMessageBytes: record.MaxDocumentSize + 1}, "MaxBatch ": {MaxBatch: -1}, "MaxBatchBytes": {MaxBatchBytes: record.MaxDocumentSize + 1},
		"TargetInsert": {TargetInsert: -1}, "DrainTimeout": {DrainTimeout: -1},
	} {
		if _, err := New(&memory{}, c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if _, err := New(nil, Config{}); err == nil {
		t.Error("no Writer, no error")
	}
}

func TestTwoProducersOfOneNameAreToldApart(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		p, err := New(&memory{}, Config{Name: "same"})
		if err != nil {
			t.Fatal(err)
		}
		if seen[p.Src()] {
			t.Fatalf("two producers have the src %q", p.Src())
		}
		seen[p.Src()] = true
	}
}
