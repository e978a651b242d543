// Package daemon runs routes side by side and keeps them running.
//
// It promises: a route that failed or lost its position stops no other and stays visible; one that failed for a reason that may
// pass is begun again; a reload touches only what changed; a stop waits for what is in progress, and no longer than it is told. It knows
// neither MongoDB nor HTTP: a Route says how to build its Link, and Supervisor is asked and told by the admin listener.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/replicator"
)

// Defaults of Config.
const (
	DefaultDrainTimeout = 30 * time.Second
	DefaultRestartMax   = time.Minute
	// FirstRestart is the mean of the wait before a route is begun again for the first time.
	FirstRestart = time.Second
)

// Link is one replication as the daemon sees it: *replicator.Link. It has more methods than four because the control verbs are one
// thing and an operator has all of them.
type Link interface {
	Run(ctx context.Context) error
	Status() replicator.Status
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Resync(ctx context.Context) error
	Finalize(ctx context.Context) error
	Retry(ctx context.Context) (done, left int64, err error)
}

// Begin says how a Link is to begin.
type Begin struct {
	// Paused: it starts paused.
	Paused bool
	// Resync: somebody asked for a resync while it did not run, so a lost position is no reason to stop.
	Resync bool
	// Hooks are the Link's; every one but OnPhase and OnLetter is set. OnRetry may be called by what the Link reads and writes through, too: it tries
	// again for minutes before the Link hears of it.
	Hooks replicator.Hooks
}

// Route is one replication that the daemon runs.
type Route struct {
	Name string
	// Fingerprint identifies its configuration: a reload leaves a route with the same one alone.
	Fingerprint string
	// Paused: it starts paused, as its configuration says.
	Paused bool
	// Facts are for people.
	Facts Facts
	// Build makes its Link, and what closes what the Link uses. It connects to nothing. It is called again after a failure.
	Build func(Begin) (link Link, closeLink func(context.Context), err error)
}

// Facts say what a route is about. There are no secrets in them.
type Facts struct {
	Source   string   `json:"source_uri"`
	Target   string   `json:"target_uri"`
	Stream   string   `json:"stream,omitempty"`
	Include  []string `json:"include,omitempty"`
	Exclude  []string `json:"exclude,omitempty"`
	Rename   []string `json:"rename,omitempty"`
	Filters  []string `json:"filters,omitempty"`
	Existing string   `json:"existing"`
	OnLost   string   `json:"on_lost"`
	Shared   bool     `json:"shared,omitempty"`
	KeepTTL  bool     `json:"keep_ttl,omitempty"`
}

// Config configures a Supervisor. The zero Config is valid.
type Config struct {
	// DrainTimeout is how long routes may take to stop; 0 means DefaultDrainTimeout.
	DrainTimeout time.Duration
	// RestartMax is the longest wait before a route is begun again; 0 means DefaultRestartMax. A change by Reload is for routes that
	// begin later.
	RestartMax time.Duration
	// Paused starts every route paused.
	Paused bool
	// Redact makes what servers and drivers say fit to be shown: without secrets. nil: it is shown as it is.
	Redact func(string) string
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
	// Hooks are called on events; every one may be nil.
	Hooks Hooks
}

// Hooks observe a Supervisor. They are called synchronously and must be fast.
type Hooks struct {
	// OfRoute returns the hooks of a route's Link.
	OfRoute func(route string) replicator.Hooks
	// OnFailed is called when a run of a route ended with an error.
	OnFailed func(route string, err error)
	// OnRestart is called when a route is begun again after one.
	OnRestart func(route string)
	// OnGone is called when a route is no longer part of the configuration and has ended.
	OnGone func(route string)
}

func (c Config) withDefaults() Config {
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.RestartMax == 0 {
		c.RestartMax = DefaultRestartMax
	}
	if c.Redact == nil {
		c.Redact = func(s string) string { return s }
	}
	c.Logger = c.Logger.With().Str("component", "daemon").Logger()
	return c
}

func (c Config) validate() error {
	if c.DrainTimeout < 0 || c.RestartMax < 0 {
		return errors.New("fields DrainTimeout and RestartMax must not be negative")
	}
	return nil
}

// Supervisor runs routes. All methods but Run are safe for concurrent use; Run is called once.
type Supervisor struct {
	reloads chan reload // unbuffered: Reload waits until the running Run has taken it

	mu    sync.Mutex
	cfg   Config
	units []*unit // those of the configuration, in its order
	gone  []*unit // those that it no longer has, until they have ended
}

type reload struct {
	routes []Route
	cfg    Config
	done   chan Changes // 1: Run never waits for the one who asked
}

// Changes says what a reload did, by the names of routes.
type Changes struct{ Kept, Started, Restarted, Stopped []string }

// New returns a Supervisor. It does no I/O. Errors: a Config out of range.
func New(cfg Config) (*Supervisor, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Supervisor{cfg: cfg, reloads: make(chan reload)}, nil
}

// NotDrainedError says that routes did not end in time. They are still running when Run returns: the process should end.
type NotDrainedError struct {
	Routes  []string
	Timeout time.Duration
}

func (e *NotDrainedError) Error() string {
	return fmt.Sprintf("these routes did not end within %v and were cut off; they go on from their last checkpoint: %s", e.Timeout, strings.Join(e.Routes, ", "))
}

// RouteError says that a route had lost its position or failed when the daemon ended.
type RouteError struct {
	Route string
	Err   error
}

func (e *RouteError) Error() string { return "route " + e.Route + ": " + e.Err.Error() }

// Unwrap returns why.
func (e *RouteError) Unwrap() error { return e.Err }

// Run runs the routes until ctx ends, and then waits for them, at most DrainTimeout. It returns nil if all of them are well,
// *NotDrainedError, or *RouteError for one that is not: first of all one whose position is lost.
func (s *Supervisor) Run(ctx context.Context, routes []Route) error {
	var wg sync.WaitGroup
	cfg := s.config()
	s.apply(ctx, &wg, reload{routes: routes, cfg: cfg})
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case r := <-s.reloads:
			r.done <- s.apply(ctx, &wg, r)
		}
	}
	ended := make(chan struct{})
	go func() { // ends with the routes; see NotDrainedError
		wg.Wait()
		close(ended)
	}()
	cfg = s.config()
	t := time.NewTimer(cfg.DrainTimeout)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		return &NotDrainedError{s.undrained(), cfg.DrainTimeout}
	}
	return s.outcome()
}

func (s *Supervisor) config() Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg
}

// Reload makes the running Run go on with these routes: what is unchanged is not touched, what is new starts, what is gone stops after a
// drain, and what is changed is begun again when its former run has ended. It does not wait for that. Of cfg it takes DrainTimeout and
// RestartMax. Its error is that of ctx.
func (s *Supervisor) Reload(ctx context.Context, routes []Route, cfg Config) (Changes, error) {
	r := reload{routes, cfg.withDefaults(), make(chan Changes, 1)}
	select {
	case s.reloads <- r:
		return <-r.done, nil
	case <-ctx.Done():
		return Changes{}, context.Cause(ctx)
	}
}

// apply starts and stops units until they are those of r.
func (s *Supervisor) apply(ctx context.Context, wg *sync.WaitGroup, r reload) Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.DrainTimeout, s.cfg.RestartMax = r.cfg.DrainTimeout, r.cfg.RestartMax
	s.gone = slices.DeleteFunc(s.gone, (*unit).over)
	old := s.units
	s.units = nil
	var c Changes
	for _, route := range r.routes {
		i := slices.IndexFunc(old, func(u *unit) bool { return u.route.Name == route.Name })
		if i >= 0 && old[i].route.Fingerprint == route.Fingerprint {
			c.Kept = append(c.Kept, route.Name)
			s.units = append(s.units, old[i])
			continue
		}
		after := s.former(route.Name)
		if i >= 0 {
			c.Restarted = append(c.Restarted, route.Name)
			after = old[i].done
		} else {
			c.Started = append(c.Started, route.Name)
		}
		s.units = append(s.units, s.begin(ctx, wg, route, after))
	}
	for _, u := range old {
		if slices.Contains(s.units, u) {
			continue
		}
		if !slices.Contains(c.Restarted, u.route.Name) {
			c.Stopped = append(c.Stopped, u.route.Name)
		}
		s.gone = append(s.gone, u)
		s.end(wg, u)
	}
	return c
}

// former returns what is closed when a run of a route that left the configuration earlier has ended, nil if there is none.
func (s *Supervisor) former(name string) <-chan struct{} {
	for _, u := range slices.Backward(s.gone) {
		if u.route.Name == name {
			return u.done
		}
	}
	return nil
}

// begin starts a unit, once after is closed: two runs of one route would fence each other off.
func (s *Supervisor) begin(ctx context.Context, wg *sync.WaitGroup, route Route, after <-chan struct{}) *unit {
	ctx, cancel := context.WithCancel(ctx)
	u := &unit{
		route: route, cfg: s.cfg, stop: cancel, done: make(chan struct{}),
		log: s.cfg.Logger.With().Str("route", route.Name).Logger(),
	}
	wg.Go(func() {
		defer cancel()
		u.run(ctx, after)
	})
	return u
}

// end stops a unit that the configuration no longer has, and says so if that takes too long.
func (s *Supervisor) end(wg *sync.WaitGroup, u *unit) {
	u.stop()
	cfg := s.cfg
	wg.Go(func() {
		t := time.NewTimer(cfg.DrainTimeout)
		defer t.Stop()
		select {
		case <-u.done:
		case <-t.C:
			u.log.Warn().Dur("drain_timeout", cfg.DrainTimeout).Msg("the route does not end within the drain timeout; what replaces it waits")
			<-u.done
		}
		if !s.has(u.route.Name) {
			call(cfg.Hooks.OnGone, u.route.Name)
		}
	})
}

func (s *Supervisor) has(name string) bool {
	return slices.ContainsFunc(s.list(), func(u *unit) bool { return u.route.Name == name })
}

func (s *Supervisor) list() []*unit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.units)
}

// undrained names the routes that have not ended.
func (s *Supervisor) undrained() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, u := range slices.Concat(s.units, s.gone) {
		if !u.over() {
			names = append(names, u.route.Name)
		}
	}
	return names
}

// outcome is what is wrong when all have ended.
func (s *Supervisor) outcome() error {
	var failed error
	for _, u := range s.list() {
		err := u.failure()
		if err == nil {
			continue
		}
		err = &RouteError{u.route.Name, err}
		if errors.As(err, new(*replicator.LostError)) {
			return err
		}
		if failed == nil {
			failed = err
		}
	}
	return failed
}

func call[T any](hook func(T), v T) {
	if hook != nil {
		hook(v)
	}
}
