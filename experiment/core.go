// Package experiment is what `capstan bench` runs: experiments that anyone can repeat on one Linux
// machine, with the raw numbers beside the result.
//
// The first is the core: what a producer and a tail of this project cost, as ratios against an ideal
// client (package raw) that does the same on the same server in the same run. A ratio survives a slow
// or busy machine; a figure of messages per second does not.
package experiment

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/experiment/raw"
	"github.com/seed-12ef14e5/capstan/stream"
)

// Defaults of CoreConfig.
const (
	// DefaultRounds is odd, so that the median is one of the measured ratios.
	DefaultRounds = 5
	// DefaultMessages of DefaultPayload bytes fill two thirds of a stream of DefaultStreamBytes, so
	// that nothing rolls over in the comparison of producers.
	DefaultMessages = 300_000
	// DefaultPayload is a short log line; with the other fields a message has some 230 bytes.
	DefaultPayload = 100
	// DefaultLargePayload makes messages of just under 1 KB, for the memory figures.
	DefaultLargePayload = 900
	DefaultStreamBytes  = stream.DefaultSize
	DefaultBatch        = 1000
	DefaultIdle         = 20 * time.Second
	DefaultSeed         = 1
)

// CoreConfig says what RunCore measures. The zero values of its numbers stand for the defaults above.
type CoreConfig struct {
	// URI is a standalone server without authentication or TLS. Databases named capstan_bench_… in it
	// are dropped.
	URI string
	// ServerPID is the server's process on this machine, for its CPU time; 0 leaves that out.
	ServerPID int
	// Worker returns the command that runs RunWorker on its standard input and output.
	Worker func(context.Context) *exec.Cmd
	// Rounds is how often each side is measured; the sides take turns at going first.
	Rounds int
	// Messages and Payload size the comparison of producers.
	Messages int64
	Payload  int
	// LargePayload sizes the messages of the memory figures.
	LargePayload int
	// StreamBytes is the size of the streams.
	StreamBytes int64
	// Batch is the number of messages in each insert of the raw producer.
	Batch int
	// Idle is how long the idle tail is watched.
	Idle time.Duration
	Seed uint64
	// Only holds the names of the parts to run; empty means all of Parts.
	Only []string
	// Note is told what is going on, one line at a time; it may be nil.
	Note func(string)
}

func (c CoreConfig) withDefaults() CoreConfig {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.Rounds, DefaultRounds)
	set(&c.Payload, DefaultPayload)
	set(&c.LargePayload, DefaultLargePayload)
	set(&c.Batch, DefaultBatch)
	if c.Messages == 0 {
		c.Messages = DefaultMessages
	}
	if c.StreamBytes == 0 {
		c.StreamBytes = DefaultStreamBytes
	}
	if c.Idle == 0 {
		c.Idle = DefaultIdle
	}
	if c.Seed == 0 {
		c.Seed = DefaultSeed
	}
	if c.Note == nil {
		c.Note = func(string) {}
	}
	return c
}

func (c CoreConfig) validate() error {
	switch {
	case c.URI == "":
		return fmt.Errorf("experiment: URI is missing")
	case c.Worker == nil:
		return fmt.Errorf("experiment: Worker is missing")
	case c.Rounds < 1:
		return fmt.Errorf("experiment: Rounds is %d: must be at least 1", c.Rounds)
	case c.Messages < 1 || c.Payload < 1 || c.LargePayload < 1 || c.Batch < 1:
		return fmt.Errorf("experiment: Messages, Payload, LargePayload and Batch must be positive")
	case c.StreamBytes < 1<<20:
		return fmt.Errorf("experiment: StreamBytes is %d: must be at least 1 MiB", c.StreamBytes)
	}
	for _, name := range c.Only {
		if !slices.Contains(Parts(), name) {
			return fmt.Errorf("experiment: no part %q; there are %q", name, Parts())
		}
	}
	return nil
}

// part is one of the things that RunCore measures.
type part struct {
	name string
	run  func(*core, context.Context) error
}

func parts() []part {
	return []part{
		{"produce", (*core).produce},
		{"catchup", (*core).catchUp},
		{"memory", (*core).memory},
		{"idle", (*core).idle},
	}
}

// Parts returns the names for CoreConfig.Only.
func Parts() []string {
	var names []string
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// core is one run of the core experiment.
type core struct {
	cfg    CoreConfig
	conn   *raw.Conn
	client *mongo.Client
	report *CoreReport
}

// RunCore measures and returns the report, complete or with what was measured before the error. It
// blocks for a few minutes; ctx ends it, and its worker processes with it.
func RunCore(ctx context.Context, cfg CoreConfig) (*CoreReport, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	conn, err := dialRaw(ctx, cfg.URI)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	version, err := conn.Version()
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(cfg.URI))
	if err != nil {
		return nil, fmt.Errorf("connect for set-up: %w", err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	c := &core{cfg: cfg, conn: conn, client: client, report: &CoreReport{Machine: ThisMachine(version), Config: settingsOf(cfg)}}
	for _, p := range parts() {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, p.name) {
			continue
		}
		cfg.Note(p.name)
		if err := p.run(c, ctx); err != nil {
			return c.report, fmt.Errorf("measure %s: %w", p.name, err)
		}
	}
	return c.report, nil
}

// fresh drops and creates a stream in a database of its own and returns its identity.
func (c *core) fresh(ctx context.Context, database, name string) (stream.Info, error) {
	if err := c.conn.DropDatabase(database); err != nil {
		return stream.Info{}, err
	}
	return stream.Ensure(ctx, c.client.Database(database), name, stream.Config{Size: c.cfg.StreamBytes})
}

// one runs one job in a process of its own and returns its outcome.
func (c *core) one(ctx context.Context, j Job) (Outcome, error) {
	j.URI = c.cfg.URI
	w, err := startWorker(ctx, c.cfg.Worker, j)
	if err != nil {
		return Outcome{}, err
	}
	if err := w.begin(); err != nil {
		return Outcome{}, err
	}
	return w.wait()
}
