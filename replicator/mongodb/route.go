package mongodb

import (
	"context"
	"errors"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// RouteConfig configures the two sides of a Route. The zero value is valid.
type RouteConfig struct {
	// Failover is that of the layers through which both sides are read and written.
	Failover failover.Config
	// Store configures what keeps the state at the destination.
	Store StoreConfig
	// States keeps the state instead, if it is not nil: for example in a file of package statefile. A state of another destination is
	// refused then. Routes that keep their state at the destination do not see this one: that they overlap is found here only.
	States replicator.Store
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
}

// Route is a replicator.Link between two deployments of MongoDB, with the connections that it needs. Its dead letters are kept in
// the destination's database scope.Own, and so is its state, unless RouteConfig.States is set.
type Route struct {
	// Link is what runs.
	Link *replicator.Link
	// Store and Letters are where it keeps its state and its dead letters.
	Store   replicator.Store
	Letters *Letters

	source *Source
	target *Target
}

// OpenRoute returns the route of that name. It does no I/O. Errors are about the options or a Config. Close it after Link.Run has
// returned.
func OpenRoute(source, target *options.ClientOptions, name string, link replicator.Config, cfg RouteConfig) (*Route, error) {
	cfg.Failover.Logger = cfg.Logger
	src, err := NewSource(source, SourceConfig{Failover: cfg.Failover, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	dst, err := NewTarget(target, TargetConfig{Failover: cfg.Failover})
	if err != nil {
		return nil, err
	}
	r := &Route{source: src, target: dst}
	store, err := NewStore(dst, cfg.Store)
	if err != nil {
		return nil, err
	}
	r.Store = store
	if cfg.States != nil {
		r.Store = &elsewhere{Store: cfg.States, target: dst, here: store, hosts: target.Hosts}
	}
	r.Letters = NewLetters(dst)
	if link.Passes == nil {
		link.Passes = Passes
	}
	if r.Link, err = replicator.New(name, src, dst, r.Store, r.Letters, link); err != nil {
		return nil, err
	}
	return r, nil
}

// Close ends the connections.
func (r *Route) Close(ctx context.Context) error {
	return errors.Join(r.source.Close(ctx), r.target.Close(ctx))
}

// Passes reports whether an error of a Source, Target, Store or Letters may be gone after a while, when somebody has started a
// server, mended a cable or made room on a disk: the patience of package failover has ended, and nothing else.
func Passes(err error) bool {
	if mongoerr.IsUnauthorized(err) || mongoerr.BadCredentials(err) {
		return false
	}
	if mongoerr.IsOutOfDiskSpace(err) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	c := mongoerr.Classify(err)
	if c.Network || c.Timeout {
		return true
	}
	switch c.Write {
	case mongoerr.WriteNotSent, mongoerr.WriteUnknown, mongoerr.WriteUncommitted:
		return c.Read == mongoerr.ReadRetry
	}
	return false
}
