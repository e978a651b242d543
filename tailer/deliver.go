package tailer

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// accept takes one document where it lies in the server's reply, drops it if it is old, and copies it
// if it is to be delivered: the copy is the one allocation per message.
func (l *loop) accept(doc bson.Raw, p *plan) error {
	first := p.birth
	p.birth = false
	if record.IsPrimer(doc) {
		r, err := record.Decode(doc, l.intern)
		if err != nil {
			return fmt.Errorf("read the primer of %s: %w", l.ns, err)
		}
		l.primer = r.Position
		if first {
			// The first message ever is still there: nothing was overwritten before this reader came.
			l.ledger.birth = true
		}
		l.born = true
		return nil
	}
	l.born = l.born || first
	if len(l.intern) > 2*l.cfg.MaxMarks {
		clear(l.intern) // srcs come and go; those that are known keep their own string
	}
	r, err := record.Decode(doc, l.intern)
	if err != nil {
		return fmt.Errorf("read a message of %s: %w", l.ns, err)
	}
	waited := p.waiting
	if !p.admit(&r, &l.ledger, &l.ids) {
		if p.first && waited && !p.waiting {
			l.placed = true
			l.moveTo(&r)
			l.announce()
		}
		return nil
	}
	r.Fingerprint = l.fingerprint
	if l.subject.Match(r.Subject) && (l.cfg.Filter == nil || l.cfg.Filter(r.Raw)) {
		r = r.Own()
	} else {
		r.Raw, r.Subject = nil, "" // counted, and not delivered
	}
	l.batch = append(l.batch, r)
	return nil
}

// deliver hands over what fetch left in l.batch, in the order in which it came: as soon as it is
// visible, counted against the ledger, with gaps where they belong.
func (l *loop) deliver(ctx, sctx context.Context, p *plan) error {
	rest := l.batch
	for len(rest) > 0 {
		n := len(rest)
		if l.majority() {
			var err error
			if n, err = l.confirm(sctx, rest); err != nil {
				return err
			}
		}
		if err := l.count(ctx, sctx, p, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	clear(l.batch)
	return nil
}

func (l *loop) majority() bool {
	return l.server.replicaSet && l.cfg.Visibility != Local
}

// count runs visible messages past the ledger and hands them over. It stops with errReread at a hole
// that the tail's own filter may have made.
func (l *loop) count(ctx, sctx context.Context, p *plan, batch []record.Record) error {
	out, at := l.buffer(), l.after
	var last *record.Record
	for i := range batch {
		r := &batch[i]
		v := l.ledger.judge(r)
		if v == seen {
			continue
		}
		if p.filtered() && (v == hole || v == stranger && p.exact) && l.ledger.pending == nil {
			return l.stop(ctx, out, last, errReread)
		}
		if v == hole && l.ledger.pending == nil {
			if err := l.blame(sctx, at); err != nil {
				return l.stop(ctx, out, last, err)
			}
		}
		if l.ledger.due(v) {
			g, err := l.tell(at, batch[i:])
			if err != nil {
				return l.stop(ctx, out, last, err)
			}
			out = append(out, g)
		}
		l.ledger.pass(r)
		if !r.Ours() {
			l.ids.add(r.Position.ID)
		}
		last, at = r, r.Position
		if r.Raw != nil {
			out = append(out, *r)
		} else {
			l.skip(r)
		}
		if l.cfg.UntilEnd && r.Position.ID == l.end {
			if err := l.handOver(ctx, out, last, false); err != nil {
				return err
			}
			return l.quiet(ctx)
		}
	}
	return l.handOver(ctx, out, last, false)
}

// stop hands over what came before err and returns err.
func (l *loop) stop(ctx context.Context, out []record.Record, last *record.Record, err error) error {
	if lost := l.handOver(ctx, out, last, false); lost != nil {
		return lost
	}
	return err
}

// blame finds out why messages are missing in the middle of a tail that hides nothing.
func (l *loop) blame(ctx context.Context, at record.Position) error {
	oldest, err := l.look(ctx, bson.D{}, 1)
	if err != nil {
		return err
	}
	cause := record.CauseMissing
	if l.evicted(oldest) {
		cause = record.CauseRollover
	}
	l.ledger.lose(cause, at, record.Timestamp{T: 1<<32 - 1}, false) // this hole alone: nobody else is open
	return nil
}

// tell makes the record of the pending loss, or the error that ends the stream by policy.
func (l *loop) tell(at record.Position, rest []record.Record) (record.Record, error) {
	g := l.ledger.gap(rest)
	// Info: the program gets the loss as a record, or as an error, and says it itself (I5).
	l.logger.Info().Str("cause", string(g.Cause)).Int64("lost", g.Exact()).Int64("lost_at_most", g.Most()).Bool("uncounted", g.Uncounted).
		Strs("open", g.Open).Msg("messages were lost to this reader")
	return l.gapRecord(at, g)
}

func (l *loop) gapRecord(at record.Position, g *record.Gap) (record.Record, error) {
	if l.cfg.Hooks.OnGap != nil {
		l.cfg.Hooks.OnGap(*g)
	}
	if l.cfg.OnGap == StopOnGap {
		return record.Record{}, &GapError{Namespace: l.ns, Gap: *g}
	}
	if at.IsZero() {
		at = l.primer
	}
	if at.IsZero() && g.Before.TS.I > 0 {
		at.TS = record.Timestamp{T: g.Before.TS.T, I: g.Before.TS.I - 1} // just before the first message
	}
	return record.Record{Kind: record.KindGap, Position: at, Fingerprint: l.fingerprint, Gap: g}, nil
}

// quiet is called when everything that is there at present has been read.
func (l *loop) quiet(ctx context.Context) error {
	out := l.buffer()
	if g := l.ledger.settle(); g != nil {
		l.logger.Info().Str("cause", string(g.Cause)).Strs("open", g.Open).Msg("the position was lost, and 0 messages are known to be")
		if len(g.Open) > 0 && l.cfg.OnGap == ReportGaps {
			r, err := l.gapRecord(l.after, g)
			if err != nil {
				return err
			}
			out = append(out, r)
		} else if l.cfg.Hooks.OnGap != nil {
			l.cfg.Hooks.OnGap(*g)
		}
	}
	if err := l.handOver(ctx, out, nil, l.cfg.UntilEnd); err != nil {
		return err
	}
	if l.cfg.UntilEnd {
		return errEnd
	}
	return nil
}

// skip notes a message that was counted and is not delivered.
func (l *loop) skip(r *record.Record) {
	if l.cfg.Progress == 0 {
		return
	}
	if l.skipped == nil {
		l.skipped = make(map[string]int64)
	}
	if r.Ours() {
		l.skipped[r.Src] = r.Seq
	}
}

// announce makes the position behind which a reader started known, so that a checkpoint can hold it.
func (l *loop) announce() {
	if l.cfg.Progress == 0 {
		return
	}
	l.skipped = make(map[string]int64)
	l.ledger.marks.newest(func(k *mark) bool {
		l.skipped[k.src] = k.seq
		return true
	})
	l.progress = time.Time{}
}

// handOver gives out to Next and then moves the position to last, nil if it does not move. It blocks
// until Next takes what was handed over before. Progress is sent when it is due, or at the end.
func (l *loop) handOver(ctx context.Context, out []record.Record, last *record.Record, end bool) error {
	if l.skipped != nil && (end || time.Since(l.progress) >= l.cfg.Progress) {
		at := l.after
		if last != nil {
			at = last.Position
		}
		out = append(out, record.Record{Kind: record.KindProgress, Position: at, Fingerprint: l.fingerprint, Progress: l.skipped})
		l.skipped, l.progress = nil, time.Now()
	}
	if len(out) > 0 {
		select {
		case l.out <- out:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	} else {
		l.recycle(out)
	}
	if last == nil {
		return nil
	}
	l.moved = true
	l.moveTo(last)
	if l.cfg.Hooks.OnLag != nil && last.Position.TS.T > 0 {
		l.cfg.Hooks.OnLag(time.Since(time.Unix(int64(last.Position.TS.T), 0)))
	}
	return nil
}

// moveTo is the one place where the position moves: behind r, which was handed over or passed.
func (l *loop) moveTo(r *record.Record) {
	l.after, l.ours, l.placed = r.Position, r.Ours(), true
}

// buffer returns an empty slice to collect records in: one that Next has finished with, if there is
// one.
func (l *loop) buffer() []record.Record {
	if b := l.spare; b != nil {
		l.spare = nil
		return b
	}
	select {
	case b := <-l.free:
		return b[:0]
	default:
		return nil
	}
}

// recycle keeps a slice that was not handed over.
func (l *loop) recycle(b []record.Record) {
	if cap(b) > 0 {
		l.spare = b[:0]
	}
}
