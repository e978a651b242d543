package record

import (
	"encoding/binary"
	"encoding/hex"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The operations of a Change, in the words of the server.
const (
	OpInsert        = "insert"
	OpUpdate        = "update"
	OpReplace       = "replace"
	OpDelete        = "delete"
	OpDrop          = "drop"
	OpDropDatabase  = "dropDatabase"
	OpRename        = "rename"
	OpInvalidate    = "invalidate"
	OpCreate        = "create"
	OpCreateIndexes = "createIndexes"
	OpDropIndexes   = "dropIndexes"
	OpModify        = "modify"
)

// Change describes one event of a change stream. Raw of its Record is the whole event as the server
// sent it; Key, Document and Description share Raw's memory.
type Change struct {
	// Op is what happened: one of the Op constants, or a word that a newer server uses.
	Op string
	// Namespace is where: Coll is "" for dropDatabase, and both are for invalidate.
	Namespace Namespace
	// To is the new name, of rename only.
	To Namespace
	// UUID is the collection's UUID in 32 hex digits, "" if the event has none.
	UUID string
	// Key is the document's _id (documentKey._id), the zero RawValue where the event is not about one
	// document.
	Key bson.RawValue
	// Document is the whole document (fullDocument) of insert and replace, nil otherwise.
	Document bson.Raw
	// Description is the updateDescription of an update, or the operationDescription of what is not about
	// one document; nil if the event has neither.
	Description bson.Raw
	// Time is the cluster time of the event: the optime of the write.
	Time Timestamp
	// Wall is when the server wrote it, by its own clock, in milliseconds; zero if the event has none.
	Wall time.Time
	// Txn names the transaction of an operation that was done in one: the session's id and the
	// transaction's number, in hex, "" otherwise. All operations of one transaction have the same.
	Txn string
}

// OnDocument reports whether the event is about one document: insert, update, replace or delete.
func (c *Change) OnDocument() bool {
	switch c.Op {
	case OpInsert, OpUpdate, OpReplace, OpDelete:
		return true
	}
	return false
}

// DecodeChange reads one event of a change stream into a Record of KindChange that keeps doc as its Raw:
// the caller must not change doc afterwards. Events that a newer server adds decode too. It allocates the
// Change, the token of the Position, and what in does. The error is ErrMalformed or ErrBadToken.
func DecodeChange(doc bson.Raw, in Interner) (Record, error) {
	c := &Change{}
	r := Record{Kind: KindChange, Raw: doc, Change: c}
	var token, lsid, number []byte
	err := walk(doc, func(typ bson.Type, name, value []byte) {
		switch typ {
		case bson.TypeEmbeddedDocument:
			switch string(name) {
			case FieldID:
				token = value
			case "lsid":
				lsid = value
			default:
				c.document(string(name), value, in)
			}
		case bson.TypeString:
			if string(name) == "operationType" {
				c.Op = in.String(stringBytes(value))
			}
		case bson.TypeTimestamp:
			if string(name) == "clusterTime" {
				c.Time = timestampOf(value)
			}
		case bson.TypeDateTime:
			if string(name) == "wallTime" {
				c.Wall = time.UnixMilli(int64(binary.LittleEndian.Uint64(value))).UTC()
			}
		case bson.TypeBinary:
			if string(name) == "collectionUUID" {
				c.UUID = in.hex(binaryBytes(value))
			}
		case bson.TypeInt64:
			if string(name) == "txnNumber" {
				number = value
			}
		}
	})
	if c.Op != OpInsert && c.Op != OpReplace {
		c.Document = nil // of an update it is a later version, where somebody asked for one
	}
	if err == nil {
		r.Position, err = PositionOfToken(token)
	}
	if err == nil && lsid != nil && number != nil {
		c.Txn, err = transaction(lsid, number, in)
	}
	return r, err
}

// document takes an embedded document of an event.
func (c *Change) document(name string, value []byte, in Interner) {
	switch name {
	case "ns":
		c.Namespace = namespaceOf(value, in)
	case "to":
		c.To = namespaceOf(value, in)
	case "documentKey":
		if v, err := bson.Raw(value).LookupErr(FieldID); err == nil {
			c.Key = v
		}
	case "fullDocument":
		c.Document = value
	case "updateDescription", "operationDescription":
		c.Description = value
	}
}

func namespaceOf(doc []byte, in Interner) Namespace {
	var n Namespace
	// A walk that fails leaves n as far as it came; the event is well-formed as a whole, or it has failed.
	_ = walk(doc, func(typ bson.Type, name, value []byte) {
		switch {
		case typ != bson.TypeString:
		case string(name) == "db":
			n.DB = in.String(stringBytes(value))
		case string(name) == "coll":
			n.Coll = in.String(stringBytes(value))
		}
	})
	return n
}

// transaction names a transaction by the session's id (a UUID) and its number.
func transaction(lsid, number []byte, in Interner) (string, error) {
	var id []byte
	err := walk(lsid, func(typ bson.Type, name, value []byte) {
		if typ == bson.TypeBinary && string(name) == "id" {
			id = binaryBytes(value)
		}
	})
	b := make([]byte, 0, 24)
	b = append(b, id...)
	for i := range 8 {
		b = append(b, number[7-i])
	}
	return in.hex(b), err
}

// binaryBytes returns the bytes of a BSON binary value: 4 bytes of length, the subtype, the bytes.
func binaryBytes(value []byte) []byte { return value[5:] }

// hex returns b in hex digits, remembering it.
func (in Interner) hex(b []byte) string {
	var digits [64]byte
	return in.String(hex.AppendEncode(digits[:0], b))
}
