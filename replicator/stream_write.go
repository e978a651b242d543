package replicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// streamItem is a record with what is to be done with it.
type streamItem struct {
	rec *record.Record
	// matched: the filter lets it pass. write: it does, and the destination has not had it.
	matched, write bool
}

// keepStreamBuffer is how large a buffer may stay that a batch of large messages has left.
const keepStreamBuffer = 4 << 20

// limits returns how much one write carries: of a small destination no more than a quarter, so that it does not evict what the
// checkpoint has not passed.
func (r *streamRun) limits() (docs, bytes int) {
	docs, bytes = r.l.cfg.Batch, r.l.cfg.BatchBytes
	if r.dst.Max > 0 {
		docs = int(min(int64(docs), max(r.dst.Max/4, 1)))
	}
	if r.dst.Size > 0 {
		bytes = int(min(int64(bytes), max(r.dst.Size/4, 1)))
	}
	return docs, bytes
}

// replicate writes a batch and moves the frontier behind it, also over what need not be written.
func (r *streamRun) replicate(ctx context.Context, batch []record.Record) error {
	r.read = true
	items, err := r.sort(batch)
	if werr := r.write(ctx, items); werr != nil {
		return werr
	}
	if err != nil {
		return err
	}
	if err := r.progressed(); err != nil {
		return err
	}
	if r.dirty && time.Since(r.saved) >= r.l.cfg.SaveEvery {
		return r.save(ctx)
	}
	return nil
}

// sort decides what is to be done with each record. An error is that of the record behind the last item.
func (r *streamRun) sort(batch []record.Record) ([]streamItem, error) {
	r.items = r.items[:0]
	for i := range batch {
		rec := &batch[i]
		it := streamItem{rec: rec}
		switch rec.Kind {
		case record.KindMessage:
			if rec.Fingerprint != "" && rec.Fingerprint != r.src.UUID {
				return r.items, r.recreated(rec)
			}
			it.matched = r.l.subject.Match(rec.Subject) && (r.l.filter == nil || r.l.filter.Match(rec.Raw))
			it.write = it.matched && !r.held.has(rec)
		case record.KindGap:
			if rec.Gap.Cause == record.CauseRecreated {
				return r.items, r.recreated(rec)
			}
		}
		r.items = append(r.items, it)
	}
	return r.items, nil
}

func (r *streamRun) recreated(rec *record.Record) error {
	return &RecreatedError{Route: r.l.route, Source: r.src.Name, Stored: r.src.UUID, Now: rec.Fingerprint}
}

// write stores what is to be stored, whatever elections happen, and moves the frontier.
func (r *streamRun) write(ctx context.Context, items []streamItem) error {
	for len(items) > 0 {
		docs, bytes := r.documents(items)
		if len(docs) == 0 {
			r.advance(items)
			return nil
		}
		if err := r.makeRoom(ctx, int64(len(docs)), bytes); err != nil {
			return err
		}
		applied, err := r.insert(ctx, docs)
		if err == nil {
			r.advance(items)
			r.waits.Progress()
			r.l.trouble(nil)
			return nil
		}
		n := 0 // items up to the first document that is not known to be stored
		for left := applied; n < len(items); n++ {
			if items[n].write {
				if left == 0 {
					break
				}
				left--
			}
		}
		r.advance(items[:n])
		if items = items[n:]; len(items) == 0 {
			return nil
		}
		if err := r.unwritten(ctx, items, err); err != nil {
			return err
		}
	}
	return nil
}

// insert writes docs. A stop of the route does not cut it off at once: a write whose outcome is known need not be looked up at the
// next start.
func (r *streamRun) insert(ctx context.Context, docs []bson.Raw) (int, error) {
	wctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(r.l.cfg.Drain)
		defer t.Stop()
		select {
		case <-t.C:
			cancel(context.Cause(ctx))
		case <-wctx.Done():
		}
	})
	defer stop()
	return r.l.target.WriteBatch(wctx, docs)
}

// unwritten decides what follows a write that failed at items[0]. nil: try again.
func (r *streamRun) unwritten(ctx context.Context, items []streamItem, err error) error {
	at := items[0].rec.Position
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if rejected, ok := errors.AsType[*record.RejectedError](err); ok {
		return &StreamRefusedError{Route: r.l.route, Position: at, Err: rejected}
	}
	_, unknown := errors.AsType[*record.UnknownOutcomeError](err)
	if p, ok := errors.AsType[Passing](err); !unknown && (!ok || !p.TryAgain()) {
		return fmt.Errorf("route %q: write to %s: %w", r.l.route, r.dst.Name, err)
	}
	if err := r.wait(ctx, err); err != nil {
		return err
	}
	if !unknown {
		return nil
	}
	// I1: what may be stored is looked for before anything is sent again, also where it was evicted meanwhile.
	if err := r.look(ctx); err != nil {
		return err
	}
	for i := range items {
		items[i].write = items[i].write && !r.held.has(items[i].rec)
	}
	return nil
}

// documents returns what is to be inserted, and its size. It is valid until the next call.
func (r *streamRun) documents(items []streamItem) (docs []bson.Raw, bytes int64) {
	n := 0
	for _, it := range items {
		if it.write {
			n++
			bytes += int64(len(it.rec.Raw))
		}
	}
	if n == 0 {
		return nil, 0
	}
	if int64(cap(r.buf)) < bytes || cap(r.buf) > keepStreamBuffer && bytes < keepStreamBuffer {
		r.buf = make([]byte, 0, bytes)
	}
	buf := r.buf[:0]
	docs = make([]bson.Raw, 0, n)
	for _, it := range items {
		switch {
		case !it.write:
		case !it.rec.Ours():
			docs = append(docs, it.rec.Raw) // another program's: its ts is its own
		default:
			from := len(buf)
			buf = append(buf, it.rec.Raw...)
			doc := bson.Raw(buf[from:len(buf):len(buf)])
			renewTS(doc)
			docs = append(docs, doc)
		}
	}
	return docs, bytes
}

// renewTS makes the ts of a message Timestamp(0,0), which the server that stores it fills: readers of the destination resume by it, so
// it must follow the destination's clock and order.
func renewTS(doc bson.Raw) {
	if v, err := doc.LookupErr(record.FieldTS); err == nil && v.Type == bson.TypeTimestamp {
		clear(v.Value) // it points into doc
	}
}

// advance moves the frontier behind items: each of them is at the destination, or need not be.
func (r *streamRun) advance(items []streamItem) {
	if len(items) == 0 {
		return
	}
	var n streamCounts
	for i := range items {
		rec := items[i].rec
		switch rec.Kind {
		case record.KindMessage:
			if n.scanned++; items[i].matched {
				n.matched++
			}
			if items[i].write {
				n.written++
				n.bytes += int64(len(rec.Raw))
			}
			if rec.Ours() {
				r.marks.advance(rec.Src, rec.Seq)
			} else {
				n.foreign = true
			}
			n.last = rec
		case record.KindGap:
			r.lost(rec.Gap)
		case record.KindProgress:
			for src, seq := range rec.Progress {
				r.marks.advance(src, seq)
			}
		}
		if r.goal != nil && !rec.Position.IsZero() && rec.Position.ID == r.goal.Position.ID {
			r.goal.Position = record.Position{} // I3: passed, also where no seq can say so
		}
	}
	// I2: the one place where the frontier moves, behind what is committed at the destination.
	if at := items[len(items)-1].rec.Position; !at.IsZero() {
		r.pos = at
	}
	r.dirty = true
	r.unsavedDocs += n.written
	r.unsavedBytes += n.bytes
	r.l.count(n, r.pos)
}

// lost reports a loss of the source (I5). What is lost there is missing here as holes of seq.
func (r *streamRun) lost(g *record.Gap) {
	r.l.log.Warn().Str("cause", string(g.Cause)).Int64("lost", g.Exact()).Int64("lost_at_most", g.Most()).Bool("uncounted", g.Uncounted).
		Strs("open", g.Open).Msg("the source has lost messages to this route; they are missing at the destination")
	r.l.gap(*g)
	if r.l.cfg.OnGap != nil {
		r.l.cfg.OnGap(*g)
	}
}
