package replicator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// follow applies changes from the checkpoint on, until ctx ends, the end that was asked for is reached, or the changes end.
func (l *Link) follow(ctx context.Context) error {
	if err := l.copyRest(ctx); err != nil { // of a collection that was renamed into the scope when the process ended
		return err
	}
	if err := l.retryOnce(ctx); err != nil {
		return err
	}
	start, err := l.aim(ctx)
	if err != nil {
		return err
	}
	changes, err := l.source.Changes(l.set, start)
	if err != nil {
		return fmt.Errorf("follow the source: %w", err)
	}
	q := newQueue(2 * l.cfg.Batch)
	rctx, stop := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() {
		q.end(l.read(rctx, changes, q))
	})
	defer func() {
		stop()
		_ = changes.Close() // it returns nil, and ends a Next
		reader.Wait()
	}()
	for {
		records, err := q.take(ctx)
		if err != nil {
			return err
		}
		for len(records) > 0 {
			n := segment(records, l.cfg.Batch)
			if err := l.step(ctx, records[:n]); err != nil {
				return err
			}
			records = records[n:]
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
}

// aim finds out from where changes are read, and which position must be passed before the destination is complete. A route that was
// live when it ended is not complete either: what happened meanwhile is missing.
func (l *Link) aim(ctx context.Context) (record.Position, error) {
	l.mu.Lock()
	at, asked := l.state.Position, l.finalize
	l.mu.Unlock()
	clock, err := l.source.Clock(ctx, at)
	if err != nil {
		return at, fmt.Errorf("read the source's clock: %w", err)
	}
	live := at.TS.Compare(clock.Head) >= 0
	phase := PhaseCatchingUp
	if live {
		phase = PhaseLive
	}
	l.set1(func() {
		l.state.Phase, l.state.Caught = phase, record.Position{TS: clock.Head}
		l.state.WasLive = l.state.WasLive || live
		l.armed, l.unsaved = asked, true
	})
	l.show(phase)
	return at, l.arrived(ctx)
}

// read moves records from the source into the queue, and returns why that ended.
func (l *Link) read(ctx context.Context, changes Changes, q *queue) error {
	for {
		r, err := changes.Next(ctx)
		if err != nil {
			return err
		}
		l.mu.Lock()
		if r.Position.Compare(l.view.read) > 0 {
			l.view.read = r.Position
		}
		if r.Kind == record.KindChange {
			l.state.Totals.Read++
		}
		l.mu.Unlock()
		if err := q.put(ctx, r); err != nil {
			return err
		}
	}
}

// segment returns how many of the records are applied together: a change of a collection stands alone, as everything before it must be
// applied and everything after it must wait.
func segment(records []record.Record, limit int) int {
	for i, r := range records {
		if r.Kind == record.KindChange && !r.Change.OnDocument() {
			return max(i, 1)
		}
		if i+1 >= limit {
			return i + 1
		}
	}
	return len(records)
}

// step applies one segment and moves the position over it.
func (l *Link) step(ctx context.Context, records []record.Record) error {
	wctx, cancel := drained(ctx)
	defer cancel()
	l.applying.Lock()
	defer l.applying.Unlock()
	last := records[len(records)-1]
	var err error
	if first := records[0]; first.Kind == record.KindChange && !first.Change.OnDocument() {
		if err = l.ddl(wctx, first); err == nil {
			// A replay of what comes before it would meet another collection: it is behind the checkpoint at once.
			l.commit(last)
			err = l.save(wctx)
		}
	} else if err = l.apply(wctx, records); err == nil {
		l.commit(last)
	}
	if err != nil {
		return err
	}
	return l.arrived(wctx)
}

// commit moves the position. I2: it is the one place that does, and everything up to last is applied, a dead letter, or nothing
// of this route.
func (l *Link) commit(last record.Record) {
	l.set1(func() {
		if last.Position.Compare(l.state.Position) > 0 { // never back
			l.state.Position, l.unsaved = last.Position, true
		}
		l.view.applied = l.state.Position
		l.view.lastError = ""
	})
}

// arrived makes the state live once the position has passed what it had to, and ends what was to end there.
func (l *Link) arrived(ctx context.Context) error {
	l.mu.Lock()
	live := l.state.Phase == PhaseLive
	there := l.state.Position.TS.Compare(l.state.Caught.TS) >= 0
	final := l.armed && there
	if !live && there {
		l.state.Phase, l.state.WasLive, l.unsaved = PhaseLive, true, true
	}
	l.mu.Unlock()
	switch {
	case !there:
		return nil
	case !live:
		l.log.Info().Msg("the destination has caught up")
		l.show(PhaseLive)
		if err := l.save(ctx); err != nil {
			return err
		}
	}
	if final {
		return l.conclude(ctx)
	}
	if l.cfg.Until == UntilLive {
		l.set1(func() { l.view.lateWait = 0 })
		if err := l.catchUpIndexes(ctx, false); err != nil {
			return err
		}
		return errReached
	}
	return l.catchUpIndexes(ctx, false)
}

// conclude gives TTL indexes their expiry back and ends the route.
func (l *Link) conclude(ctx context.Context) error {
	if err := l.catchUpIndexes(ctx, true); err != nil {
		return err
	}
	l.mu.Lock()
	held, letters := l.state.Held, l.view.letters
	l.mu.Unlock()
	if letters > 0 {
		l.set1(func() { l.finalize, l.armed = false, false })
		return fmt.Errorf("%w: %d", ErrLetters, letters)
	}
	if err := l.target.Release(ctx, held); err != nil {
		return fmt.Errorf("give TTL indexes their expiry back: %w", err)
	}
	l.set1(func() { l.state.Phase, l.state.Held, l.finalize, l.unsaved = PhaseFinalized, nil, false, true })
	l.show(PhaseFinalized)
	if err := l.save(ctx); err != nil {
		return err
	}
	return errFinalized
}

// told calls OnApplied for a batch.
func (l *Link) told(ops map[string]int, wall time.Time) {
	if l.cfg.Hooks.OnApplied == nil || len(ops) == 0 {
		return
	}
	behind := time.Duration(0)
	if !wall.IsZero() {
		behind = max(time.Since(wall), 0)
	}
	l.cfg.Hooks.OnApplied(ops, behind)
}
