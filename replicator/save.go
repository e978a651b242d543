package replicator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// save stores the state as it is now. I2: its position moves in commit only, after everything up to it was applied.
func (l *Link) save(ctx context.Context) error {
	l.saving.Lock()
	defer l.saving.Unlock()
	l.mu.Lock()
	s := l.state.clone()
	l.unsaved = false
	l.mu.Unlock()
	s.Updated = time.Now()
	ctx, cancel := drained(ctx)
	defer cancel()
	stored, err := l.store.Save(ctx, s)
	l.set1(func() {
		if err != nil {
			l.unsaved = true
			return
		}
		l.state.Revision = stored.Revision
		l.savedAt, l.view.saved = time.Now(), s.Position
	})
	if err != nil {
		return fmt.Errorf("store the checkpoint of route %q: %w", l.route, err)
	}
	if l.cfg.Hooks.OnSaved != nil {
		l.cfg.Hooks.OnSaved(s.Position)
	}
	return nil
}

// clone copies what a save must not see change.
func (s State) clone() State {
	s.Collections = slices.Clone(s.Collections)
	for i := range s.Collections {
		s.Collections[i].Ranges = slices.Clone(s.Collections[i].Ranges)
	}
	s.Held, s.Delayed = slices.Clone(s.Held), slices.Clone(s.Delayed)
	return s
}

// saver stores the state while it moves, and as a sign of life while it does not. stop ends the route when somebody else holds it.
func (l *Link) saver(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(l.cfg.SaveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.mu.Lock()
		due := l.unsaved || time.Since(l.savedAt) >= heartbeat
		l.mu.Unlock()
		if !due {
			continue
		}
		err := l.save(ctx)
		var fenced *record.FencedError
		switch {
		case err == nil:
		case errors.As(err, &fenced):
			stop(fenced)
			return
		case ctx.Err() == nil:
			l.log.Warn().Err(err).Msg("the checkpoint cannot be stored at present; trying again")
			l.trouble(err)
		}
	}
}

// clock asks the source where it is, on a timer: the lag must be right also while nothing is applied.
func (l *Link) clock(ctx context.Context) {
	tick := time.NewTicker(l.cfg.ClockEvery)
	defer tick.Stop()
	for {
		l.mu.Lock()
		at := l.view.applied
		l.mu.Unlock()
		c, err := l.source.Clock(ctx, at)
		if ctx.Err() != nil {
			return
		}
		l.set1(func() {
			if err != nil {
				l.view.clockErr = err.Error()
				return
			}
			l.view.clockErr = ""
			if c.Head.Compare(l.view.clock.Head) < 0 {
				c.Head = l.view.clock.Head // another member may know less
			}
			l.view.clock = c
		})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
