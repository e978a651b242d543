package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/localcluster"
)

// uriVar is the variable that every command takes the connection string from.
const uriVar = "CAPSTAN_URI"

func newClusterExecCmd(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec MACHINE -- COMMAND [ARG...]",
		Short: "run a command on a client machine in the network of the cluster",
		Long: `Run a command on a client machine of a cluster that was started with --network. MACHINE is any name of 1
to 8 of a-z, 0-9 and "-"; the machine is made when it is named for the first time, and stays until
'cluster down'. CAPSTAN_URI is set to the cluster's connection string. The command sees the files of this
computer and takes this one's place: signals go to it, and its exit code is handed on. Takes root.`,
		Example: `  sudo capstan cluster exec app -- capstan tail demo.lines
  sudo capstan cluster exec app -- sh -c 'mongosh "$CAPSTAN_URI"'
  sudo capstan cluster exec app -- ip addr`,
		Args: minArgs(2, "a MACHINE and a COMMAND"),
		RunE: func(cmd *cobra.Command, args []string) error {
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return usageError("%s takes a COMMAND behind the --", cmd.CommandPath())
			}
			cluster, err := openCluster(*dir)
			if err != nil {
				return err
			}
			machine, err := cluster.Machine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			c := machine.Command(cmd.Context(), command[0], command[1:]...)
			if c.Err != nil {
				return c.Err
			}
			environment := append(os.Environ(), uriVar+"="+cluster.URI())
			if err := syscall.Exec(c.Path, c.Args, lastOfEach(environment)); err != nil {
				return fmt.Errorf("run %s: %w", command[0], err)
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows MACHINE belongs to the command
	return cmd
}

// lastOfEach leaves each variable once, with its last value: which of two counts is up to the program.
func lastOfEach(environment []string) []string {
	index := map[string]int{}
	var out []string
	for _, e := range environment {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := index[name]; ok {
			out[i] = e
			continue
		}
		index[name] = len(out)
		out = append(out, e)
	}
	return out
}

func newClusterFaultsCmd(env *environ) *cobra.Command {
	return &cobra.Command{
		Use:     "faults",
		Short:   "list the faults that 'cluster fault' injects, and what each needs",
		Example: "  capstan cluster faults",
		Args:    exactArgs(0, ""),
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "FAULT\tNEEDS A CLUSTER WITH\tWHAT HAPPENS") // buffered: Flush has the error
			for _, f := range localcluster.Faults() {
				if _, err := fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, faultNeeds(f), f.Text); err != nil {
					return stdoutErr(err)
				}
			}
			return stdoutErr(w.Flush())
		},
	}
}

// faultNeeds names the flags that a fault needs.
func faultNeeds(f localcluster.Fault) string {
	var needs []string
	if f.Set {
		needs = append(needs, "--members 3")
	}
	if f.Network || f.Clients {
		needs = append(needs, "--network")
	}
	if f.Disk {
		needs = append(needs, "--disk-mb")
	}
	if f.Clients {
		needs = append(needs, "(and fault --clients)")
	}
	if len(needs) == 0 {
		return "-"
	}
	return strings.Join(needs, " ")
}

// faultFlags are what 'cluster fault' is told.
type faultFlags struct {
	clients []string
	hold    time.Duration
	options localcluster.FaultOptions
}

func newClusterInjectCmd(env *environ, dir *string) *cobra.Command {
	var f faultFlags
	cmd := &cobra.Command{
		Use:   "fault FAULT [WHO]",
		Short: "inject a fault, hold it, and heal it",
		Long: `Inject a fault, print the name of the member that it hit, and heal it after --for, or at Ctrl-C. A fault
that goes on by itself (flap, rolling-restart, stepdown) ends by itself, too. 'cluster faults' lists all.

WHO is a member's name (m0, m1, m2), primary or secondary; without it, each fault says whom it hits.
Whatever ends this command, 'cluster repair --dir DIR' heals what it may have left.`,
		Example: `  capstan cluster fault kill --for 5s
  sudo capstan cluster fault blackhole primary --for 10s
  sudo capstan cluster fault isolate-with-client --clients app
  sudo capstan cluster fault loss m1 --loss 0.05`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usageError("%s takes a FAULT and perhaps a WHO\nRun 'capstan cluster faults' for all faults.", cmd.CommandPath())
			}
			return checkFault(args[0], &f)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := openCluster(*dir)
			if err != nil {
				return err
			}
			if len(args) > 1 {
				f.options.Who = args[1]
			}
			return clusterInject(cmd.Context(), env, cluster, args[0], f)
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.clients, "clients", nil, "client machines that the fault is about, such as a,b")
	fl.DurationVar(&f.hold, "for", 0, "heal after this time (default: at Ctrl-C)")
	fl.Float64Var(&f.options.Loss, "loss", localcluster.DefaultLoss, "share of the packets that 'loss' drops, in each direction")
	fl.DurationVar(&f.options.Delay, "delay", localcluster.DefaultDelay, "what 'delay' adds, in each direction")
	fl.IntVar(&f.options.Flaps, "flaps", localcluster.DefaultFlaps, "how often 'flap' cuts and heals")
	return cmd
}

// checkFault says what is wrong with a command line before anything is looked for.
func checkFault(name string, f *faultFlags) error {
	var names []string
	for _, known := range localcluster.Faults() {
		if known.Name != name {
			names = append(names, known.Name)
			continue
		}
		if known.Clients && len(f.clients) == 0 {
			return usageError("%s needs --clients, the machines that it is about", name)
		}
		switch {
		case f.hold < 0:
			return usageError("--for is %s; it must be positive", f.hold)
		case f.options.Loss <= 0 || f.options.Loss > 1:
			return usageError("--loss is %g; it must be a share, such as 0.05", f.options.Loss)
		case f.options.Delay <= 0:
			return usageError("--delay is %s; it must be positive", f.options.Delay)
		case f.options.Flaps <= 0:
			return usageError("--flaps is %d; it must be positive", f.options.Flaps)
		}
		return nil
	}
	return usageError("%q is not one of %s", name, strings.Join(names, ", "))
}

// clusterInject injects a fault, waits, and heals, also after the first signal.
func clusterInject(ctx context.Context, env *environ, cluster *localcluster.Cluster, name string, f faultFlags) error {
	made, err := cluster.Machines()
	if err != nil {
		return err
	}
	for _, c := range f.clients {
		// A misspelt machine would be made, and cut off with nobody on it.
		if !slices.Contains(made, c) {
			return usageError("--clients %s: there is no such client machine (there are: %s); 'cluster exec %s -- PROGRAM' makes it", c, strings.Join(made, ", "), c)
		}
		m, err := cluster.Machine(ctx, c)
		if err != nil {
			return err
		}
		f.options.Clients = append(f.options.Clients, m)
	}
	bounded, cancel := context.WithTimeout(ctx, clusterFaultTimeout)
	i, err := cluster.Inject(bounded, name, f.options)
	cancel()
	if err != nil {
		return err
	}
	_, printed := fmt.Fprintln(env.stdout, i.Member().Name)
	until := "until Ctrl-C"
	if f.hold > 0 {
		until = "for " + f.hold.String()
	}
	env.note("%s of %s (%s) since %s, %s", name, i.Member().Name, i.Member().Addr, i.At().Format("15:04:05.000"), until)
	var over <-chan time.Time
	if f.hold > 0 {
		timer := time.NewTimer(f.hold)
		defer timer.Stop()
		over = timer.C
	}
	if printed == nil {
		select {
		case <-over:
		case <-i.Done():
		case <-ctx.Done():
		}
	}
	drain, end := env.stop.untilHard(ctx)
	defer end()
	drain, cancel = context.WithTimeout(drain, clusterFaultTimeout)
	defer cancel()
	if err := i.Heal(drain); err != nil {
		return fmt.Errorf("%w\nheal it with: capstan cluster repair%s", err, dirFlag(cluster.Dir()))
	}
	if err := i.Err(); err != nil {
		return err
	}
	env.note("healed %s of %s", name, i.Member().Name)
	return stdoutErr(printed)
}

func newClusterRepairCmd(env *environ, dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "repair",
		Short: "remove what killed clusters have left, or heal the faults of a living one",
		Long: `Without --dir, remove what clusters have left whose owner was killed (kill -9) before it could clean up:
servers, temporary directories, networks, disks. Clusters that live are not touched.

With --dir, end all faults that are in force in the cluster there, whoever injected them: rules and delays
go, links come up, frozen members go on, and those that do not run are started.

Prints what it did, a line each. Networks and disks take root.`,
		Example: "  sudo capstan cluster repair\n  sudo capstan cluster repair --dir /var/tmp/set",
		Args:    exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), clusterFaultTimeout)
			defer cancel()
			repair := localcluster.Repair
			if *dir != "" {
				cluster, err := localcluster.Open(*dir)
				if err != nil {
					return err
				}
				repair = cluster.Repair
			}
			if *dir == "" && os.Geteuid() != 0 {
				env.note("not root: networks and disks are not looked at")
			}
			did, err := repair(ctx)
			for _, d := range did {
				if _, err := fmt.Fprintln(env.stdout, d); err != nil {
					return stdoutErr(err)
				}
			}
			if err == nil && len(did) == 0 {
				env.note("nothing to repair")
			}
			return err
		},
	}
}
