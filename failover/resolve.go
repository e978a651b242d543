package failover

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// maxLookUp bounds the documents of one read, so that it fits into an attempt on a slow server too
// (about 5 µs each on an idle one).
const maxLookUp = 5000

func (w *StreamWriter) find(ctx context.Context, cmd bson.D) (docs []bson.Raw, at bson.Timestamp, err error) {
	err = w.layer.attempt(ctx, Attempt{Kind: KindResolve, Name: w.ns}, true, func(ctx context.Context) (err error) {
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
	return final{replaced(w.ns, w.cfg.UUID, err)}
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
			return final{w.rejected(b, &ConflictError{Namespace: w.ns, ID: ids[0]})}
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
	case b.duplicate && w.layer.proves():
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

func idOf(doc bson.Raw) record.ID { return record.IDOf(doc.Lookup(record.FieldID)) }

func idsOf(docs []bson.Raw) []record.ID {
	ids := make([]record.ID, len(docs), len(docs)+2)
	for i, doc := range docs {
		ids[i] = idOf(doc)
	}
	return ids
}
