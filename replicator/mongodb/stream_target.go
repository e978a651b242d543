package mongodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/stream"
)

const (
	// streamHeldBatch is how many documents, cut to a few fields, one reply of Held has; streamHeldTimeout bounds each.
	streamHeldBatch   = 2000
	streamHeldTimeout = 15 * time.Second
	// streamHeldIDs bounds how many _ids of messages without src and seq are kept, the newest ones.
	streamHeldIDs = 200_000
)

// streamTarget is a stream that is written.
type streamTarget struct {
	end    streamEnd
	layer  *failover.Layer
	cfg    StreamRouteConfig
	writer *failover.StreamWriter
}

// Open implements replicator.StreamTarget.
func (t *streamTarget) Open(ctx context.Context, like replicator.StreamInfo) (replicator.StreamInfo, error) {
	db, err := t.end.db()
	if err != nil {
		return replicator.StreamInfo{}, err
	}
	c := stream.Config{Size: like.Size, Max: like.Max, Logger: t.cfg.Link.Logger}
	if t.cfg.Size > 0 {
		c.Size = t.cfg.Size
	}
	if t.cfg.Max > 0 {
		c.Max = t.cfg.Max
	}
	made, err := stream.Ensure(ctx, db, t.end.ns.Coll, c)
	if err != nil {
		return replicator.StreamInfo{}, passingStream(err)
	}
	info, err := t.end.info(ctx)
	if err != nil {
		return info, passingStream(err)
	}
	if info.UUID != made.Fingerprint() {
		return info, &streamPassing{fmt.Errorf("%s: %w", t.end.ns, stream.ErrGone)}
	}
	t.writer = t.layer.Stream(t.end.ns.DB, t.end.ns.Coll, failover.StreamConfig{UUID: made.UUID, Size: made.Size})
	return info, nil
}

// WriteBatch implements replicator.StreamTarget.
func (t *streamTarget) WriteBatch(ctx context.Context, docs []bson.Raw) (int, error) {
	applied, err := t.writer.WriteBatch(ctx, docs)
	if _, replaced := errors.AsType[*failover.ReplacedError](err); replaced {
		return applied, err
	}
	return applied, passingStream(err)
}

// Held implements replicator.StreamTarget. The route writes in the order of its frontier, so behind a message that is done everything
// older is done: it reads from the newest message backwards until one, and all of the stream only where nothing is done. It reads what a
// majority has: what an election may still take away must be sent again (I1).
func (t *streamTarget) Held(ctx context.Context, marks map[string]int64, at record.Position) (replicator.StreamHeld, error) {
	held := replicator.StreamHeld{Marks: map[string]int64{}, IDs: map[record.ID]struct{}{}}
	db, err := t.end.db()
	if err != nil {
		return held, err
	}
	rctx, cancel := context.WithTimeout(ctx, streamHeldTimeout)
	defer cancel()
	coll := db.Collection(t.end.ns.Coll, options.Collection().SetReadConcern(readconcern.Majority()))
	cur, err := coll.Find(rctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "$natural", Value: -1}}).SetProjection(streamFields).SetBatchSize(streamHeldBatch))
	if err != nil {
		return held, passingStream(fmt.Errorf("read %s: %w", t.end.ns, err))
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), streamCloseTimeout)
		defer cancel()
		_ = cur.Close(cctx) // it has only read
	}()
	in := record.Interner{}
	for {
		if !streamNext(ctx, cur) {
			return held, passingStream(cur.Err())
		}
		if record.IsPrimer(cur.Current) {
			continue
		}
		r, err := record.Decode(cur.Current, in)
		if err != nil {
			return held, fmt.Errorf("read %s: %w", t.end.ns, err)
		}
		if r.Ours() {
			if r.Seq <= marks[r.Src] {
				return held, nil
			}
			held.Marks[r.Src] = max(held.Marks[r.Src], r.Seq)
			continue
		}
		if r.Position.ID == at.ID || len(held.IDs) == streamHeldIDs {
			return held, nil
		}
		held.IDs[r.Position.ID] = struct{}{}
	}
}

// streamNext moves cur on. Where that needs the server, it is bounded.
func streamNext(ctx context.Context, cur *mongo.Cursor) bool {
	if cur.RemainingBatchLength() > 0 {
		return cur.Next(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, streamHeldTimeout)
	defer cancel()
	return cur.Next(ctx)
}
