package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

const demoHelp = `Start real MongoDB servers on this machine, send messages through them, break them, and count.

First a replica set of three: a producer sends --count messages at a steady rate, and a consumer that
waits for the majority's commit receives them. After about a third the primary is killed with -9, and
started again once the others take writes. When all three are in service and caught up, after about two
thirds, whoever is primary then is frozen (SIGSTOP): its connections stay open and nothing answers. It is
thawed some seconds after writes are acknowledged again. If fewer than five seconds of the load are left
when the set is whole, there is no freeze, and the report says so.

Then a standalone server, for the latency without replication. Both are judged by an oracle that has seen
every send, acknowledgement and delivery, and reads the stream once more by itself: exit code 1 if a
message was lost or doubled, or came out of order.

The table goes to standard output, progress to standard error. The latency of each message is in --out,
as CSV (index, seconds) and as a picture, with a copy of the report. Servers and data are gone when the
command ends, also on Ctrl-C. It takes about a minute and a half, and two cores.
`

const demoExample = `  capstan demo
  capstan demo --count 20000 --out demo-small
  capstan demo --seed 42                     # the same payloads, the faults at the same messages`

// The sizes and rates of the demo. Two cores carry three members at about 8,000 capped messages a second
// with a majority's acknowledgement; at a third of that the latency is that of the path and not of a
// queue, and what piles up in an outage is gone soon after it.
const (
	demoCount    = 100_000
	demoRate     = 2_500
	demoBare     = 20_000
	demoBareRate = 3_900
	demoFolder   = "demo-out"

	// Both streams hold all that the demo sends, so that it can be read back.
	demoDatabase = "demo"
	demoStream   = "messages"
	demoSize     = 1 << 30
	demoMost     = 2_000_000

	// demoClose bounds the closing of connections.
	demoClose = 5 * time.Second
)

func newDemoCmd(env *environ) *cobra.Command {
	d := &demo{env: env, connect: demoConnect}
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "kill and freeze primaries of a real replica set under load, and count what was lost",
		Long:    demoHelp,
		Example: demoExample,
		Args:    exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.validate(); err != nil {
				return err
			}
			if !cmd.Flags().Changed("seed") {
				d.seed = rand.Uint64N(1_000_000) // short enough to be typed again
			}
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.IntVar(&d.count, "count", demoCount, "messages through the replica set (0: none)")
	f.Float64Var(&d.rate, "rate", demoRate, "of these a second")
	f.IntVar(&d.bare, "standalone-count", demoBare, "messages through the standalone server (0: none)")
	f.Float64Var(&d.bareRate, "standalone-rate", demoBareRate, "of these a second")
	f.StringVar(&d.out, "out", demoFolder, "folder for the CSV files and the pictures")
	f.Uint64Var(&d.seed, "seed", 0, "repeat a run: payloads and the moments of the faults (default: a new one)")
	cmd.AddCommand(newDemoReplicateCmd(env))
	return cmd
}

func (d *demo) validate() error {
	for name, n := range map[string]int{"--count": d.count, "--standalone-count": d.bare} {
		if n < 0 || n > demoMost {
			return usageError("%s must be 0 to %d, not %d", name, demoMost, n)
		}
	}
	for name, r := range map[string]float64{"--rate": d.rate, "--standalone-rate": d.bareRate} {
		if !(r >= 1) || math.IsInf(r, 1) {
			return usageError("%s must be at least 1 message a second", name)
		}
	}
	if d.count+d.bare == 0 {
		return usageError("--count 0 and --standalone-count 0: nothing to do")
	}
	if abs, err := filepath.Abs(d.out); err == nil {
		d.out = abs // so that what is printed can be opened from anywhere
	}
	return nil
}

// demoLog is quiet about the faults that the demo makes itself, unless someone wants to hear more.
func demoLog(env *environ) zerolog.Logger {
	if env.verbose > 0 {
		return env.log
	}
	return env.log.Level(zerolog.ErrorLevel)
}

// demoConnect creates the stream on a fresh deployment and wires a load's way through it.
func demoConnect(ctx context.Context, env *environ, uri string) (demoChain, error) {
	log := demoLog(env)
	base := func() *options.ClientOptions { return options.Client().ApplyURI(uri).SetAppName("capstan demo") }
	client, err := mongo.Connect(base())
	if err != nil {
		return demoChain{}, err
	}
	chain, err := demoWire(ctx, client, base, log)
	if err != nil {
		return demoChain{}, errors.Join(err, client.Disconnect(context.WithoutCancel(ctx)))
	}
	return chain, nil
}

// demoWire makes the chain. client is for the stream's creation and the checkpoints, and is the chain's
// from then on; the producer's layer and the tail have clients of their own.
func demoWire(ctx context.Context, client *mongo.Client, base func() *options.ClientOptions, log zerolog.Logger) (demoChain, error) {
	db := client.Database(demoDatabase)
	info, err := stream.Ensure(ctx, db, demoStream, stream.Config{Size: demoSize, Logger: log})
	if err != nil {
		return demoChain{}, err
	}
	layer, err := failover.New(base(), failover.Config{Logger: log})
	if err != nil {
		return demoChain{}, err
	}
	store, err := checkpoint.NewMongo(db.Collection(checkpointCollection), layer, checkpoint.MongoConfig{})
	if err != nil {
		return demoChain{}, err
	}
	return demoChain{
		writer: layer.Stream(demoDatabase, demoStream, failover.StreamConfig{UUID: info.UUID, Size: info.Size}),
		consume: func(ctx context.Context, opened func(), handle func(record.Record) error) error {
			open := func(_ context.Context, from record.Start) (consumer.Source, error) {
				opened()
				return tailer.New(base(), demoDatabase, demoStream, tailer.Config{Start: from, Logger: log})
			}
			handler := consumer.HandlerFunc(func(_ context.Context, r record.Record) error { return handle(r) })
			c, err := consumer.New("demo", open, handler, store, consumer.Config{
				Stream: info.Namespace, Start: record.Start{Where: record.Earliest}, OnGap: handle, Logger: log,
			})
			if err != nil {
				return err
			}
			return c.Run(ctx)
		},
		close: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, demoClose)
			defer cancel()
			return errors.Join(layer.Close(ctx), client.Disconnect(ctx))
		},
	}, nil
}
