package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/record"
)

// StreamConfig says which stream a StreamWriter writes to.
type StreamConfig struct {
	// UUID is the collection's UUID (subtype 4). Required: every command carries it, so that a stream
	// that was dropped or re-created is noticed, and no insert creates a collection by accident.
	UUID bson.Binary
	// Size is the stream's size in bytes; a larger message is refused. 0: not checked here.
	Size int64
	// Same reports whether a stored document is ours, sent earlier. nil means SameMessage. It need not
	// look at ts, which the server fills, nor at the order of fields.
	Same func(ours, stored bson.Raw) bool
}

// StreamWriter writes messages to one stream, in order. Not safe for concurrent use: one call at a
// time. Several writers on one stream are correct, and slow (capped inserts are serialised by the
// server). It needs no closing; the Layer does. The first writers of a Layer keep a connection each
// until then (see Config.Plain).
type StreamWriter struct {
	layer *Layer
	srv   server
	ns    string
	coll  string
	cfg   StreamConfig

	effort     effort
	buf        []byte
	perCommand int     // documents per command: halved when commands are cut, doubled when not
	anchors    anchors // what must still be in the stream before anything is sent again
}

// Stream returns a writer to the capped collection db.coll. No I/O; a bad StreamConfig is reported
// by the first write.
func (l *Layer) Stream(db, coll string, c StreamConfig) *StreamWriter {
	return newStreamWriter(l, &database{layer: l, name: db}, db, coll, c)
}

func newStreamWriter(l *Layer, srv server, db, coll string, c StreamConfig) *StreamWriter {
	ns := db + "." + coll
	return &StreamWriter{layer: l, srv: srv, ns: ns, coll: coll, cfg: c,
		effort: effort{layer: l, name: ns, log: "stream"}, perCommand: maxCommandDocuments}
}

// batch is the state of one call. docs[:base] are applied and committed. docs[base:open] may have
// been applied by an attempt whose answer did not come, and may yet be: a server that was frozen runs
// what is in its socket. Everything from max(base, open) on was never sent, or certainly refused.
type batch struct {
	docs       []bson.Raw
	base, open int
	sent       int // end of the last command
	attempts   int
	anchored   bool
	// unresolved: before anything is sent, read back what is there.
	unresolved bool
	// duplicate: the server said, with the force of the write concern, that docs[base]'s _id is taken.
	duplicate bool
}

// final wraps an error that ends the call.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// WriteBatch inserts docs in order and returns when the outcome of every one is known, or the
// budget or ctx ends. Each document needs an _id made by the caller; a retry sends the same one.
//
// applied is the number of documents, from the front, that are stored and committed by the write
// concern. With a nil error it is len(docs). Otherwise the error is one of
//   - *record.RejectedError: docs[:applied] are applied, docs[applied] is refused for good (wraps
//     *ConflictError when its _id holds other content), nothing after it was written;
//   - *record.UnknownOutcomeError: docs[:applied] are applied, those in IDs may be, now or later;
//   - any other (not authorised, *ReplacedError, no server within the budget): docs[:applied] are
//     applied and the rest is not. Where ctx ended, the error wraps its cause.
//
// It returns within 250 ms of the end of ctx or of Config.Budget (I8). docs are not kept.
func (w *StreamWriter) WriteBatch(ctx context.Context, docs []bson.Raw) (applied int, err error) {
	if len(docs) == 0 {
		return 0, nil
	}
	if len(w.cfg.UUID.Data) == 0 {
		return 0, errNoUUID
	}
	b := &batch{docs: docs, anchored: w.anchors.fresh()}
	defer w.trim()
	start := time.Now()
	var first error
	if b.anchored && w.srv.held() && ctx.Err() == nil {
		// Nearly every batch ends here, and pays for nothing that is only needed when something is wrong.
		if _, first = w.direct(ctx, b); b.base > 0 {
			w.effort.progress()
		}
		if first == nil && b.base == len(docs) {
			return b.base, nil
		}
	}
	ctx, cancel := context.WithDeadlineCause(ctx, start.Add(w.layer.cfg.Budget), errBudget)
	defer cancel()
	return w.finish(ctx, b, start, first)
}

// finish does what is left of a batch. err is why an attempt that began at start failed, nil if none did.
func (w *StreamWriter) finish(ctx context.Context, b *batch, start time.Time, err error) (int, error) {
	for {
		if err != nil {
			if f, ok := errors.AsType[final](err); ok {
				return b.base, w.giveUp(b, f.error)
			}
			w.effort.failing(start, b.open > b.base, err)
			if err := w.effort.pause(ctx, err); err != nil {
				return b.base, w.giveUp(b, err)
			}
		}
		if b.base == len(b.docs) {
			return b.base, nil
		}
		if ctx.Err() != nil {
			return b.base, w.giveUp(b, context.Cause(ctx))
		}
		var before int
		start, before = time.Now(), b.base
		if err = w.step(ctx, b); b.base > before {
			w.effort.progress()
		}
	}
}

// step does the one thing that is to be done next. nil: look again; final: stop; else: wait, then
// look again.
func (w *StreamWriter) step(ctx context.Context, b *batch) error {
	switch {
	case !b.anchored:
		return w.placeAnchor(ctx, b)
	case b.unresolved:
		return w.readBack(ctx, b)
	default:
		return w.send(ctx, b)
	}
}

// send makes one attempt to insert docs[base:].
func (w *StreamWriter) send(ctx context.Context, b *batch) error {
	if w.srv.held() {
		if sent, err := w.direct(ctx, b); sent || err != nil {
			return err
		}
	}
	timeout := w.layer.attemptTimeout()
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	cmd, n, err := w.insertCommand(b.docs[b.base:], timeout)
	if err != nil {
		return final{w.rejected(b, err)}
	}
	b.attempts++
	b.sent = b.base + n
	var reply bson.Raw
	err = w.layer.attempt(ctx, Attempt{Kind: KindInsert, Name: w.ns, Documents: n}, true, func(ctx context.Context) (err error) {
		reply, err = w.srv.insert(ctx, cmd)
		return err
	})
	return w.judge(b, n, reply, err)
}

// direct is send on a connection that is held for it, with the same deadline. sent is false if there is
// none any more: then nothing has happened.
func (w *StreamWriter) direct(ctx context.Context, b *batch) (sent bool, err error) {
	timeout := w.layer.attemptTimeout()
	start := time.Now()
	limit := start.Add(timeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(limit) {
		limit, timeout = deadline, time.Until(deadline)
	}
	cmd, n, err := w.insertCommand(b.docs[b.base:], timeout)
	if err != nil {
		return false, final{w.rejected(b, err)}
	}
	reply, err := w.srv.direct(ctx, cmd, limit)
	if errors.Is(err, wire.ErrReleased) {
		return false, nil
	}
	b.attempts++
	b.sent = b.base + n
	w.layer.tried(Attempt{Kind: KindInsert, Name: w.ns, Member: w.srv.member(), Start: start, Timeout: timeout, Documents: n, Err: err})
	return true, w.judge(b, n, reply, err)
}

// judge decides what an attempt to insert the n documents from base on has done.
func (w *StreamWriter) judge(b *batch, n int, reply bson.Raw, err error) error {
	if err != nil {
		return w.failed(b, n, err)
	}
	if got, ok := reply.Lookup("n").AsInt64OK(); !ok || got != int64(n) {
		b.open = b.sent
		return final{fmt.Errorf("the server says it inserted %d of %d messages and names no error", got, n)}
	}
	b.base += n // I1: acknowledged by the write concern, without a word of doubt in the reply
	w.anchors.set(idOf(b.docs[b.base-1]))
	w.perCommand = min(2*w.perCommand, maxCommandDocuments)
	return nil
}

// failed decides what the failed attempt to insert the n documents from base on means.
func (w *StreamWriter) failed(b *batch, n int, err error) error {
	c := mongoerr.Classify(err)
	end := b.base + n
	switch {
	case c.Uncommitted:
		// I1: applied there, and perhaps rolled back: neither a failure nor an acknowledgement.
		if c.Index >= 0 {
			end = b.base + c.Index
			if c.Write == mongoerr.WriteDuplicate {
				end++
			}
		}
		b.open, b.unresolved = max(b.open, end), true
	case c.Index > 0:
		b.base += c.Index // an ordered insert stops at the first error
		w.anchors.set(idOf(b.docs[b.base-1]))
	}
	// A server that refuses a whole command has done nothing of it only if it says so before it starts;
	// of a code that also comes up between two documents of a batch, one cannot know.
	unsure := c.Index < 0 && !(untouched(c, err) && (c.Code == 0 || n == 1 || c.Write == mongoerr.WriteStop))
	if (unsure || c.Write == mongoerr.WriteUnknown) && !c.Uncommitted {
		b.open, b.unresolved = max(b.open, end), true
	}
	if c.Uncommitted && c.Index > 0 {
		return err // what comes before the one that the error is about must be committed first
	}
	switch c.Write {
	case mongoerr.WriteRejected:
		return final{w.rejected(b, err)}
	case mongoerr.WriteStop:
		return final{replaced(w.ns, w.cfg.UUID, err)}
	case mongoerr.WriteDuplicate:
		if !c.OnID {
			return final{w.rejected(b, err)}
		}
		if !c.Uncommitted {
			b.duplicate, b.unresolved = true, true
			return nil
		}
	}
	return err
}

// rejected returns the error that says that docs[base] is refused for good.
func (w *StreamWriter) rejected(b *batch, reason error) *record.RejectedError {
	return &record.RejectedError{Index: b.base, ID: idOf(b.docs[b.base]), Err: reason}
}

// giveUp returns what the call has to say when it ends early.
func (w *StreamWriter) giveUp(b *batch, err error) error {
	if _, ok := errors.AsType[*record.RejectedError](err); !ok {
		if b.open > b.base {
			// I1: what may be stored is never called a failure.
			err = &record.UnknownOutcomeError{IDs: idsOf(b.docs[b.base:b.open]), Attempts: b.attempts, Err: err}
		} else {
			err = fmt.Errorf("insert into %s: %w", w.ns, err)
		}
	}
	w.effort.ended(err)
	return err
}

// trim keeps the buffer of one large message from staying.
func (w *StreamWriter) trim() {
	if cap(w.buf) > keepBuffer {
		w.buf = nil
	}
}
