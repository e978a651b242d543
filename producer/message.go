package producer

import (
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// Message is what a caller sends. The zero Message is valid: it has an _id, a time and a number, and no
// payload. The producer copies what it needs before Send returns.
type Message struct {
	// ID is the message's _id; the zero ID means a new ObjectId. Arrays, regular expressions and undefined
	// are no _id to MongoDB and are refused. An _id given by the caller should be a function of its
	// input, so that sending the input again finds it stored.
	ID record.ID
	// Subject is the dot-separated topic, "" for none. Tokens must not be empty, nor contain spaces,
	// control characters, "*" or ">"; it must be valid UTF-8.
	Subject string
	// Headers is a document of the caller's, nil for none.
	Headers bson.Raw
	// Data is the payload: any BSON value, stored byte by byte; the zero RawValue means none.
	//
	// Timestamp(0,0) is refused: mongod replaces every empty Timestamp at the top level of a document by
	// its own clock, and data is a top-level field. Inside a document or array in Data, inside Headers, and
	// as the _id, an empty Timestamp stays as it is.
	Data bson.RawValue
	// Time is in microseconds since the Unix epoch; 0 means the time of the call.
	Time int64
}

// Result says what became of one message.
type Result struct {
	ID  record.ID
	Src string
	// Seq is the message's number in Src; 0 where it is certainly not stored by this producer. With an
	// unknown outcome it is the number that the message has if it is stored.
	Seq int64
	// Existed is true where Config.AcceptExisting counted a message that was stored before as success.
	Existed bool
	// Err is nil if the message is stored and committed. Otherwise *record.RejectedError (refused for
	// good), *record.UnknownOutcomeError (stored once or not at all), or *NotSentError (not stored).
	Err error
}

// layout encodes messages of one src. It is immutable and safe for concurrent use.
type layout struct {
	// template is everything from "time" to "ts" with zeros for time, seq and ts.
	template []byte
	// timeAt and seqAt are where the values of time and seq stand in it.
	timeAt, seqAt int
	maxSize       int
	now           func() time.Time
}

// idAt is where the value of _id stands in a document: behind its length, type and name.
const idAt = 4 + 1 + len(record.FieldID) + 1

func newLayout(src string, maxSize int) layout {
	l := layout{maxSize: maxSize, now: time.Now}
	b := appendHead(nil, bson.TypeInt64, record.FieldTime)
	l.timeAt = len(b)
	b = append(b, make([]byte, 8)...)
	b = appendHead(b, bson.TypeString, record.FieldSrc)
	b = appendString(b, src)
	b = appendHead(b, bson.TypeInt64, record.FieldSeq)
	l.seqAt = len(b)
	b = append(b, make([]byte, 8)...)
	b = appendHead(b, bson.TypeTimestamp, record.FieldTS)
	l.template = append(b, make([]byte, 8)...) // Timestamp(0,0): the server fills it
	return l
}

func appendHead(b []byte, typ bson.Type, name string) []byte {
	b = append(b, byte(typ))
	b = append(b, name...)
	return append(b, 0)
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)+1))
	b = append(b, s...)
	return append(b, 0)
}

// draft is a checked message whose size is known.
type draft struct {
	Message
	idType bson.Type
	oid    bson.ObjectID // where idType is ObjectId
	idVal  []byte        // else
	size   int
}

// prepare fills what the caller left open, checks the message and computes its size. Nothing is
// allocated for an ObjectId.
func (l *layout) prepare(d *draft) error {
	if d.ID.IsZero() {
		d.idType, d.oid = bson.TypeObjectID, bson.NewObjectID()
	} else if err := d.useID(); err != nil {
		return err
	}
	if d.Time == 0 {
		d.Time = l.now().UnixMicro()
	}
	d.size = idAt + len(d.oid) + len(l.template) + 1
	if d.idType != bson.TypeObjectID {
		d.size += len(d.idVal) - len(d.oid)
	}
	if d.Subject != "" {
		if why := checkSubject(d.Subject); why != "" {
			return &InvalidError{Field: record.FieldSubject, Reason: why}
		}
		d.size += 1 + len(record.FieldSubject) + 1 + 4 + len(d.Subject) + 1
	}
	if d.Headers != nil {
		d.size += 1 + len(record.FieldHeaders) + 1 + len(d.Headers)
	}
	if d.Data.Type != 0 {
		d.size += 1 + len(record.FieldData) + 1 + len(d.Data.Value)
	}
	if d.size > l.maxSize { // before the payload is looked at: this is the cheap answer
		return &SizeError{Size: d.size, Limit: l.maxSize}
	}
	return d.checkPayload()
}

// useID takes the caller's _id.
func (d *draft) useID() error {
	if oid, ok := d.ID.ObjectID(); ok {
		d.idType, d.oid = bson.TypeObjectID, oid
		return nil
	}
	v := d.ID.RawValue()
	switch v.Type {
	case bson.TypeArray, bson.TypeRegex, bson.TypeUndefined:
		return &InvalidError{Field: "id", Reason: "is a " + v.Type.String() + ", which MongoDB does not take as _id"}
	}
	if why := checkValue(v.Type, v.Value, 0); why != "" {
		return &InvalidError{Field: "id", Reason: why}
	}
	d.idType, d.idVal = v.Type, v.Value
	return nil
}

func (d *draft) checkPayload() error {
	if d.Headers != nil {
		if why := checkValue(bson.TypeEmbeddedDocument, d.Headers, 0); why != "" {
			return &InvalidError{Field: record.FieldHeaders, Reason: why}
		}
	}
	if d.Data.Type == 0 {
		return nil
	}
	if isEmptyTimestamp(d.Data.Type, d.Data.Value) {
		return &InvalidError{Field: record.FieldData, Reason: "is Timestamp(0,0), which the server would replace by its own clock; wrap it in a document"}
	}
	if why := checkValue(d.Data.Type, d.Data.Value, 0); why != "" {
		return &InvalidError{Field: record.FieldData, Reason: why}
	}
	return nil
}

// encode writes the document into b, which has exactly its size, and returns where seq's value stands.
// seq is left 0: it is known when the batch is formed.
func (l *layout) encode(b []byte, d *draft) (seqAt int) {
	binary.LittleEndian.PutUint32(b, uint32(d.size))
	w := appendHead(b[:4], d.idType, record.FieldID)
	if d.idType == bson.TypeObjectID {
		w = append(w, d.oid[:]...)
	} else {
		w = append(w, d.idVal...)
	}
	at := len(w)
	w = append(w, l.template...)
	binary.LittleEndian.PutUint64(b[at+l.timeAt:], uint64(d.Time))
	if d.Subject != "" {
		w = appendString(appendHead(w, bson.TypeString, record.FieldSubject), d.Subject)
	}
	if d.Headers != nil {
		w = append(appendHead(w, bson.TypeEmbeddedDocument, record.FieldHeaders), d.Headers...)
	}
	if d.Data.Type != 0 {
		w = append(appendHead(w, d.Data.Type, record.FieldData), d.Data.Value...)
	}
	_ = append(w, 0)
	return at + l.seqAt
}

// idOf returns the _id of an encoded message whose seq stands at seqAt.
func (l *layout) idOf(doc []byte, seqAt int) record.ID {
	return record.IDOf(bson.RawValue{Type: bson.Type(doc[4]), Value: doc[idAt : seqAt-l.seqAt]})
}
