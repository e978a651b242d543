package record

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Timestamp is a BSON Timestamp: seconds since the Unix epoch and an increment within the second.
// It is comparable with ==.
type Timestamp struct{ T, I uint32 }

// IsZero reports whether t is Timestamp(0,0): not known.
func (t Timestamp) IsZero() bool { return t == Timestamp{} }

// Compare returns -1, 0 or +1 as t is before, equal to or after u.
func (t Timestamp) Compare(u Timestamp) int {
	return cmp.Or(cmp.Compare(t.T, u.T), cmp.Compare(t.I, u.I))
}

// Prev returns the timestamp just before t. The token of a change stream that has only been opened carries the time of the last
// operation plus one increment, which no server has reached yet: what a read must have seen is the time before.
func (t Timestamp) Prev() Timestamp {
	switch {
	case t.I > 0:
		t.I--
	case t.T > 0:
		t.T, t.I = t.T-1, math.MaxUint32
	}
	return t
}

// ID is the value of a document's _id, of any BSON type. It is comparable with == and usable as a
// map key; two IDs are equal when type and bytes are equal (so 7 and int64 7 are two IDs, as the
// bytes that MongoDB sends tell them apart). The zero ID is no _id at all.
type ID struct {
	typ bson.Type
	oid bson.ObjectID // where typ is ObjectId: the usual case, without an allocation
	val string        // else the value's bytes
}

// NewID returns a new ObjectId as the client makes it before the first attempt of an insert.
func NewID() ID { return ObjectID(bson.NewObjectID()) }

// ObjectID returns the ID that holds oid.
func ObjectID(oid bson.ObjectID) ID { return ID{typ: bson.TypeObjectID, oid: oid} }

// IDOf returns the ID that holds a copy of v.
func IDOf(v bson.RawValue) ID { return idOf(v.Type, v.Value) }

func idOf(typ bson.Type, value []byte) ID {
	if typ == bson.TypeObjectID && len(value) == len(bson.ObjectID{}) {
		return ID{typ: typ, oid: bson.ObjectID(value)}
	}
	return ID{typ: typ, val: string(value)}
}

// IsZero reports whether id is the zero ID.
func (id ID) IsZero() bool { return id == ID{} }

// ObjectID returns the ObjectId and whether id is one.
func (id ID) ObjectID() (bson.ObjectID, bool) { return id.oid, id.typ == bson.TypeObjectID }

// RawValue returns the value for use in a query or document.
func (id ID) RawValue() bson.RawValue {
	if id.typ == bson.TypeObjectID {
		return bson.RawValue{Type: id.typ, Value: append([]byte(nil), id.oid[:]...)}
	}
	return bson.RawValue{Type: id.typ, Value: []byte(id.val)}
}

// String returns 24 hex digits for an ObjectId, "" for the zero ID, and otherwise the type's number
// in hex, a tilde, and the value's bytes in unpadded URL-safe base64.
func (id ID) String() string {
	switch {
	case id.IsZero():
		return ""
	case id.typ == bson.TypeObjectID:
		return id.oid.Hex()
	}
	return fmt.Sprintf("%02x~%s", byte(id.typ), base64.RawURLEncoding.EncodeToString([]byte(id.val)))
}

// ErrBadPosition says that a text is not a position.
var ErrBadPosition = errors.New("not a position (want SECONDS.INCREMENT-ID as printed by capstan, for example 1764532800.7-692c9e80a1b2c3d4e5f60718)")

// ParseID reads what String writes.
func ParseID(s string) (ID, error) {
	if s == "" {
		return ID{}, nil
	}
	if typ, val, ok := strings.Cut(s, "~"); ok {
		t, err := hex.DecodeString(typ)
		if err != nil || len(t) != 1 {
			return ID{}, fmt.Errorf("%w: %q has a bad type before the tilde", ErrBadPosition, s)
		}
		v, err := base64.RawURLEncoding.DecodeString(val)
		if err != nil {
			return ID{}, fmt.Errorf("%w: %q has bad base64 behind the tilde", ErrBadPosition, s)
		}
		if n, ok := valueSize(bson.Type(t[0]), v); !ok || n != len(v) {
			return ID{}, fmt.Errorf("%w: %q does not hold a value of its type", ErrBadPosition, s)
		}
		return idOf(bson.Type(t[0]), v), nil
	}
	oid, err := bson.ObjectIDFromHex(s)
	if err != nil {
		return ID{}, fmt.Errorf("%w: %q is not 24 hex digits", ErrBadPosition, s)
	}
	return ObjectID(oid), nil
}

// text returns what an _id of type string holds; "" for another type.
func (id ID) text() string {
	if id.typ != bson.TypeString || len(id.val) < 5 {
		return ""
	}
	return id.val[4 : len(id.val)-1]
}

// compare orders two IDs: strings by their bytes, as the tokens of a change stream are ordered, and
// everything else by String.
func (id ID) compare(other ID) int {
	if id.typ == bson.TypeString && other.typ == bson.TypeString {
		return cmp.Compare(id.text(), other.text())
	}
	return cmp.Compare(id.String(), other.String())
}

// Position is where a reader is in a stream: the message it read last. Resuming is exclusive: it
// goes on after the position. It is comparable with ==.
//
// With several producers on one stream the natural order of the primary, that of the secondaries and
// the order of TS are three different orders, so a position says where to start reading; what has
// been delivered is known by the highest seq per src (Checkpoint.Marks).
//
// A position in a change stream holds a resume token, see PositionOfToken and TokenOf.
type Position struct {
	// TS is the message's server-filled timestamp; zero in a collection of another program. In a change
	// stream it is the cluster time of the event or token.
	TS Timestamp
	// ID is the message's _id, or a change stream's token; zero where only the time is known.
	ID ID
}

// IsZero reports whether p is the zero Position: before everything.
func (p Position) IsZero() bool { return p == Position{} }

// Compare orders by TS, then by ID: two strings by their bytes, everything else by its text. TS is
// stamped before the insert gets its lock, so with several producers this is nearly, but not exactly,
// the order of delivery. In a change stream it is exactly that.
func (p Position) Compare(q Position) int {
	return cmp.Or(p.TS.Compare(q.TS), p.ID.compare(q.ID))
}

// String returns "SECONDS.INCREMENT-ID", or "" for the zero Position. ParsePosition reads it.
func (p Position) String() string {
	if p.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d.%d-%s", p.TS.T, p.TS.I, p.ID)
}

// ParsePosition reads what String writes; "" is the zero Position. Errors wrap ErrBadPosition.
func ParsePosition(s string) (Position, error) {
	if s == "" {
		return Position{}, nil
	}
	ts, id, ok := strings.Cut(s, "-")
	secs, inc, ok2 := strings.Cut(ts, ".")
	if !ok || !ok2 {
		return Position{}, fmt.Errorf("%w: %q", ErrBadPosition, s)
	}
	t, err := strconv.ParseUint(secs, 10, 32)
	if err != nil {
		return Position{}, fmt.Errorf("%w: %q has bad seconds", ErrBadPosition, s)
	}
	i, err := strconv.ParseUint(inc, 10, 32)
	if err != nil {
		return Position{}, fmt.Errorf("%w: %q has a bad increment", ErrBadPosition, s)
	}
	p := Position{TS: Timestamp{T: uint32(t), I: uint32(i)}}
	p.ID, err = ParseID(id)
	return p, err
}

// MarshalText is String.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePosition.
func (p *Position) UnmarshalText(b []byte) error {
	q, err := ParsePosition(string(b))
	if err == nil {
		*p = q
	}
	return err
}
