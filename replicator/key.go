package replicator

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// canonical returns a text that two values share if and only if the server takes them for one _id (under the simple
// collation): 7, 7.0, int64 7 and Decimal128 7 are one, at the top or inside a document; so are a string and a
// symbol. Changes of one _id must stay in order, whatever type each of them names it with.
func canonical(v bson.RawValue) string {
	if v.Type == bson.TypeObjectID {
		return "\x07" + string(v.Value) // the usual case
	}
	return string(appendCanonical(nil, v))
}

func appendCanonical(b []byte, v bson.RawValue) []byte {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return append(append(b, 'n'), number(v)...)
	case bson.TypeString, bson.TypeSymbol:
		return append(append(b, 's'), v.Value...)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		elems, err := bson.Raw(v.Value).Elements()
		if err != nil {
			break // not BSON: as bytes
		}
		b = append(b, byte(v.Type))
		for _, e := range elems {
			if v.Type == bson.TypeEmbeddedDocument { // the keys of an array mean nothing
				b = strconv.AppendQuote(b, e.Key())
			}
			sub := appendCanonical(nil, e.Value())
			b = binary.BigEndian.AppendUint32(b, uint32(len(sub)))
			b = append(b, sub...)
		}
		return append(b, 0)
	}
	return append(append(b, byte(v.Type)), v.Value...)
}

// number returns a number's value in a form that does not depend on its type.
func number(v bson.RawValue) string {
	switch v.Type {
	case bson.TypeInt32:
		return strconv.FormatInt(int64(v.Int32()), 10)
	case bson.TypeInt64:
		return strconv.FormatInt(v.Int64(), 10)
	case bson.TypeDouble:
		return double(v.Double())
	}
	d := v.Decimal128()
	switch {
	case d.IsNaN():
		return "nan"
	case d.IsInf() > 0:
		return "+inf"
	case d.IsInf() < 0:
		return "-inf"
	}
	mantissa, exp, err := d.BigInt()
	if err != nil {
		return string(v.Value)
	}
	if mantissa.Sign() == 0 {
		return "0"
	}
	r := new(big.Rat).SetInt(mantissa)
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
	if exp >= 0 {
		r.Mul(r, new(big.Rat).SetInt(scale))
	} else {
		r.Quo(r, new(big.Rat).SetInt(scale))
	}
	return ratio(r)
}

func double(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "+inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f == math.Trunc(f) && math.Abs(f) < 1<<62:
		return strconv.FormatInt(int64(f), 10)
	}
	return ratio(new(big.Rat).SetFloat64(f))
}

func ratio(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	return r.String()
}

// share returns which of n workers a key belongs to (FNV-1a).
func share(key string, n int) int {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return int(h % uint32(n))
}
