package mongodb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/stored"
	"github.com/seed-12ef14e5/capstan/scope"
)

const (
	// RoutesCollection, in the database scope.Own of the destination, holds one document per route.
	RoutesCollection = "routes"
	// DefaultLease is several times what a running route lets pass between two saves (a second).
	DefaultLease = 5 * time.Second
)

// StoreConfig configures a Store. The zero value is valid.
type StoreConfig struct {
	// Lease is how long the revision of a route must stand still until its owner counts as dead. 0 means DefaultLease.
	Lease time.Duration
	// Host is this machine's name, for owners that end in "HOST pid N …"; "" means what the machine says.
	Host string
}

// Store keeps the State of routes, one document each, in capstan.routes at the destination. Safe for concurrent use.
//
// Every change compares owner and revision with the stored ones in the filter of the write and is acknowledged by a majority, so a
// member that comes back from the dead cannot undo it, and an update that a frozen server executes late finds another revision and
// does nothing. Every write has a token, by which an attempt whose answer was lost is recognised, also by the next call.
//
// Whether an owner is alive is seen from its revision, which moves at least once a second while a route runs: no clock of one
// machine is compared with that of another.
type Store struct {
	t   *Target
	cfg StoreConfig

	mu sync.Mutex
	// unsure holds, per route, the tokens of saves whose outcome is not known.
	unsure map[string][]bson.ObjectID
}

// NewStore returns the store at t's deployment. It does no I/O; the collection is made by the first route.
func NewStore(t *Target, cfg StoreConfig) (*Store, error) {
	if cfg.Lease == 0 {
		cfg.Lease = DefaultLease
	}
	if cfg.Lease < 0 {
		return nil, fmt.Errorf("configure store of routes: field Lease is %s; it must be positive", cfg.Lease)
	}
	if cfg.Host == "" {
		cfg.Host, _ = os.Hostname() // without a name no owner is known to be of this machine
	}
	return &Store{t: t, cfg: cfg, unsure: map[string][]bson.ObjectID{}}, nil
}

// changedError says that another process changed the state in between: look again.
type changedError struct{}

func (changedError) Error() string { return "another process changed the state in between" }

// TryAgain is for the layer.
func (changedError) TryAgain() bool { return true }

// collection returns the routes with reads and writes that no election takes back. A linearizable read sees every write that was
// acknowledged before it, also right after an election.
func (s *Store) collection(ctx context.Context) (*mongo.Collection, error) {
	client, numbers, err := s.t.connected(ctx)
	if err != nil {
		return nil, err
	}
	journal := true
	rc := readconcern.Local()
	if numbers {
		rc = readconcern.Linearizable()
	}
	return client.Database(scope.Own).Collection(RoutesCollection, options.Collection().SetReadConcern(rc).SetReadPreference(readpref.Primary()).
		SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: &journal})), nil
}

func byRoute(route string) bson.D { return bson.D{{Key: "_id", Value: route}} }

// find returns what is stored, nil if nothing is. The error is a damaged document's, too.
func find(ctx context.Context, c *mongo.Collection, route string) (*stored.State, error) {
	raw, err := c.FindOne(ctx, byRoute(route)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, _, err := decode(raw)
	return s, err
}

func decode(raw bson.Raw) (*stored.State, replicator.State, error) {
	var s stored.State
	var st replicator.State
	err := bson.Unmarshal(raw, &s)
	if err == nil {
		st, err = s.Replicator()
	}
	if err != nil {
		return nil, st, fmt.Errorf("the stored state %v in %s.%s is damaged; restore it, or delete it and let the route begin anew: %w", raw.Lookup("_id"), scope.Own, RoutesCollection, err)
	}
	return &s, st, nil
}

// Acquire makes owner the holder of the route and returns what is stored. While another owner is alive it returns
// *replicator.BusyError: at once if its revision moves, after StoreConfig.Lease at the latest. An owner of this machine
// whose process is gone, or that has released the route, is followed at once.
func (s *Store) Acquire(ctx context.Context, route, owner string, takeOver bool) (replicator.State, error) {
	if route == "" || owner == "" {
		return replicator.State{}, errors.New("acquire route: the route or the owner has no name")
	}
	c, err := s.collection(ctx)
	if err != nil {
		return replicator.State{}, fmt.Errorf("acquire route %q: %w", route, err)
	}
	for {
		st, err := s.acquire(ctx, c, route, owner, takeOver)
		if _, again := errors.AsType[changedError](err); again {
			continue // each time somebody else has got on
		}
		if err != nil {
			return replicator.State{}, fmt.Errorf("acquire route %q: %w", route, explain(err))
		}
		s.settled(route)
		return st, nil
	}
}

func (s *Store) acquire(ctx context.Context, c *mongo.Collection, route, owner string, takeOver bool) (replicator.State, error) {
	cur, err := s.look(ctx, c, route)
	if err != nil {
		return replicator.State{}, err
	}
	next := stored.Of(replicator.State{Route: route})
	if cur != nil {
		if !takeOver && !cur.Clean && cur.Owner != owner && !stored.OwnerGone(cur.Owner, s.cfg.Host) {
			if err := s.lease(ctx, c, *cur); err != nil {
				return replicator.State{}, err
			}
		}
		next = *cur
	}
	next.Owner, next.Revision, next.Clean, next.Token, next.Updated = owner, next.Revision+1, false, bson.NewObjectID(), time.Now().UTC()
	if err := s.swap(ctx, c, cur, next); err != nil {
		return replicator.State{}, err
	}
	return next.Replicator()
}

func (s *Store) look(ctx context.Context, c *mongo.Collection, route string) (cur *stored.State, err error) {
	err = s.t.layer.DoRead(ctx, "route "+route, func(ctx context.Context) (err error) {
		cur, err = find(ctx, c, route)
		return err
	})
	return cur, err
}

// swap replaces cur (nil: nothing) by next, until it is known whether that was done; changedError says that it was not.
func (s *Store) swap(ctx context.Context, c *mongo.Collection, cur *stored.State, next stored.State) error {
	first := true
	return s.t.layer.Do(ctx, "route "+next.Route, func(ctx context.Context) error {
		if !first {
			now, err := find(ctx, c, next.Route)
			if err != nil {
				return err
			}
			if now != nil && now.Token == next.Token {
				return nil
			}
			if (now == nil) != (cur == nil) || now != nil && (now.Owner != cur.Owner || now.Revision != cur.Revision) {
				return final{changedError{}}
			}
		}
		first = false
		if cur == nil {
			_, err := c.InsertOne(ctx, next)
			if mongoerr.IsDuplicateID(err) {
				return changedError{} // or an earlier attempt of ours: look
			}
			return err
		}
		res, err := c.ReplaceOne(ctx, append(byRoute(next.Route), bson.E{Key: "owner", Value: cur.Owner}, bson.E{Key: "revision", Value: cur.Revision}), next)
		if err == nil && res.MatchedCount == 0 {
			return changedError{}
		}
		return err
	})
}

// final keeps the layer from trying again; what is inside is for the caller.
type final struct{ error }

// TryAgain is for the layer.
func (final) TryAgain() bool { return false }

func (f final) Unwrap() error { return f.error }

// lease returns nil when cur has stood still for the lease, and *replicator.BusyError when it moves.
func (s *Store) lease(ctx context.Context, c *mongo.Collection, cur stored.State) error {
	return stored.Await(ctx, s.cfg.Lease, cur, changedError{}, func(ctx context.Context) (stored.State, bool, error) {
		now, err := s.look(ctx, c, cur.Route)
		if err != nil || now == nil {
			return stored.State{}, false, err
		}
		return *now, true, nil
	})
}

// Save stores st if its owner and revision are the stored ones, and returns it with the next revision. A save whose outcome was not
// known when its call ended is found by the next one with the same revision: nobody is fenced off by himself.
func (s *Store) Save(ctx context.Context, st replicator.State) (replicator.State, error) {
	st.Clean = false
	return s.save(ctx, st)
}

// Release says that the holder has ended. What else is in st is stored too.
func (s *Store) Release(ctx context.Context, st replicator.State) error {
	st.Clean = true
	_, err := s.save(ctx, st)
	return err
}

func (s *Store) save(ctx context.Context, st replicator.State) (replicator.State, error) {
	c, err := s.collection(ctx)
	if err != nil {
		return replicator.State{}, fmt.Errorf("save route %q: %w", st.Route, err)
	}
	cur := stored.State{Route: st.Route, Owner: st.Owner, Revision: st.Revision}
	for {
		st.Updated = time.Now().UTC()
		next := stored.Of(st)
		next.Revision, next.Token = cur.Revision+1, bson.NewObjectID()
		s.note(st.Route, next.Token)
		err := s.swap(ctx, c, &cur, next)
		if err == nil {
			s.settled(st.Route)
			st.Revision = next.Revision
			return st, nil
		}
		if _, changed := errors.AsType[changedError](err); !changed {
			return replicator.State{}, fmt.Errorf("save route %q: %w", st.Route, explain(err))
		}
		now, err := s.look(ctx, c, st.Route)
		switch {
		case err != nil:
			return replicator.State{}, fmt.Errorf("save route %q: %w", st.Route, explain(err))
		case now != nil && now.Revision > cur.Revision && s.ours(st.Route, now.Token):
			cur.Revision = now.Revision // an earlier save of ours, whose answer was lost
		case now == nil:
			s.settled(st.Route)
			return replicator.State{}, &record.FencedError{Name: st.Route, Owner: record.OwnerNobody}
		default:
			s.settled(st.Route)
			return replicator.State{}, &record.FencedError{Name: st.Route, Owner: now.Owner, Revision: now.Revision}
		}
	}
}

func (s *Store) note(route string, token bson.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsure[route] = append(s.unsure[route], token)
}

func (s *Store) ours(route string, token bson.ObjectID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.unsure[route] {
		if t == token {
			return true
		}
	}
	return false
}

func (s *Store) settled(route string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unsure, route)
}

// Remove forgets a route that nobody runs. While its owner is alive it returns *replicator.BusyError (see Acquire), and
// replicator.ErrNoRoute if nothing is stored. It compares with what it has seen: a route that somebody begins in between stays.
func (s *Store) Remove(ctx context.Context, route string) error {
	c, err := s.collection(ctx)
	if err != nil {
		return fmt.Errorf("remove route %q: %w", route, err)
	}
	gone := false // by an attempt of ours whose answer was lost
	for {
		cur, err := s.look(ctx, c, route)
		switch {
		case err != nil:
		case cur == nil && gone:
			return nil
		case cur == nil:
			return fmt.Errorf("remove route %q: %w", route, replicator.ErrNoRoute)
		case !cur.Clean && !stored.OwnerGone(cur.Owner, s.cfg.Host):
			err = s.lease(ctx, c, *cur)
		}
		if err == nil {
			gone = true
			err = s.remove(ctx, c, *cur)
		}
		if _, again := errors.AsType[changedError](err); again {
			continue // somebody else has got on; what he left is looked at
		}
		if err != nil {
			return fmt.Errorf("remove route %q: %w", route, explain(err))
		}
		s.settled(route)
		return nil
	}
}

// remove deletes cur if it is what is stored; changedError says that it is not, or no longer.
func (s *Store) remove(ctx context.Context, c *mongo.Collection, cur stored.State) error {
	return s.t.layer.Do(ctx, "route "+cur.Route, func(ctx context.Context) error {
		res, err := c.DeleteOne(ctx, append(byRoute(cur.Route), bson.E{Key: "owner", Value: cur.Owner}, bson.E{Key: "revision", Value: cur.Revision}))
		if err == nil && res.DeletedCount == 0 {
			return final{changedError{}}
		}
		return err
	})
}

// Load returns what is stored, replicator.ErrNoRoute if nothing is.
func (s *Store) Load(ctx context.Context, route string) (replicator.State, error) {
	raw, err := s.t.layer.FindOne(ctx, scope.Own, RoutesCollection, failover.ReadConfig{Name: "route " + route}, byRoute(route))
	if errors.Is(err, mongo.ErrNoDocuments) {
		return replicator.State{}, fmt.Errorf("load route %q: %w", route, replicator.ErrNoRoute)
	}
	if err != nil {
		return replicator.State{}, fmt.Errorf("load route %q: %w", route, explain(err))
	}
	_, st, err := decode(raw)
	return st, err
}

// List returns all routes by name. Where documents are damaged it returns the others together with an error that says which.
func (s *Store) List(ctx context.Context) ([]replicator.State, error) {
	docs, err := s.t.layer.Find(ctx, scope.Own, RoutesCollection, failover.ReadConfig{Name: "routes"}, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", explain(err))
	}
	var states []replicator.State
	var damaged []error
	for _, doc := range docs {
		_, st, err := decode(doc)
		if err != nil {
			damaged = append(damaged, err)
			continue // reported below, together with what can be read
		}
		states = append(states, st)
	}
	return states, errors.Join(damaged...)
}
