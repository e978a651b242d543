// Package statefile is a replicator.Store in a file: the checkpoints of all routes that run on one machine.
//
// It promises what replicator.Store says: a route has one holder, told by owner and revision; a call that returned nil survives a crash
// and a power cut; a file that is damaged is an error and never an empty state. It promises nothing between machines.
package statefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/lockedfile"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/stored"
)

const (
	// DefaultLease is several times what a running route lets pass between two saves (a second).
	DefaultLease = 5 * time.Second
	// DefaultLockWait is far more than the one read and the one write for which a process keeps the lock.
	DefaultLockWait = 10 * time.Second
)

// Config configures a Store. The zero value is valid.
type Config struct {
	// Lease is how long the revision of a route must stand still until its owner counts as dead. 0 means DefaultLease.
	Lease time.Duration
	// LockWait is how long a call waits for another process that has the file locked, unless its context ends first. 0 means
	// DefaultLockWait.
	LockWait time.Duration
	// Host is this machine's name, for owners that end in "HOST pid N …"; "" means what the machine says.
	Host string
}

func (c Config) withDefaults() Config {
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.LockWait == 0 {
		c.LockWait = DefaultLockWait
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname() // without a name no owner is known to be of this machine
	}
	return c
}

func (c Config) validate() error {
	if c.Lease < 0 || c.LockWait < 0 {
		return fmt.Errorf("configure the state file: Lease is %s and LockWait %s; they must not be negative", c.Lease, c.LockWait)
	}
	return nil
}

// Store keeps the State of routes in one JSON file. Safe for concurrent use, by several processes too. It holds nothing open
// between calls, so there is nothing to close.
//
// Every change reads the file anew under an exclusive lock on PATH.lock, compares owner and revision, and replaces the file as package
// lockedfile says. Whether an owner is alive is seen from its revision, which moves at least once a second while a route runs.
type Store struct {
	path string
	cfg  Config
	file *lockedfile.File

	mu sync.Mutex
	// unsure holds, per route, the tokens of saves that failed and may be in the file: at most two.
	unsure map[string][]bson.ObjectID
}

// New returns the store in the file at path, which need not exist; its directory must. It does no I/O. Errors: an empty path, or a
// Config that is out of range.
func New(path string, cfg Config) (*Store, error) {
	if path == "" {
		return nil, errors.New("configure the state file: the path is empty")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Store{path: path, cfg: cfg, file: lockedfile.New(path, cfg.LockWait), unsure: map[string][]bson.ObjectID{}}, nil
}

// errChanged says that another process changed the state in between: look again.
var errChanged = errors.New("another process changed the state in between")

// Acquire makes owner the holder of the route and returns what is stored. While another owner is alive it returns
// *replicator.BusyError: at once if its revision moves, after Config.Lease at the latest. An owner of this machine whose process is
// gone, or that has released the route, is followed at once. Further errors: *CorruptError and those of the file system.
func (s *Store) Acquire(ctx context.Context, route, owner string, takeOver bool) (replicator.State, error) {
	if route == "" || owner == "" {
		return replicator.State{}, errors.New("acquire route: the route or the owner has no name")
	}
	for {
		st, err := s.acquire(ctx, route, owner, takeOver)
		if errors.Is(err, errChanged) {
			continue // each time somebody else has got on
		}
		if err != nil {
			return replicator.State{}, fmt.Errorf("acquire route %q: %w", route, err)
		}
		s.settled(route)
		return st, nil
	}
}

func (s *Store) acquire(ctx context.Context, route, owner string, takeOver bool) (replicator.State, error) {
	cur, found, err := s.look(ctx, route)
	if err != nil {
		return replicator.State{}, err
	}
	if found && !takeOver && !cur.Clean && cur.Owner != owner && !stored.OwnerGone(cur.Owner, s.cfg.Host) {
		if err := s.lease(ctx, cur); err != nil {
			return replicator.State{}, err
		}
	}
	var next stored.State
	err = s.change(ctx, func(routes map[string]stored.State) error {
		now, still := routes[route]
		if still != found || now.Owner != cur.Owner || now.Revision != cur.Revision {
			return errChanged
		}
		if next = now; !found {
			next = stored.Of(replicator.State{Route: route})
		}
		next.Owner, next.Revision, next.Clean, next.Token, next.Updated = owner, now.Revision+1, false, bson.NewObjectID(), time.Now().UTC()
		routes[route] = next
		return nil
	})
	if err != nil {
		return replicator.State{}, err
	}
	return next.Replicator()
}

// lease returns nil when cur has stood still for the lease, and *replicator.BusyError when it moves.
func (s *Store) lease(ctx context.Context, cur stored.State) error {
	return stored.Await(ctx, s.cfg.Lease, cur, errChanged, func(ctx context.Context) (stored.State, bool, error) {
		return s.look(ctx, cur.Route)
	})
}

// Save stores st if its owner and revision are the stored ones, and returns it with the next revision. After an error of the file
// system the file may hold st already; the next Save with the same revision, through the same Store, is then not fenced off by it.
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
	st.Updated = time.Now().UTC()
	next := stored.Of(st)
	next.Token = bson.NewObjectID()
	err := s.change(ctx, func(routes map[string]stored.State) error {
		now, found := routes[st.Route]
		switch {
		case !found:
			return &record.FencedError{Name: st.Route, Owner: record.OwnerNobody}
		case now.Owner == st.Owner && now.Revision == st.Revision:
		case now.Owner == st.Owner && s.ours(st.Route, now.Token): // an earlier save, which failed behind the rename
		default:
			return &record.FencedError{Name: st.Route, Owner: now.Owner, Revision: now.Revision}
		}
		next.Revision = now.Revision + 1
		routes[st.Route] = next
		s.note(st.Route, now.Token, next.Token) // under the lock, so that no other can be there after this
		return nil
	})
	if err != nil {
		if errors.As(err, new(*record.FencedError)) {
			s.settled(st.Route)
		}
		return replicator.State{}, fmt.Errorf("save route %q: %w", st.Route, err)
	}
	s.settled(st.Route)
	st.Revision = next.Revision
	return st, nil
}

func (s *Store) note(route string, tokens ...bson.ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsure[route] = tokens
}

func (s *Store) ours(route string, token bson.ObjectID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.unsure[route], token)
}

func (s *Store) settled(route string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unsure, route)
}

// Load returns what is stored, replicator.ErrNoRoute if nothing is.
func (s *Store) Load(ctx context.Context, route string) (replicator.State, error) {
	cur, found, err := s.look(ctx, route)
	if err == nil && !found {
		err = replicator.ErrNoRoute
	}
	if err != nil {
		return replicator.State{}, fmt.Errorf("load route %q: %w", route, err)
	}
	return cur.Replicator()
}

// List returns all routes by name.
func (s *Store) List(ctx context.Context) ([]replicator.State, error) {
	routes, err := s.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return states(routes)
}

func (s *Store) look(ctx context.Context, route string) (cur stored.State, found bool, err error) {
	routes, err := s.read(ctx)
	cur, found = routes[route]
	return cur, found, err
}

func (s *Store) read(ctx context.Context) (map[string]stored.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := lockedfile.Read(s.path)
	if err != nil {
		return nil, passing(err)
	}
	return s.routes(b)
}

func (s *Store) routes(b []byte) (map[string]stored.State, error) {
	routes, err := decode(b)
	if err != nil {
		return nil, &CorruptError{Path: s.path, Err: err}
	}
	return routes, nil
}

// change runs edit on the routes under the lock and writes them back if it returns nil.
func (s *Store) change(ctx context.Context, edit func(map[string]stored.State) error) error {
	return passing(s.file.Change(ctx, func(old []byte) ([]byte, error) {
		routes, err := s.routes(old)
		if err != nil {
			return nil, err
		}
		if err := edit(routes); err != nil {
			return nil, err
		}
		return encode(routes)
	}))
}

// passingError is an error that may be gone after a while.
type passingError struct{ error }

// TryAgain is for replicator.Passing.
func (passingError) TryAgain() bool { return true }

func (e passingError) Unwrap() error { return e.error }

// passing marks what may be gone after a while, when somebody has made room on the disk or mended it. A missing directory or right is
// for a person to look at now.
func passing(err error) error {
	if errors.As(err, new(*lockedfile.LockedError)) {
		return passingError{err}
	}
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ESTALE, syscall.ENFILE, syscall.EMFILE} {
		if errors.Is(err, e) {
			return passingError{err}
		}
	}
	return err
}
