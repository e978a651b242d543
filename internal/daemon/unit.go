package daemon

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

const (
	// closeTimeout bounds what closes a Link's connections.
	closeTimeout = 5 * time.Second
	// troubleFor is how long an error that was tried again after is shown: while a side is away, the next one comes sooner.
	troubleFor = 10 * time.Second
	// settledAfter is how long a route that was never connected must try in vain until it counts as failed visibly.
	settledAfter = 5 * time.Second
)

// trouble is what a Link, or what it reads and writes through, tries again after.
type trouble struct {
	err         error
	since, last time.Time
}

// unit runs one route: one Link after the other.
type unit struct {
	route Route
	cfg   Config
	log   zerolog.Logger
	stop  context.CancelFunc
	done  chan struct{} // closed when the unit has ended

	mu sync.Mutex
	// link runs, or is nil between two runs; then last is the last status of the former one and err why it ended.
	link Link
	last replicator.Status
	err  error
	// final says that it is not begun again by itself.
	final bool
	// failures counts the runs that failed, since one last made progress; progress says whether the present one has.
	failures int
	progress *atomic.Bool
	// settled is true once the route was connected on both sides, or failed visibly; connected without the latter.
	settled, connected bool
	trouble            trouble
	// paused is true if the former run was paused when it ended.
	paused bool
	// wake ends the wait between two runs; request is what was asked for then.
	wake    context.CancelFunc
	request Begin
}

func (u *unit) over() bool {
	select {
	case <-u.done:
		return true
	default:
		return false
	}
}

// Final reports whether an error of a Link is one that does not pass by itself: a lost position, another process that took the route
// over, a stored checkpoint that belongs to another route, a destination that holds data or is another route's, too many dead letters, or
// the route's own end. A route that another process runs is tried again: it may end, and then this one is the spare. So is
// what a server refuses, a user's missing right for instance: somebody may put it right there.
func Final(err error) bool {
	if errors.As(err, new(*replicator.LostError)) || errors.As(err, new(*replicator.MismatchError)) || errors.As(err, new(*record.FencedError)) ||
		errors.As(err, new(*replicator.RecreatedError)) || errors.As(err, new(*replicator.StreamRefusedError)) {
		return true
	}
	for _, e := range []error{replicator.ErrNotEmpty, replicator.ErrOverlap, replicator.ErrLoop, replicator.ErrFinalized, replicator.ErrTooManyLetters} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// run begins Links until ctx ends. It is the only one that writes what says how the unit is.
func (u *unit) run(ctx context.Context, after <-chan struct{}) {
	defer close(u.done)
	if after != nil {
		select {
		case <-after:
		case <-ctx.Done():
			return
		}
	}
	loop := retry.New(retry.Policy{Initial: FirstRestart, Max: u.cfg.RestartMax})
	// Only until the route has stored that it is paused: later it is what the stored state says.
	paused := u.cfg.Paused || u.route.Paused
	begin := Begin{Paused: paused}
	for {
		progress, err := u.once(ctx, begin)
		if progress {
			loop.Progress()
		}
		if ctx.Err() != nil {
			return
		}
		final := err == nil || Final(err)
		waiting, wake := context.WithCancel(ctx)
		failures := loop.Attempts() // Wait counts this one
		if err != nil {
			failures++
		}
		u.between(final, failures, wake)
		if final {
			<-waiting.Done()
		} else {
			_ = loop.Wait(waiting, err) // either way it is time
		}
		asked := waiting.Err() != nil
		wake()
		if ctx.Err() != nil {
			return
		}
		begin = u.next()
		if asked {
			loop.Progress() // a person is there: begin at once, and with short waits
		} else {
			begin.Paused = u.wasPaused(paused)
		}
		call(u.cfg.Hooks.OnRestart, u.route.Name)
	}
}

// between says that no Link runs.
func (u *unit) between(final bool, failures int, wake context.CancelFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.final, u.wake, u.failures = final, wake, failures
}

// next takes what was asked for.
func (u *unit) next() Begin {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.request
	u.request, u.wake, u.final = Begin{}, nil, false
	return b
}

// once runs one Link to its end, and reports whether it got anywhere.
func (u *unit) once(ctx context.Context, begin Begin) (bool, error) {
	progress := &atomic.Bool{}
	begin.Hooks = u.hooks(progress)
	link, closeLink, err := u.route.Build(begin)
	if err == nil {
		u.log.Info().Bool("paused", begin.Paused).Bool("resync", begin.Resync).Msg("route begins")
		u.mu.Lock()
		u.link, u.progress = link, progress
		u.mu.Unlock()
		err = link.Run(ctx)
		if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil // stopped, as it was asked to
		}
		last := link.Status()
		if errors.Is(err, replicator.ErrFinalized) { // it had ended for good before
			last.Phase, last.Reason, last.LastError, err = replicator.PhaseFinalized, "", "", nil
		}
		u.ended(last, err)
		if closeLink != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			closeLink(closing)
			cancel()
		}
	} else {
		u.ended(replicator.Status{}, err)
	}
	if err != nil {
		u.log.Error().Err(err).Bool("again", !Final(err)).Msg("route failed")
		if u.cfg.Hooks.OnFailed != nil {
			u.cfg.Hooks.OnFailed(u.route.Name, err)
		}
	} else {
		u.log.Info().Msg("route ended")
	}
	return progress.Load(), err
}

func (u *unit) ended(last replicator.Status, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil { // a Link that waits for somebody in these phases ends without an error when it is stopped
		switch reason := errors.New(cmp.Or(last.Reason, last.LastError, "see its log")); last.Phase {
		case replicator.PhaseLostHistory:
			err = &replicator.LostError{Route: u.route.Name, Err: reason}
		case replicator.PhaseFailed:
			err = &replicator.FailedError{Route: u.route.Name, Err: reason}
		}
	}
	u.link, u.last, u.err = nil, last, err
	u.notice(last)
	u.paused = last.Phase == replicator.PhasePaused || last.Paused != ""
	u.settled = u.settled || err != nil
}

// notice learns from a Link's status that the route was connected, or that it tries in vain. u.mu is held.
func (u *unit) notice(s replicator.Status) {
	switch s.Phase {
	case "", replicator.PhaseStarting, replicator.PhaseFailed: // it may have failed at the first connection
	default:
		u.connected = true
	}
	t := u.trouble
	vain := t.err != nil && t.last.Sub(t.since) >= settledAfter
	u.settled = u.settled || u.connected || s.Phase == replicator.PhaseFailed || s.LastError != "" || vain
}

// wasPaused reports whether a run that failed is followed by a paused one: it was paused (a route for a stream does not store
// that), or was to be and never got so far.
func (u *unit) wasPaused(wanted bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.paused || wanted && !u.connected
}

// hooks are those of the configuration, and notice progress: what resets the waits is work done, not a connection made.
func (u *unit) hooks(progress *atomic.Bool) replicator.Hooks {
	var h replicator.Hooks
	if u.cfg.Hooks.OfRoute != nil {
		h = u.cfg.Hooks.OfRoute(u.route.Name)
	}
	copied, applied, saved := h.OnCopied, h.OnApplied, h.OnSaved
	h.OnCopied = func(scanned, written, bytes int64) {
		progress.Store(true)
		if copied != nil {
			copied(scanned, written, bytes)
		}
	}
	h.OnApplied = func(ops map[string]int, behind time.Duration) {
		progress.Store(true)
		if applied != nil {
			applied(ops, behind)
		}
	}
	retried := h.OnRetry
	h.OnRetry = func(err error) {
		u.troubled(err, time.Now())
		call(retried, err)
	}
	var first atomic.Pointer[record.Position]
	h.OnSaved = func(p record.Position) {
		// The first is what was stored before.
		if !first.CompareAndSwap(nil, &p) && *first.Load() != p {
			progress.Store(true)
		}
		call(saved, p)
	}
	return h
}

// troubled notes an error that is tried again after.
func (u *unit) troubled(err error, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.trouble.last) > troubleFor {
		u.trouble.since = now
	}
	u.trouble.err, u.trouble.last = err, now
}

// failure returns why the route is not well, nil if it is.
func (u *unit) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}
