// Package fidelity is a table of documents with everything that a MongoDB server stores and a copier can get wrong: every BSON
// type, every type of _id, and odd shapes. Tests write them by every path and compare what arrives byte for byte.
package fidelity

import (
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Document is one entry of the table.
type Document struct {
	// Name says what is special.
	Name string
	// Raw is the document as a server stores it: with its _id in front.
	Raw bson.Raw
	// Placed is true if no insert or replacement can make it, as the server changes it on the way (an empty timestamp at the top
	// level) or refuses it (a replacement with a dollar in front of a field). See Place.
	Placed bool
	// Large is true for documents of some megabytes, which a short test may leave out.
	Large bool
}

// Place returns an update for {_id: …} with upsert that makes the document exactly as it is.
func (d Document) Place() bson.A {
	return bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$literal", Value: d.Raw}}}}}
}

// ID returns the document's _id.
func (d Document) ID() bson.RawValue { return d.Raw.Lookup("_id") }

// builder makes documents from bytes, so that nothing is lost before the test begins.
type builder struct {
	docs []Document
	n    int32
}

func (b *builder) add(name string, fields ...[]byte) {
	b.n++
	b.raw(name, append([][]byte{bsoncore.AppendInt32Element(nil, "_id", b.n)}, fields...)...)
}

func (b *builder) raw(name string, fields ...[]byte) {
	b.docs = append(b.docs, Document{Name: name, Raw: doc(fields...)})
}

func (b *builder) last() *Document { return &b.docs[len(b.docs)-1] }

func doc(fields ...[]byte) bson.Raw {
	at, d := bsoncore.AppendDocumentStart(nil)
	for _, f := range fields {
		d = append(d, f...)
	}
	d, _ = bsoncore.AppendDocumentEnd(d, at)
	return bson.Raw(d)
}

// element is an element of any type from its bytes.
func element(typ bson.Type, key string, value []byte) []byte {
	return append(bsoncore.AppendHeader(nil, bsoncore.Type(typ), key), value...)
}

func str(s string) []byte { return bsoncore.AppendString(nil, s) }

func double(bits uint64) []byte { return bsoncore.AppendDouble(nil, math.Float64frombits(bits)) }

func decimal(s string) []byte {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err) // of constants
	}
	h, l := d.GetBytes()
	return bsoncore.AppendDecimal128(nil, h, l)
}

func binary(subtype byte, data []byte) []byte { return bsoncore.AppendBinary(nil, subtype, data) }

// values has one value of every type and form, by name.
func values() []struct {
	name  string
	typ   bson.Type
	value []byte
} {
	type v = struct {
		name  string
		typ   bson.Type
		value []byte
	}
	oid, _ := hex.DecodeString("0123456789abcdef01234567")
	vs := []v{
		{"int32", bson.TypeInt32, bsoncore.AppendInt32(nil, 7)},
		{"int64 of the same value", bson.TypeInt64, bsoncore.AppendInt64(nil, 7)},
		{"double of the same value", bson.TypeDouble, bsoncore.AppendDouble(nil, 7)},
		{"int64 over 2^53", bson.TypeInt64, bsoncore.AppendInt64(nil, 1<<53+1)},
		{"least int64", bson.TypeInt64, bsoncore.AppendInt64(nil, math.MinInt64)},
		{"greatest int64", bson.TypeInt64, bsoncore.AppendInt64(nil, math.MaxInt64)},
		{"least int32", bson.TypeInt32, bsoncore.AppendInt32(nil, math.MinInt32)},
		{"NaN", bson.TypeDouble, double(0x7ff8000000000000)},
		{"NaN with a payload", bson.TypeDouble, double(0x7ff8000000001234)},
		{"signalling NaN", bson.TypeDouble, double(0x7ff0000000000001)},
		{"negative NaN", bson.TypeDouble, double(0xfff8000000000000)},
		{"negative zero", bson.TypeDouble, double(1 << 63)},
		{"infinity", bson.TypeDouble, double(0x7ff0000000000000)},
		{"denormal", bson.TypeDouble, double(1)},
		{"decimal with trailing zeros", bson.TypeDecimal128, decimal("1.2300")},
		{"decimal with exponent", bson.TypeDecimal128, decimal("1E+3")},
		{"decimal negative zero", bson.TypeDecimal128, decimal("-0E-10")},
		{"decimal NaN", bson.TypeDecimal128, decimal("NaN")},
		{"decimal infinity", bson.TypeDecimal128, decimal("-Infinity")},
		{"decimal that is not canonical", bson.TypeDecimal128, bsoncore.AppendDecimal128(nil, 0x6c10000000000000, 5)},
		{"true", bson.TypeBoolean, []byte{1}},
		{"false", bson.TypeBoolean, []byte{0}},
		{"null", bson.TypeNull, nil},
		{"undefined", bson.TypeUndefined, nil},
		{"MinKey", bson.TypeMinKey, nil},
		{"MaxKey", bson.TypeMaxKey, nil},
		{"string", bson.TypeString, str("text")},
		{"empty string", bson.TypeString, str("")},
		{"string with NUL", bson.TypeString, str("a\x00b")},
		{"string that is not UTF-8", bson.TypeString, str("a\xff\xfe\xc0\x80")},
		{"surrogates in UTF-8", bson.TypeString, str("\xed\xa0\x80")},
		{"symbol", bson.TypeSymbol, str("symbol")},
		{"code", bson.TypeJavaScript, str("function() {}")},
		{"code with scope", bson.TypeCodeWithScope, bsoncore.AppendCodeWithScope(nil, "f()", bsoncore.Document(doc(bsoncore.AppendInt32Element(nil, "x", 1))))},
		{"date", bson.TypeDateTime, bsoncore.AppendInt64(nil, 1700000000123)},
		{"date before 1970", bson.TypeDateTime, bsoncore.AppendInt64(nil, -1)},
		{"least date", bson.TypeDateTime, bsoncore.AppendInt64(nil, math.MinInt64)},
		{"greatest date", bson.TypeDateTime, bsoncore.AppendInt64(nil, math.MaxInt64)},
		{"timestamp", bson.TypeTimestamp, bsoncore.AppendTimestamp(nil, 1700000000, 5)},
		{"timestamp over 2^31", bson.TypeTimestamp, bsoncore.AppendTimestamp(nil, math.MaxUint32, math.MaxUint32)},
		{"timestamp with an increment only", bson.TypeTimestamp, bsoncore.AppendTimestamp(nil, 0, 1)},
		{"ObjectId", bson.TypeObjectID, oid},
		{"empty ObjectId", bson.TypeObjectID, make([]byte, 12)},
		{"regular expression", bson.TypeRegex, bsoncore.AppendRegex(nil, "^a/b", "imx")},
		{"regular expression with options out of order", bson.TypeRegex, bsoncore.AppendRegex(nil, "a", "xim")},
		{"dbPointer", bson.TypeDBPointer, append(str("db.coll"), oid...)},
		{"document", bson.TypeEmbeddedDocument, doc(bsoncore.AppendInt32Element(nil, "b", 1), bsoncore.AppendInt32Element(nil, "a", 2))},
		{"empty document", bson.TypeEmbeddedDocument, doc()},
		{"array", bson.TypeArray, doc(bsoncore.AppendInt32Element(nil, "0", 1), bsoncore.AppendStringElement(nil, "1", "x"))},
		{"empty array", bson.TypeArray, doc()},
		{"array with wrong keys", bson.TypeArray, doc(bsoncore.AppendInt32Element(nil, "5", 1), bsoncore.AppendInt32Element(nil, "x", 2), bsoncore.AppendInt32Element(nil, "", 3))},
		{"array of one key", bson.TypeArray, doc(bsoncore.AppendInt32Element(nil, "0", 1), bsoncore.AppendInt32Element(nil, "0", 2))},
	}
	for _, subtype := range []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x80, 0xff} {
		data := []byte("0123456789abcdef")
		vs = append(vs, v{fmt.Sprintf("binary of subtype %d", subtype), bson.TypeBinary, binary(subtype, data)})
	}
	return append(vs, v{"empty binary", bson.TypeBinary, binary(0, nil)}, v{"UUID of a wrong length", bson.TypeBinary, binary(4, []byte{1})})
}

// Documents returns the table. No two of them have the same _id, also not as a server compares them. Each call makes new ones.
func Documents() []Document {
	b := &builder{}
	for _, v := range values() {
		b.add(v.name, element(v.typ, "v", v.value))
		b.add(v.name+", nested", bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(doc(element(v.typ, "v", v.value)))),
			bsoncore.AppendArrayElement(nil, "a", bsoncore.Array(doc(element(v.typ, "0", v.value)))))
	}
	b.shapes()
	b.names()
	b.ids()
	b.large()
	return b.docs
}

func (b *builder) shapes() {
	b.add("nothing but an _id")
	b.add("empty timestamp, nested", bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(doc(bsoncore.AppendTimestampElement(nil, "ts", 0, 0)))))
	b.add("empty timestamp at the top level", bsoncore.AppendTimestampElement(nil, "ts", 0, 0), bsoncore.AppendInt32Element(nil, "x", 1))
	b.last().Placed = true
	b.add("fields in no order", bsoncore.AppendInt32Element(nil, "z", 1), bsoncore.AppendInt32Element(nil, "a", 1), bsoncore.AppendInt32Element(nil, "m", 1))
	nested := doc(bsoncore.AppendInt32Element(nil, "x", 1))
	for range 177 {
		nested = doc(bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(nested)))
	}
	b.add("nested 178 levels", bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(nested)))
	var many [][]byte
	for i := range 2000 {
		many = append(many, bsoncore.AppendInt32Element(nil, fmt.Sprintf("f%d", (i*7)%2000), int32(i)))
	}
	b.add("2000 fields", many...)
}

func (b *builder) names() {
	one := func(key string) []byte { return bsoncore.AppendInt32Element(nil, key, 1) }
	sub := func(key string) []byte {
		return bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(doc(one(key))))
	}
	for _, key := range []string{"", " ", "a b", "ünïcode", "a\xff", strings.Repeat("long", 1000), "0", "-1", "_", "__proto__", "a.b", ".", "a.", ".a", "a..b"} {
		b.add(fmt.Sprintf("field %.20q", key), one(key))
		b.add(fmt.Sprintf("nested field %.20q", key), sub(key))
	}
	for _, key := range []string{"$", "$set", "$x", "$.", "$$ROOT"} {
		b.add(fmt.Sprintf("field %q", key), one("before"), one(key))
		b.last().Placed = true
		b.add(fmt.Sprintf("nested field %q", key), sub(key))
	}
	b.add("field $x in front", one("$x"))
	b.last().Placed = true
	b.add("nested _id", sub("_id"))
	b.add("names twice", one("x"), bsoncore.AppendInt32Element(nil, "x", 2), sub("y"), bsoncore.AppendStringElement(nil, "x", "3"))
	b.add("nested names twice", bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(doc(one("x"), bsoncore.AppendInt32Element(nil, "x", 2)))))
	b.add("DBRef", bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(doc(bsoncore.AppendStringElement(nil, "$ref", "c"), one("$id"), bsoncore.AppendStringElement(nil, "$db", "d")))))
	b.add("DBRef out of order", bsoncore.AppendDocumentElement(nil, "d", bsoncore.Document(doc(one("$id"), bsoncore.AppendStringElement(nil, "$ref", "c")))))
}

// ids has an _id of every type that may be one.
func (b *builder) ids() {
	x := bsoncore.AppendInt32Element(nil, "x", 1)
	for _, v := range values() {
		switch v.typ {
		case bson.TypeRegex, bson.TypeUndefined, bson.TypeArray:
			continue // refused by servers
		}
		value := v.value
		switch {
		case v.name == "int32", v.name == "int64 of the same value", v.name == "double of the same value", v.name == "NaN with a payload",
			v.name == "signalling NaN", v.name == "negative NaN", v.name == "decimal NaN", v.name == "decimal infinity", v.name == "negative zero",
			v.name == "decimal negative zero", v.name == "decimal that is not canonical":
			continue // the same as another number, or as one of those that count
		case v.typ == bson.TypeSymbol:
			value = str("another symbol") // a symbol and a string of the same text are one
		}
		b.raw("_id "+v.name, element(v.typ, "_id", value), x)
	}
	b.raw("_id int64", bsoncore.AppendInt64Element(nil, "_id", 1<<40), x)
	b.raw("_id double", bsoncore.AppendDoubleElement(nil, "_id", 0.5), x)
	b.raw("_id empty timestamp", bsoncore.AppendTimestampElement(nil, "_id", 0, 0), x)
	b.raw("_id with a dotted name", bsoncore.AppendDocumentElement(nil, "_id", bsoncore.Document(doc(bsoncore.AppendInt32Element(nil, "a.b", 1)))), x)
	b.raw("_id DBRef", bsoncore.AppendDocumentElement(nil, "_id", bsoncore.Document(doc(bsoncore.AppendStringElement(nil, "$ref", "c"), bsoncore.AppendInt32Element(nil, "$id", 1)))), x)
	b.raw("_id document in one order", bsoncore.AppendDocumentElement(nil, "_id", bsoncore.Document(doc(bsoncore.AppendInt32Element(nil, "p", 1), bsoncore.AppendInt32Element(nil, "q", 1)))), x)
	b.raw("_id document in the other order", bsoncore.AppendDocumentElement(nil, "_id", bsoncore.Document(doc(bsoncore.AppendInt32Element(nil, "q", 1), bsoncore.AppendInt32Element(nil, "p", 1)))), x)
	b.raw("_id of 100 kB", bsoncore.AppendStringElement(nil, "_id", strings.Repeat("x", 100_000)), x)
}

func (b *builder) large() {
	const most = 16 << 20
	b.add("16 MB", bsoncore.AppendBinaryElement(nil, "data", 0, make([]byte, 0)))
	rest := most - len(b.last().Raw)
	b.last().Raw = doc(bsoncore.AppendInt32Element(nil, "_id", b.n), bsoncore.AppendBinaryElement(nil, "data", 0, make([]byte, rest)))
	b.last().Large = true
	id := strings.Repeat("i", 1<<20)
	b.raw("_id of 1 MB", bsoncore.AppendStringElement(nil, "_id", id), bsoncore.AppendInt32Element(nil, "x", 1))
	b.last().Large = true
}
