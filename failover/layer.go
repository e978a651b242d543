// Package failover does one thing: it does what is idempotent (an insert, a read, a step of the caller's)
// until its outcome is known, through elections, frozen hosts and cut cables.
//
// It promises that a write it reports as applied is stored, and committed by the majority of a
// replica set (I1); that a document is stored at most once while the collection retains it; that a batch on a
// stream is stored in its order (I4); and that every call returns by its deadline + 250 ms (I8). What it
// cannot find out within its budget it reports as unknown, with the ids, and never as a failure.
//
// StreamWriter writes to capped collections, CollectionWriter to ordinary ones; Read, Find and FindOne
// read; Do and DoRead run steps that another package makes.
//
// DESIGN.md in this folder says how, and why not more simply.
package failover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/topology"
	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/record"
)

// Layer owns a client and hands out writers that share it. Safe for concurrent use.
type Layer struct {
	cfg  Config
	opts *options.ClientOptions
	// overridden names the options that are not as the caller asked; it is logged when the layer connects.
	overridden []string
	primary    topology.Primary
	avoided    avoided
	patience   patience
	// standalone is whether the last topology seen is a single server without a replica set; false
	// while nothing is known, since majority is understood everywhere.
	standalone atomic.Bool
	// dialer finds the connections of lines; direct is whether inserts may take them.
	dialer   *wire.Dialer
	direct   atomic.Bool
	maxLines int

	mu     sync.Mutex
	client *mongo.Client // made at first use
	lines  map[*wire.Line]struct{}
	places int // of lines, and of those that are being made
	closed bool
}

const (
	// minPool is how many connections a pool must allow for each that a line keeps: what resolves an
	// unknown outcome needs others.
	minPool = 4
	// maxLines is how many writers of a layer may keep a connection each (of the driver's 100).
	maxLines = 16
)

// New returns a Layer that connects, as base says, at its first use. base is copied, and may be
// used for other clients. What the layer must decide by itself is overridden in its copy: retries
// are off (a hidden second attempt of the driver turns a clear answer into a misleading one), no timeout is
// longer than Config.AttemptTimeout, and none is 0. timeoutMS becomes the budget. One log line says, when the
// layer connects, what is overridden; DESIGN.md has the table.
//
// The error is about base, which may ask for less than the layer promises (w=1), or c. New does no I/O.
func New(base *options.ClientOptions, c Config) (*Layer, error) {
	if base == nil {
		base = options.Client()
	}
	opts := *base
	err := opts.Validate()
	if err == nil {
		c, err = c.adopt(&opts)
	}
	if err == nil {
		c = c.withDefaults()
		err = c.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("configure failover layer: %w", err)
	}
	l := &Layer{cfg: c, opts: &opts, lines: make(map[*wire.Line]struct{})}
	l.cfg.Logger = c.Logger.With().Str("component", "failover").Logger()
	l.overridden = override(&opts, c)
	// Who monitors commands wants to see all of them, which needs the driver.
	l.maxLines = maxLines
	if n := opts.MaxPoolSize; n != nil && *n > 0 {
		l.maxLines = int(min(maxLines, *n/minPool))
	}
	if !c.Plain && opts.Monitor == nil && l.maxLines > 0 {
		l.dialer = wire.NewDialer(opts.Dialer)
		opts.SetDialer(l.dialer)
		l.direct.Store(true)
	}
	opts.SetServerMonitor(l.primary.Monitor(l.kindMonitor(base.ServerMonitor)))
	return l, nil
}

// kindMonitor notes whether the deployment is a standalone server, and hands events on to next.
func (l *Layer) kindMonitor(next *event.ServerMonitor) *event.ServerMonitor {
	m := event.ServerMonitor{}
	if next != nil {
		m = *next
	}
	after := m.TopologyDescriptionChanged
	m.TopologyDescriptionChanged = func(e *event.TopologyDescriptionChangedEvent) {
		l.avoided.back(e)
		for _, s := range e.NewDescription.Servers {
			if s.Kind != "Unknown" {
				l.standalone.Store(s.Kind == "Standalone")
				break
			}
		}
		if after != nil {
			after(e)
		}
	}
	return &m
}

// connected returns the client, making it if this is the first use.
func (l *Layer) connected() (*mongo.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, record.ErrClosed
	}
	if l.client == nil {
		opts := *l.opts
		if err := choose(&opts, &l.avoided, &l.patience); err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		c, err := mongo.Connect(&opts) // starts the monitoring; waits for nothing
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		l.client = c
		l.sayOverridden()
	}
	return l.client, nil
}

// reserve takes one of the places for lines, and reports whether there was one.
func (l *Layer) reserve() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.places >= l.maxLines {
		return false
	}
	l.places++
	return true
}

// keep registers a line for a reserved place, so that Close can release it; nil gives the place back. It
// returns false, and releases the line, if the layer is closed.
func (l *Layer) keep(line *wire.Line) bool {
	l.mu.Lock()
	kept := line != nil && !l.closed
	if kept {
		l.lines[line] = struct{}{}
	} else {
		l.places--
	}
	l.mu.Unlock()
	if !kept && line != nil {
		line.Release()
	}
	return kept
}

// release gives a line's connection back to the driver.
func (l *Layer) release(line *wire.Line) {
	line.Release()
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.lines[line]; ok {
		delete(l.lines, line)
		l.places--
	}
}

// Close ends the connections. Writes in progress are cut, and report what they know. It waits for
// them to let go of their connections until ctx ends, and for one attempt timeout at most. Further
// calls, and writes, return record.ErrClosed.
func (l *Layer) Close(ctx context.Context) error {
	l.mu.Lock()
	c, closed := l.client, l.closed
	l.client, l.closed = nil, true
	lines := slices.Collect(maps.Keys(l.lines))
	clear(l.lines)
	l.mu.Unlock()
	for _, line := range lines {
		line.Release() // the driver waits for the connections that are in use
	}
	if closed {
		return record.ErrClosed
	}
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AttemptTimeout)
	defer cancel()
	if err := c.Disconnect(ctx); err != nil {
		return fmt.Errorf("close connections: %w", err)
	}
	return nil
}
