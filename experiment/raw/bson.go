package raw

import (
	"encoding/binary"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The functions below append elements by hand: nothing is reflected on, nothing is allocated but the
// slice itself.

func appendInt32(b []byte, v int32) []byte { return binary.LittleEndian.AppendUint32(b, uint32(v)) }

func appendKey(b []byte, typ bson.Type, key string) []byte {
	b = append(b, byte(typ))
	b = append(b, key...)
	return append(b, 0)
}

func bsonInt32(b []byte, key string, v int32) []byte {
	return appendInt32(appendKey(b, bson.TypeInt32, key), v)
}

func bsonInt64(b []byte, key string, v int64) []byte {
	return binary.LittleEndian.AppendUint64(appendKey(b, bson.TypeInt64, key), uint64(v))
}

func bsonString(b []byte, key, v string) []byte {
	b = appendKey(b, bson.TypeString, key)
	b = appendInt32(b, int32(len(v)+1))
	b = append(b, v...)
	return append(b, 0)
}

func bsonBool(b []byte, key string, v bool) []byte {
	b = appendKey(b, bson.TypeBoolean, key)
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func bsonDocument(b []byte, key string, doc []byte) []byte {
	return append(appendKey(b, bson.TypeEmbeddedDocument, key), doc...)
}

// document frames elements with their length and end.
func document(elements []byte) []byte {
	b := make([]byte, 0, len(elements)+5)
	b = appendInt32(b, int32(len(elements)+5))
	b = append(b, elements...)
	return append(b, 0)
}

// Each calls visit for every element of doc (a document or an array) in order. key and value alias
// doc. It knows the types that a server sends in replies and that a stream's messages are made of.
func Each(doc []byte, visit func(typ bson.Type, key, value []byte)) error {
	if len(doc) < 5 {
		return fmt.Errorf("%w: document of %d bytes", ErrProtocol, len(doc))
	}
	rest := doc[4 : len(doc)-1]
	for len(rest) > 0 {
		typ := bson.Type(rest[0])
		end := 1
		for end < len(rest) && rest[end] != 0 {
			end++
		}
		if end == len(rest) {
			return fmt.Errorf("%w: an element's name does not end", ErrProtocol)
		}
		key := rest[1:end]
		rest = rest[end+1:]
		n := sizeOf(typ, rest)
		if n < 0 || n > len(rest) {
			return fmt.Errorf("%w: element %q of type %s does not fit", ErrProtocol, key, typ)
		}
		visit(typ, key, rest[:n])
		rest = rest[n:]
	}
	return nil
}

// sizeOf returns the number of bytes of a value of type typ at the front of b, or -1.
func sizeOf(typ bson.Type, b []byte) int {
	switch typ {
	case bson.TypeNull, bson.TypeMinKey, bson.TypeMaxKey:
		return 0
	case bson.TypeBoolean:
		return 1
	case bson.TypeInt32:
		return 4
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		return 8
	case bson.TypeObjectID:
		return 12
	}
	if len(b) < 4 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b)))
	switch {
	case typ == bson.TypeString && n >= 1:
		return n + 4
	case (typ == bson.TypeEmbeddedDocument || typ == bson.TypeArray) && n >= 5:
		return n
	case typ == bson.TypeBinary && n >= 0:
		return n + 5
	}
	return -1
}

func number(typ bson.Type, value []byte) int64 {
	switch typ {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(value)))
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(value))
	case bson.TypeDouble:
		return int64(math.Float64frombits(binary.LittleEndian.Uint64(value)))
	case bson.TypeBoolean:
		return int64(value[0])
	}
	return 0
}

func text(typ bson.Type, value []byte) string {
	if typ != bson.TypeString || len(value) < 5 {
		return ""
	}
	return string(value[4 : len(value)-1])
}
