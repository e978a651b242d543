package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/experiment/outage"
	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/config"
)

// failoverFlags are the flags of `capstan bench failover` that are no fields of its Config.
type failoverFlags struct {
	out      string
	profile  string
	check    bool
	loopback bool
}

const benchFailoverHelp = `Breaks a replica set on this machine in every way that there is, while clients write, read and tail, and
counts what was acknowledged, lost, doubled or left unknown, and where the seconds went.

Each member, the writer, the reader and the other clients are in a network namespace of their own, so
that a member can be cut off as by a pulled cable; that takes Linux and root. Without root (or with
--loopback) only the faults of processes are tried: kill, stepdown, freeze, term, majority-down,
rolling-restart. Nothing is left behind, whatever happens ('capstan cluster repair' after a crash).

A trial: a writer and a reader act once a second, a prober 50 times a second, a plain InsertOne without
a deadline is tried beside them, 'capstan tail' and 'capstan consume' follow, and direct probes of every
member say when the set itself could acknowledge a majority's write again. Then the fault; when all
have recovered it is undone, the set heals, and everything is read back and compared.

Without --fault and --control the whole matrix is run (about half an hour): every fault with both profiles,
and the negative controls, which must fail. The folder of --out gets trials.csv, summary.csv, a timeline and
a picture of each fault, run.json and the tables.

What a line says: outage is the longest time without an acknowledged write of capstan's; cluster the same of
writes straight to every member, from where no fault reaches; excess what capstan waited longer than
such a writer in its own place; plain the longest InsertOne without a deadline (≥: it still hung when the
fault was undone). An interrupted run prints and writes what it has.

Faults ('capstan cluster faults' says what each does):
  %s

Controls, clients that do it wrong: no-deadline hangs in a black hole, fresh-id doubles while the majority
is down, w1 loses on a primary that is cut off with its client.`

const benchFailoverExample = `  sudo capstan bench failover --fault blackhole --trials 5 --profile fast
  sudo capstan bench failover --control no-deadline
  sudo capstan bench failover --out results/failover
  capstan bench failover --fault kill,freeze --profile fast`

func newBenchFailoverCmd(env *environ) *cobra.Command {
	var cfg outage.Config
	var flags failoverFlags
	cmd := &cobra.Command{
		Use:     "failover",
		Short:   "break a replica set in every way, and count what clients lost and how long they waited",
		Long:    fmt.Sprintf(benchFailoverHelp, strings.ReplaceAll(strings.Join(outage.Faults(), ", "), " isolate", "\n  isolate")),
		Example: benchFailoverExample,
		Args:    exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"trials", "seed"} { // 0 would be the default
				if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "0" {
					return usageError("--%s is 0, it must be more", name)
				}
			}
			for name, list := range map[string][]string{"fault": cfg.Faults, "control": cfg.Controls} {
				if cmd.Flags().Changed(name) && len(list) == 0 {
					return usageError("--%s is empty: name some, or leave it out for all", name)
				}
			}
			if err := checkFailover(&cfg, flags); err != nil {
				return err
			}
			return runBenchFailover(cmd.Context(), env, cfg, flags)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Faults, "fault", nil, "faults to try (default: all)")
	f.StringSliceVar(&cfg.Controls, "control", nil, "negative controls to try (default: all, unless faults are named)")
	f.IntVar(&cfg.Trials, "trials", 0, fmt.Sprintf("trials of each (default %d; of the matrix %d or %d)", outage.DefaultTrials, outage.MatrixTrials, outage.MatrixOthers))
	f.StringVar(&flags.profile, "profile", "", "default, fast, or both (default: fast for what is named, both for the matrix)")
	f.Uint64Var(&cfg.Seed, "seed", outage.DefaultRunSeed, "seed of the moments of the faults and of the values")
	f.IntVar(&cfg.Lanes, "lanes", outage.DefaultLanes, "sets that work side by side")
	f.StringVar(&flags.out, "out", "", "folder for the results (default: none is written)")
	f.BoolVar(&flags.check, "check", false, "exit with 1 if a bound was missed, too")
	f.BoolVar(&flags.loopback, "loopback", false, "no network namespaces: only the faults of processes")
	return cmd
}

// checkFailover turns the flags into cfg, and says what is wrong with them in the words of the flags.
func checkFailover(cfg *outage.Config, flags failoverFlags) error {
	cfg.Network = !flags.loopback && os.Geteuid() == 0
	for _, named := range []struct {
		flag       string
		names, all []string
	}{{"--fault", cfg.Faults, outage.Faults()}, {"--control", cfg.Controls, outage.Controls()}} {
		for _, name := range named.names {
			switch {
			case !slices.Contains(named.all, name):
				return usageError("%s %s: there are %s", named.flag, name, strings.Join(named.all, ", "))
			case outage.NeedsNetwork(name) && flags.loopback:
				return usageError("%s %s cuts networks, so it does not go with --loopback", named.flag, name)
			case outage.NeedsNetwork(name) && !cfg.Network:
				return usageError("%s %s cuts networks, which takes root: sudo capstan bench failover …", named.flag, name)
			}
		}
	}
	switch named := len(cfg.Faults)+len(cfg.Controls) > 0; {
	case flags.profile == "both", flags.profile == "" && !named:
		cfg.Profiles = []failover.Profile{failover.ProfileFast, failover.ProfileDefault}
	case flags.profile == "", flags.profile == string(failover.ProfileFast):
		cfg.Profiles = []failover.Profile{failover.ProfileFast}
	case flags.profile == string(failover.ProfileDefault):
		cfg.Profiles = []failover.Profile{failover.ProfileDefault}
	default:
		return usageError("--profile is default, fast or both, not %q", flags.profile)
	}
	if cfg.Trials < 0 {
		return usageError("--trials is %d, it must be more", cfg.Trials)
	}
	if cfg.Lanes < 1 {
		return usageError("--lanes is %d, it must be at least 1", cfg.Lanes)
	}
	return nil
}

func runBenchFailover(ctx context.Context, env *environ, cfg outage.Config, flags failoverFlags) error {
	if flags.out != "" {
		if err := os.MkdirAll(flags.out, 0o755); err != nil { // before half an hour of breaking things
			return fmt.Errorf("make results folder: %w", err)
		}
	}
	if !cfg.Network && !flags.loopback {
		env.note("not root: only the faults of processes can be tried (the others need sudo)")
	}
	var err error
	if cfg.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	cfg.Logger = demoLog(env)
	cfg.Note = func(s string) { env.note("%s", s) }
	var failed error
	cfg.Done = func(t *outage.Trial, of int) {
		if err := outage.PrintTrial(env.stdout, t, of); err != nil {
			failed = stdoutErr(err)
		}
	}
	run, err := outage.Execute(ctx, cfg)
	if run == nil || len(run.Trials) == 0 {
		return errors.Join(err, nothingTried(run))
	}
	run.Machine.Commit = buildInfo().Commit
	run.Machine.Command = failoverCommand(cfg, flags)
	if flags.out != "" {
		if writeErr := run.Write(flags.out); writeErr != nil {
			return errors.Join(err, writeErr)
		}
		env.note("written to %s", flags.out)
	}
	if err := run.Print(env.stdout); err != nil {
		return stdoutErr(err)
	}
	if err := errors.Join(err, failed); err != nil {
		return err // an interrupt, too; what was tried before it is printed and written
	}
	return judgeFailover(run, flags.check)
}

func nothingTried(run *outage.Run) error {
	if run == nil {
		return nil
	}
	for what, why := range run.Skipped {
		return fmt.Errorf("nothing was tried: %s was skipped, as %s", what, why)
	}
	return nil
}

// judgeFailover returns an error if a trial lost or doubled anything, if a control did not fail, or, with
// check, if a bound was missed.
func judgeFailover(run *outage.Run, check bool) error {
	for i := range run.Trials {
		t := &run.Trials[i]
		if t.Control == "" && !t.Verdict.OK() {
			return fmt.Errorf("%s %s, trial %d: something was lost, doubled or unequal; see above", t.Fault, t.Profile, t.Number)
		}
		if t.Control != "" {
			if what, ok := outage.Predicted(t); !ok {
				return fmt.Errorf("the control %s did not fail as predicted: %s", t.Control, what)
			}
		}
	}
	if !check {
		return nil
	}
	for _, f := range run.Bounds() {
		if !f.Met() {
			return errors.New("a bound was missed; see the table")
		}
	}
	return nil
}

// failoverCommand is the command line that repeats the run, without where its files went.
func failoverCommand(c outage.Config, flags failoverFlags) string {
	s := "capstan bench failover"
	if len(c.Faults) > 0 {
		s += " --fault " + strings.Join(c.Faults, ",")
	}
	if len(c.Controls) > 0 {
		s += " --control " + strings.Join(c.Controls, ",")
	}
	if c.Trials > 0 {
		s += fmt.Sprintf(" --trials %d", c.Trials)
	}
	if flags.profile != "" {
		s += " --profile " + flags.profile
	}
	return s + fmt.Sprintf(" --seed %d --lanes %d", c.Seed, c.Lanes)
}

const failoverClientHelp = `One client of the failover experiment: it makes one call after the other and prints what came of each.

  writer     capstan's failover layer inserts {time, value, title, type} into experiment.writes
  reader     capstan's failover layer reads the newest of these: secondaryPreferred, majority
  prober     sends to the stream experiment.messages, and reads it beside that
  plain      what one writes without capstan: InsertOne, no deadline, the driver's defaults
  fresh-id   retries after a deadline with a new _id each time: it doubles
  w1         asks for w: 1: an election can take what it was acknowledged
  members    writes to each member directly: which of them can acknowledge for a majority?

It goes on through every fault, until Ctrl-C or --count; a call in flight then has three seconds more. A call of
capstan's gives up after five minutes (the layer's budget) and says whether its outcome is known. On a cluster
of 'cluster up --network', run it by 'capstan cluster exec NAME -- capstan bench failover-client …'.`

func newFailoverClientCmd(env *environ) *cobra.Command {
	var cfg outage.ClientConfig
	var profile, output string
	cmd := &cobra.Command{
		Use:   "failover-client ROLE",
		Short: "one client of the failover experiment: a writer or a reader, once a second",
		Long:  failoverClientHelp,
		Example: `  capstan bench failover-client writer --profile fast
  capstan bench failover-client reader --profile fast
  capstan bench failover-client plain`,
		Args: exactArgs(1, "ROLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Role = outage.Role(args[0])
			if !slices.Contains(outage.Roles(), cfg.Role) {
				return usageError("%q is not one of %v", args[0], outage.Roles())
			}
			cfg.Profile = failover.Profile(profile)
			if cfg.Profile != failover.ProfileDefault && cfg.Profile != failover.ProfileFast {
				return usageError("--profile is default or fast, not %q", profile)
			}
			if output != outputText && output != outputJSON {
				return usageError("--output is text or json, not %q", output)
			}
			if cfg.Every < 0 {
				return usageError("--every is %s, it must be positive", cfg.Every)
			}
			if cfg.Count < 0 {
				return usageError("--count is %d, it must be positive, or 0 for no end", cfg.Count)
			}
			cfg.Text, cfg.Redact = output == outputText, config.Redact
			_, closeClient, err := env.connect(cmd.Context()) // a wrong address is said at once, and not when the budget ends
			if err != nil {
				return err
			}
			closeClient()
			cfg.Options = func() *options.ClientOptions { return options.Client().ApplyURI(env.settings.URI.Text) }
			if err := outage.RunClient(cmd.Context(), cfg, env.stdout); err != nil {
				return err
			}
			if cfg.Count > 0 && cmd.Context().Err() != nil {
				return context.Cause(cmd.Context())
			}
			return nil // Ctrl-C is how it ends
		},
	}
	f := cmd.Flags()
	f.StringVar(&profile, "profile", string(failover.ProfileDefault), "settings of the failover layer: default or fast")
	f.DurationVar(&cfg.Every, "every", 0, "time between two calls (default: 1s; prober 20ms, controls 100ms, members 50ms)")
	f.Int64Var(&cfg.Count, "count", 0, "end after this many calls (0: never)")
	f.StringVar(&cfg.Name, "name", "experiment", "name in the documents; a reader looks for those of its writer")
	f.Uint64Var(&cfg.Seed, "seed", outage.DefaultRunSeed, "seed of the values")
	f.StringVar(&output, "output", outputText, "text, or json: one event per line")
	return cmd
}
