package experiment

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/stream"
)

// Defaults of LatencyConfig: those of the experiment of 2011 ("The tail of MongoDB", shtylman.com),
// where it says what they are.
const (
	DefaultLatencyCount  = 100_000
	DefaultLatencyRate   = 3900
	DefaultLatencyStream = 100_000_000
	// DefaultSlices makes slices of 1.3 s: short against what a shared machine does meanwhile, long
	// against the pause between two.
	DefaultSlices = 20
)

// LatencyConfig says what RunLatency measures. The zero values of its numbers stand for the defaults.
type LatencyConfig struct {
	// Server starts the server for the variants, standalone (set is false) or of three members, and
	// returns how to reach and to stop it. It is called at most once for each.
	Server func(ctx context.Context, set bool) (LatencyServer, error)
	// OwnServer: Server gives out a server of the user's, which may do other things meanwhile.
	OwnServer bool
	// Worker returns the command that runs RunWorker on its standard input and output.
	Worker func(context.Context) *exec.Cmd
	// Variants holds the names of the variants to run (see Variants); empty means all.
	Variants []string
	// Count is the number of messages of each variant, Rate that of the paced ones, in messages per second.
	Count int64
	Rate  float64
	// Payload is the bytes of data in each message; further values make further steps of the variants
	// await-primed and floor. Producers is the same for the number of producers.
	Payload   []int
	Producers []int
	// StreamBytes is the least size of a stream. It is larger where the messages would not fit.
	StreamBytes int64
	// Slices is how often two variants take turns.
	Slices int
	Seed   uint64
	// Note is told what is going on, one line at a time, Progress how far a variant is; they may be nil.
	Note     func(string)
	Progress func(name string, done, total int64)
}

// LatencyServer is where variants run.
type LatencyServer struct {
	URI string
	// PIDs are the server's processes on this machine, for their CPU time; none leaves that out.
	PIDs []int
	Stop func(context.Context) error
}

func (c LatencyConfig) withDefaults() LatencyConfig {
	c.Count = cmp.Or(c.Count, DefaultLatencyCount)
	c.Rate = cmp.Or(c.Rate, DefaultLatencyRate)
	c.StreamBytes = cmp.Or(c.StreamBytes, DefaultLatencyStream)
	c.Slices = cmp.Or(c.Slices, int(min(DefaultSlices, max(1, c.Count/10))))
	c.Seed = cmp.Or(c.Seed, DefaultSeed)
	if len(c.Payload) == 0 {
		c.Payload = []int{DefaultPayload}
	}
	if len(c.Producers) == 0 {
		c.Producers = []int{1}
	}
	if c.Note == nil {
		c.Note = func(string) {}
	}
	if c.Progress == nil {
		c.Progress = func(string, int64, int64) {}
	}
	return c
}

// Limits of LatencyConfig.
const (
	maxLatencyCount   = 10_000_000
	maxLatencyPayload = 8 << 20
	maxProducers      = 256
)

func (c LatencyConfig) validate() error {
	switch {
	case c.Server == nil || c.Worker == nil:
		return fmt.Errorf("experiment: Server or Worker is missing")
	case c.Count < 100 || c.Count > maxLatencyCount:
		return fmt.Errorf("experiment: Count is %d, want 100 to %d", c.Count, maxLatencyCount)
	case !(c.Rate >= 1 && c.Rate <= 1e6): // also refuses NaN
		return fmt.Errorf("experiment: Rate is %g, want 1 to 1000000 messages per second", c.Rate)
	case c.Slices < 1 || int64(c.Slices) > c.Count/10:
		return fmt.Errorf("experiment: Slices is %d, want 1 to %d (a tenth of Count)", c.Slices, c.Count/10)
	case c.StreamBytes < 1<<20:
		return fmt.Errorf("experiment: StreamBytes is %d, want at least 1 MiB", c.StreamBytes)
	}
	for _, n := range c.Payload {
		if n < 1 || n > maxLatencyPayload {
			return fmt.Errorf("experiment: Payload is %d, want 1 to %d bytes", n, maxLatencyPayload)
		}
	}
	for _, n := range c.Producers {
		if n < 1 || n > maxProducers {
			return fmt.Errorf("experiment: Producers is %d, want 1 to %d", n, maxProducers)
		}
	}
	if c.Producers[0] != 1 {
		return fmt.Errorf("experiment: the first of Producers is %d, want 1: the further ones are compared with it", c.Producers[0])
	}
	known := Variants()
	for _, name := range c.Variants {
		if !slices.Contains(known, name) {
			return fmt.Errorf("experiment: no variant %q; there are: %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// latencyRun is one run of the latency experiment.
type latencyRun struct {
	cfg    LatencyConfig
	run    *LatencyRun
	dir    string // for the samples
	server LatencyServer
	set    bool
	client *mongo.Client
	plain  bool // the server is one that the ideal client can speak to
}

// RunLatency runs the variants one after the other (those that are compared take turns) and returns
// what they measured, with every sample; after an error, what was measured before it. It takes about
// eleven minutes with the defaults; ctx ends it, and its worker processes with it.
//
// Errors: a LatencyConfig out of range, the server's, a worker's; and a message that was lost, doubled
// or moved.
func RunLatency(ctx context.Context, cfg LatencyConfig) (_ *LatencyRun, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	begun := time.Now()
	l := &latencyRun{cfg: cfg, run: &LatencyRun{Settings: cfg.settings(), Skipped: map[string]string{}}}
	if l.dir, err = os.MkdirTemp("", "capstan-latency-*"); err != nil {
		return nil, fmt.Errorf("make a folder for the samples: %w", err)
	}
	defer func() { _ = os.RemoveAll(l.dir) }()
	defer func() {
		if stopErr := l.leave(ctx); err == nil {
			err = stopErr
		}
	}()
	for _, g := range cfg.wanted() {
		if err := l.group(ctx, g); err != nil {
			return l.run, err
		}
	}
	l.run.Figures = l.run.figures()
	l.run.Took = time.Since(begun).Seconds()
	return l.run, nil
}

func (c LatencyConfig) settings() LatencySettings {
	return LatencySettings{Count: c.Count, Rate: c.Rate, Payload: c.Payload, Producers: c.Producers, StreamBytes: c.StreamBytes,
		Slices: c.Slices, Seed: c.Seed, OwnServer: c.OwnServer}
}

// wanted returns the groups that are asked for. What a variant needs comes with it: the maximum of
// naive, whose half is a rate. Steps of a sweep come with their base.
func (c LatencyConfig) wanted() [][]variant {
	want := func(v variant) bool {
		has := func(name string) bool { return slices.Contains(c.Variants, name) }
		return len(c.Variants) == 0 || has(v.name) || v.base != "" && has(v.base) ||
			v.name == naiveUnpaced && (has(naivePaced) || has(primedAtNaive))
	}
	var out [][]variant
	for _, g := range c.groups() {
		if g = slices.DeleteFunc(g, func(v variant) bool { return !want(v) }); len(g) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// Messages returns how many messages a run will send in all, as far as nothing has to be skipped; 0 if
// the Config is out of range.
func (c LatencyConfig) Messages() int64 {
	c = c.withDefaults()
	var n int64
	for _, g := range c.wanted() {
		n += int64(len(g)) * c.Count
	}
	return n
}

// enter makes the kind of server ready that a variant needs.
func (l *latencyRun) enter(ctx context.Context, set bool) error {
	if l.client != nil && (l.set == set || l.cfg.OwnServer) {
		return nil
	}
	if err := l.leave(ctx); err != nil {
		return err
	}
	server, err := l.cfg.Server(ctx, set)
	if err != nil {
		return err
	}
	l.server, l.set = server, set
	if l.client, err = mongo.Connect(options.Client().ApplyURI(server.URI)); err != nil {
		return fmt.Errorf("connect for set-up: %w", err)
	}
	var hello struct {
		Set string `bson:"setName"`
	}
	if err := l.client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return fmt.Errorf("ask the server for its state: %w", err)
	}
	if l.cfg.OwnServer {
		l.set = hello.Set != ""
	}
	l.plain = false
	if conn, err := dialRaw(ctx, server.URI); err == nil {
		// A server with access control greets everybody and refuses the rest.
		_, err = conn.Count("capstan_bench_latency", "none")
		l.plain = err == nil && !l.set
		_ = conn.Close()
	}
	if l.run.Machine.Mongod == "" {
		var info struct {
			Version string `bson:"version"`
		}
		if err := l.client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
			return fmt.Errorf("ask the server for its version: %w", err)
		}
		l.run.Machine = ThisMachine(info.Version)
	}
	return nil
}

// leave stops the server.
func (l *latencyRun) leave(ctx context.Context) error {
	if l.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*workerGrace)
	defer cancel()
	_ = l.client.Disconnect(ctx)
	l.client = nil
	return l.server.Stop(ctx)
}

// skip returns why v cannot run on the present server, "" if it can.
func (l *latencyRun) skip(v variant) string {
	switch {
	case v.set && !l.set:
		return "the server is no replica set"
	case (v.send.who == Raw || v.read.who == Raw) && !l.plain:
		return "the ideal client needs one standalone server without access control and TLS"
	}
	return ""
}

// fresh drops and creates the stream of a variant and returns where it is.
func (l *latencyRun) fresh(ctx context.Context, v variant) (database string, err error) {
	database = "capstan_bench_latency_" + strings.NewReplacer("-", "_", "@", "_").Replace(v.name)
	db := l.client.Database(database)
	if err := db.Drop(ctx); err != nil {
		return "", fmt.Errorf("drop %s: %w", database, err)
	}
	const overhead = 200 // bytes of a message beyond its data, and some more
	size := max(l.cfg.StreamBytes, l.cfg.Count*int64(v.payload+overhead))
	if v.unprimed {
		err = db.CreateCollection(ctx, benchStream, options.CreateCollection().SetCapped(true).SetSizeInBytes(size))
	} else {
		_, err = stream.Ensure(ctx, db, benchStream, stream.Config{Size: size})
	}
	if err != nil {
		return "", fmt.Errorf("create the stream of %s: %w", v.name, err)
	}
	return database, nil
}
