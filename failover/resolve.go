package failover

import (
	"bytes"
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// anchorAge is how old the newest anchor may be when a call begins; an older one is replaced by the
	// newest message of the stream, at the price of one small read. A stream that turns over faster
	// than this plus an outage is smaller than the guarantee can be.
	anchorAge = 2 * time.Second
	// anchorDistance is the least time between the two anchors: a standalone server that is killed may
	// lose what it acknowledged in the last 100 ms (its journal's interval), and the newer one with it.
	anchorDistance = time.Second
	// maxLookUp bounds the documents of one read, so that it fits into an attempt on a slow server too
	// (about 5 µs each on an idle one).
	maxLookUp = 5000
)

// anchors are messages that were in the stream before anything that is open now was first sent. A
// capped collection evicts in the order of insertion, so while one of them is there, nothing that
// came after it has been evicted, and what is not found is not stored. No clock is compared: ts is
// stamped before an insert gets its lock, by a clock that may step.
type anchors struct {
	newest, older record.ID
	at, olderAt   time.Time
}

func (a *anchors) fresh() bool { return !a.newest.IsZero() && time.Since(a.at) < anchorAge }

// set makes id the newest anchor.
func (a *anchors) set(id record.ID) {
	now := time.Now()
	if now.Sub(a.olderAt) >= anchorDistance {
		a.older, a.olderAt = a.newest, now
	}
	a.newest, a.at = id, now
}

func (a *anchors) ids() []record.ID {
	var ids []record.ID
	for _, id := range []record.ID{a.newest, a.older} {
		if !id.IsZero() {
			ids = append(ids, id)
		}
	}
	return ids
}

// placeAnchor notes the newest message of the stream before the first attempt of a call. It is read
// with majority, so that no election takes it away.
func (w *StreamWriter) placeAnchor(ctx context.Context, b *batch) error {
	docs, _, err := w.find(ctx, w.newestCommand("majority"))
	switch {
	case err == nil:
		if len(docs) > 0 {
			w.anchors.set(idOf(docs[0]))
		}
	case mongoerr.IsUnauthorized(err):
		// A user who may insert and not read can write, until an outcome is unknown.
	default:
		return w.readFailed(err)
	}
	b.anchored = true
	return nil
}

func (w *StreamWriter) newestCommand(level string) bson.D {
	return w.findCommand(level, bson.Timestamp{}, bson.D{}, bson.E{Key: "sort", Value: bson.D{{Key: "$natural", Value: -1}}},
		bson.E{Key: "limit", Value: 1}, bson.E{Key: "singleBatch", Value: true}, bson.E{Key: "projection", Value: bson.D{{Key: record.FieldID, Value: 1}}})
}

func (w *StreamWriter) find(ctx context.Context, cmd bson.D) (docs []bson.Raw, at bson.Timestamp, err error) {
	err = w.layer.attempt(ctx, 0, func(ctx context.Context) (err error) {
		docs, at, err = w.srv.find(ctx, cmd)
		return err
	})
	return docs, at, err
}

// readFailed tells an error that another try may not meet from one that ends the call.
func (w *StreamWriter) readFailed(err error) error {
	if mongoerr.Classify(err).Read == mongoerr.ReadRetry {
		return err
	}
	return final{w.replaced(err)}
}

// readBack finds out which of the documents that may be stored are, and moves base over them. It
// looks twice, as absence and presence need different read concerns:
//
//   - "local" on the primary says what is not there. The primary has all that can ever have come of
//     our attempts (late execution on a former primary is rolled back), committed or not. A majority
//     view lags: sending again what it does not show could store twice what is evicted meanwhile.
//   - "majority", at the time of the first read or later, says what is there to stay, and only that
//     may be acknowledged: a cut-off primary shows things with "local" that will be rolled back.
//     Waiting for that time makes the server answer at the commit ("linearizable" would take one
//     document at a time).
func (w *StreamWriter) readBack(ctx context.Context, b *batch) error {
	end := max(b.base+1, b.open, b.sent)
	docs := b.docs[b.base:min(end, b.base+maxLookUp)]
	ids := idsOf(docs)
	anchorIDs := w.anchors.ids()
	local, at, err := w.lookUp(ctx, "local", bson.Timestamp{}, docs, append(ids, anchorIDs...))
	if err != nil {
		return err
	}
	anchored := slices.ContainsFunc(anchorIDs, func(id record.ID) bool { return local[id] != nil })
	n := 0
	if slices.ContainsFunc(ids, func(id record.ID) bool { return local[id] != nil }) {
		committed, _, err := w.lookUp(ctx, "majority", at, docs, ids)
		if err != nil {
			return err
		}
		if doc := committed[ids[0]]; doc != nil && !w.same(docs[0], doc) {
			return final{w.rejected(b, record.ErrExists)}
		}
		n = w.prefix(docs, ids, committed)
	}
	switch {
	case n > 0:
		w.found(b, n)
	case local[ids[0]] != nil:
		b.open = max(b.open, b.base+1)
		return errUncommitted
	default:
		if err := w.missing(ctx, b, anchored); err != nil {
			return err
		}
	}
	b.unresolved, b.duplicate = n == len(docs) && b.base < end, false
	return nil
}

// found moves base over n documents that the majority has.
func (w *StreamWriter) found(b *batch, n int) {
	if b.base+n < b.open { // the command was cut in the middle: the next one is smaller
		w.perCommand = max(minCommandDocuments, min(w.perCommand, b.sent-b.base)/2)
	}
	b.base += n
	w.anchors.set(idOf(b.docs[b.base-1]))
}

// lookUp reads the documents with the given ids.
func (w *StreamWriter) lookUp(ctx context.Context, level string, after bson.Timestamp, docs []bson.Raw, ids []record.ID) (map[record.ID]bson.Raw, bson.Timestamp, error) {
	found, at, err := w.find(ctx, w.lookUpCommand(level, after, docs, ids))
	if err != nil {
		return nil, at, w.readFailed(err)
	}
	byID := make(map[record.ID]bson.Raw, len(found))
	for _, doc := range found {
		byID[idOf(doc)] = doc
	}
	return byID, at, nil
}

// prefix returns how many of docs, from the front, are stored. One that is missing ends it, also where
// later ones are there: it may have been evicted or never stored, and missing looks into that.
func (w *StreamWriter) prefix(docs []bson.Raw, ids []record.ID, stored map[record.ID]bson.Raw) int {
	n := 0
	for n < len(docs) && stored[ids[n]] != nil && w.same(docs[n], stored[ids[n]]) {
		n++
	}
	return n
}

// missing decides what to do when the primary does not have docs[base].
func (w *StreamWriter) missing(ctx context.Context, b *batch, anchored bool) error {
	switch {
	case b.duplicate && w.proves():
		// I1: the server said that the _id is taken, committed by the majority; since then the document
		// was evicted, or deleted. It was stored.
		b.base++
		return nil
	case anchored, b.open <= b.base:
		return nil
	}
	// Without an anchor, only an empty stream has evicted nothing: it was so before the first attempt.
	docs, _, err := w.find(ctx, w.newestCommand("local"))
	if err != nil {
		return w.readFailed(err)
	}
	if len(docs) > 0 {
		return final{errEvicted} // I1: sending again could store it twice
	}
	return nil
}

// lookUpCommand asks for the documents with the given ids: no more of them than it takes to tell ours
// from another's.
func (w *StreamWriter) lookUpCommand(level string, after bson.Timestamp, docs []bson.Raw, ids []record.ID) bson.D {
	in := make(bson.A, len(ids))
	for i, id := range ids {
		in[i] = id.RawValue()
	}
	cmd := w.findCommand(level, after, bson.D{{Key: record.FieldID, Value: bson.D{{Key: "$in", Value: in}}}},
		bson.E{Key: "batchSize", Value: len(ids)})
	if w.cfg.Same == nil && allNumbered(docs) {
		cmd = append(cmd, bson.E{Key: "projection", Value: bson.D{{Key: record.FieldSrc, Value: 1}, {Key: record.FieldSeq, Value: 1}}})
	}
	return cmd
}

func (w *StreamWriter) same(ours, stored bson.Raw) bool {
	if w.cfg.Same != nil {
		return w.cfg.Same(ours, stored)
	}
	return SameMessage(ours, stored)
}

// SameMessage reports whether two documents with one _id are one message: equal src and seq, or, in
// documents without these, equal fields in any order. ts is not compared: the server fills it.
func SameMessage(ours, stored bson.Raw) bool {
	if numbered(ours) {
		return numbered(stored) && ours.Lookup(record.FieldSrc).Equal(stored.Lookup(record.FieldSrc)) &&
			ours.Lookup(record.FieldSeq).Equal(stored.Lookup(record.FieldSeq))
	}
	return contains(ours, stored) && contains(stored, ours)
}

// contains reports whether every field of b but ts is in a.
func contains(a, b bson.Raw) bool {
	elems, err := b.Elements()
	if err != nil {
		return false
	}
	for _, e := range elems {
		if e.Key() == record.FieldTS {
			continue
		}
		v, err := a.LookupErr(e.Key())
		if err != nil || v.Type != e.Value().Type || !bytes.Equal(v.Value, e.Value().Value) {
			return false
		}
	}
	return true
}

func numbered(doc bson.Raw) bool {
	src, okSrc := doc.Lookup(record.FieldSrc).StringValueOK()
	seq, okSeq := doc.Lookup(record.FieldSeq).Int64OK()
	return okSrc && okSeq && src != "" && seq > 0
}

func allNumbered(docs []bson.Raw) bool {
	for _, doc := range docs {
		if !numbered(doc) {
			return false
		}
	}
	return true
}

func idOf(doc bson.Raw) record.ID { return record.IDOf(doc.Lookup(record.FieldID)) }

func idsOf(docs []bson.Raw) []record.ID {
	ids := make([]record.ID, len(docs), len(docs)+2)
	for i, doc := range docs {
		ids[i] = idOf(doc)
	}
	return ids
}
