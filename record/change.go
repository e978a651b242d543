package record

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Change describes one event of a change stream; Raw of its Record is the whole event as the server sent it, and what
// points into it shares its memory.
type Change struct {
	// Op is the event's operationType: insert, update, replace, delete, drop, dropDatabase, rename, invalidate, create,
	// createIndexes, dropIndexes, modify, and what later servers add.
	Op string
	// Namespace is what it is about; Coll is "" for dropDatabase, and both are for invalidate.
	Namespace Namespace
	// To is the new name of a rename.
	To Namespace
	// UUID is the collection's UUID in hex, "" if the event has none.
	UUID string
	// Key is the document's _id; zero if the event is about no document.
	Key bson.RawValue
	// Document is the whole document of an insert or replace, else nil.
	Document bson.Raw
	// Description is the operationDescription, or the updateDescription of an update; nil if there is none.
	Description bson.Raw
	// Time is when the server's clock says that it was committed, Wall the same on the wall clock.
	Time Timestamp
	Wall time.Time
	// Txn identifies the transaction that it was part of (lsid and txnNumber in hex), "" if it was in none.
	Txn string
}
