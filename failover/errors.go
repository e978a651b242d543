package failover

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// Reasons inside a *record.RejectedError that are found before sending.
var (
	// ErrTooLarge: the message is larger than a document may be, or than the whole stream, where it
	// would evict every other message and then be refused or stand alone.
	ErrTooLarge = errors.New("message too large")
	// ErrBadDocument: the bytes are no BSON document, or one without an _id, which the server would
	// make anew for each attempt.
	ErrBadDocument = errors.New("not a document with an _id")
)

// errNoUUID: StreamConfig.UUID is required.
var errNoUUID = errors.New("StreamConfig.UUID is missing: it is what keeps an insert from creating a collection that is not capped")

// errEvicted is the reason inside a *record.UnknownOutcomeError of the eviction rule.
var errEvicted = errors.New("the stream has overwritten everything that was in it before the first attempt, " +
	"so a message that is not found may have been stored and evicted, and sending it again could store it twice; " +
	"a larger stream, or a shorter budget, avoids this")

// errUncommitted is the reason to look again.
var errUncommitted = errors.New("the primary has the messages, and the majority has not yet")

// ConflictError says that another document is stored under our _id: somebody else's, or an earlier version of
// ours. It is the reason inside a *record.RejectedError, and wraps record.ErrExists.
type ConflictError struct {
	// Namespace is the collection, "database.collection".
	Namespace string
	ID        record.ID
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s holds another document under _id %s", e.Namespace, e.ID)
}

// Unwrap returns record.ErrExists.
func (e *ConflictError) Unwrap() error { return record.ErrExists }

// ReplacedError says that the stream or collection is not the one that it was when the writer was made:
// someone dropped, re-created or renamed it. Nothing more can be written.
type ReplacedError struct {
	// Namespace is its name, "database.collection"; UUID is what the writer was made for.
	Namespace string
	UUID      bson.Binary
	// Renamed is the collection's present name in the same database, "" if it does not exist any more.
	Renamed string
	Err     error
}

func (e *ReplacedError) Error() string {
	if e.Renamed != "" {
		return fmt.Sprintf("%s was renamed to %s: start anew with that name", e.Namespace, e.Renamed)
	}
	return fmt.Sprintf("%s was dropped, and perhaps created again: look at what is there now, and start anew", e.Namespace)
}

// Unwrap returns the server's error.
func (e *ReplacedError) Unwrap() error { return e.Err }

// replaced turns a UUID mismatch into a *ReplacedError and leaves any other error alone.
func replaced(ns string, uuid bson.Binary, err error) error {
	name, ok := mongoerr.ActualCollection(err)
	if !ok {
		return err
	}
	return &ReplacedError{Namespace: ns, UUID: uuid, Renamed: name, Err: err}
}
