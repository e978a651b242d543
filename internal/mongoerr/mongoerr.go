// Package mongoerr is the one place that knows MongoDB's error codes and the driver's error types.
// Classify says what an error means for a write, for a read and for a tail; nobody else looks at a
// code or matches a text.
package mongoerr

// Write says what an error means for a write with a client-made _id.
type Write uint8

// The meanings for a write.
const (
	// WriteOK: no error.
	WriteOK Write = iota
	// WriteNotSent: certainly not applied by this attempt (never sent, or refused by a member that
	// is no primary): try again.
	WriteNotSent
	// WriteUnknown: may be applied: find out by the same _id.
	WriteUnknown
	// WriteUncommitted: applied on this member, not known to be committed: same as unknown, never a failure and never an acknowledgement.
	WriteUncommitted
	// WriteDuplicate: a duplicate key (look at Class.OnID and Class.Uncommitted).
	WriteDuplicate
	// WriteRejected: this document is refused for good (validator, too large, bad field).
	WriteRejected
	// WriteStop: no document can be written here (not authorised, UUID mismatch, bad configuration, unknown code): stop and say so.
	WriteStop
)

// Read says what an error means for a read.
type Read uint8

// The meanings for a read.
const (
	ReadOK Read = iota
	// ReadRetry: try again, perhaps elsewhere.
	ReadRetry
	// ReadStop: it will not get better by trying again.
	ReadStop
)

// Tail says what an error means for a tailable cursor.
type Tail uint8

// The meanings for a tail.
const (
	TailOK Tail = iota
	// TailReopen: the cursor is dead, the position is not: open again.
	TailReopen
	// TailLost: CappedPositionLost: open again and let seq decide whether anything was lost.
	TailLost
	// TailGone: the collection was dropped, renamed, converted, or has another UUID: look at it again.
	TailGone
	// TailRefused: not a capped collection, a view, not authorised, a bad filter: a typed error.
	TailRefused
)
