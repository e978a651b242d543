package tailer

import (
	"fmt"

	"github.com/seed-12ef14e5/capstan/record"
)

// HistoryLostError says that the oplog no longer holds what comes behind the position: events are lost
// to this reader, and nobody knows how many. Whoever keeps a copy must make it anew.
type HistoryLostError struct {
	// Namespace is what was watched: "db.coll", "db", or "the cluster".
	Namespace string
	// Position is the last one read; its TS alone is set where the stream was to begin at a time.
	Position record.Position
	// Err is the server's error.
	Err error
}

func (e *HistoryLostError) Error() string {
	return fmt.Sprintf("change stream of %s: the oplog no longer reaches back to %s, so what happened since is lost to this reader: "+
		"copy the data again, or begin at latest; a larger oplog (replSetResizeOplog) keeps more", e.Namespace, place(e.Position))
}

// Unwrap returns the server's error.
func (e *HistoryLostError) Unwrap() error { return e.Err }

// HistoryLost is true: nobody can go on from the position, and what was copied has to be copied again.
func (e *HistoryLostError) HistoryLost() bool { return true }

// FatalTokenError says that the server cannot find the place of a resume token: it is damaged, from
// another cluster, or from a stream with another scope or filter.
type FatalTokenError struct {
	Namespace string
	Position  record.Position
	Err       error
}

func (e *FatalTokenError) Error() string {
	return fmt.Sprintf("change stream of %s: the server does not know the position %s: it belongs to another cluster, "+
		"or to a change stream of something else; begin at a time or at latest, or copy the data again: %v", e.Namespace, place(e.Position), e.Err)
}

// Unwrap returns the server's error.
func (e *FatalTokenError) Unwrap() error { return e.Err }

// HistoryLost is true: nobody can go on from the position, and what was copied has to be copied again.
func (e *FatalTokenError) HistoryLost() bool { return true }

// OversizedError says that the event behind a position is larger than a server can send. Opening again
// meets the same event, so the stream ends here. Every event of a legal document fits, unless its _id is
// large (it is in the event three times): of what is up to 5 MB nothing is too large.
type OversizedError struct {
	Namespace string
	// After is the position of the last event that fitted: the one behind it does not.
	After record.Position
	Err   error
}

func (e *OversizedError) Error() string {
	return fmt.Sprintf("change stream of %s: the event behind %s is larger than the 16 MB that a server can send, so it cannot be read: "+
		"look for a document with a very large _id, copy it by other means, and begin at a time behind it: %v", e.Namespace, place(e.After), e.Err)
}

// Unwrap returns the server's error.
func (e *OversizedError) Unwrap() error { return e.Err }

// HistoryLost is true: nobody can go on from the position, and what was copied has to be copied again.
func (e *OversizedError) HistoryLost() bool { return true }

// InvalidatedError ends a change stream whose policy is StopOnInvalidate: what it watched was dropped
// or renamed. The event was delivered; a reader that starts behind Position sees what is created under
// the old name.
type InvalidatedError struct {
	Namespace string
	// Position is that of the invalidate event.
	Position record.Position
}

func (e *InvalidatedError) Error() string {
	return fmt.Sprintf("change stream of %s: what was watched has been dropped or renamed: start behind %s to watch what is created in its place",
		e.Namespace, place(e.Position))
}

// NotReplicaSetError says that the server keeps no oplog, which a change stream is read from.
type NotReplicaSetError struct {
	Namespace string
	Err       error
}

func (e *NotReplicaSetError) Error() string {
	return fmt.Sprintf("change stream of %s: the server is no member of a replica set, and only those have change streams: "+
		"start it as a set (one member is enough: --replSet and rs.initiate()), or read a capped collection as a stream", e.Namespace)
}

// Unwrap returns the server's error.
func (e *NotReplicaSetError) Unwrap() error { return e.Err }

// NotWatchableError says that the namespace has no change stream of its own.
type NotWatchableError struct {
	Namespace string
	Err       error
}

func (e *NotWatchableError) Error() string {
	return fmt.Sprintf("%s is a view or a time-series collection, or belongs to the server, and has no change stream: "+
		"name the collection that it is made of, or the database: %v", e.Namespace, e.Err)
}

// Unwrap returns the server's error.
func (e *NotWatchableError) Unwrap() error { return e.Err }

// place says where a position is: a token is too long to be read by anyone.
func place(p record.Position) string {
	if p.IsZero() {
		return "the start"
	}
	return p.String()
}
