package replicator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-12ef14e5/capstan/record"
)

// begin takes the route over and finds out where it is.
func (l *Link) begin(ctx context.Context) error {
	source, err := l.source.Identity(ctx)
	if err != nil {
		return fmt.Errorf("look at the source: %w", err)
	}
	target, err := l.target.Identity(ctx)
	if err != nil {
		return fmt.Errorf("look at the destination: %w", err)
	}
	if err := l.checkFilters(ctx); err != nil {
		return err
	}
	s, err := l.store.Acquire(ctx, l.route, l.cfg.Owner, l.cfg.TakeOver)
	if err != nil {
		return err
	}
	if err := l.take(ctx, s, source, target); err != nil {
		if rerr := l.store.Release(ctx, s); rerr != nil {
			l.log.Debug().Err(rerr).Msg("the route could not be released; its next holder waits for the lease")
		}
		return err
	}
	return l.save(ctx)
}

// take makes the stored state this process's.
func (l *Link) take(ctx context.Context, s State, source, target Identity) error {
	resync := l.cfg.Resync && s.Phase != ""
	if err := l.check(s, source); err != nil {
		if !l.cfg.Resync || errors.Is(err, ErrFinalized) {
			return err
		}
	}
	lost := s.Phase == PhaseLostHistory && !resync
	if lost && l.cfg.OnLost != ResyncOnLost && !l.cfg.Stay {
		return &LostError{Route: l.route, Err: errors.New(s.Reason)}
	}
	// What a process before this one has still in progress must not overwrite what this one writes.
	var err error
	if s.Sessions, err = l.target.Fence(ctx, s.Sessions, l.sessions()); err != nil {
		return fmt.Errorf("fence off the process that ran the route before: %w", err)
	}
	letters, err := l.letters.Count(ctx, l.route)
	if err != nil {
		return fmt.Errorf("count the dead letters: %w", err)
	}
	if untouched(s) {
		s.Phase, s.Was, s.Reason, s.Copies = PhaseCopying, "", "", 1
		s.Start, s.Position, s.Caught, s.Collections = record.Position{}, record.Position{}, record.Position{}, nil
		s.Resync, s.WasLive = l.cfg.Existing == MergeExisting, false
	}
	if s.Phase == PhaseFailed {
		s.Phase, s.Reason = cmp.Or(s.Was, PhaseCopying), ""
	}
	recopied := lost && l.cfg.OnLost == ResyncOnLost
	s.Route, s.Clean = l.route, false
	s.Fingerprint, s.Source, s.Shared = l.set.Fingerprint(), source, l.cfg.Shared
	s.Paused = s.Paused || l.cfg.Paused
	l.set1(func() {
		l.state, l.resync, l.unsaved = s, resync || recopied, true
		l.finalize = l.cfg.Until == UntilFinalized
		l.view.recopied = l.view.recopied || recopied
		l.view.source, l.view.target, l.view.letters = source, target, letters
		l.view.read, l.view.applied, l.view.saved = s.Position, s.Position, s.Position
	})
	return nil
}

// checkFilters lets the source judge the filters before anything is written: a query that it refuses would otherwise end the route
// in the middle.
func (l *Link) checkFilters(ctx context.Context) error {
	if !l.set.Filtered() {
		return nil
	}
	found, err := l.source.Collections(ctx, l.set)
	if err != nil {
		return fmt.Errorf("list the source's collections: %w", err)
	}
	for _, f := range l.cfg.Scope.Filters {
		// A query may be right for one collection only, by its indexes or collation; where there is none yet any name does.
		ns := record.Namespace{DB: l.set.Database(), Coll: "capstan.filter"}
		if ns.DB == "" {
			ns.DB = "test"
		}
		for _, c := range found {
			if c.Kind != KindView && bytes.Equal(l.set.Filter(c.Name), f.Query) {
				ns = c.Name
				break
			}
		}
		if err := l.source.Check(ctx, ns, f.Query); err != nil {
			return err
		}
	}
	return nil
}

// sessions returns how many sessions write: one per applier or reader, and one for conflicts.
func (l *Link) sessions() int { return max(l.cfg.Workers, l.cfg.Readers) + 1 }

// resolver is the number of the session that settles conflicts.
func (l *Link) resolver() int { return l.sessions() - 1 }

// untouched reports whether nothing has been written under the name of a route: it found nothing, or was refused. Then it may still become
// another route.
func untouched(s State) bool {
	return s.Phase == "" || s.Copies <= 1 && len(s.Collections) == 0 && s.Totals.Scanned == 0
}

// check refuses a state that is none of this route's.
func (l *Link) check(s State, source Identity) error {
	switch {
	case s.Phase != PhaseFinalized && untouched(s):
		return nil // what was wrong with the route has been mended
	case s.Phase == PhaseFinalized:
		return fmt.Errorf("route %q: %w: give the new one another name", l.route, ErrFinalized)
	case s.Fingerprint != l.set.Fingerprint():
		return &MismatchError{Route: l.route, What: "scope (include, exclude, rename, filters)", Stored: s.Fingerprint, Now: l.set.Fingerprint()}
	case s.Source.SetID != source.SetID:
		return &MismatchError{Route: l.route, What: "source set", Stored: s.Source.SetName + " " + s.Source.SetID, Now: source.SetName + " " + source.SetID}
	}
	return nil
}

// restart begins the copy again, comparing with what is there.
func (l *Link) restart(ctx context.Context) error {
	l.show(PhaseCopying) // whoever asked for it is told when it has begun
	l.set1(func() {
		s := &l.state
		s.Phase, s.Reason, s.Resync, s.WasLive = PhaseCopying, "", true, false
		s.Start, s.Position, s.Caught = record.Position{}, record.Position{}, record.Position{}
		s.Copies++
		// The collections stay listed, so that what the source does not have any more is removed; plan lists anew.
		l.view.read, l.view.applied, l.view.saved = record.Position{}, record.Position{}, record.Position{}
		l.resync, l.unsaved = false, true
	})
	return l.save(ctx)
}

// listSlack is how many seconds the member that tells the clock may be behind the one that lists the collections.
const listSlack = 10

// plan takes the position from which changes are applied after the copy, and then lists what is to be copied.
func (l *Link) plan(ctx context.Context) error {
	start, err := l.source.Position(ctx, l.set)
	if err != nil {
		return fmt.Errorf("take a position at the source: %w", err)
	}
	clock, err := l.source.Clock(ctx, start)
	if err != nil {
		return fmt.Errorf("read the source's clock: %w", err)
	}
	found, err := l.source.Collections(ctx, l.set)
	if err != nil {
		return fmt.Errorf("list the source's collections: %w", err)
	}
	// A listing is made while collections change: what it shows may be newer than the clock.
	listed, err := l.source.Clock(ctx, record.Position{})
	if err != nil {
		return fmt.Errorf("read the source's clock: %w", err)
	}
	listed.Head.T += listSlack
	seen := clock.Head
	if start.TS.Compare(seen) > 0 {
		seen = start.TS
	}
	var list []CollectionState
	for _, c := range found {
		if c.Kind == KindTimeseries {
			l.note(fmt.Sprintf("%s is a time-series collection, which change streams do not report: it is not replicated", c.Name))
			continue
		}
		list = append(list, l.entry(c, seen))
	}
	l.unused(ctx, found)
	if err := l.admit(ctx, list, found); err != nil {
		return err
	}
	l.set1(func() {
		s := &l.state
		s.Collections, s.Start, s.Position, s.Listed = list, start, start, listed.Head
		s.Totals.Scanned, s.Totals.Matched, s.Totals.CopiedBytes = 0, 0, 0
		l.view.read, l.view.applied = start, start
		l.unsaved = true
	})
	l.log.Info().Int("collections", len(list)).Str("position", start.String()).Msg("the copy begins")
	return l.save(ctx)
}

// entry makes the state of a collection of the source that is to be copied.
func (l *Link) entry(c Collection, seen record.Timestamp) CollectionState {
	return CollectionState{
		UUID: c.UUID, Source: c.Name, Target: l.set.Target(c.Name), Kind: c.Kind,
		Documents: c.Documents, Bytes: c.Bytes, Seen: seen,
		Serial: c.Kind == KindCapped || collated(c.Options),
	}
}

// admit checks that the destination may be written to, and prepares it as Config.Existing says.
func (l *Link) admit(ctx context.Context, list []CollectionState, found []Collection) error {
	var names []record.Namespace
	to := make(map[record.Namespace]record.Namespace)
	for _, c := range list {
		if other, ok := to[c.Target]; ok {
			return fmt.Errorf("%s and %s are both mapped to %s: rename one of them or exclude it", other, c.Source, c.Target)
		}
		to[c.Target] = c.Source
		names = append(names, c.Target)
		if l.loops(c) {
			return fmt.Errorf("%w: %s", ErrLoop, c.Target)
		}
	}
	if err := l.overlap(ctx, to); err != nil {
		return err
	}
	l.mu.Lock()
	old, resync := l.state.Collections, l.state.Resync
	l.mu.Unlock()
	existing, err := l.target.Describe(ctx, names)
	if err != nil {
		return fmt.Errorf("look at the destination: %w", err)
	}
	if resync {
		if err := l.clear(ctx, list, old, existing); err != nil {
			return err
		}
		return l.trim(ctx, found, existing)
	}
	var full []string
	for _, c := range existing {
		other, err := l.sharer(ctx, c.Name)
		if err != nil {
			return err
		}
		switch {
		case other != "":
		case l.cfg.Existing == DropExisting:
			if err := l.target.Drop(ctx, c.Name); err != nil {
				return fmt.Errorf("drop %s: %w", c.Name, err)
			}
		case c.Documents > 0:
			full = append(full, fmt.Sprintf("%s (%d documents)", c.Name, c.Documents))
		}
	}
	if len(full) > 0 {
		return fmt.Errorf("%w: %s: choose another name with a rename, or say whether to merge or to drop what is there", ErrNotEmpty, strings.Join(full, ", "))
	}
	return nil
}

// clear drops, for a resync, what no comparison can mend: collections that the source does not have any more, and those whose order
// counts.
func (l *Link) clear(ctx context.Context, list, old []CollectionState, existing []Collection) error {
	drop := func(ns record.Namespace) error {
		if other, err := l.sharer(ctx, ns); err != nil || other != "" {
			return err
		}
		if err := l.target.Drop(ctx, ns); err != nil {
			return fmt.Errorf("drop %s: %w", ns, err)
		}
		l.set1(func() { l.release(ns) })
		return nil
	}
	for _, o := range old {
		if !slices.ContainsFunc(list, func(c CollectionState) bool { return c.Target == o.Target }) {
			if err := drop(o.Target); err != nil {
				return err
			}
		}
	}
	for _, e := range existing {
		i := slices.IndexFunc(list, func(c CollectionState) bool { return c.Target == e.Name })
		if i >= 0 && (e.Kind != list[i].Kind || list[i].Kind == KindCapped || list[i].Kind == KindView) {
			if err := drop(e.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// loops reports whether a collection would be copied onto itself.
func (l *Link) loops(c CollectionState) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.Source == c.Target && l.view.source.SetID != "" && l.view.source.SetID == l.view.target.SetID
}

// overlap refuses collections that another route writes to, unless both say that this is meant.
func (l *Link) overlap(ctx context.Context, targets map[record.Namespace]record.Namespace) error {
	routes, err := l.store.List(ctx)
	if err != nil {
		return fmt.Errorf("list the routes of the destination: %w", err)
	}
	for _, r := range routes {
		if r.Route == l.route || r.Phase == PhaseFinalized || r.Shared && l.cfg.Shared {
			continue
		}
		for _, c := range r.Collections {
			if _, ok := targets[c.Target]; ok {
				return fmt.Errorf("%w: %s belongs to route %q: declare both routes as shared, if their documents differ in _id", ErrOverlap, c.Target, r.Route)
			}
		}
	}
	return nil
}

// sharer returns the name of another route that writes to the same collection of the destination, "" if there is none. Such a collection is
// neither dropped nor cleared: what is in it may be the other's.
func (l *Link) sharer(ctx context.Context, ns record.Namespace) (string, error) {
	if !l.cfg.Shared {
		return "", nil // overlap refuses others
	}
	routes, err := l.store.List(ctx)
	if err != nil {
		return "", fmt.Errorf("list the routes of the destination: %w", err)
	}
	for _, r := range routes {
		if r.Route == l.route {
			continue
		}
		for _, c := range r.Collections {
			if c.Target == ns {
				return r.Route, nil
			}
		}
	}
	return "", nil
}
