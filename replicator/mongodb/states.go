package mongodb

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/seed-12ef14e5/capstan/replicator"
)

// elsewhere is a Store that is not at the destination. What comes for nothing there is looked after here: that a checkpoint is never
// used for another destination, which would get the changes without the copy, and that routes overlap only if their destination is one.
type elsewhere struct {
	replicator.Store
	target *Target
	here   *Store
	// hosts are the destination's addresses, which tell it from others if it is no replica set.
	hosts []string

	mu sync.Mutex
	is replicator.Identity // zero until known
}

// identity returns the destination's, with a SetID in every case.
func (e *elsewhere) identity(ctx context.Context) (replicator.Identity, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.is.SetID != "" {
		return e.is, nil
	}
	id, err := e.target.Identity(ctx)
	if err != nil {
		return id, err
	}
	if id.SetID == "" {
		id.SetID = strings.Join(slices.Sorted(slices.Values(e.hosts)), ",")
	}
	e.is = id
	return id, nil
}

// Acquire is the Store's, and refuses what belongs to another destination with *replicator.MismatchError.
func (e *elsewhere) Acquire(ctx context.Context, route, owner string, takeOver bool) (replicator.State, error) {
	id, err := e.identity(ctx)
	if err != nil {
		return replicator.State{}, err
	}
	check := func(st replicator.State) error {
		if st.Target.SetID != "" && st.Target.SetID != id.SetID {
			return &replicator.MismatchError{Route: route, What: replicator.MismatchTarget,
				Stored: strings.TrimSpace(st.Target.SetName + " " + st.Target.SetID), Now: strings.TrimSpace(id.SetName + " " + id.SetID)}
		}
		return nil
	}
	// Looked at before it is touched: the route may be running, for the destination that it is of.
	st, err := e.Load(ctx, route)
	if err == nil {
		err = check(st)
	}
	if err != nil && !errors.Is(err, replicator.ErrNoRoute) {
		return replicator.State{}, err
	}
	if st, err = e.Store.Acquire(ctx, route, owner, takeOver); err != nil {
		return st, err
	}
	if err := check(st); err != nil {
		return replicator.State{}, errors.Join(err, e.Store.Release(ctx, st))
	}
	st.Target = id
	return st, nil
}

// List returns the Store's routes to this destination, and those that keep their checkpoint there.
func (e *elsewhere) List(ctx context.Context) ([]replicator.State, error) {
	id, err := e.identity(ctx)
	if err != nil {
		return nil, err
	}
	routes, err := e.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	routes = slices.DeleteFunc(routes, func(st replicator.State) bool { return st.Target.SetID != "" && st.Target.SetID != id.SetID })
	there, err := e.here.List(ctx)
	return append(routes, there...), err
}
