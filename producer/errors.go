package producer

import (
	"errors"
	"fmt"
)

var (
	// ErrFull is returned by TrySend when the buffer is full.
	ErrFull = errors.New("producer's buffer is full")
	// ErrStarted is returned by the second Run of a producer: it is not used again.
	ErrStarted = errors.New("producer has been run already")
	// ErrDrainTimeout says that DrainTimeout ended before everything that was accepted had been sent.
	ErrDrainTimeout = errors.New("drain time ended before everything was sent")
	// ErrAborted says that Abort was called.
	ErrAborted = errors.New("producer was aborted")
)

// NotSentError says that a message is certainly not stored, because the producer failed or was
// stopped before sending it. It may be sent again by another producer.
type NotSentError struct {
	// Err is why the producer gave up.
	Err error
}

func (e *NotSentError) Error() string { return fmt.Sprintf("message not sent: %v", e.Err) }

// Unwrap returns why the producer gave up.
func (e *NotSentError) Unwrap() error { return e.Err }

// SizeError says that a message is too large. It was not accepted.
type SizeError struct {
	// Size is the size of the message's whole document, Limit is Config.MaxMessageBytes; in bytes.
	Size, Limit int
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("message of %d bytes (with _id, src and the other fields) is larger than the limit of %d", e.Size, e.Limit)
}

// InvalidError says that a message cannot be stored as it is. It was not accepted.
type InvalidError struct {
	// Field is the field of Message, in lower case: "id", "subject", "headers" or "data".
	Field string
	// Reason is a phrase that goes on after the field's name.
	Reason string
}

func (e *InvalidError) Error() string { return fmt.Sprintf("message's %s %s", e.Field, e.Reason) }
