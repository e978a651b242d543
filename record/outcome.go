package record

import (
	"errors"
	"fmt"
)

// ErrClosed is returned by every method of an object that has been closed.
var ErrClosed = errors.New("closed")

// ErrExists says that a document with the same _id and other content is already stored.
var ErrExists = errors.New("a document with this _id and other content exists")

// RejectedError says that a message cannot be written, now or later: the server refused it for good
// (validator, size, duplicate of another unique key, ErrExists). It is certainly not stored under
// this attempt. errors.Is and errors.As see the reason.
type RejectedError struct {
	// Index is its place in the batch that was being written; everything before it is applied,
	// nothing after it is.
	Index int
	ID    ID
	Err   error
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("message %s rejected for good: %v", e.ID, e.Err)
}

// Unwrap returns the reason.
func (e *RejectedError) Unwrap() error { return e.Err }

// UnknownOutcomeError says that the budget of a write ended before anyone could say whether the
// messages in IDs are stored. Each of them is there once or not at all.
type UnknownOutcomeError struct {
	// IDs are those whose outcome is unknown, in the order of the batch.
	IDs []ID
	// Attempts is how often the write was tried.
	Attempts int
	Err      error
}

func (e *UnknownOutcomeError) Error() string {
	first := ""
	if len(e.IDs) > 0 {
		first = fmt.Sprintf(" (first %s, last %s)", e.IDs[0], e.IDs[len(e.IDs)-1])
	}
	return fmt.Sprintf("outcome unknown%s, messages: %d, attempts: %d: %v", first, len(e.IDs), e.Attempts, e.Err)
}

// Unwrap returns the last failure.
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }
