package replicator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/match"
	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

const (
	// drainTimeout bounds how long a write that is in progress goes on after a stop was asked for. What is cut is
	// written again after the next start.
	drainTimeout = 10 * time.Second
	// farewell bounds the last save and the release of the route.
	farewell = 5 * time.Second
	// heartbeat is how often the state is stored while nothing moves: it tells others that the holder lives.
	heartbeat = 2 * time.Second
	// maxPhaseWait is the longest wait before a phase is begun again after an error that may pass.
	maxPhaseWait = 10 * time.Second
)

// ErrNotRunning says that a Link is asked for something that only a running one can do.
var ErrNotRunning = errors.New("the route is not running")

var (
	errControl   = errors.New("somebody asked for another phase")
	errReached   = errors.New("the end that was asked for is reached")
	errFinalized = errors.New("finalized")
)

// LostError says that the source's oplog no longer reaches back to the checkpoint: a resync is needed.
type LostError struct {
	Route string
	Err   error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("route %q: its position is lost, and changes with it: resync it: %v", e.Route, e.Err)
}

// Unwrap returns the source's error.
func (e *LostError) Unwrap() error { return e.Err }

// FailedError says that a route cannot go on without a person.
type FailedError struct {
	Route string
	Err   error
}

func (e *FailedError) Error() string { return fmt.Sprintf("route %q failed: %v", e.Route, e.Err) }

// Unwrap returns the reason.
func (e *FailedError) Unwrap() error { return e.Err }

// Link replicates one source to one destination: a route with several destinations has a Link for each, and none waits for another
// (I6). Status and the control methods are safe for concurrent use; Run is called once.
type Link struct {
	route    string
	source   Source
	target   Target
	store    Store
	letters  Letters
	cfg      Config
	set      *scope.Set
	matchers matchers
	log      zerolog.Logger

	sizes sizes
	// workers are held one by one while their sessions write.
	workers []sync.Mutex

	// applying is held while changes, or dead letters, are applied; resolving while a conflict is.
	applying, resolving sync.Mutex
	saving              sync.Mutex // one Save at a time

	mu sync.Mutex
	// Guarded by mu.
	state     State
	unsaved   bool
	savedAt   time.Time
	view      view
	running   bool
	idle      bool // paused, and nothing is in progress
	resync    bool // asked for
	finalize  bool // asked for
	armed     bool // asked for before state.Caught was read: what the source had then is applied when that is passed
	interrupt context.CancelCauseFunc
	changed   chan struct{} // closed and replaced when something above changes
}

// New returns a Link for the route of that name. It does no I/O. Errors: a name that is empty, or a Config that is out of
// range.
func New(route string, source Source, target Target, store Store, letters Letters, cfg Config) (*Link, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	var set *scope.Set
	if err == nil {
		set, err = scope.Compile(cfg.Scope)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("configure route %q: %w", route, err)
	case route == "" || len(route) > 256:
		return nil, fmt.Errorf("configure route: the name %q must have 1 to 256 bytes", route)
	case source == nil || target == nil || store == nil || letters == nil:
		return nil, fmt.Errorf("configure route %q: the source, target, store or dead letters are nil", route)
	}
	if cfg.Owner == "" {
		cfg.Owner = "capstan " + strings.ToLower(rand.Text()[:8])
	}
	return &Link{
		route: route, source: source, target: target, store: store, letters: letters, cfg: cfg, set: set,
		matchers: matchers{compiled: make(map[string]*match.Matcher)},
		log:      cfg.Logger.With().Str("component", "replicator").Str("route", route).Logger(),
		sizes:    sizes{most: make(map[string]int)},
		workers:  make([]sync.Mutex, cfg.Workers),
		changed:  make(chan struct{}),
		view:     view{phase: PhaseStarting, since: time.Now()},
	}, nil
}

// Run replicates until ctx ends (nil, after a last checkpoint), Config.Until is reached (nil), the route is finalized (nil), or it
// cannot go on: *LostError, *BusyError, *MismatchError, *record.FencedError, or *FailedError with what the servers refuse for
// good, ErrNotEmpty, ErrOverlap, ErrLoop or ErrTooManyLetters. Errors that may pass are waited out.
func (l *Link) Run(ctx context.Context) error {
	outer := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.set1(func() { l.running = true })
	defer l.set1(func() { l.running = false })
	if err := l.repeat(ctx, l.begin); err != nil {
		if outer.Err() != nil {
			return nil
		}
		if errors.As(err, new(*LostError)) {
			l.showFor(PhaseLostHistory, err.Error())
			return err
		}
		return l.failed(err)
	}
	var group errgroup.Group
	group.Go(func() error { l.saver(ctx, stop); return nil })
	group.Go(func() error { l.clock(ctx); return nil })
	err := l.phases(ctx)
	if fenced := (*record.FencedError)(nil); errors.As(context.Cause(ctx), &fenced) {
		err = fenced
	} else if outer.Err() != nil {
		err = nil
	}
	stop(nil)
	_ = group.Wait() // the two return no errors
	return errors.Join(err, l.part(outer))
}

// part stores the last checkpoint and says that the holder has ended.
func (l *Link) part(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := l.save(ctx); err != nil {
		if errors.As(err, new(*record.FencedError)) {
			return nil // reported already, or nothing was done since
		}
		return fmt.Errorf("store the last checkpoint of route %q: %w", l.route, err)
	}
	l.mu.Lock()
	s := l.state
	l.mu.Unlock()
	if err := l.store.Release(ctx, s); err != nil {
		l.log.Debug().Err(err).Msg("the route could not be released; its next holder waits for the lease")
	}
	return nil
}

// phases runs one phase after the other until one ends the route.
func (l *Link) phases(ctx context.Context) error {
	for {
		phase, end := context.WithCancelCause(ctx)
		l.set1(func() { l.interrupt = end })
		err := l.repeat(phase, l.phase)
		cause := context.Cause(phase)
		end(nil)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errReached), errors.Is(err, errFinalized):
			return nil
		case err == nil, errors.Is(cause, errControl):
			continue
		}
		if err = l.ended(ctx, err); err != nil {
			return err
		}
	}
}

// phase does what the state asks for, until that ends.
func (l *Link) phase(ctx context.Context) error {
	l.mu.Lock()
	phase, paused, resync := l.state.Phase, l.state.Paused, l.resync
	l.mu.Unlock()
	switch {
	case resync:
		return l.restart(ctx)
	case paused:
		return l.rest(ctx, PhasePaused)
	case phase == PhaseCopying:
		return l.copy(ctx)
	case phase == PhaseCatchingUp || phase == PhaseLive:
		return l.follow(ctx)
	case phase == PhaseFinalized:
		return ErrFinalized
	}
	return l.rest(ctx, phase) // lost or failed, with Config.Stay
}

// rest waits until somebody asks for another phase.
func (l *Link) rest(ctx context.Context, phase Phase) error {
	reason := ""
	l.set1(func() {
		l.idle = true
		if phase != PhasePaused {
			reason = l.state.Reason
		}
	})
	l.showFor(phase, reason)
	defer l.set1(func() { l.idle = false })
	if err := l.save(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// ended decides what the end of a phase means. nil: go on with what the state says now.
func (l *Link) ended(ctx context.Context, err error) error {
	if errors.As(err, new(*record.FencedError)) {
		return err
	}
	var lost Lost
	if errors.As(err, &lost) && lost.HistoryLost() {
		return l.lost(ctx, err)
	}
	err = l.failed(err)
	if l.cfg.Stay {
		return nil
	}
	return err
}

// failed makes the state failed, for err, and returns it as an error of Run.
func (l *Link) failed(err error) error {
	if l.cfg.Stay { // otherwise Run returns it
		l.log.Error().Err(err).Msg("the route failed")
	}
	l.mu.Lock()
	if l.state.Owner != "" && l.state.Phase != PhaseFailed && l.state.Phase != PhaseFinalized {
		l.state.Was, l.state.Phase, l.state.Reason = l.state.Phase, PhaseFailed, err.Error()
		l.unsaved = true
	}
	l.mu.Unlock()
	l.showFor(PhaseFailed, err.Error())
	switch {
	case errors.As(err, new(*BusyError)), errors.As(err, new(*MismatchError)), errors.As(err, new(*record.FencedError)):
		return err
	}
	return &FailedError{Route: l.route, Err: err}
}

// lost is called when the source cannot resume from the checkpoint: once a copy that took longer than the oplog reaches back begins
// again, and where it is configured a live route copies again; otherwise the route waits for a person.
func (l *Link) lost(ctx context.Context, err error) error {
	l.mu.Lock()
	again := l.cfg.OnLost == ResyncOnLost && !l.view.recopied
	if !l.state.WasLive && l.state.Copies < 2 {
		again = true
	}
	if again {
		l.resync, l.view.recopied = true, true
	} else {
		l.state.Phase, l.state.Reason, l.unsaved = PhaseLostHistory, err.Error(), true
	}
	l.mu.Unlock()
	if again {
		l.log.Warn().Err(err).Msg("the position is lost; copying again, comparing with what is there")
		l.note("the position was lost and everything is copied again: " + err.Error())
		return nil
	}
	l.showFor(PhaseLostHistory, err.Error())
	if l.cfg.Stay {
		l.log.Error().Err(err).Msg("the position is lost; the route needs a resync")
		return nil
	}
	return &LostError{Route: l.route, Err: err}
}

// repeat runs do until it succeeds or its error is one that stays, waiting in between.
func (l *Link) repeat(ctx context.Context, do func(context.Context) error) error {
	wait := retry.New(retry.Policy{Initial: time.Second, Max: maxPhaseWait})
	for {
		began := time.Now()
		err := do(ctx)
		if err == nil || ctx.Err() != nil || !l.passes(err) {
			return err
		}
		if time.Since(began) > 2*maxPhaseWait {
			wait.Progress() // it worked for a while
		}
		l.log.Warn().Err(err).Int("attempts", wait.Attempts()+1).Msg("the route cannot go on at present; trying again")
		l.trouble(err)
		if werr := wait.Wait(ctx, err); werr != nil {
			return werr
		}
	}
}

// passes reports whether an error may be gone after a while.
func (l *Link) passes(err error) bool {
	for _, final := range []error{ErrNotEmpty, ErrOverlap, ErrLoop, ErrFinalized, ErrLetters, ErrTooManyLetters, errReached, errFinalized, errControl} {
		if errors.Is(err, final) {
			return false
		}
	}
	if lost, ok := errors.AsType[Lost](err); ok && lost.HistoryLost() {
		return false
	}
	if errors.As(err, new(*BusyError)) || errors.As(err, new(*MismatchError)) || errors.As(err, new(*record.FencedError)) {
		return false
	}
	p, ok := errors.AsType[Passing](err)
	return ok && p.TryAgain() || l.cfg.Passes != nil && l.cfg.Passes(err)
}

// drained returns a context for writes: it ends drainTimeout after ctx, so that what is in progress when a stop is asked for can
// end, and at once when somebody else holds the route.
func drained(ctx context.Context) (context.Context, context.CancelFunc) {
	wctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var timer *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if errors.As(cause, new(*record.FencedError)) {
			cancel(cause)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(drainTimeout, func() { cancel(cause) })
	})
	return wctx, func() {
		stop()
		cancel(context.Canceled)
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
	}
}
