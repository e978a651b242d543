package verify

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// idOf returns a document's _id as it is stored: every stored document has it first.
func idOf(doc bson.Raw) bson.RawValue {
	v, err := doc.LookupErr("_id")
	if err != nil {
		return bson.RawValue{}
	}
	return v
}

// sameValue reports whether two values are the same bytes.
func sameValue(a, b bson.RawValue) bool { return a.Type == b.Type && bytes.Equal(a.Value, b.Value) }

// canonical returns a text that is the same for two values exactly if the server takes them for one _id where the
// collation is simple: 7, 7.0, int64 7 and Decimal128 7.00 are one, also inside sub-documents. It is only ever compared.
func canonical(v bson.RawValue) string { return string(appendCanonical(nil, v)) }

func appendCanonical(dst []byte, v bson.RawValue) []byte {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		dst = append(dst, 'n')
		dst = appendNumber(dst, v)
		return append(dst, 0)
	case bson.TypeString, bson.TypeSymbol:
		return appendSized(append(dst, 's'), v.Value[4:])
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		elems, err := bson.Raw(v.Value).Elements()
		if err != nil {
			break
		}
		dst = append(dst, byte(v.Type))
		for _, e := range elems {
			if v.Type == bson.TypeEmbeddedDocument {
				dst = append(append(append(dst, 'k'), e.Key()...), 0)
			}
			dst = appendCanonical(dst, e.Value())
		}
		return append(dst, 'e')
	}
	return appendSized(append(dst, byte(v.Type)), v.Value)
}

func appendSized(dst, value []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// appendNumber writes a number's value, without its type and its exponent.
func appendNumber(dst []byte, v bson.RawValue) []byte {
	switch v.Type {
	case bson.TypeInt32:
		return strconv.AppendInt(dst, int64(v.Int32()), 10)
	case bson.TypeInt64:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case bson.TypeDouble:
		return appendDouble(dst, v.Double())
	}
	d := v.Decimal128()
	digits, exp, err := d.BigInt()
	if err != nil { // NaN and the infinities
		switch d.IsInf() {
		case 1:
			return append(dst, "inf"...)
		case -1:
			return append(dst, "-inf"...)
		}
		return append(dst, "nan"...)
	}
	ten := big.NewInt(10)
	if exp >= 0 {
		digits.Mul(digits, new(big.Int).Exp(ten, big.NewInt(int64(exp)), nil))
		return digits.Append(dst, 10)
	}
	return appendRat(dst, new(big.Rat).SetFrac(digits, new(big.Int).Exp(ten, big.NewInt(int64(-exp)), nil)))
}

func appendDouble(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	case f == math.Trunc(f) && math.Abs(f) < 1<<62:
		return strconv.AppendInt(dst, int64(f), 10)
	}
	r := new(big.Rat)
	r.SetFloat64(f)
	return appendRat(dst, r)
}

func appendRat(dst []byte, r *big.Rat) []byte {
	if r.IsInt() {
		return r.Num().Append(dst, 10)
	}
	return append(dst, r.String()...)
}
