package record

import (
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
