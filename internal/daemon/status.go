package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/replicator"
)

// RouteStatus is a route's status as the daemon knows it: the Link's, what the daemon does about it, and what it is about.
type RouteStatus struct {
	replicator.Status
	// Running is false between two runs, and after the last.
	Running bool `json:"running"`
	// Failures counts the runs that failed since one last made progress.
	Failures int `json:"failures"`
	// Again is true if it failed and is begun again by itself.
	Again bool `json:"begun_again"`
	// Config says what it is about.
	Config Facts `json:"config"`
}

// Well reports whether the route does what it should: it copies, follows, rests because somebody said so, or is done.
func (s RouteStatus) Well() bool {
	switch s.Phase {
	case replicator.PhaseCopying, replicator.PhaseCatchingUp, replicator.PhaseLive, replicator.PhasePaused, replicator.PhaseFinalized:
		return true
	}
	return false
}

// Routes returns the status of every route, in the order of the configuration.
func (s *Supervisor) Routes() []RouteStatus {
	units := s.list()
	all := make([]RouteStatus, len(units))
	for i, u := range units {
		all[i] = u.status()
	}
	return all
}

// Ready reports whether all routes are well.
func (s *Supervisor) Ready() bool {
	return !slices.ContainsFunc(s.Routes(), func(r RouteStatus) bool { return !r.Well() })
}

// Settled reports whether every route was connected on both sides, or failed, at some time since it began.
func (s *Supervisor) Settled() bool {
	return !slices.ContainsFunc(s.list(), func(u *unit) bool {
		u.status() // notices
		u.mu.Lock()
		defer u.mu.Unlock()
		return !u.settled
	})
}

// Stuck names a route that runs and whose loop has not said anything for longer than limit, "" if there is none. A Link stamps
// Status.Updated in its loop; while it starts or is paused there is none.
func (s *Supervisor) Stuck(limit time.Duration, now time.Time) string {
	for _, r := range s.Routes() {
		switch r.Phase {
		case replicator.PhaseCopying, replicator.PhaseCatchingUp, replicator.PhaseLive:
			if r.Running && now.Sub(r.Updated) > limit {
				return r.Route
			}
		}
	}
	return ""
}

// Line says in one line how the routes are, for a service manager.
func (s *Supervisor) Line() string {
	routes := s.Routes()
	if len(routes) == 0 {
		return "no routes"
	}
	count := map[replicator.Phase]int{}
	var phases []replicator.Phase
	var lag *float64
	for _, r := range routes {
		if count[r.Phase]++; count[r.Phase] == 1 {
			phases = append(phases, r.Phase)
		}
		if l := r.LagSeconds; l != nil && (lag == nil || *l > *lag) {
			lag = l
		}
	}
	parts := make([]string, len(phases))
	for i, p := range phases {
		parts[i] = fmt.Sprintf("%d %s", count[p], p)
	}
	line := strings.Join(parts, ", ")
	if lag != nil {
		line += fmt.Sprintf("; largest lag %.1f s", *lag)
	}
	return line
}

// status returns where the route is.
func (u *unit) status() RouteStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := RouteStatus{Status: u.last, Running: u.link != nil, Failures: u.failures, Config: u.route.Facts}
	if u.link != nil {
		s.Status = u.link.Status()
		if u.progress.Load() {
			s.Failures = 0
		}
		u.notice(s.Status)
		if t := u.trouble; s.LastError == "" && t.err != nil && time.Since(t.last) < troubleFor {
			s.LastError = t.err.Error()
		}
	} else if u.err != nil {
		s.Again = !u.final
		s.Reason = u.err.Error()
		switch {
		case errors.As(u.err, new(*replicator.LostError)):
			s.Phase = replicator.PhaseLostHistory
		default:
			s.Phase = replicator.PhaseFailed
		}
	}
	s.Route = u.route.Name
	if s.Phase == "" {
		s.Phase = replicator.PhaseStarting
	}
	s.Reason, s.LastError = u.cfg.Redact(s.Reason), u.cfg.Redact(s.LastError) // I10: servers quote what they were sent
	for i, n := range s.Notes {
		if hidden := u.cfg.Redact(n); hidden != n {
			s.Notes = slices.Clone(s.Notes)
			s.Notes[i] = hidden
		}
	}
	return s
}
