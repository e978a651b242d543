package consumer

import (
	"context"
	"fmt"
	"hash/maphash"
	"io"

	"github.com/seed-12ef14e5/capstan/record"
)

// reader takes records from the source and gives them to the workers. It is owned by one goroutine.
type reader struct {
	r    *run
	seed maphash.Seed
	// anchored: a checkpoint exists from which the first message would be read again.
	anchored bool
}

// run reads until ctx ends or the source does, closes the queues and the source, and returns the
// source's failure, if it was one.
func (d *reader) run(ctx context.Context, src Source) error {
	err := protect(func() error { return d.read(ctx, src) })
	// Before the queues are closed: the supervisor ends ctx once the workers have run out of work, and
	// a failure that is still on its way to it then would pass for the echo of that stop.
	echo := ctx.Err() != nil
	for _, w := range d.r.workers {
		close(w.queue)
	}
	if cerr := src.Close(); cerr != nil && err == nil {
		d.r.log.Warn().Err(cerr).Msg("source not closed cleanly") // nothing depends on it any more
	}
	if echo || isEnd(err) {
		return nil
	}
	return err
}

func (d *reader) read(ctx context.Context, src Source) error {
	for {
		rec, err := src.Next(ctx)
		if isEnd(err) {
			return err
		}
		if err != nil {
			return fmt.Errorf("read source: %w", err)
		}
		if err := d.take(ctx, rec); err != nil {
			return err
		}
	}
}

// isEnd reports whether err is the end of the source: io.EOF itself, as for io.Reader. One that is
// wrapped is a connection that broke, and no end, so errors.Is would be wrong.
func isEnd(err error) bool { return any(err) == any(io.EOF) }

// take brings one record on its way. The error is final.
func (d *reader) take(ctx context.Context, rec record.Record) error {
	f := d.r.front
	switch rec.Kind {
	case record.KindMessage:
		if !d.anchored && !d.anchor(ctx, rec) {
			return context.Cause(ctx)
		}
		w := d.workerFor(rec)
		n, ok := f.add(ctx, rec)
		if !ok {
			return context.Cause(ctx)
		}
		w.queue <- n // has room for all that may be in flight
		return nil
	case record.KindGap:
		// I5: the frontier moves over a gap only after somebody was told.
		if err := d.r.report(rec); err != nil {
			return &OnGapError{Record: rec, Err: err}
		}
	case record.KindProgress:
	default:
		return fmt.Errorf("read source: record at %s has unknown kind %d", rec.Position, rec.Kind)
	}
	n, ok := f.add(ctx, rec)
	if !ok {
		return context.Cause(ctx)
	}
	f.done(n)
	return nil
}

func (d *reader) workerFor(rec record.Record) *worker {
	ws := d.r.workers
	if len(ws) == 1 {
		return ws[0]
	}
	return ws[maphash.String(d.seed, d.r.cfg.Key(rec))%uint64(len(ws))]
}

// anchor stores the position in front of the first message before it is handled, where there is no
// checkpoint yet. I3: a consumer that began at "latest" and died before its first checkpoint would
// otherwise begin at a later "latest", behind messages that it had read and not handled; and one that
// began at "earliest" would not notice that they were overwritten meanwhile. A source that tells where
// it begins, by a first record of KindProgress, gives the exact position; else it is made from the
// message. It blocks until the position is stored and returns false if ctx ends first.
func (d *reader) anchor(ctx context.Context, rec record.Record) bool {
	d.anchored = true
	if !d.r.front.begin(rec) {
		return true // another program's stream: no position in front of its first record can be told
	}
	signal(d.r.front.ask)
	select {
	case <-d.r.saver.saved:
		return true
	case <-ctx.Done():
		return false
	}
}

// report tells of a gap, and recovers a panic of the user's function like one of the handler.
func (r *run) report(rec record.Record) (err error) {
	if hook := r.cfg.Hooks.OnGap; hook != nil {
		hook(rec)
	}
	if r.cfg.OnGap == nil {
		e := r.log.Warn().Stringer("position", rec.Position)
		if rec.Gap != nil {
			e = e.Str("cause", string(rec.Gap.Cause)).Int64("lost_at_least", rec.Gap.Exact()).Int64("lost_at_most", rec.Gap.Most()).
				Bool("uncounted", rec.Gap.Uncounted)
		}
		e.Msg("messages were lost to this consumer")
		return nil
	}
	return protect(func() error { return r.cfg.OnGap(rec) })
}
