package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-12ef14e5/capstan/replicator"
)

// Verb is what an operator can tell a route to do.
type Verb string

// The verbs, as in replicator.Link.
const (
	Pause    Verb = "pause"
	Resume   Verb = "resume"
	Resync   Verb = "resync"
	Finalize Verb = "finalize"
	Retry    Verb = "retry"
)

// Verbs returns all of them.
func Verbs() []Verb { return []Verb{Pause, Resume, Resync, Finalize, Retry} }

// Result says what came of a verb.
type Result struct {
	Route string `json:"route"`
	Verb  Verb   `json:"verb"`
	// Phase is the route's afterwards.
	Phase replicator.Phase `json:"phase"`
	// Done and Left count dead letters, for retry.
	Done int64 `json:"done"`
	Left int64 `json:"left"`
}

// UnknownRouteError says that there is no route of that name.
type UnknownRouteError struct {
	Route string
	Known []string
}

func (e *UnknownRouteError) Error() string {
	return fmt.Sprintf("no route is called %q (there are: %s)", e.Route, strings.Join(e.Known, ", "))
}

// StateError says that a route cannot do what it is told where it is.
type StateError struct {
	Route string
	Verb  Verb
	Phase replicator.Phase
	// Hint says what can be done.
	Hint string
}

func (e *StateError) Error() string {
	return fmt.Sprintf("route %q is %s and cannot %s", e.Route, e.Phase, e.Verb)
}

// Control tells a route to do something and waits until it is so, or ctx ends. Errors: *UnknownRouteError, *StateError, the
// Link's.
func (s *Supervisor) Control(ctx context.Context, route string, verb Verb) (Result, error) {
	units := s.list()
	i := slices.IndexFunc(units, func(u *unit) bool { return u.route.Name == route })
	if i < 0 {
		known := make([]string, len(units))
		for i, u := range units {
			known[i] = u.route.Name
		}
		return Result{}, &UnknownRouteError{route, known}
	}
	u := units[i]
	r := Result{Route: route, Verb: verb}
	err := u.control(ctx, verb, &r)
	if errors.Is(err, replicator.ErrNotRunning) {
		err = &StateError{route, verb, u.status().Phase, "it has just begun or ended: look at capstan status and try again"}
	}
	r.Phase = u.status().Phase
	u.log.Info().Str("verb", string(verb)).Err(err).Msg("control")
	return r, err
}

func (u *unit) control(ctx context.Context, verb Verb, r *Result) error {
	u.mu.Lock()
	link := u.link
	u.mu.Unlock()
	if link == nil {
		return u.controlEnded(verb)
	}
	switch verb {
	case Pause:
		return link.Pause(ctx)
	case Resume:
		return link.Resume(ctx)
	case Resync:
		return link.Resync(ctx)
	case Finalize:
		return link.Finalize(ctx)
	case Retry:
		var err error
		r.Done, r.Left, err = link.Retry(ctx)
		return err
	}
	return fmt.Errorf("unknown verb %q", verb)
}

// controlEnded is control for a route of which no Link runs: it can be begun again.
func (u *unit) controlEnded(verb Verb) error {
	phase := u.status().Phase
	u.mu.Lock()
	defer u.mu.Unlock()
	conflict := func(hint string) error { return &StateError{u.route.Name, verb, phase, hint} }
	switch {
	case u.wake == nil:
		return conflict("it is about to begin: try again")
	case phase == replicator.PhaseFinalized:
		return conflict("it has ended for good; give it another name to replicate again")
	case verb == Resync:
		u.request = Begin{Resync: true}
	case verb == Resume && phase != replicator.PhaseLostHistory:
		u.request = Begin{}
	case verb == Resume:
		return conflict("changes are lost, and going on would hide that: capstan replicate resync " + u.route.Name)
	default:
		return conflict("it does not run: capstan replicate resume " + u.route.Name + " begins it again")
	}
	u.wake()
	return nil
}
