package failover

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// CollectionConfig says what a CollectionWriter may assume of its collection. The zero value is valid.
type CollectionConfig struct {
	// UUID, if set, is the collection's UUID (subtype 4): every command carries it, so that nothing is written
	// to what replaced the collection. Without it the first insert creates a collection that is missing.
	UUID bson.Binary
	// Same reports whether a stored document is ours, sent earlier. nil means SameDocument.
	Same func(ours, stored bson.Raw) bool
}

// State is what is known of a document after a call.
type State uint8

// The states. The zero State claims nothing.
const (
	// Unknown: it is stored once, or not at all, and may yet be.
	Unknown State = iota
	// Applied: it is stored, and committed by the write concern.
	Applied
	// NotApplied: no attempt of this call has stored it or will.
	NotApplied
)

// String returns the state in words.
func (s State) String() string {
	switch s {
	case Applied:
		return "applied"
	case NotApplied:
		return "not applied"
	}
	return "unknown"
}

// Outcome is what became of one document.
type Outcome struct {
	State State
	// Err is nil if State is Applied. A *record.RejectedError says that the document is refused for good; it
	// wraps *ConflictError when another document has its _id. Anything else is why the call ended before
	// the outcome was known, or before the document could be written.
	Err error
}

// BatchError says that not all documents of a batch were applied. The Outcomes beside it say which. Unwrap
// gives the first *record.RejectedError, if any, and, if any outcome is unknown, a
// *record.UnknownOutcomeError with exactly those ids; else why the call ended early.
type BatchError struct {
	// Namespace is the collection, "database.collection".
	Namespace                    string
	Applied, NotApplied, Unknown int
	errs                         []error
}

func (e *BatchError) Error() string {
	s := fmt.Sprintf("insert into %s: documents applied: %d, not applied: %d, unknown: %d", e.Namespace, e.Applied, e.NotApplied, e.Unknown)
	for _, err := range e.errs {
		s += "; " + err.Error()
	}
	return s
}

// Unwrap returns the reasons.
func (e *BatchError) Unwrap() []error { return e.errs }

// CollectionWriter inserts documents into one ordinary (not capped) collection, in no order. Safe for
// concurrent use. It needs no closing; the Layer does. Its first writers at the same time keep a connection
// each until then (see Config.Plain).
type CollectionWriter struct {
	layer    *Layer
	ns, coll string
	cfg      CollectionConfig
	uuid     *bson.Binary
	server   func(plain bool) server

	mu    sync.Mutex
	held  []*inserter // idle, may hold a connection
	plain []*inserter // idle, hold none
	made  int         // of those that may hold a connection
}

const (
	// maxHeld is how many inserts at the same time keep a connection each for the next ones.
	maxHeld = 4
	// maxIdle is how many idle inserters without a connection are kept, for their buffers.
	maxIdle = 16
)

// inserter is what one call needs of a CollectionWriter for itself.
type inserter struct {
	srv   server
	plain bool
	buf   []byte
}

// Collection returns a writer to the ordinary collection db.coll. For a capped one use Stream: there,
// sending again what was evicted meanwhile would store it twice. Make one and keep it: its connections are given
// back by Close of the Layer. No I/O.
func (l *Layer) Collection(db, coll string, c CollectionConfig) *CollectionWriter {
	return newCollectionWriter(l, func(plain bool) server { return &database{layer: l, name: db, plain: plain} }, db, coll, c)
}

func newCollectionWriter(l *Layer, srv func(plain bool) server, db, coll string, c CollectionConfig) *CollectionWriter {
	w := &CollectionWriter{layer: l, ns: db + "." + coll, coll: coll, cfg: c, server: srv}
	if len(c.UUID.Data) > 0 {
		w.uuid = &c.UUID
	}
	return w
}

func (w *CollectionWriter) take() *inserter {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.held); n > 0 {
		i := w.held[n-1]
		w.held = w.held[:n-1]
		return i
	}
	if w.made < maxHeld {
		w.made++
		return &inserter{srv: w.server(false)}
	}
	if n := len(w.plain); n > 0 {
		i := w.plain[n-1]
		w.plain = w.plain[:n-1]
		return i
	}
	return &inserter{srv: w.server(true), plain: true}
}

func (w *CollectionWriter) put(i *inserter) {
	if cap(i.buf) > keepBuffer {
		i.buf = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !i.plain:
		w.held = append(w.held, i)
	case len(w.plain) < maxIdle:
		w.plain = append(w.plain, i)
	}
}

// InsertOne inserts doc, which has an _id made by the caller, and returns when its outcome is known, or the
// budget or ctx ends. To repeat a call send the same _id: what is stored already counts as applied. The error
// is nil if it is stored and committed by the write concern (I1), else one of
//   - *record.RejectedError: refused for good, and not stored (it wraps *ConflictError if another document
//     has its _id, ErrBadDocument if it has none);
//   - *record.UnknownOutcomeError: it may be stored, now or later;
//   - any other (not authorised, no server within the budget): it is not stored.
//
// Where ctx ended, the error wraps its cause. It returns within 250 ms of the end of ctx or of Config.Budget
// (I8). doc is not kept.
func (w *CollectionWriter) InsertOne(ctx context.Context, doc bson.Raw) error {
	docs, outcomes := [1]bson.Raw{doc}, [1]Outcome{}
	c := call{w: w, docs: docs[:], outcomes: outcomes[:]}
	c.run(ctx)
	o := outcomes[0]
	switch o.State {
	case Applied:
		return nil
	case Unknown:
		return &record.UnknownOutcomeError{IDs: []record.ID{idOf(doc)}, Attempts: c.attempts, Err: o.Err}
	}
	if _, ok := errors.AsType[*record.RejectedError](o.Err); ok {
		return o.Err
	}
	return fmt.Errorf("insert into %s: %w", w.ns, o.Err)
}

// InsertMany is InsertOne for a batch of any size: one Outcome per document, in their order. The error is nil if
// all are applied, else *BatchError. Documents are written independently of one another: those before and
// after one that is refused are written, and RejectedError.Index is its place in docs and says nothing of the
// others.
func (w *CollectionWriter) InsertMany(ctx context.Context, docs []bson.Raw) ([]Outcome, error) {
	if len(docs) == 0 {
		return nil, nil
	}
	c := call{w: w, docs: docs, outcomes: make([]Outcome, len(docs))}
	c.run(ctx)
	return c.outcomes, c.summary()
}

// summary returns the *BatchError that the outcomes make, nil if all are applied.
func (c *call) summary() error {
	e := &BatchError{Namespace: c.w.ns}
	var unknown []record.ID
	var ended error
	for i, o := range c.outcomes {
		switch o.State {
		case Applied:
			e.Applied++
			continue
		case Unknown:
			unknown = append(unknown, idOf(c.docs[i]))
		case NotApplied:
			e.NotApplied++
		}
		if _, refused := errors.AsType[*record.RejectedError](o.Err); !refused {
			ended = o.Err
		} else if len(e.errs) == 0 {
			e.errs = append(e.errs, o.Err)
		}
	}
	if e.Applied == len(c.outcomes) {
		return nil
	}
	if e.Unknown = len(unknown); e.Unknown > 0 {
		ended = &record.UnknownOutcomeError{IDs: unknown, Attempts: c.attempts, Err: ended} // I1
	}
	if ended != nil {
		e.errs = append(e.errs, ended)
	}
	return e
}
