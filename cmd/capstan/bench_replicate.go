package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/experiment/replication"
	"github.com/seed-12ef14e5/capstan/experiment/replication/workload"
)

const benchReplicateHelp = `Measures 'capstan replicate' on servers of its own, against naive programs in the same run; or, with --seeds,
makes random runs under faults.

Figures, on two replica sets of one member: the initial copy against a loop of Find and InsertMany over 1, 2 and 4
ranges; changes that piled up at the source against an applier with one worker; the lag at a steady rate of writes;
'capstan verify'. Every program is a process of its own, they take turns, and the ratios are taken within each round.
The folder of --out gets measurements.csv, summary.csv, lag.csv, lag.png, table.md and run.json.

--seeds N makes random runs instead, on two replica sets of three: four writers insert, update, replace, delete, use
transactions, cut arrays, swap unique values, rename, drop and index, while capstan is killed with -9 in the copy,
while it catches up and later, and primaries of both sides are killed, frozen, stopped, deposed and cut off. Then all
is mended, the route catches up, and both sides are compared, twice: by package verify, and by a simple reader of
everything. A run that is not equal ends with exit code 1; its log, plan and reports are kept in --keep, and
--first-seed repeats it.

Nothing else should run on the machine meanwhile.`

const benchReplicateExample = `  capstan bench replicate --out results/replicate
  capstan bench replicate --quick --only copy-small,verify
  capstan bench replicate --seeds 10
  capstan bench replicate --seeds 1 --first-seed 17     # once more`

// benchReplicate are the flags of capstan bench replicate.
type benchReplicate struct {
	figures replication.FiguresConfig
	seeds   replication.SeedsConfig
	out     string
	check   bool
	control bool
	goOn    bool
}

func newBenchReplicateCmd(env *environ) *cobra.Command {
	var b benchReplicate
	cmd := &cobra.Command{
		Use:     "replicate",
		Short:   "measure copies, live changes and their lag, or try them at random under faults",
		Long:    benchReplicateHelp,
		Example: benchReplicateExample,
		Args:    exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.seeds.Seeds < 0 || b.seeds.Seeds == 0 && cmd.Flags().Changed("seeds") {
				return usageError("--seeds is %d, it must be more", b.seeds.Seeds)
			}
			if b.out != "" {
				if err := os.MkdirAll(b.out, 0o755); err != nil { // before an hour of measuring
					return fmt.Errorf("make results folder: %w", err)
				}
			}
			if b.seeds.Seeds > 0 {
				return runBenchSeeds(cmd.Context(), env, b)
			}
			return runBenchFigures(cmd.Context(), env, b)
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.out, "out", "", "folder for the results (default: none is written)")
	f.BoolVar(&b.check, "check", false, "exit with 1 if a target was missed, too")
	f.BoolVar(&b.figures.Quick, "quick", false, "much smaller, in two minutes: to see that it works")
	f.StringSliceVar(&b.figures.Only, "only", nil, "parts to measure: "+strings.Join(replication.Parts(), ", "))
	f.IntVar(&b.figures.Rounds, "rounds", 0, fmt.Sprintf("how often each program is measured (default %d)", replication.DefaultRounds))
	f.IntVar(&b.figures.Small, "small", 0, fmt.Sprintf("documents of 200 B to copy (default %d)", replication.DefaultSmall))
	f.IntVar(&b.figures.Large, "large", 0, fmt.Sprintf("documents of 1 KB to copy (default %d)", replication.DefaultLarge))
	f.IntVar(&b.figures.Inserts, "inserts", 0, fmt.Sprintf("inserts of the live mix (default %d)", replication.DefaultInserts))
	f.IntVar(&b.figures.Updates, "updates", 0, fmt.Sprintf("updates of the other one (default %d)", replication.DefaultUpdates))
	f.IntVar(&b.figures.LagRate, "lag-rate", 0, fmt.Sprintf("writes a second while the lag is measured (default %d)", replication.DefaultLagRate))
	f.DurationVar(&b.figures.LagDuration, "lag-duration", 0, fmt.Sprintf("how long the lag is measured (default %s)", replication.DefaultLagDuration))
	f.Uint64Var(&b.figures.Seed, "seed", 1, "seed of the documents")
	f.IntVar(&b.seeds.Seeds, "seeds", 0, "make this many random runs instead")
	f.BoolVar(&b.goOn, "continue", false, "leave out the random runs that --out has already, unless they were not equal, and add to them")
	f.Uint64Var(&b.seeds.First, "first-seed", replication.DefaultFirstSeed, "seed of the first of them")
	f.StringSliceVar(&b.seeds.Without, "without", nil, "operations that they leave out: "+strings.Join(workload.Kinds(), ", "))
	f.BoolVar(&b.seeds.NoFaults, "no-faults", false, "break nothing in them")
	f.IntVar(&b.seeds.Lanes, "lanes", 1, "make so many of them at once, each on servers of its own")
	f.IntVar(&b.seeds.Ops, "operations", replication.DefaultOps, "operations of each")
	f.IntVar(&b.seeds.Documents, "documents", replication.DefaultDocuments, "documents of each in the beginning")
	f.DurationVar(&b.seeds.Length, "length", replication.DefaultLength, "how long the operations of each take where no fault holds them up")
	f.StringVar(&b.seeds.Keep, "keep", "replicate-out", "folder for what is left of a run that failed")
	f.BoolVar(&b.control, "control", false, "run a naive mirror instead of capstan: no run may be equal")
	return cmd
}

func runBenchFigures(ctx context.Context, env *environ, b benchReplicate) error {
	cfg := b.figures
	cfg.Naive = []string{"bench", naiveUse}
	cfg.Logger = demoLog(env)
	cfg.Note = func(s string) { env.note("%s", s) }
	run, err := replication.Figures(ctx, cfg)
	if run == nil {
		return err
	}
	run.Machine.Commit = buildInfo().Commit
	run.Machine.Command = figuresCommand(run.Settings, cfg.Quick)
	if printErr := run.Print(env.stdout); printErr != nil {
		err = errors.Join(err, stdoutErr(printErr))
	}
	if b.out != "" && len(run.Rows) > 0 {
		if writeErr := run.Write(b.out); writeErr != nil {
			return errors.Join(err, writeErr)
		}
		env.note("written to %s", b.out)
	}
	if err == nil && b.check && !run.Met() {
		err = errors.New("a target was missed; see the table")
	}
	return err
}

// figuresCommand is the command line that repeats the run, without where its files went.
func figuresCommand(s replication.FiguresSettings, quick bool) string {
	text := "capstan bench replicate"
	if quick {
		text += " --quick"
	}
	if len(s.Parts) != len(replication.Parts()) {
		text += " --only " + strings.Join(s.Parts, ",")
	}
	return text + fmt.Sprintf(" --rounds %d --small %d --large %d --inserts %d --updates %d --lag-rate %d --lag-duration %s --seed %d",
		s.Rounds, s.Small, s.Large, s.Inserts, s.Updates, s.LagRate, s.LagDuration, s.Seed)
}

func runBenchSeeds(ctx context.Context, env *environ, b benchReplicate) error {
	cfg := b.seeds
	cfg.Logger = demoLog(env)
	cfg.Note = func(s string) { env.note("%s", s) }
	cfg.Verify = replication.VerifyWithPackage
	if b.control {
		cfg.Program, cfg.Verify, cfg.Patience = replication.NaiveProgram("", "bench", naiveUse), nil, 20*time.Second
	}
	if b.goOn {
		before, err := replication.ReadSeeds(b.out)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		cfg.Before = before
	}
	command := fmt.Sprintf("capstan bench replicate --seeds %d --first-seed %d --operations %d --documents %d --length %s --lanes %d", cfg.Seeds, cfg.First,
		cfg.Ops, cfg.Documents, cfg.Length, cfg.Lanes)
	if len(cfg.Without) > 0 {
		command += " --without " + strings.Join(cfg.Without, ",")
	}
	cfg.Done = func(s *replication.Seed, run *replication.SeedsRun) error {
		if err := replication.PrintSeed(env.stdout, s); err != nil {
			return stdoutErr(err)
		}
		if b.out == "" {
			return nil
		}
		run.Machine.Commit, run.Machine.Command = buildInfo().Commit, command
		return run.Write(b.out) // after each: nothing is lost, whatever ends it
	}
	run, err := replication.Seeds(ctx, cfg)
	if err != nil {
		return err // an interrupt, too; what was tried before it is printed and written
	}
	if b.out != "" {
		env.note("written to %s", b.out)
	}
	return judgeSeeds(run, b.control)
}

func judgeSeeds(run *replication.SeedsRun, control bool) error {
	if n := len(run.Seeds) - len(run.Unequal); control && n > 0 {
		return fmt.Errorf("the control was equal in %d of %d runs: the judges see too little", n, len(run.Seeds))
	}
	if len(run.Unequal) > 0 && !control {
		return fmt.Errorf("not equal after %d of %d runs, seeds %s; repeat one with --seeds 1 --first-seed %d", len(run.Unequal), len(run.Seeds),
			strings.Trim(fmt.Sprint(run.Unequal), "[]"), run.Unequal[0])
	}
	return nil
}

// naiveUse is the name of newBenchNaiveCmd.
const naiveUse = "naive"

// newBenchNaiveCmd is a naive program of a comparison, in a process of its own.
func newBenchNaiveCmd(env *environ) *cobra.Command {
	return &cobra.Command{
		Use:    naiveUse + " JOB",
		Hidden: true,
		Args:   exactArgs(1, "JOB"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := replication.RunNaive(cmd.Context(), args[0]); err != nil {
				return &codeError{exitConnect, err} // a supervisor starts it again, whatever it was
			}
			return nil
		},
	}
}
