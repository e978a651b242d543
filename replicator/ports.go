package replicator

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// CollectionKind says what a namespace is.
type CollectionKind string

// The kinds of namespaces.
const (
	KindCollection CollectionKind = "collection"
	KindCapped     CollectionKind = "capped"
	KindView       CollectionKind = "view"
	KindTimeseries CollectionKind = "timeseries"
)

// Collection describes a collection or view as its server does.
type Collection struct {
	Name record.Namespace
	// UUID is the collection's UUID in hex, "" for a view.
	UUID string
	Kind CollectionKind
	// Options are those of listCollections (capped, size, max, validator, collation, viewOn, pipeline …), nil if none.
	Options bson.Raw
	// Indexes are those of listIndexes, the one on _id included.
	Indexes []bson.Raw
	// Documents and Bytes are the server's estimates: of the count, and of the size of the data without indexes.
	Documents, Bytes int64
}

// Identity says which deployment one is connected to.
type Identity struct {
	// SetName is the replica set's name, "" for a standalone server or a mongos; SetID is its
	// settings.replicaSetId in hex, or the name where that may not be read.
	SetName string `json:"set"`
	SetID   string `json:"set_id"`
	// Version is the server's, for example "6.0.5".
	Version string `json:"version"`
}

// Range is a part of a collection in the order of _id, (From, To]; the copy is at At. The zero values mean the ends: a Range
// without From and To is the whole collection. A range with Natural is a capped collection in natural order.
type Range struct {
	From, To record.ID
	Natural  bool
	// At is the _id of the last document that was read and written, or the record id in natural order; zero at the beginning.
	At record.ID
	// Done is true when everything is read and written.
	Done bool
	// Scanned counts the documents that were looked at, Matched those that the filter let pass.
	Scanned, Matched int64
}

// Window is the next part of a Range.
type Window struct {
	// Documents are those that matched the filter, in the order of the range, at most the asked number, each in its own memory
	// or sharing a reply's that nobody changes.
	Documents []bson.Raw
	// At is where the range stands behind this window, Scanned how many documents were looked at, and Done whether
	// the range has ended.
	At      record.ID
	Scanned int64
	Done    bool
}

// Clock is what a source says of its oplog.
type Clock struct {
	// Head is the time of the last operation that a majority has, Oldest that of the first entry of the oplog (zero if it may not be
	// read: it needs the read role on the database local).
	Head, Oldest record.Timestamp
	// Behind is the number of entries of the oplog after the position that was asked about, at most MaxBehind; -1 if not known.
	Behind int64
}

// MaxBehind bounds how many entries of an oplog are counted for Clock.Behind.
const MaxBehind = 100_000

// Changes yields records of record.KindChange, and of record.KindProgress when nothing came or matched. Its errors are
// final: see Lost.
type Changes interface {
	Next(ctx context.Context) (record.Record, error)
	Close() error
}

// Lost is implemented by the errors of Changes that mean that the position cannot be resumed from: the route's state
// becomes lost-history and a resync is the way on.
type Lost interface {
	error
	HistoryLost() bool
}

// Passing is implemented by errors of Source, Target, Store and Letters after which the same may succeed later, when the call's own
// patience has ended: no server, no primary, a disk that is full. The route waits and tries again; any other error ends it.
type Passing interface {
	error
	TryAgain() bool
}

// Source reads one deployment. Safe for concurrent use. Every method is bounded in time and tries again by itself
// through elections, freezes and cuts; its error is final, for now or for good.
type Source interface {
	Identity(ctx context.Context) (Identity, error)
	// Collections returns what exists of the set, with options, indexes and estimates, views and time-series collections too.
	Collections(ctx context.Context, set *scope.Set) ([]Collection, error)
	// Check refuses a filter that the server does not understand, or cannot use, on the documents of ns, which need not exist.
	Check(ctx context.Context, ns record.Namespace, filter bson.Raw) error
	// Split cuts c into at most n ranges that together hold every document, whatever the types of _id. A capped collection is one range.
	Split(ctx context.Context, c Collection, n int) ([]Range, error)
	// Window reads on in a range: it looks at about limit documents, and returns those that match filter (nil: all). What it
	// sees is not older than at. It reads the collection with c's UUID: under its present name if it was renamed within its database;
	// if it does not exist any more the error is ErrGone, and never an empty window.
	Window(ctx context.Context, c Collection, r Range, limit int, filter bson.Raw, at record.Timestamp) (Window, error)
	// Fetch returns the present versions of those documents of a collection that have one of the _ids and match filter (nil: all),
	// in no order. What it sees is not older than at. uuid is the collection's, as for Window; ErrGone if it does not exist any more.
	Fetch(ctx context.Context, ns record.Namespace, uuid string, ids []bson.RawValue, filter bson.Raw, at record.Timestamp) ([]bson.Raw, error)
	// Position returns a position such that Changes behind it yields everything that a later read does not see.
	Position(ctx context.Context, set *scope.Set) (record.Position, error)
	// Changes yields the changes of the set behind a position. It does no I/O before the first Next.
	Changes(set *scope.Set, after record.Position) (Changes, error)
	// Clock says where the source is; after is the position to count Behind from.
	Clock(ctx context.Context, after record.Position) (Clock, error)
}

// Verb says what an Op does.
type Verb uint8

// The verbs.
const (
	// Insert: the document cannot exist yet, except by a replay of this insert or an earlier version of it.
	Insert Verb = iota
	// Put: the document replaces the one with its _id, or is inserted.
	Put
	// Remove: the document with the _id is removed; there may be none.
	Remove
)

// Op is what becomes of one document.
type Op struct {
	Verb Verb
	// ID is the document's _id; it shares memory with Document or with the change.
	ID bson.RawValue
	// Document is the whole document; nil for Remove.
	Document bson.Raw
}

// Refusal says that one Op was not applied and that the same would happen again.
type Refusal struct {
	// Index is the op's place in the ops of the call.
	Index int
	// Holder is set if another document of the destination has the value of a unique index: its _id. Then the op can be applied
	// once that document is brought up to date or is gone.
	Holder bson.RawValue
	// Err is the server's reason.
	Err error
}

// DDL is a change of a collection and not of its documents, in the names of the destination.
type DDL struct {
	// Op is create, drop, rename, createIndexes, dropIndexes or modify, as in record.Change.
	Op string
	// Collection is what it is about; To is the new name of a rename.
	Collection, To record.Namespace
	// Description is the event's operationDescription.
	Description bson.Raw
	// Change is the event as a whole.
	Change *record.Change
}

// CreateOptions say how Target.Create makes a collection.
type CreateOptions struct {
	// HoldTTL creates TTL indexes with the longest time that exists (see Held), so that nothing expires at the destination by
	// itself: expirations at the source arrive as deletes.
	HoldTTL bool
	// Secondary says which secondary indexes are made now: the unique ones (before the copy, so that no
	// conflict goes unnoticed) or all (after it).
	Secondary IndexPhase
}

// IndexPhase says which secondary indexes are made.
type IndexPhase uint8

// The phases.
const (
	UniqueIndexes IndexPhase = iota
	AllIndexes
)

// Held is a TTL index of the destination whose expiry is held back until the route is finalized.
type Held struct {
	Namespace record.Namespace `bson:"ns"`
	Index     string           `bson:"index"`
	// Seconds is the index's expireAfterSeconds at the source.
	Seconds int64 `bson:"seconds"`
}

// Delayed is a change of a collection that the destination cannot make at present: a unique index while documents have equal values,
// as some of them are newer than the change and others are not yet.
type Delayed struct {
	// Op, Collection and Description are those of a DDL; of several indexes only those are described that are not there yet.
	Op          string
	Collection  record.Namespace
	Description bson.Raw
}

// DelayedError is what Target.Create and Target.Change return when Delayed is all that they could not do: their held and notes
// count, and Change is to be called again later with the same Op, Collection and Description.
type DelayedError struct {
	Delayed Delayed
	// Err is the server's reason.
	Err error
}

func (e *DelayedError) Error() string {
	return fmt.Sprintf("%s of %s is not possible at present: %v", e.Delayed.Op, e.Delayed.Collection, e.Err)
}

// Unwrap returns the server's reason.
func (e *DelayedError) Unwrap() error { return e.Err }

// Target writes to one deployment. Safe for concurrent use, except that calls of Apply with the same worker follow one
// another. Every write goes through package failover: elections, freezes and cuts slow it down, and its error is final, for now
// or for good. All names are the destination's.
type Target interface {
	Identity(ctx context.Context) (Identity, error)
	// Describe returns what exists of the given names.
	Describe(ctx context.Context, names []record.Namespace) ([]Collection, error)
	// Create makes the collection or view c, or leaves it if it exists with the same options, and its indexes. notes say what a person
	// should know (a TTL index held back, an option that differs). A *DelayedError is no failure: see there.
	Create(ctx context.Context, c Collection, o CreateOptions) (held []Held, notes []string, err error)
	// Insert writes documents of the copy, which are not there unless an earlier run wrote them: what is there is replaced. With
	// ordered they are written one after the other in their order (capped collections).
	Insert(ctx context.Context, ns record.Namespace, docs []bson.Raw, ordered bool) ([]Refusal, error)
	// Apply applies ops, whose _ids differ from one another, in no order, and returns those that were refused. ordered is as for Insert.
	// worker chooses the session whose transaction numbers fence off what an earlier call of the worker left behind.
	Apply(ctx context.Context, worker int, ns record.Namespace, ops []Op, ordered bool) ([]Refusal, error)
	// IDs returns the _ids in (from, to] in the order of the index, at most limit, for comparing a window.
	IDs(ctx context.Context, ns record.Namespace, from, to record.ID, limit int) ([]bson.RawValue, error)
	// Change applies a DDL idempotently: what is so already is success. With holdTTL expiry is held back; a Held with Seconds below 0
	// says that the expiry is none any more. A *DelayedError is no failure: see there.
	Change(ctx context.Context, d DDL, holdTTL bool) (held []Held, notes []string, err error)
	// Drop removes a collection or view; none is success.
	Drop(ctx context.Context, ns record.Namespace) error
	// Release gives TTL indexes their own expiry.
	Release(ctx context.Context, held []Held) error
	// Fence ends what an earlier process with these sessions may still have in progress, and returns this one's.
	Fence(ctx context.Context, old []bson.Raw, workers int) ([]bson.Raw, error)
}

// Letter is a document that could not be applied: its dead letter. Its content is not kept, as a retry reads the present
// version at the source.
type Letter struct {
	Route string `bson:"route"`
	// Source is the namespace at the source, ID the document's _id.
	Source record.Namespace `bson:"source"`
	ID     bson.RawValue    `bson:"id"`
	// Reason is the server's, Op what was to be done: "insert", "put", "remove".
	Reason   string          `bson:"reason"`
	Op       string          `bson:"op"`
	Position record.Position `bson:"-"`
	Time     time.Time       `bson:"time"`
	// Attempts counts how often it was set aside.
	Attempts int `bson:"attempts"`
}

// Letters keeps dead letters. Safe for concurrent use; bounded and repeated as Target.
type Letters interface {
	// Add stores letters; one that is there already counts up.
	Add(ctx context.Context, letters []Letter) error
	// List returns at most limit letters of a route (0: all), oldest first.
	List(ctx context.Context, route string, limit int) ([]Letter, error)
	Count(ctx context.Context, route string) (int64, error)
	// Remove removes one letter; none is success.
	Remove(ctx context.Context, l Letter) error
}

// Store keeps the State of routes at the destination (or in a file). Safe for concurrent use.
type Store interface {
	// Acquire makes owner the holder of the route and returns what is stored under its name, an empty State if nothing is.
	// It refuses with *BusyError while another process holds it and is alive, unless takeOver is true.
	Acquire(ctx context.Context, route, owner string, takeOver bool) (State, error)
	// Save stores s if its owner and revision are the stored ones and returns it with the next revision; otherwise
	// *record.FencedError.
	Save(ctx context.Context, s State) (State, error)
	// Release says that the holder has ended, so that the next one need not wait.
	Release(ctx context.Context, s State) error
	// Load returns what is stored, ErrNoRoute if nothing is.
	Load(ctx context.Context, route string) (State, error)
	// List returns all routes.
	List(ctx context.Context) ([]State, error)
}
