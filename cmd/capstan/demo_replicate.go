package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/experiment/replication"
)

const demoReplicateHelp = `Start two real replica sets of three on this machine and replicate real data from one to the other: films and
earthquakes whole, and of the flights those that are more than an hour late, under another name, so that flights
come into the filter and leave it while writers change them.

'capstan replicate' is killed with -9 in the middle of the copy, and again later; the primaries of both sides are killed,
too. Then the writers rest, the route catches up, and 'capstan verify' compares both sides: exit code 1 if anything
differs or is a dead letter.

The data are those of --data where they are at hand, else generated in the same shape. Servers and data are gone when
the command ends, also on Ctrl-C. It takes about two minutes, and two cores.`

const demoReplicateExample = `  capstan demo replicate
  capstan demo replicate --flights 10000`

func newDemoReplicateCmd(env *environ) *cobra.Command {
	var cfg replication.DemoConfig
	cmd := &cobra.Command{
		Use:     "replicate",
		Short:   "replicate real data between two sets while capstan and primaries are killed, and compare",
		Long:    demoReplicateHelp,
		Example: demoReplicateExample,
		Args:    exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Flights < 1000 || cfg.Flights > demoMost {
				return usageError("--flights must be 1000 to %d, not %d", demoMost, cfg.Flights)
			}
			if !cmd.Flags().Changed("seed") {
				cfg.Seed = rand.Uint64N(1_000_000) // short enough to be typed again
			}
			return runDemoReplicate(cmd.Context(), env, cfg)
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Flights, "flights", replication.DefaultFlights, "how many flights there are")
	f.StringVar(&cfg.Data, "data", filepath.Join("..", "shared", "data"), "folder with flights.ndjson.gz, movies.ndjson.gz and earthquakes.ndjson.gz")
	f.Uint64Var(&cfg.Seed, "seed", 0, "repeat a run: the changes that are made (default: a new one)")
	return cmd
}

func runDemoReplicate(ctx context.Context, env *environ, cfg replication.DemoConfig) error {
	b := buildInfo()
	env.note("capstan demo replicate: seed %d, capstan %s (%.12s), %s, MongoDB driver %s", cfg.Seed, b.Version, b.Commit, b.Go, b.Driver)
	cfg.Logger = demoLog(env)
	cfg.Note = env.note
	r, err := replication.Demo(ctx, cfg)
	if err != nil {
		return err
	}
	generated := ""
	if len(r.Generated) > 0 {
		generated = fmt.Sprintf("(not at hand, so generated: %s)\n", strings.Join(r.Generated, ", "))
	}
	word, code := "PASSED: source and destination are equal, and nothing was set aside", exitOK
	if !r.Equal || r.Letters > 0 {
		word, code = "FAILED: see above", exitFailed
	}
	if _, err := fmt.Fprintf(env.stdout, "\n%s\ndocuments before          %s\n%schanges under way         %s\nlate flights in the end   %s\ndead letters              %d\n\n%s (seed %d, %s)\n",
		strings.TrimRight(r.Report, "\n"), humanize.Comma(r.Copied), generated, humanize.Comma(r.Changes), humanize.Comma(r.Late), r.Letters, word, cfg.Seed, seconds(r.Took)); err != nil {
		return stdoutErr(err)
	}
	if code != exitOK {
		return &codeError{code: code}
	}
	return nil
}
