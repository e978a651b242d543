package tailer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// openTimeout bounds the opening of a tail, which scans the stream from its oldest message (0.4 s
	// per million messages were measured) unless AttemptTimeout is longer.
	openTimeout = 30 * time.Second
	// firstBatch and maxBatch bound a batch in messages while BatchSize is 0. A first batch of less than
	// a quarter of a stream that turns over fast rarely survives (5 to 10 % of tries with 10).
	minBatch = 16
	maxBatch = 50_000
	// resumeBatch bounds the first batch of a tail that begins behind a position, in messages: its reader
	// waits for the first of them, and the cursor is in the middle of the stream and not at its oldest
	// message, where only a large batch survives a fast rollover.
	resumeBatch = 1000
	// closeTimeout bounds the end of a cursor or client: a frozen server does not answer.
	closeTimeout = 300 * time.Millisecond
	// untilEndAwait is the await of a reader that stops at the end.
	untilEndAwait = MinAwait
)

// plan decides where the next tail begins. It asks the server at most three questions.
func (l *loop) plan(ctx context.Context) (*plan, error) {
	newest, err := l.look(ctx, bson.D{}, -1)
	if err != nil {
		return nil, err
	}
	if newest == nil {
		return nil, errEmpty // the server opens no tail on an empty stream
	}
	l.meanSize = max(l.meanSize, newest.size)
	if l.end.IsZero() {
		l.end = newest.Position.ID
	}
	switch {
	case l.unfiltered && l.base != nil:
		return l.planAgain(ctx, newest)
	case l.after.IsZero():
		return l.planStart(newest), nil
	case l.after.ID.IsZero():
		// A time, not a message: srcs that are known go by their marks.
		l.placed = true
		l.since = record.Timestamp{T: l.after.TS.T, I: l.after.TS.I + 1}
		return &plan{since: l.since}, nil
	}
	return l.planAfter(ctx, newest)
}

// planStart is the plan of a reader that has read nothing yet.
func (l *loop) planStart(newest *probe) *plan {
	if l.start.Where == record.Latest && newest.primer {
		// Nothing is there, so everything that comes is behind it.
		l.start = record.Start{Where: record.Earliest}
	}
	switch l.start.Where {
	case record.Latest:
		// The newest message is the border: what stands behind it, in the natural order of the primary,
		// was inserted after it.
		p := &plan{anchor: newest.Position.ID, waiting: true, first: true}
		if newest.Ours() && !newest.Position.TS.IsZero() {
			l.ledger.marks.set(newest.Src, newest.Seq, newest.Position.TS)
			p.bound = before(newest.Position.TS, l.overlap())
		}
		return p
	case record.AtTime:
		l.since = record.Timestamp{T: uint32(l.start.Time.Unix())}
		return &plan{since: l.since}
	default:
		l.placed = true
		return &plan{birth: !l.born, exact: true}
	}
}

// planAfter is the plan of a reader behind a message.
func (l *loop) planAfter(ctx context.Context, newest *probe) (*plan, error) {
	at, err := l.look(ctx, byID(l.after.ID), 0)
	if err != nil {
		return nil, err
	}
	if at == nil {
		return l.planLost(ctx, newest)
	}
	if at.primer {
		l.start = record.Start{Where: record.Earliest}
		return l.planStart(newest), nil
	}
	l.ours = at.Ours()
	if l.after.TS.IsZero() {
		l.after.TS = at.Position.TS
	}
	p := &plan{anchor: l.after.ID, waiting: true, first: !l.placed, exact: l.placed && l.ours, since: l.since}
	if p.first && l.ours {
		l.ledger.marks.set(at.Src, at.Seq, at.Position.TS)
	}
	if last, known := l.ledger.marks.get(at.Src); l.ours && known && last == at.Seq {
		p.src, p.seq = at.Src, at.Seq
	}
	l.limit(p, newest)
	return p, nil
}

// planAgain is the plan of a reader that met a hole which its own bound may have made. What the
// bound hid stands behind the message at which the first of the tails with a bound began, not behind
// the present position.
func (l *loop) planAgain(ctx context.Context, newest *probe) (*plan, error) {
	at, err := l.look(ctx, byID(l.base.anchor), 0)
	if err != nil {
		return nil, err
	}
	p := &plan{anchor: l.base.anchor, waiting: true, floor: l.base.floor, since: l.since, exact: true}
	if at != nil {
		return p, nil
	}
	oldest, err := l.look(ctx, bson.D{}, 1)
	if err != nil {
		return nil, err
	}
	p.anchor, p.waiting = record.ID{}, !l.evicted(oldest)
	return p, nil
}

// limit sets the bounds on ts. In another program's stream ts means nothing, so it has none; and where
// the newest message is below the bound, the server's clock stepped back.
func (l *loop) limit(p *plan, newest *probe) {
	if !l.ours || l.after.TS.IsZero() {
		return
	}
	p.floor = before(l.after.TS, l.overlap())
	if !l.unfiltered && newest.Position.TS.Compare(p.floor) >= 0 {
		p.bound = p.floor
	}
}

// planLost is the plan of a reader whose last message is not in the stream. Only where the stream
// rolled over it is the oldest message the new start; otherwise the message was rolled back or
// deleted, and what this reader knows of the others still holds.
func (l *loop) planLost(ctx context.Context, newest *probe) (*plan, error) {
	oldest, err := l.look(ctx, bson.D{}, 1)
	if err != nil {
		return nil, err
	}
	if len(l.ids.ids) > 0 { // another program's stream: the newest of the recent ids that is there
		p, err := l.planRecent(ctx)
		if p != nil || err != nil {
			return p, err
		}
	}
	lost, told := l.after, !l.placed || !l.ours
	if l.evicted(oldest) {
		// I5: the position was lost; what of it was unread, the seqs will tell.
		l.logger.Info().Stringer("position", lost).Msg("the position was overwritten; reading on from the oldest message")
		l.ledger.lose(record.CauseRollover, lost, l.recently(), told)
		l.ledger.lost, l.placed = true, true
		return &plan{since: l.since}, nil
	}
	l.logger.Info().Stringer("position", lost).Msg("the position is not in the stream, which did not roll over: rolled back or deleted")
	if !l.placed {
		// A position without marks: only its time is left to go by.
		l.ledger.lose(record.CauseMissing, lost, l.recently(), true)
		l.ledger.lost, l.placed = true, true
		l.since = record.Timestamp{T: l.after.TS.T, I: l.after.TS.I + 1}
		return &plan{since: l.since}, nil
	}
	if !l.ours {
		l.ledger.lose(record.CauseMissing, lost, l.recently(), true)
		return &plan{}, nil
	}
	p := &plan{waiting: true, exact: true, since: l.since} // no anchor: unknown srcs go by the floor alone
	l.limit(p, newest)
	return p, nil
}

// evicted reports whether the stream rolled over the present position, which is not in it.
func (l *loop) evicted(oldest *probe) bool {
	switch {
	case oldest == nil: // a rollover leaves the newest message: everything was deleted
		return false
	case oldest.primer: // the first message ever is still there
		return false
	case !l.after.TS.IsZero() && !oldest.Position.TS.IsZero() && oldest.Position.TS.Compare(l.recently()) < 0:
		return false
	}
	if oldest.Ours() {
		last, known := l.ledger.marks.get(oldest.Src)
		return !known || oldest.Seq > last
	}
	return true
}

// planRecent looks for the last of the recent ids that is still there, nil if none is.
func (l *loop) planRecent(ctx context.Context) (*plan, error) {
	ids := l.ids.last(maxProbe)
	ask := make(map[record.ID]string, len(ids))
	for _, id := range ids {
		ask[id] = ""
	}
	here, err := l.present(ctx, ask, l.concern())
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if here[id] {
			return &plan{anchor: id, waiting: true}, nil
		}
	}
	return nil, nil
}

// maxProbe bounds how many recent ids are looked up at once.
const maxProbe = 1000

// anchorGone reports whether the plan waits for a message that went away after the plan was made. It
// is asked after every batch in which the plan took messages for old because of their place.
func (l *loop) anchorGone(ctx context.Context, p *plan) (bool, error) {
	if !p.waiting || p.anchor.IsZero() || !p.first && l.ours {
		return false, nil
	}
	at, err := l.look(ctx, byID(p.anchor), 0)
	return at == nil && err == nil, err
}

// steppedBack reports whether the newest message is below the bound of the tail, which hides it: the
// server's clock went back.
func (l *loop) steppedBack(ctx context.Context, p *plan) (bool, error) {
	newest, err := l.look(ctx, bson.D{}, -1)
	if err != nil || newest == nil || newest.Position.TS.IsZero() {
		return false, err
	}
	return newest.Position.TS.Compare(p.bound) < 0, nil
}

// openTail opens a tailable cursor. The command carries the collection's UUID: the tail never slides
// over to another collection of the same name. Never $_resumeAfter here: with tailable it crashes
// mongod 6.0.5. No sort, hint, limit or skip either: each of them makes a tail that stays silent.
func (l *loop) openTail(ctx context.Context, p *plan) (*cursor, error) {
	ctx, cancel := context.WithTimeout(ctx, max(openTimeout, l.cfg.AttemptTimeout)*time.Duration(l.patience))
	defer cancel()
	size := l.batchSize()
	if p.filtered() && l.cfg.BatchSize == 0 {
		size = min(size, resumeBatch)
	}
	cmd := bson.D{
		{Key: "find", Value: l.collection.Name()},
		{Key: "tailable", Value: true},
		{Key: "awaitData", Value: true},
		{Key: "batchSize", Value: size},
		{Key: "readConcern", Value: l.concern()},
		{Key: "collectionUUID", Value: l.uuid},
	}
	f := p.filter(l.ledger.marks)
	if f != nil {
		cmd = append(cmd, bson.E{Key: "filter", Value: f})
	}
	cur, err := openCursor(ctx, l.collection, cmd, l.await(), l.server.mongos, l.lines)
	if err != nil {
		l.slow = errors.Is(context.Cause(ctx), context.DeadlineExceeded)
		return nil, fmt.Errorf("open a tail of %s: %w", l.ns, l.late(ctx, err))
	}
	cur.hides = f != nil
	return cur, nil
}

// await is how long the server holds an idle getMore.
func (l *loop) await() time.Duration {
	if l.cfg.UntilEnd {
		return untilEndAwait
	}
	return l.cfg.Await
}

// batchSize is how many messages the next batch may have.
func (l *loop) batchSize() int32 {
	if l.cfg.BatchSize > 0 {
		return int32(l.cfg.BatchSize)
	}
	if l.meanSize == 0 {
		return minBatch * minBatch
	}
	return int32(min(max(DefaultBatchBytes/l.meanSize, minBatch), maxBatch))
}

// closeCursor ends a cursor with a fresh, short context: one that was only cancelled stays open on the
// server, even after the client has gone.
func (l *loop) closeCursor(ctx context.Context, cur *cursor) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := cur.close(ctx); err != nil {
		l.logger.Debug().Err(err).Msg("close the cursor")
	}
}
