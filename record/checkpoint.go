package record

import (
	"fmt"
	"maps"
	"time"
)

// Checkpoint is an entry stored under a name from which a reader may resume.
type Checkpoint struct {
	// Name identifies the consumer ("durable name").
	Name string
	// Stream is the namespace that it reads, "database.collection".
	Stream string
	// Fingerprint is the identity of what it reads: the collection's UUID in hex. A checkpoint whose
	// fingerprint differs from the stream's is one of a re-created stream.
	Fingerprint string
	// Position is the safe position: everything at or below it is done. Resume is exclusive.
	Position Position
	// Marks is the highest seq done per src, bounded by the reader; it is the exact resume point.
	Marks map[string]int64
	// Lines and Bytes are how far an input file has been sent; used by producers of files only.
	Lines, Bytes int64
	// Owner is the process that holds the name; Revision counts the changes. A store refuses a Save
	// whose owner or revision is not the stored one with a *FencedError.
	Owner    string
	Revision int64
	// Updated is when it was stored, by the storing process's clock.
	Updated time.Time
}

// Clone returns a copy that shares nothing with c.
func (c Checkpoint) Clone() Checkpoint {
	c.Marks = maps.Clone(c.Marks)
	return c
}

// IsZero reports whether nothing has been done under this name yet.
func (c Checkpoint) IsZero() bool {
	return c.Position.IsZero() && len(c.Marks) == 0 && c.Lines == 0 && c.Bytes == 0
}

// Owners that are no process. Stores use them; FencedError chooses its words by them.
const (
	// OwnerByHand is the owner of a checkpoint that a person stored without naming an owner.
	OwnerByHand = "a person (checkpoint set)"
	// OwnerNobody stands for the owner of a checkpoint that was deleted under its holder.
	OwnerNobody = "nobody, as it was deleted"
)

// FencedError says that another process or a person took over a name: the caller must stop, as
// everything it does from now on is done twice.
type FencedError struct {
	Name string
	// Owner is who holds the name now, Revision the stored revision.
	Owner    string
	Revision int64
}

func (e *FencedError) Error() string {
	switch e.Owner {
	case OwnerByHand:
		return fmt.Sprintf("checkpoint %q was set by hand (revision %d), and this run ends: start it again "+
			"to go on from there", e.Name, e.Revision)
	case OwnerNobody:
		return fmt.Sprintf("checkpoint %q was deleted, and this run ends: start it again to begin anew", e.Name)
	}
	return fmt.Sprintf("checkpoint %q now belongs to %s (revision %d): another process with the same name is running; "+
		"give each its own name, or stop one of them", e.Name, e.Owner, e.Revision)
}

// Where says at which end or point of a stream a reader starts.
type Where uint8

// The starting points.
const (
	// Latest: only what arrives after the reader has started.
	Latest Where = iota
	// Earliest: the oldest message that the stream still holds.
	Earliest
	// After: behind Start.Position (and Start.Marks).
	After
	// AtTime: the first message whose server timestamp is at or after Start.Time.
	AtTime
)

// Start says where a reader starts. The zero Start is Latest.
type Start struct {
	Where Where
	// Position and Marks are used with After: the position to read from and the highest seq per src that
	// is done. Marks may be nil (a position typed by a person): then the reader takes what it can from
	// the document at Position.
	Position Position
	Marks    map[string]int64
	// Fingerprint, if not "", must be the stream's, or the reader reports a re-created stream.
	Fingerprint string
	// Time is used with AtTime; its resolution is one second.
	Time time.Time
}

// StartOf returns the Start that resumes from a checkpoint, or otherwise where the checkpoint is empty.
func StartOf(c Checkpoint, otherwise Start) Start {
	if c.Position.IsZero() && len(c.Marks) == 0 {
		return otherwise
	}
	return Start{Where: After, Position: c.Position, Marks: maps.Clone(c.Marks), Fingerprint: c.Fingerprint}
}
