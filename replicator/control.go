package replicator

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// set1 changes what mu guards, and wakes those who wait for a change.
func (l *Link) set1(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.wakeLocked()
}

func (l *Link) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// await waits until cond, which is called with mu held, is true or fails.
func (l *Link) await(ctx context.Context, cond func() (bool, error)) error {
	for {
		l.mu.Lock()
		ok, err := cond()
		changed := l.changed
		if err == nil && !ok && !l.running {
			err = ErrNotRunning
		}
		l.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ask changes what is asked for, and ends the present phase if there is one. change is called with mu held.
func (l *Link) ask(change func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.running || l.state.Owner == "" {
		return fmt.Errorf("route %q: %w", l.route, ErrNotRunning)
	}
	if l.state.Phase == PhaseFinalized {
		return fmt.Errorf("route %q: %w", l.route, ErrFinalized)
	}
	if err := change(); err != nil {
		return fmt.Errorf("route %q: %w", l.route, err)
	}
	l.unsaved = true
	l.interrupt(errControl)
	l.wakeLocked()
	return nil
}

// Pause stops reading and applying after what is in progress, and remembers that; it returns when that is so, or ctx ends. A route that
// is paused stays paused when its process starts again.
func (l *Link) Pause(ctx context.Context) error {
	if err := l.ask(func() error { l.state.Paused = true; return nil }); err != nil {
		return err
	}
	return l.await(ctx, func() (bool, error) { return l.idle || !l.state.Paused, nil })
}

// Resume ends a pause, and lets a route that failed try again. It returns when the route does something again, or ctx ends.
func (l *Link) Resume(ctx context.Context) error {
	rested := false
	err := l.ask(func() error {
		rested = l.idle
		l.state.Paused = false
		if l.state.Phase == PhaseFailed {
			l.state.Phase, l.state.Reason = l.state.Was, ""
		}
		if l.state.Phase == PhaseLostHistory {
			return errors.New("its position is lost: resync it")
		}
		l.idle = false // rest has not heard of it yet
		return nil
	})
	if err != nil || !rested {
		return err
	}
	return l.await(ctx, func() (bool, error) { return l.view.phase != PhasePaused && l.view.phase != PhaseFailed || l.idle, nil })
}

// Resync copies everything again, comparing with what is there, while the destination stays readable. It is the way on from
// lost-history. It returns when the copy has begun, or ctx ends.
func (l *Link) Resync(ctx context.Context) error {
	err := l.ask(func() error { l.resync, l.state.Paused, l.view.recopied = true, false, true; return nil })
	if err != nil {
		return err
	}
	return l.await(ctx, func() (bool, error) { return !l.resync, nil })
}

// Finalize ends the route for good: it applies what the source had when it was called, gives TTL indexes their expiry back, and makes the
// state finalized; then Run returns. Whoever writes to the source has stopped before. It refuses with ErrNotLive before the route
// is live, and with ErrLetters while there are dead letters, as the destination would be incomplete. It returns when all that is done, or ctx ends (then it is still asked for).
func (l *Link) Finalize(ctx context.Context) error {
	err := l.ask(func() error {
		if l.state.Phase != PhaseLive || l.state.Paused {
			return fmt.Errorf("%w (it is %s)", ErrNotLive, l.view.phase)
		}
		if n := l.view.letters; n > 0 {
			return fmt.Errorf("%w: %d", ErrLetters, n)
		}
		l.finalize = true
		return nil
	})
	if err != nil {
		return err
	}
	return l.await(ctx, func() (bool, error) {
		if l.state.Phase == PhaseFailed {
			return false, errors.New(l.state.Reason)
		}
		return l.state.Phase == PhaseFinalized, nil
	})
}

// retryBatch is how many dead letters are read at once.
const retryBatch = 500

// Retry applies the dead letters again, by the present versions of their documents, and returns how many are gone and how
// many are left. It may be called while Run works, and needs it.
func (l *Link) Retry(ctx context.Context) (done, left int64, err error) {
	l.mu.Lock()
	running := l.running && l.state.Owner != ""
	l.mu.Unlock()
	if !running {
		return 0, 0, fmt.Errorf("route %q: %w", l.route, ErrNotRunning)
	}
	letters, err := l.letters.List(ctx, l.route, 0)
	if err != nil {
		return 0, 0, err
	}
	for len(letters) > 0 {
		n := min(len(letters), retryBatch)
		gone, err := l.retry(ctx, letters[:n])
		done += gone
		if err != nil {
			return done, int64(len(letters)) - gone, err
		}
		letters = letters[n:]
	}
	left, err = l.letters.Count(ctx, l.route)
	l.set1(func() { l.view.letters = left })
	return done, left, err
}

// retryOnce tries the dead letters of earlier runs again: somebody may have mended what was in their way.
func (l *Link) retryOnce(ctx context.Context) error {
	l.mu.Lock()
	n := l.view.letters
	l.mu.Unlock()
	if n == 0 {
		return nil
	}
	done, left, err := l.Retry(ctx)
	if err != nil {
		return fmt.Errorf("try the dead letters again: %w", err)
	}
	l.log.Info().Int64("applied", done).Int64("left", left).Msg("dead letters were tried again")
	return nil
}

// retry applies some letters again, and returns how many are gone.
func (l *Link) retry(ctx context.Context, letters []Letter) (done int64, err error) {
	l.applying.Lock() // a batch of changes is in progress or is not
	defer l.applying.Unlock()
	head, err := l.source.Clock(ctx, record.Position{})
	if err != nil {
		return 0, err
	}
	for _, letter := range letters {
		c, ok := l.collectionNamed(letter.Source)
		if !ok { // dropped since, or no longer part of the route: there is nothing to apply
			if err := l.letters.Remove(ctx, letter); err != nil {
				return done, err
			}
			done++
			continue
		}
		settled, err := l.settle(ctx, c, []bson.RawValue{letter.ID}, head.Head)
		if err != nil {
			return done, err
		}
		if len(settled) > 0 {
			if err := l.letters.Add(ctx, l.lettersOf(c, settled, record.Position{})); err != nil {
				return done, err
			}
			continue
		}
		if err := l.letters.Remove(ctx, letter); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}
