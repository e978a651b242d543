package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/experiment"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// latencyFlags are the flags of `capstan bench latency` that are no fields of its Config.
type latencyFlags struct {
	out      string
	compress bool
	check    bool
	compare  bool
}

func newBenchLatencyCmd(env *environ) *cobra.Command {
	var cfg experiment.LatencyConfig
	var flags latencyFlags
	cmd := &cobra.Command{
		Use:   "latency [--compare DIR1 DIR2]",
		Short: "measure how long messages take from write to read, in fifteen ways of tailing",
		Long: `Repeats and extends an experiment of 2011 ("The tail of MongoDB"): one producer, one consumer that is
started first, a capped collection that nothing is overwritten in, and the time from write to read of
every message. Each variant tails in another way; the ones that are compared take turns, slice by slice.

The folder of --out gets a CSV (loc,val: index of the message, seconds) and a plot of every variant,
summary.csv, HDR histogram logs, run.json, an overview plot and tables in Markdown.

Servers of its own are started for it, a standalone one and one of three members, unless --uri or
--uri-file names one (CAPSTAN_URI and the configuration file are not used). Nothing else should run on
the machine meanwhile. Exit code 1 with --check: a target was missed.

Variants:
` + experiment.VariantList(),
		Example: `  capstan bench latency --out results/latency
  capstan bench latency --variants await-primed,floor --count 20000
  capstan bench latency --variants await-primed --payload 100,1000,10000
  capstan bench latency --compare results/latency latency-out`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.compare {
				return compareLatency(env, args)
			}
			if len(args) > 0 {
				return usageError("unexpected argument %q: without --compare there are none", args[0])
			}
			for _, name := range []string{"count", "rate"} { // 0 would be the default
				if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "0" {
					return usageError("--%s is 0, it must be more", name)
				}
			}
			return runBenchLatency(cmd.Context(), env, cfg, flags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.out, "out", "latency-out", "folder for the results")
	f.StringSliceVar(&cfg.Variants, "variants", nil, "variants to run (default all)")
	f.Int64Var(&cfg.Count, "count", experiment.DefaultLatencyCount, "messages of each variant")
	f.Float64Var(&cfg.Rate, "rate", experiment.DefaultLatencyRate, "messages per second of the paced variants")
	f.IntSliceVar(&cfg.Payload, "payload", []int{experiment.DefaultPayload}, "bytes of data in each message; more than one value: await-primed and floor with each")
	f.IntSliceVar(&cfg.Producers, "producers", []int{1}, "producers of await-primed; more than one value: with each, the first being 1")
	f.IntVar(&cfg.Slices, "slices", 0, fmt.Sprintf("how often two variants take turns (default %d, or a tenth of --count)", experiment.DefaultSlices))
	f.Uint64Var(&cfg.Seed, "seed", experiment.DefaultSeed, "seed of the payloads")
	f.BoolVar(&flags.compress, "compress", false, "write the CSVs compressed (.csv.gz)")
	f.BoolVar(&flags.check, "check", false, "exit with 1 if a target is missed")
	f.BoolVar(&flags.compare, "compare", false, "print the ratios of two runs, given by their folders")
	return cmd
}

// compareLatency prints the ratios of two runs.
func compareLatency(env *environ, dirs []string) error {
	if len(dirs) != 2 {
		return usageError("--compare needs two folders, %d given: capstan bench latency --compare DIR1 DIR2", len(dirs))
	}
	a, err := experiment.ReadLatencyRun(dirs[0])
	if err != nil {
		return err
	}
	b, err := experiment.ReadLatencyRun(dirs[1])
	if err != nil {
		return err
	}
	return experiment.CompareLatency(env.stdout, a, b)
}

func runBenchLatency(ctx context.Context, env *environ, cfg experiment.LatencyConfig, flags latencyFlags) error {
	if err := os.MkdirAll(flags.out, 0o755); err != nil { // before minutes of measuring
		return fmt.Errorf("make results folder: %w", err)
	}
	var err error
	if cfg.Worker, err = benchWorker(); err != nil {
		return err
	}
	// Only a server that is named for this run: the one in the environment may be somebody's production.
	uri := ""
	switch set := env.settings.URI; {
	case set.Source == "default":
	case strings.HasPrefix(set.Source, "flag"), set.Source == "standard input":
		uri = set.Text
	default:
		env.note("the server of %s is not used: servers are started for the experiment (yours: --uri or --uri-file)", set.Source)
	}
	cfg.OwnServer = uri != ""
	cfg.Server = func(ctx context.Context, set bool) (experiment.LatencyServer, error) {
		if uri != "" {
			return experiment.LatencyServer{URI: uri, Stop: func(context.Context) error { return nil }}, nil
		}
		return benchServer(ctx, env, set)
	}
	cfg.Note = func(s string) { env.note("%s", s) }
	run, err := measureLatency(ctx, env, cfg)
	if run == nil || len(run.Variants) == 0 {
		return errors.Join(err, errNothingMeasured(run))
	}
	run.Machine.Commit = buildInfo().Commit
	cfg.Slices = run.Settings.Slices
	run.Machine.Command = latencyCommand(cfg)
	if writeErr := run.Write(flags.out, flags.compress); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	if err != nil {
		env.note("what was measured before that is in %s", flags.out)
		return err
	}
	if err := run.Print(env.stdout); err != nil {
		return err
	}
	env.note("written to %s", flags.out)
	for _, f := range run.Figures {
		if flags.check && !f.Met() {
			return errors.New("a target was missed; see the table")
		}
	}
	return nil
}

func errNothingMeasured(run *experiment.LatencyRun) error {
	if run == nil {
		return nil
	}
	for name, why := range run.Skipped {
		return fmt.Errorf("nothing was measured: %s was skipped, as %s", name, why)
	}
	return nil
}

// measureLatency runs the experiment under a bar.
func measureLatency(ctx context.Context, env *environ, cfg experiment.LatencyConfig) (*experiment.LatencyRun, error) {
	var done atomic.Int64
	var now atomic.Pointer[string]
	before := map[string]int64{}
	cfg.Progress = func(name string, n, of int64) {
		done.Add(n - before[name])
		before[name] = n
		s := fmt.Sprintf("%s: %s of %s messages", name, humanize.Comma(n), humanize.Comma(of))
		if n == 0 {
			s = name + ": running"
		}
		now.Store(&s)
	}
	bar := showProgress(env, cfg.Messages(), done.Load, func() string {
		if s := now.Load(); s != nil {
			return *s
		}
		return "starting"
	})
	defer bar.end()
	return experiment.RunLatency(ctx, cfg)
}

// benchServer starts a server of the experiment's own: on a user's the figures would be the load's.
func benchServer(ctx context.Context, env *environ, set bool) (experiment.LatencyServer, error) {
	members := 1
	if set {
		members = 3
	}
	cluster, err := localcluster.Start(ctx, localcluster.Config{Members: members, Logger: env.log})
	if err != nil {
		return experiment.LatencyServer{}, err
	}
	s := experiment.LatencyServer{URI: cluster.URI(), Stop: cluster.Down}
	for _, m := range cluster.Members() {
		s.PIDs = append(s.PIDs, m.PID)
	}
	return s, nil
}

// latencyCommand is the command line that repeats the measurement, without where its files went.
func latencyCommand(c experiment.LatencyConfig) string {
	list := func(v []int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]") }
	s := fmt.Sprintf("capstan bench latency --count %d --rate %g --payload %s --producers %s --slices %d --seed %d",
		c.Count, c.Rate, list(c.Payload), list(c.Producers), c.Slices, c.Seed)
	if len(c.Variants) > 0 {
		s += " --variants " + strings.Join(c.Variants, ",")
	}
	if c.OwnServer {
		s += " --uri …"
	}
	return s
}
