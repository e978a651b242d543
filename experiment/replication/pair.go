package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/localcluster"
)

const (
	// downTime is what servers get to end; their directories are temporary, so they are killed at once.
	downTime = 20 * time.Second
	// healthTime bounds the wait for sets that have been broken: a member that was killed recovers in seconds, on a busy machine
	// in more.
	healthTime = 3 * time.Minute
)

// Pair is a source and a destination, each a set of servers on this machine.
type Pair struct {
	Source, Target *localcluster.Cluster
	// From and To are clients of them.
	From, To *mongo.Client
}

// StartPair starts both sides. members is 1 or 3, as in localcluster.Config, but one server is a replica set of one. The caller
// calls Down.
func StartPair(ctx context.Context, members, cacheMB int, log zerolog.Logger) (*Pair, error) {
	p := &Pair{}
	start := func(to **localcluster.Cluster) func() error {
		return func() (err error) {
			cfg := localcluster.Config{Members: members, CacheMB: cacheMB, Logger: log, ExtraArgs: []string{"--setParameter", "enableTestCommands=1"}}
			if members == 1 {
				cfg.Set, cfg.OplogMB = setOfOne, oplogOfOne
			}
			*to, err = localcluster.Start(ctx, cfg)
			return err
		}
	}
	var g errgroup.Group
	g.Go(start(&p.Source))
	g.Go(start(&p.Target))
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, p.Down(context.WithoutCancel(ctx)))
	}
	var err error
	if p.From, err = client(p.Source); err == nil {
		p.To, err = client(p.Target)
	}
	if err != nil {
		return nil, errors.Join(err, p.Down(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// A set of one is what the figures are measured on.
const (
	setOfOne   = "one"
	oplogOfOne = 2048
)

// SourceURI and TargetURI are the connection strings. They hold no credentials.
func (p *Pair) SourceURI() string { return p.Source.URI() }

// TargetURI is that of the destination.
func (p *Pair) TargetURI() string { return p.Target.URI() }

func client(c *localcluster.Cluster) (*mongo.Client, error) {
	return mongo.Connect(options.Client().ApplyURI(c.URI()).SetAppName("capstan bench").SetServerSelectionTimeout(healthTime))
}

// Down disconnects and takes both sides down.
func (p *Pair) Down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, downTime)
	defer cancel()
	var errs []error
	for _, client := range []*mongo.Client{p.From, p.To} {
		if client != nil {
			errs = append(errs, client.Disconnect(ctx))
		}
	}
	for _, c := range []*localcluster.Cluster{p.Source, p.Target} {
		if c != nil {
			errs = append(errs, c.Down(ctx))
		}
	}
	return errors.Join(errs...)
}

// healthy waits until both sides are as a fault should find them.
func (p *Pair) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	for side, c := range map[Side]*localcluster.Cluster{Source: p.Source, Target: p.Target} {
		if err := c.AwaitHealthy(ctx); err != nil {
			return fmt.Errorf("wait for the %s to be whole: %w", side, err)
		}
	}
	return nil
}

func (p *Pair) cluster(side Side) *localcluster.Cluster {
	if side == Source {
		return p.Source
	}
	return p.Target
}
