// Package workload changes databases at random, in every way that a replicator has to follow: writers insert, update
// with operators and pipelines, replace, delete, use transactions, move unique values between documents, cut
// arrays, fill capped collections, and create, rename, index and drop collections.
//
// It promises that a seed decides everything that the writers intend: the same Config makes the same commands in the
// same order per writer. It promises nothing about what becomes of them, as writers run side by side and servers
// fail: a command whose outcome is not known is sent again, and may be applied twice. Whoever judges compares the
// source with the destination and not with the commands.
package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"
)

// Defaults of Config.
const (
	// DefaultWriters is how many writers run side by side.
	DefaultWriters = 4
	// DefaultOps is how many operations each of them makes.
	DefaultOps = 300
	// DefaultDocuments is how many documents there are in the beginning.
	DefaultDocuments = 4000
)

// Config says what a Load does. The zero Config is valid.
type Config struct {
	// Seed decides what is written.
	Seed uint64
	// Prefix begins the names of the databases; "" means "load".
	Prefix string
	// Writers and Ops: see DefaultWriters and DefaultOps. 0 means these.
	Writers, Ops int
	// Documents is about how many there are before Run; 0 means DefaultDocuments.
	Documents int
	// Rate is how many operations a second all writers together begin; 0 means as many as they can.
	Rate float64
	// Without names kinds of operations that are left out; see Kinds. "capped" and "collation" also leave out their collections.
	Without []string
	// Logger hears of commands that servers refuse, at debug level: most are meant to be refused now and then.
	Logger zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = "load"
	}
	if c.Writers == 0 {
		c.Writers = DefaultWriters
	}
	if c.Ops == 0 {
		c.Ops = DefaultOps
	}
	if c.Documents == 0 {
		c.Documents = DefaultDocuments
	}
	return c
}

func (c Config) validate() error {
	switch {
	case strings.ContainsAny(c.Prefix, " .$/\\\"*"):
		return fmt.Errorf("field Prefix is %q; it must be the beginning of a database's name", c.Prefix)
	case c.Writers < 1 || c.Writers > 64:
		return fmt.Errorf("field Writers is %d; it must be 1 to 64", c.Writers)
	case c.Ops < 1:
		return fmt.Errorf("field Ops is %d; it must be positive", c.Ops)
	case c.Documents < 1:
		return fmt.Errorf("field Documents is %d; it must be positive", c.Documents)
	case c.Rate < 0:
		return fmt.Errorf("field Rate is %v; it must not be negative", c.Rate)
	}
	for _, name := range c.Without {
		if !slices.Contains(Kinds(), name) {
			return fmt.Errorf("field Without: %q is not one of %s", name, strings.Join(Kinds(), ", "))
		}
	}
	return nil
}

// Load is a workload. Prepare, Run and Stats are safe to use at the same time, Prepare and Run one after the other.
type Load struct {
	cfg Config

	mu    sync.Mutex
	stats Stats
}

// Stats count operations.
type Stats struct {
	// Done counts those that a server accepted, by kind; Refused those that it did not, which a random load has.
	Done, Refused map[string]int
	// Repeats counts attempts after one whose outcome was not known.
	Repeats int
}

// Total is the number of operations that were accepted.
func (s Stats) Total() int {
	n := 0
	for _, v := range s.Done {
		n += v
	}
	return n
}

// New returns a Load. It does no I/O.
func New(cfg Config) (*Load, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	return &Load{cfg: cfg, stats: Stats{Done: map[string]int{}, Refused: map[string]int{}}}, nil
}

// Databases are those that the load writes to.
func (l *Load) Databases() []string { return []string{l.cfg.Prefix + "a", l.cfg.Prefix + "b"} }

// Stats returns what has been done so far.
func (l *Load) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Done: maps.Clone(l.stats.Done), Refused: maps.Clone(l.stats.Refused), Repeats: l.stats.Repeats}
}

// Prepare creates the collections and their first documents. It tries again while the servers are in trouble, until ctx ends.
func (l *Load) Prepare(ctx context.Context, client *mongo.Client) error {
	g := newGenerator(l.cfg, 0)
	for _, o := range g.prepare() {
		if err := l.do(ctx, client, o); err != nil {
			return fmt.Errorf("prepare workload: %s: %w", o.kind, err)
		}
	}
	return nil
}

// Run makes all operations of all writers and returns when they are made, or when ctx ends: then with its cause.
func (l *Load) Run(ctx context.Context, client *mongo.Client) error {
	g, ctx := errgroup.WithContext(ctx)
	for w := range l.cfg.Writers {
		g.Go(func() error { return l.write(ctx, client, newGenerator(l.cfg, w+1)) })
	}
	return g.Wait()
}

// write is one writer.
func (l *Load) write(ctx context.Context, client *mongo.Client, g *generator) error {
	began := time.Now()
	for i := range l.cfg.Ops {
		o := g.next()
		if l.cfg.Rate > 0 {
			due := began.Add(time.Duration(float64(i*l.cfg.Writers) / l.cfg.Rate * float64(time.Second)))
			if err := until(ctx, due); err != nil {
				return err
			}
		}
		err := l.do(ctx, client, o)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l.count(o.kind, err)
	}
	return nil
}

func (l *Load) count(kind string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.stats.Done[kind]++
		return
	}
	l.stats.Refused[kind]++
	l.cfg.Logger.Debug().Str("kind", kind).Err(err).Msg("operation refused")
}

// Intent returns what writer number (1 and up) intends, as text: one operation a line.
func (l *Load) Intent(writer int) string {
	var b strings.Builder
	g := newGenerator(l.cfg, writer)
	for range l.cfg.Ops {
		b.WriteString(g.next().String() + "\n")
	}
	return b.String()
}

// errStop ends a repetition for good.
var errStop = errors.New("the operation was tried too often")
