package match

import (
	"bytes"
	"cmp"
	"math"
	"math/big"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// canonical returns the place of a type in MongoDB's order of types; types at one place compare with
// each other by value. Missing and undefined share the first place.
func canonical(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return -1
	case 0, bson.TypeUndefined:
		return 0
	case bson.TypeNull:
		return 5
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return 10
	case bson.TypeString, bson.TypeSymbol:
		return 15
	case bson.TypeEmbeddedDocument:
		return 20
	case bson.TypeArray:
		return 25
	case bson.TypeBinary:
		return 30
	case bson.TypeObjectID:
		return 35
	case bson.TypeBoolean:
		return 40
	case bson.TypeDateTime:
		return 45
	case bson.TypeTimestamp:
		return 47
	case bson.TypeRegex:
		return 50
	case bson.TypeDBPointer:
		return 55
	case bson.TypeJavaScript:
		return 60
	case bson.TypeCodeWithScope:
		return 65
	}
	return 127 // MaxKey
}

// compare orders two values as MongoDB does: by the place of their types, then by value.
func compare(a, b bson.RawValue) int {
	if d := cmp.Compare(canonical(a.Type), canonical(b.Type)); d != 0 {
		return d
	}
	switch a.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return compareNumbers(a, b)
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return strings.Compare(text(a), text(b))
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return compareDocuments(bson.Raw(a.Value), bson.Raw(b.Value))
	case bson.TypeBinary:
		// By length (the first four bytes), then subtype, then content.
		return cmp.Or(cmp.Compare(len(a.Value), len(b.Value)), bytes.Compare(a.Value[4:], b.Value[4:]))
	case bson.TypeObjectID, bson.TypeBoolean:
		return bytes.Compare(a.Value, b.Value)
	case bson.TypeDateTime:
		return cmp.Compare(a.DateTime(), b.DateTime())
	case bson.TypeTimestamp:
		at, ai := a.Timestamp()
		bt, bi := b.Timestamp()
		return cmp.Or(cmp.Compare(at, bt), cmp.Compare(ai, bi))
	case bson.TypeRegex:
		ap, ao := a.Regex()
		bp, bo := b.Regex()
		return cmp.Or(strings.Compare(ap, bp), strings.Compare(ao, bo))
	case bson.TypeDBPointer:
		return cmp.Or(cmp.Compare(len(a.Value), len(b.Value)), bytes.Compare(a.Value, b.Value))
	case bson.TypeCodeWithScope:
		ac, as := a.CodeWithScope()
		bc, bs := b.CodeWithScope()
		return cmp.Or(strings.Compare(ac, bc), compareDocuments(as, bs))
	}
	return 0 // null, undefined, MinKey, MaxKey
}

// text returns the string in a string-like value: four bytes of length, the text, a zero.
func text(v bson.RawValue) string { return string(v.Value[4 : len(v.Value)-1]) }

// compareDocuments goes element by element: type, then name, then value.
func compareDocuments(a, b bson.Raw) int {
	as, errA := a.Elements()
	bs, errB := b.Elements()
	if errA != nil || errB != nil {
		return bytes.Compare(a, b)
	}
	for i := range min(len(as), len(bs)) {
		av, bv := as[i].Value(), bs[i].Value()
		d := cmp.Or(
			cmp.Compare(canonical(av.Type), canonical(bv.Type)),
			strings.Compare(as[i].Key(), bs[i].Key()),
			compare(av, bv),
		)
		if d != 0 {
			return d
		}
	}
	return cmp.Compare(len(as), len(bs))
}

// compareNumbers compares exactly, whatever the two types are; NaN is below everything.
func compareNumbers(a, b bson.RawValue) int {
	if a.Type == b.Type {
		switch a.Type {
		case bson.TypeInt32:
			return cmp.Compare(a.Int32(), b.Int32())
		case bson.TypeInt64:
			return cmp.Compare(a.Int64(), b.Int64())
		case bson.TypeDouble:
			return cmp.Compare(a.Double(), b.Double())
		}
	}
	x, y := newNumber(a), newNumber(b)
	if x.special != y.special || x.special != 0 {
		return cmp.Compare(x.special, y.special)
	}
	return x.compare(y)
}

// number is a number of any BSON type. special is -2 for NaN, -1 and 1 for the infinities, 0 for the
// finite numbers, which are digits × 10^ten, or exactly the rational ratio where that is set.
type number struct {
	special int
	digits  *big.Int
	ten     int
	ratio   *big.Rat
}

func newNumber(v bson.RawValue) number {
	switch v.Type {
	case bson.TypeInt32:
		return number{digits: big.NewInt(int64(v.Int32()))}
	case bson.TypeInt64:
		return number{digits: big.NewInt(v.Int64())}
	case bson.TypeDouble:
		f := v.Double()
		switch {
		case math.IsNaN(f):
			return number{special: -2}
		case math.IsInf(f, 0):
			return number{special: int(math.Copysign(1, f))}
		}
		return number{ratio: new(big.Rat).SetFloat64(f)}
	}
	d := v.Decimal128()
	switch {
	case d.IsNaN():
		return number{special: -2}
	case d.IsInf() != 0:
		return number{special: d.IsInf()}
	}
	digits, ten, err := d.BigInt()
	if err != nil {
		return number{special: -2}
	}
	return number{digits: digits, ten: ten}
}

func (n number) sign() int {
	if n.ratio != nil {
		return n.ratio.Sign()
	}
	return n.digits.Sign()
}

func (n number) compare(m number) int {
	if d := cmp.Compare(n.sign(), m.sign()); d != 0 || n.sign() == 0 {
		return d
	}
	return n.rational().Cmp(m.rational())
}

// rational is exact. A decimal128 has an exponent of at most 6144, so it stays small enough.
func (n number) rational() *big.Rat {
	if n.ratio != nil {
		return n.ratio
	}
	r := new(big.Rat).SetInt(n.digits)
	if n.ten == 0 {
		return r
	}
	pow := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(n.ten, -n.ten))), nil)
	if n.ten > 0 {
		return r.Mul(r, new(big.Rat).SetInt(pow))
	}
	return r.Quo(r, new(big.Rat).SetInt(pow))
}

func isNaN(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeDouble:
		return math.IsNaN(v.Double())
	case bson.TypeDecimal128:
		return v.Decimal128().IsNaN()
	}
	return false
}
