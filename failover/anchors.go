package failover

import (
	"context"
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
