package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The fields of a message, in the order in which the producer writes them.
const (
	FieldID      = "_id"
	FieldTime    = "time"
	FieldSrc     = "src"
	FieldSeq     = "seq"
	FieldTS      = "ts"
	FieldSubject = "subject"
	FieldHeaders = "headers"
	FieldData    = "data"
)

// MaxDocumentSize is the largest BSON document that a MongoDB server stores, in bytes (16 MiB; the
// server announces it as maxBsonObjectSize).
const MaxDocumentSize = 16 << 20

// PrimerID is the fixed _id of the primer, the first document that keeps a tailable cursor alive on
// an otherwise empty stream. Two primers at once collide on it, and the collision is success.
// It is the twelve bytes "cap-primer-1".
var PrimerID = bson.ObjectID{'c', 'a', 'p', '-', 'p', 'r', 'i', 'm', 'e', 'r', '-', '1'}

// ErrMalformed says that bytes are not a well-formed BSON document. No MongoDB server stores such a
// document, so it means a broken transport or a bug.
var ErrMalformed = errors.New("malformed BSON document")

// IsPrimer reports whether doc is a stream's primer, which is never delivered.
func IsPrimer(doc bson.Raw) bool {
	// The producer, the primer and mongod (which moves _id to the front when it stores a document)
	// all put _id first, so this looks at one element only.
	const at = 4 + 1 + len(FieldID) + 1 // length, type, name, NUL
	if len(doc) < at+len(PrimerID) || doc[4] != byte(bson.TypeObjectID) || string(doc[5:5+len(FieldID)+1]) != FieldID+"\x00" {
		return false
	}
	return string(doc[at:at+len(PrimerID)]) == string(PrimerID[:])
}

// Interner turns the bytes of a src into a string, so that a reader allocates one string per src and
// not one per message. The zero value is not usable: use make. Not safe for concurrent use.
type Interner map[string]string

// String returns the string for b, remembering it.
func (in Interner) String(b []byte) string {
	if s, ok := in[string(b)]; ok { // no allocation: the compiler sees a map look-up by []byte
		return s
	}
	s := string(b)
	in[s] = s
	return s
}

// Decode reads the layout of one document into a Record of KindMessage that keeps doc as its Raw:
// the caller must not change doc afterwards. A document of another program decodes too, with zero
// Src, Seq, Time and Subject where it has no such field of the right type. It allocates nothing
// beyond what in does (and the _id's bytes where that is no ObjectId). The error is ErrMalformed.
func Decode(doc bson.Raw, in Interner) (Record, error) {
	r := Record{Kind: KindMessage, Raw: doc}
	err := walk(doc, func(typ bson.Type, name, value []byte) {
		switch string(name) {
		case FieldID:
			r.Position.ID = idOf(typ, value)
		case FieldTime:
			if typ == bson.TypeInt64 {
				r.Time = int64(binary.LittleEndian.Uint64(value))
			}
		case FieldSrc:
			if typ == bson.TypeString {
				r.Src = in.String(stringBytes(value))
			}
		case FieldSeq:
			if typ == bson.TypeInt64 {
				r.Seq = int64(binary.LittleEndian.Uint64(value))
			}
		case FieldTS:
			if typ == bson.TypeTimestamp {
				r.Position.TS = timestampOf(value)
			}
		case FieldSubject:
			if typ == bson.TypeString {
				b := stringBytes(value)
				// Raw is never written to again (see Record), so the string may share its memory.
				r.Subject = unsafe.String(unsafe.SliceData(b), len(b))
			}
		}
	})
	if r.Src == "" || r.Seq <= 0 {
		r.Src, r.Seq = "", 0 // half a pair counts nothing
	}
	return r, err
}

func timestampOf(value []byte) Timestamp {
	return Timestamp{T: binary.LittleEndian.Uint32(value[4:]), I: binary.LittleEndian.Uint32(value)}
}

// stringBytes returns the text of a BSON string value: 4 bytes of length, the text, NUL.
func stringBytes(value []byte) []byte { return value[4 : len(value)-1] }

// walk calls visit for every top-level element of doc. The slices alias doc.
func walk(doc bson.Raw, visit func(typ bson.Type, name, value []byte)) error {
	if len(doc) < 5 || int64(binary.LittleEndian.Uint32(doc)) != int64(len(doc)) || doc[len(doc)-1] != 0 {
		return fmt.Errorf("%w: its length field does not match its %d bytes", ErrMalformed, len(doc))
	}
	rest := []byte(doc[4 : len(doc)-1])
	for len(rest) > 0 {
		typ := bson.Type(rest[0])
		end := 1
		for end < len(rest) && rest[end] != 0 {
			end++
		}
		if end == len(rest) {
			return fmt.Errorf("%w: an element's name does not end", ErrMalformed)
		}
		name := rest[1:end]
		rest = rest[end+1:]
		n, ok := valueSize(typ, rest)
		if !ok {
			return fmt.Errorf("%w: element %q does not fit", ErrMalformed, name)
		}
		visit(typ, name, rest[:n:n])
		rest = rest[n:]
	}
	return nil
}

// valueSize returns the number of bytes that a value of type typ takes at the front of b.
// The sizes are those of the BSON specification, version 1.1.
func valueSize(typ bson.Type, b []byte) (int, bool) {
	n := 0
	switch typ {
	case bson.TypeNull, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey:
	case bson.TypeBoolean:
		n = 1
	case bson.TypeInt32:
		n = 4
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		n = 8
	case bson.TypeObjectID:
		n = 12
	case bson.TypeDecimal128:
		n = 16
	case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		n = lengthAt(b, 4, 5)
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeCodeWithScope:
		n = lengthAt(b, 0, 5)
	case bson.TypeBinary:
		n = lengthAt(b, 5, 5)
	case bson.TypeDBPointer:
		if n = lengthAt(b, 4, 5); n >= 0 {
			n += 12
		}
	case bson.TypeRegex:
		n = cstrings(b, 2)
	default:
		return 0, false
	}
	return n, n >= 0 && n <= len(b)
}

// lengthAt reads a 32-bit length at the front of b and returns it plus extra, or -1 if the sum is
// less than least or b is too short.
func lengthAt(b []byte, extra, least int) int {
	if len(b) < 4 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b))) + extra
	if n < least {
		return -1
	}
	return n
}

// cstrings returns the size of n zero-terminated strings at the front of b, or -1.
func cstrings(b []byte, n int) int {
	for i, c := range b {
		if c == 0 {
			if n--; n == 0 {
				return i + 1
			}
		}
	}
	return -1
}
