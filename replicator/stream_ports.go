package replicator

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// StreamInfo describes a stream: a capped collection.
type StreamInfo struct {
	Name record.Namespace
	// UUID is the collection's UUID in hex: the fingerprint that records and checkpoints carry.
	UUID string
	// Size is in bytes, Max in messages (0: no limit).
	Size, Max int64
	// Messages and Bytes are the server's estimates of what it holds, the primer left out.
	Messages, Bytes int64
	// Identity is the deployment.
	Identity Identity
}

// StreamHead is where a stream ends.
type StreamHead struct {
	// Position is that of the newest message that a majority has, zero if there is none; Src and Seq are its count, zero in
	// another program's stream.
	Position record.Position
	Src      string
	Seq      int64
	// Left is how many seconds pass, at the stream's mean rate, until it overwrites the first message behind the position that was asked
	// about; nil if that is not known.
	Left *float64
}

// StreamReader yields the records of a stream, each once, in the order of each src. Its errors are final. One goroutine calls Next;
// Close may be called by another. *tailer.Stream is one.
type StreamReader interface {
	Next(ctx context.Context) (record.Record, error)
	Close() error
}

// StreamSource is the stream that is read. Safe for concurrent use. Its methods are bounded in time and try again by themselves through
// elections; an error that is Passing may be gone the next time, any other is final.
type StreamSource interface {
	Describe(ctx context.Context) (StreamInfo, error)
	// Head returns where the stream ends, and with a position that is not zero how much time a reader there has.
	Head(ctx context.Context, at record.Position) (StreamHead, error)
	// Open returns a reader that begins at start. It does no I/O before the first Next. waiting is called when there is
	// nothing to read from, with the reason ("missing" …); it must be fast.
	Open(start record.Start, waiting func(reason string)) (StreamReader, error)
}

// StreamTarget is the stream that is written. One goroutine calls it. Errors as those of StreamSource.
type StreamTarget interface {
	// Open returns the stream, created with the size and max of like if it does not exist. What follows is bound to its UUID.
	Open(ctx context.Context, like StreamInfo) (StreamInfo, error)
	// WriteBatch inserts docs in order and returns how many, from the front, are stored and committed; all with a nil error. A document whose _id
	// is there with the same content counts as stored. Errors as of failover.StreamWriter: *record.RejectedError,
	// *record.UnknownOutcomeError, or any other, after which nothing else is stored. docs are not kept.
	WriteBatch(ctx context.Context, docs []bson.Raw) (applied int, err error)
	// Held returns what a majority of the destination has of messages behind those that are done by marks and, in a stream of
	// another program, by the position.
	Held(ctx context.Context, marks map[string]int64, at record.Position) (StreamHeld, error)
}

// StreamHeld is what a destination holds: the highest seq per src, and the _ids of messages without src and seq.
type StreamHeld struct {
	Marks map[string]int64
	IDs   map[record.ID]struct{}
}

// has reports whether the destination holds r, or held it: a stream evicts in the order of writing, so of a src everything
// at or below its newest seq was there.
func (h StreamHeld) has(r *record.Record) bool {
	if r.Ours() {
		return r.Seq <= h.Marks[r.Src]
	}
	_, ok := h.IDs[r.Position.ID]
	return ok
}

// Checkpointer stores where a stream route may resume, under the route's name. checkpoint.Mongo is one.
type Checkpointer interface {
	// Acquire makes owner the holder of name and returns what is stored; the holder before is fenced off at its next Save.
	Acquire(ctx context.Context, name, stream, owner string) (record.Checkpoint, error)
	// Save stores cp if its owner and revision are the stored ones and returns it with the next revision; otherwise
	// *record.FencedError.
	Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error)
}

// RecreatedError ends a stream route whose source was dropped and created again: another stream under the old name. What of
// the old one was not replicated is lost, and the route's phase is PhaseLostHistory.
type RecreatedError struct {
	Route  string
	Source record.Namespace
	// Stored and Now are the UUIDs in hex.
	Stored, Now string
}

func (e *RecreatedError) Error() string {
	return fmt.Sprintf("route %q: the stream %s was dropped and created again (UUID %s, now %s), and what was not replicated of the old one is lost: "+
		"resync the route to go on with the new one", e.Route, e.Source, e.Stored, e.Now)
}

// StreamRefusedError ends a stream route whose destination refuses a message for good: to leave it out would be a silent hole.
type StreamRefusedError struct {
	Route    string
	Position record.Position
	Err      error
}

func (e *StreamRefusedError) Error() string {
	return fmt.Sprintf("route %q: the destination refuses the message at %s of the source: remove the reason and start the route again, which goes on with this message: %v",
		e.Route, e.Position, e.Err)
}

// Unwrap returns the destination's reason.
func (e *StreamRefusedError) Unwrap() error { return e.Err }
