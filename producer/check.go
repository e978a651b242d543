package producer

import (
	"bytes"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxDepth is how deep documents and arrays may nest in headers and data: MongoDB's documented limit is
// 100 levels, of which the message itself is one.
const maxDepth = 99

// Why the checks below look at every element, and not only at the outer length: the server checks a
// whole command before it looks at its documents. One malformed or too deeply nested payload would
// fail the insert of a thousand others, and no error code says which it was.

// checkValue returns "" if b is exactly one well-formed BSON value of type typ, or a phrase that says
// what is wrong. It allocates nothing.
func checkValue(typ bson.Type, b []byte, depth int) string {
	rest, why := skipValue(typ, b, depth)
	if why == "" && len(rest) != 0 {
		return "has bytes behind its value"
	}
	return why
}

const (
	truncated = "is malformed BSON: it ends too early"
	badLength = "is malformed BSON: a length does not match"
)

// skipValue returns what is behind the value of type typ at the front of b.
func skipValue(typ bson.Type, b []byte, depth int) (rest []byte, why string) {
	n := 0
	switch typ {
	case bson.TypeNull, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey:
	case bson.TypeBoolean:
		if n = 1; len(b) > 0 && b[0] > 1 {
			return nil, "is malformed BSON: a boolean is neither 0 nor 1"
		}
	case bson.TypeInt32:
		n = 4
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		n = 8
	case bson.TypeObjectID:
		n = 12
	case bson.TypeDecimal128:
		n = 16
	case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		return skipString(b)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return skipDocument(b, depth)
	case bson.TypeBinary:
		return skipBinary(b)
	case bson.TypeRegex:
		if b, why = skipCString(b); why != "" {
			return nil, why
		}
		return skipCString(b)
	case bson.TypeDBPointer:
		if b, why = skipString(b); why != "" {
			return nil, why
		}
		n = 12
	case bson.TypeCodeWithScope:
		return skipCodeWithScope(b, depth)
	default:
		return nil, "is malformed BSON: it has a value of an unknown type"
	}
	if len(b) < n {
		return nil, truncated
	}
	return b[n:], ""
}

func length(b []byte) int64 { return int64(int32(binary.LittleEndian.Uint32(b))) }

func skipString(b []byte) ([]byte, string) {
	if len(b) < 5 {
		return nil, truncated
	}
	n := length(b)
	if n < 1 || n > int64(len(b)-4) || b[4+n-1] != 0 {
		return nil, badLength
	}
	return b[4+n:], ""
}

func skipBinary(b []byte) ([]byte, string) {
	if len(b) < 5 {
		return nil, truncated
	}
	n := length(b)
	if n < 0 || n > int64(len(b)-5) {
		return nil, badLength
	}
	return b[5+n:], ""
}

func skipCString(b []byte) ([]byte, string) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return nil, truncated
	}
	return b[i+1:], ""
}

func skipDocument(b []byte, depth int) ([]byte, string) {
	if depth >= maxDepth {
		return nil, "is nested too deeply: MongoDB stores 100 levels, the message included"
	}
	if len(b) < 5 {
		return nil, truncated
	}
	n := length(b)
	if n < 5 || n > int64(len(b)) || b[n-1] != 0 {
		return nil, badLength
	}
	in, why := b[4:n-1], ""
	for len(in) > 0 {
		typ := bson.Type(in[0])
		if in, why = skipCString(in[1:]); why != "" {
			return nil, why
		}
		if in, why = skipValue(typ, in, depth+1); why != "" {
			return nil, why
		}
	}
	return b[n:], ""
}

func skipCodeWithScope(b []byte, depth int) ([]byte, string) {
	if len(b) < 4+5+5 {
		return nil, truncated
	}
	n := length(b)
	if n < 4+5+5 || n > int64(len(b)) {
		return nil, badLength
	}
	scope, why := skipString(b[4:n])
	if why != "" {
		return nil, why
	}
	behind, why := skipDocument(scope, depth+1)
	if why == "" && len(behind) != 0 {
		why = badLength
	}
	return b[n:], why
}

// isEmptyTimestamp reports whether the value is Timestamp(0,0).
func isEmptyTimestamp(typ bson.Type, b []byte) bool {
	return typ == bson.TypeTimestamp && len(b) == 8 && binary.LittleEndian.Uint64(b) == 0
}
