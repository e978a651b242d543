package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/experiment"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

func newBenchCmd(env *environ) *cobra.Command {
	cmd := newGroup("bench", "measure on this machine", `  capstan bench core                     # speed and memory, as ratios against an ideal client (5 minutes)
  capstan bench core --out results/core  # and keep the raw numbers
  capstan bench latency                  # how long messages take, in fifteen ways of tailing (11 minutes)
  sudo capstan bench failover            # what clients lose and how long they wait, in every fault (half an hour)
  capstan bench replicate                # copy, live changes, lag and verify, against naive programs (an hour)
  capstan bench replicate --seeds 10     # random changes under faults; both sides must be equal in the end (3 minutes)`)
	cmd.AddCommand(newBenchCoreCmd(env), newBenchLatencyCmd(env), newBenchFailoverCmd(env), newFailoverClientCmd(env), newBenchReplicateCmd(env), newBenchNaiveCmd(env),
		newBenchWorkerCmd(env))
	return cmd
}

func newBenchCoreCmd(env *environ) *cobra.Command {
	var cfg experiment.CoreConfig
	var out string
	cmd := &cobra.Command{
		Use:   "core",
		Short: "compare producer and tail with an ideal client",
		Long: `Starts a standalone mongod of its own and compares capstan's producer and tail with an ideal client
(one socket, nothing else) that does the same on the same server, in turns. Prints the ratios; --out
keeps every number in core.json and the tables in core.md. Exit code 1: a target was missed.

Nothing else should run on the machine meanwhile.`,
		Example: `  capstan bench core
  capstan bench core --only produce --rounds 3`,
		Args: exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return runBenchCore(cmd.Context(), env, cfg, out) },
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "folder for core.json and core.md")
	f.IntVar(&cfg.Rounds, "rounds", experiment.DefaultRounds, "how often each side is measured")
	f.Int64Var(&cfg.Messages, "messages", experiment.DefaultMessages, "messages of one comparison of producers")
	f.IntVar(&cfg.Payload, "payload", experiment.DefaultPayload, "bytes of data in each message")
	f.DurationVar(&cfg.Idle, "idle", experiment.DefaultIdle, "how long the idle tail is watched")
	f.Uint64Var(&cfg.Seed, "seed", experiment.DefaultSeed, "seed of the payloads")
	f.StringSliceVar(&cfg.Only, "only", nil, "parts to run: "+strings.Join(experiment.Parts(), ", "))
	return cmd
}

// runBenchCore measures on a server of its own: on a user's server the figures would be the load's.
func runBenchCore(ctx context.Context, env *environ, cfg experiment.CoreConfig, out string) (err error) {
	cluster, err := localcluster.Start(ctx, localcluster.Config{Logger: env.log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Down(context.WithoutCancel(ctx))) }()
	cfg.URI = cluster.URI()
	cfg.ServerPID = cluster.Members()[0].PID
	cfg.Note = func(s string) { env.note("%s", s) }
	if cfg.Worker, err = benchWorker(); err != nil {
		return err
	}
	report, err := experiment.RunCore(ctx, cfg)
	if report == nil {
		return err
	}
	report.Machine.Commit = buildInfo().Commit
	report.Machine.Command = benchCommand(cfg)
	report.Print(env.stdout)
	if err != nil {
		return err
	}
	if out != "" {
		if err := report.Write(out); err != nil {
			return err
		}
		env.note("written to %s", out)
	}
	if !report.Met() {
		return errors.New("a target was missed; see the table")
	}
	return nil
}

// benchCommand is the command line that repeats the measurement, without where its files went.
func benchCommand(c experiment.CoreConfig) string {
	s := fmt.Sprintf("capstan bench core --rounds %d --messages %d --payload %d --idle %s --seed %d", c.Rounds, c.Messages, c.Payload, c.Idle, c.Seed)
	if len(c.Only) > 0 {
		s += " --only " + strings.Join(c.Only, ",")
	}
	return s
}

// benchWorker returns the command that runs newBenchWorkerCmd.
func benchWorker() (func(context.Context) *exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	return func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, self, "bench", "worker") }, nil
}

// newBenchWorkerCmd is one side of a comparison, in a process of its own.
func newBenchWorkerCmd(env *environ) *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Hidden: true,
		Args:   exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return experiment.RunWorker(cmd.Context(), env.stdin, env.stdout)
		},
	}
}
