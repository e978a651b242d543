package tailer

import (
	"context"
	"fmt"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A cursor with read concern majority is never used for the tail: the server wakes it at the insert
// and not at the commit (an isolated message comes at the end of the await), and with two or more
// writers it can pass over messages for good. So the tail is local, and confirm asks a majority read
// about each batch.
//
// It asks for the last message of each src and for nothing else of that src. That is enough: a
// producer sends a message after the one before it was applied, so within a src the optimes rise with
// seq, and a majority snapshot is a prefix of the oplog: where the last one is, all before it are. A
// message without src is asked for by itself. The last message of the batch would not be enough:
// between two connections the optimes do not follow the natural order.

// confirm returns how many messages at the front of batch a majority has, at least one. It waits on
// the server, for as long as the majority takes. An error means that the tail must open again; what
// was not confirmed is then read again.
func (l *loop) confirm(ctx context.Context, batch []record.Record) (int, error) {
	ask := lastPerSrc(batch)
	wait := retry.New(retry.Policy{Initial: confirmFirstWait, Max: confirmMaxWait})
	for round := 0; ; round++ {
		var evicted map[record.ID]bool
		if round > 0 {
			if err := wait.Wait(ctx, nil); err != nil {
				return 0, err
			}
			here, err := l.present(ctx, ask, bson.D{{Key: "level", Value: "local"}})
			if err != nil {
				return 0, err
			}
			evicted = absent(ask, here)
		}
		// operationTime of a command sent after the batch arrived. Not $clusterTime: it can run ahead of
		// the oplog, and a read that waits for it waited 14 to 20 s.
		h, err := l.hello(ctx)
		if err != nil {
			return 0, err
		}
		if h.election != l.server.election || !h.primary && !l.direct {
			return 0, errMoved // the batch may be rolled back: what is still there is read again
		}
		committed, err := l.present(ctx, ask, bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: bson.Timestamp(h.opTime)}})
		if err != nil {
			if ctx.Err() == nil && mongoerr.Classify(err).Timeout {
				continue // no majority at present: hold back, and see whether this is still the primary
			}
			return 0, err
		}
		for id := range committed {
			delete(ask, id)
		}
		// operationTime can lag behind what the tail showed (7 of 2,178 batches), so what is missing is
		// asked for again. What was evicted meanwhile never comes: if it was gone from this member before
		// the majority read, in the same term, then the majority has its deletion, so it had the insert.
		for id := range evicted {
			delete(ask, id)
		}
		if n := visible(batch, ask); n > 0 {
			return n, nil
		}
	}
}

// lastPerSrc returns the ids to ask for: the last one of each src, and each one without src.
func lastPerSrc(batch []record.Record) map[record.ID]string {
	ask := make(map[record.ID]string)
	last := make(map[string]record.ID)
	for i := range batch {
		if r := &batch[i]; r.Ours() {
			last[r.Src] = r.Position.ID
		} else {
			ask[r.Position.ID] = ""
		}
	}
	for src, id := range last {
		ask[id] = src
	}
	return ask
}

// visible returns the length of the front of batch in which nothing waits for an id in ask.
func visible(batch []record.Record, ask map[record.ID]string) int {
	if len(ask) == 0 {
		return len(batch)
	}
	srcs := make(map[string]bool)
	for _, src := range ask {
		srcs[src] = true
	}
	for i := range batch {
		r := &batch[i]
		if _, alone := ask[r.Position.ID]; alone || r.Ours() && srcs[r.Src] {
			return i
		}
	}
	return len(batch)
}

func absent(ask map[record.ID]string, here map[record.ID]bool) map[record.ID]bool {
	gone := make(map[record.ID]bool)
	for id := range ask {
		if !here[id] {
			gone[id] = true
		}
	}
	return gone
}

// present returns which of the ids in ask a read with the given concern finds.
func (l *loop) present(ctx context.Context, ask map[record.ID]string, concern bson.D) (map[record.ID]bool, error) {
	ids := make(bson.A, 0, len(ask))
	for id := range ask {
		ids = append(ids, id.RawValue())
	}
	found := make(map[record.ID]bool, len(ask))
	docs, err := l.query(ctx, bson.D{
		{Key: "filter", Value: bson.D{{Key: record.FieldID, Value: bson.D{{Key: "$in", Value: ids}}}}},
		{Key: "projection", Value: bson.D{{Key: record.FieldID, Value: 1}}},
		{Key: "batchSize", Value: len(ids) + 1},
		{Key: "readConcern", Value: concern},
	})
	if err != nil {
		return nil, fmt.Errorf("confirm %d messages of %s: %w", len(ids), l.ns, err)
	}
	for _, doc := range docs {
		found[record.IDOf(doc.Lookup(record.FieldID))] = true
	}
	return found, nil
}
