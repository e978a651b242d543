package replicator

import (
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// Phase is the state of a route by name.
type Phase string

// The phases.
const (
	// PhaseCopying: the initial copy, or that of a resync.
	PhaseCopying Phase = "copying"
	// PhaseCatchingUp: the copy is done, and changes since its beginning are applied; the destination is not complete yet.
	PhaseCatchingUp Phase = "catching-up"
	// PhaseLive: the destination has every change up to a moment ago.
	PhaseLive Phase = "live"
	// PhasePaused: somebody paused the route; it goes on where it was.
	PhasePaused Phase = "paused"
	// PhaseLostHistory: the source's oplog no longer reaches back to the checkpoint. Only a resync helps.
	PhaseLostHistory Phase = "lost-history"
	// PhaseFailed: something that needs a person; Reason says what.
	PhaseFailed Phase = "failed"
	// PhaseFinalized: the route has ended for good: TTL indexes have their own expiry again.
	PhaseFinalized Phase = "finalized"
)

// State is what a route remembers: where it is, and whose it is. It is stored as one document.
type State struct {
	// Route is its name, with "/" and the destination's name where a route has several.
	Route string
	// Owner and Revision are as in record.Checkpoint. Clean is true if the owner has said that it ended.
	Owner    string
	Revision int64
	Clean    bool
	// Fingerprint is that of the scope; Source the identity of the source's set. A State with others is refused.
	Fingerprint string
	Source      Identity
	// Target is the identity of the destination, where the store is not at the destination itself; else it is zero.
	Target Identity

	// Phase is copying, catching-up, live, lost-history, failed or finalized; Paused is kept apart, so that a paused route knows what
	// it was doing. Reason says why it is lost or failed.
	Phase  Phase
	Paused bool
	Reason string
	// Was is the phase before it failed.
	Was Phase

	// Start is the position that was taken before the copy. Position is the checkpoint: everything up to it is applied or a dead
	// letter. Caught is the position that must be passed before the route counts as live.
	Start, Position, Caught record.Position
	// Listed is a time before which the source's collections were listed: changes of them up to it may be in Collections already,
	// or in part, as a listing is made while they happen.
	Listed record.Timestamp
	// Shared is true if other routes may write to the same collections.
	Shared bool
	// WasLive is true once the route has been live since its last copy.
	WasLive bool
	// Resync is true while the copy compares with what is there; Copies counts the copies of this route.
	Resync bool
	Copies int
	// Collections has one entry per collection of the source that takes part, by its UUID (a view: by its name).
	Collections []CollectionState
	// Sessions are the ids of the sessions that write.
	Sessions []bson.Raw
	// Held are the TTL indexes that are held back.
	Held []Held
	// Delayed are changes of collections that the destination could not make yet, in their order.
	Delayed []Delayed
	// Totals are counted over all runs.
	Totals Totals
	// Updated is when it was stored, by the holder's clock.
	Updated time.Time
}

// CollectionState is what a route knows of one collection.
type CollectionState struct {
	// UUID is the collection's at the source, Source its name there, Target its name at the destination.
	UUID           string
	Source, Target record.Namespace
	Kind           CollectionKind
	// Ranges is how far its copy is; nil before it began. Copied is true when all of it is copied and indexed.
	Ranges []Range
	Copied bool
	// Documents and Bytes are the source's estimates when the copy began.
	Documents, Bytes int64
	// Created is true once the collection exists at the destination.
	Created bool
	// Seen is a time at which all this was so at the source: changes of the collection itself (not of its documents) up to it are
	// in here already.
	Seen record.Timestamp
	// Serial is true if its changes are applied one after the other: a capped collection keeps its order, and under a
	// collation two _ids may be one.
	Serial bool
}

// Totals are counters of a route.
type Totals struct {
	// Scanned and Matched count documents of the copy, CopiedBytes their size.
	Scanned     int64 `json:"scanned"`
	Matched     int64 `json:"matched"`
	CopiedBytes int64 `json:"copied_bytes"`
	// Changes counts the changes that were read, by what came of them.
	Read    int64 `json:"read"`
	Applied int64 `json:"applied"`
	Skipped int64 `json:"skipped"`
	// Conflicts counts unique-index conflicts that were resolved, Letters the documents that were set aside.
	Conflicts int64 `json:"conflicts"`
	Letters   int64 `json:"dead_letters"`
}

// Errors of stores and routes.
var (
	// ErrNoRoute says that nothing is stored under the name of a route.
	ErrNoRoute = errors.New("no such route")
	// ErrGone says that a collection does not exist any more.
	ErrGone = errors.New("the collection does not exist any more")
	// ErrOverlap says that another route writes to the same collections.
	ErrOverlap = errors.New("another route writes to the same collections of the destination")
	// ErrLoop says that source and destination are one deployment, and a collection would be copied onto itself.
	ErrLoop = errors.New("source and destination are the same collections of one deployment")
	// ErrFinalized says that a route has ended for good.
	ErrFinalized = errors.New("the route is finalized")
	// ErrNotLive says that a route is not complete yet.
	ErrNotLive = errors.New("the route is not live: its destination is incomplete")
	// ErrLetters says that a route cannot be finalized while documents are set aside: the destination would be incomplete.
	ErrLetters = errors.New("there are dead letters, whose documents the destination does not have: retry them, or see to it that they are not needed and forget the route")
	// ErrTooManyLetters says that more documents were refused than the route may set aside.
	ErrTooManyLetters = errors.New("too many dead letters")
	// ErrNotEmpty says that the destination holds data already.
	ErrNotEmpty = errors.New("the destination holds documents already")
)

// BusyError says that another process runs the route.
type BusyError struct {
	Route, Owner string
	Updated      time.Time
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("route %q is run by %s (last seen %s); stop that process, or take the route over", e.Route, e.Owner, e.Updated.UTC().Format(time.RFC3339))
}

// MismatchTarget is MismatchError.What if the stored checkpoint is one of another destination.
const MismatchTarget = "destination"

// MismatchError says that a stored state belongs to another route of the same name.
type MismatchError struct {
	Route string
	// What differs: "scope …", "source set" or "destination".
	What, Stored, Now string
}

func (e *MismatchError) Error() string {
	if e.What == MismatchTarget { // a resync there would take the checkpoint away from the destination that it is of
		return fmt.Sprintf("route %q: its destination is %s, and the stored checkpoint is of %s: give the route another name", e.Route, e.Now, e.Stored)
	}
	return fmt.Sprintf("route %q: its %s is %s, and the stored checkpoint was made with %s: give the route another name, or resync it", e.Route, e.What, e.Now, e.Stored)
}
