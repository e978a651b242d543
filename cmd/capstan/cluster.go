package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/localcluster"
)

// clusterLabel marks the clusters that 'cluster up' puts into temporary directories, so that the
// other commands do not find those of a running test or demo.
const clusterLabel = "capstan cluster up"

// clusterStopTimeout bounds a stop: each server has 20 s to end by itself before it is killed.
const clusterStopTimeout = time.Minute

// clusterFaultTimeout bounds a fault; a clean stop of a primary is the longest.
const clusterFaultTimeout = 2 * time.Minute

const clusterHelp = `Run real MongoDB servers on this machine and break them on purpose.

'cluster up' starts one server, or a replica set of three, on free ports of the loopback interface and
prints the connection string once a primary accepts writes. It stays until Ctrl-C, and the servers end
with it, however it ends; with --detach they stay until 'cluster down'. Without --dir their data are in
a temporary directory that is removed at the end.

The other commands act on the cluster in --dir, or on the only one that was started without --dir.

With --network (Linux, root), each member is on a machine of its own, a network namespace, so that links
can be cut, slowed and made lossy; 'cluster exec' runs clients inside. Nothing is changed in the network
of this computer.

The server is $CAPSTAN_MONGOD, else mongod on PATH, else the one that scripts/get-mongod has installed.`

const clusterExample = `  export CAPSTAN_URI=$(capstan cluster up --members 3 --detach)
  capstan cluster kill primary     # prints the name of the member that it killed
  capstan cluster status
  capstan cluster start m0
  capstan cluster down
  sudo capstan cluster up --members 3 --network --detach
  sudo capstan cluster fault blackhole --for 10s   # and watch: cluster exec app -- capstan tail demo.lines`

func newClusterCmd(env *environ) *cobra.Command {
	cmd := newGroup("cluster", "run real MongoDB servers on this machine, and break them", clusterExample)
	cmd.Long = clusterHelp
	var dir string
	cmd.PersistentFlags().StringVar(&dir, "dir", "", "directory of the cluster (default: a temporary one)")
	cmd.AddCommand(
		newClusterUpCmd(env, &dir),
		newClusterDownCmd(env, &dir),
		newClusterStatusCmd(env, &dir),
		newClusterURICmd(env, &dir),
		newClusterExecCmd(&dir),
		newClusterInjectCmd(env, &dir),
		newClusterFaultsCmd(env),
		newClusterRepairCmd(env, &dir),
	)
	for _, f := range clusterFaults {
		cmd.AddCommand(newClusterFaultCmd(env, &dir, f))
	}
	return cmd
}

func newClusterUpCmd(env *environ, dir *string) *cobra.Command {
	c := localcluster.Config{Label: clusterLabel}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start servers, print the connection string, and stay until Ctrl-C",
		Long: `Start servers and print the connection string, alone on standard output, once a primary accepts
writes. A directory that holds a cluster which does not run is started again, with its data.

The members of a set elect within 1 s (election timeout) and hear from each other every 250 ms, so that
a lost primary costs 1.4 to 2.5 s; --server-defaults keeps MongoDB's own settings, with 11 to 25 s.`,
		Example: `  capstan cluster up
  capstan cluster up --members 3 --dir /var/tmp/set --auth --tls
  sudo capstan cluster up --members 3 --network --disk-mb 1024
  export CAPSTAN_URI=$(capstan cluster up --members 3 --detach)`,
		Args: exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Members != 1 && c.Members != 3 {
				return usageError("--members is 1 or 3, not %d", c.Members)
			}
			if c.DiskMB != 0 && c.DiskMB < localcluster.MinDiskMB {
				return usageError("--disk-mb is %d: mongod needs at least %d", c.DiskMB, localcluster.MinDiskMB)
			}
			c.Dir, c.Logger = *dir, env.log
			return clusterUp(cmd.Context(), env, c)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Members, "members", localcluster.DefaultMembers, "1 (a standalone server) or 3 (a replica set)")
	f.BoolVar(&c.Auth, "auth", false, "demand credentials; they are in the connection string")
	f.BoolVar(&c.TLS, "tls", false, "demand TLS, with a certificate authority made for it")
	f.BoolVar(&c.Detach, "detach", false, "return at once; the servers stay until 'cluster down'")
	f.BoolVar(&c.ServerDefaults, "server-defaults", false, "MongoDB's own election and replication timing")
	f.BoolVar(&c.Network, "network", false, "a network of its own, whose links can be cut; needs Linux and root")
	f.IntVar(&c.DiskMB, "disk-mb", 0, fmt.Sprintf("a disk in memory for each member, of at least %d MB, that can be full; needs Linux and root", localcluster.MinDiskMB))
	f.StringArrayVar(&c.ExtraArgs, "mongod-arg", nil, "further argument for every mongod, such as --mongod-arg=--setParameter --mongod-arg=enableTestCommands=1")
	return cmd
}

// clusterUp starts a cluster and, unless it is detached, keeps it until a signal or 'cluster down'.
func clusterUp(ctx context.Context, env *environ, c localcluster.Config) error {
	cluster, err := localcluster.Start(ctx, c)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(env.stdout, cluster.URI()); err != nil {
		_ = clusterDown(ctx, env, cluster) // nobody knows of it: say the first error
		return stdoutErr(err)
	}
	env.note("%d member(s) in %s", len(cluster.Members()), cluster.Dir())
	if c.Network {
		env.note("reached from inside its network only: sudo capstan cluster exec%s app -- COMMAND", dirFlag(c.Dir))
	}
	if c.Detach {
		env.note("stop with: capstan cluster down%s", dirFlag(c.Dir))
		return nil
	}
	env.note("Ctrl-C stops")
	select {
	case <-ctx.Done():
		env.note("stopping")
		return clusterDown(ctx, env, cluster)
	case <-cluster.Done():
		env.note("taken down by another process")
		return nil
	}
}

// clusterDown takes a cluster down also after the first signal; the second one kills the servers.
func clusterDown(ctx context.Context, env *environ, cluster *localcluster.Cluster) error {
	ctx, end := env.stop.untilHard(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, clusterStopTimeout)
	defer cancel()
	return cluster.Down(ctx)
}

// dirFlag is how to name the directory again; quoted, as it may hold spaces.
func dirFlag(dir string) string {
	if dir == "" {
		return ""
	}
	return " --dir '" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
}

// openCluster finds the cluster that a command means.
func openCluster(dir string) (*localcluster.Cluster, error) {
	if dir != "" {
		return localcluster.Open(dir)
	}
	switch dirs := localcluster.Temporary(clusterLabel); len(dirs) {
	case 0:
		return nil, fmt.Errorf("%w: none was started without --dir: give --dir DIR if it was started with one "+
			"(the --dbpath of its servers, in 'ps ax | grep mongod', is DIR/m0); 'capstan cluster up' starts a new one", errNoCluster)
	case 1:
		return localcluster.Open(dirs[0])
	default:
		return nil, usageError("there are several clusters; give --dir DIR, one of:\n  %s", strings.Join(clusterStates(dirs), "\n  "))
	}
}

// errNoCluster says that there is nothing to act on, and no directory was given.
var errNoCluster = errors.New("no cluster")

// clusterStates adds to each directory whether the servers in it run.
func clusterStates(dirs []string) []string {
	out := make([]string, len(dirs))
	for i, dir := range dirs {
		out[i] = dir
		c, err := localcluster.Open(dir)
		if err != nil {
			continue // taken down meanwhile
		}
		running := 0
		for _, m := range c.Members() {
			if m.Running() {
				running++
			}
		}
		out[i] += fmt.Sprintf(" (%d of %d members run)", running, len(c.Members()))
	}
	return out
}

func newClusterDownCmd(env *environ, dir *string) *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "stop all servers; a temporary directory is removed",
		Example: "  capstan cluster down\n  capstan cluster down --dir /var/tmp/set",
		Args:    exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := openCluster(*dir)
			if err != nil {
				return err
			}
			if err := clusterDown(cmd.Context(), env, cluster); err != nil {
				return err
			}
			if _, err := os.Stat(cluster.Dir()); err == nil {
				env.note("stopped; the data stay in %s", cluster.Dir())
			} else {
				env.note("stopped %s, and removed it", cluster.Dir())
			}
			return nil
		},
	}
}

func newClusterURICmd(env *environ, dir *string) *cobra.Command {
	return &cobra.Command{
		Use:     "uri",
		Short:   "print the connection string, with credentials if it has any",
		Example: "  export CAPSTAN_URI=$(capstan cluster uri)",
		Args:    exactArgs(0, ""),
		RunE: func(*cobra.Command, []string) error {
			cluster, err := openCluster(*dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(env.stdout, cluster.URI())
			return stdoutErr(err)
		},
	}
}

func newClusterStatusCmd(env *environ, dir *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "print the members with their roles and processes",
		Example: "  capstan cluster status\n  capstan cluster status --output json | jq -r 'select(.role==\"primary\").name'",
		Args:    exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != outputText && output != outputJSON {
				return usageError("--output is text or json, not %q", output)
			}
			cluster, err := openCluster(*dir)
			if err != nil {
				return err
			}
			members := cluster.Status(cmd.Context())
			if output == outputJSON {
				enc := json.NewEncoder(env.stdout)
				for _, m := range members {
					if err := enc.Encode(m); err != nil {
						return stdoutErr(err)
					}
				}
				return nil
			}
			env.note("cluster in %s", cluster.Dir())
			return printMembers(env, members)
		},
	}
	cmd.Flags().StringVar(&output, "output", outputText, "text, or json: one object per member")
	return cmd
}

func printMembers(env *environ, members []localcluster.Member) error {
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tROLE\tADDRESS\tPROCESS") // buffered: Flush has the error
	for _, m := range members {
		process := "stopped"
		switch {
		case m.Frozen:
			process = fmt.Sprintf("%d frozen", m.PID)
		case m.Running():
			process = fmt.Sprint(m.PID)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.Name, m.Role, m.Addr, process)
	}
	return stdoutErr(w.Flush())
}

// clusterFault is a subcommand that does something to one member.
type clusterFault struct {
	verb, who, short, done string
	do                     func(*localcluster.Cluster, context.Context, string) (localcluster.Member, error)
}

var clusterFaults = []clusterFault{
	{"kill", "WHO", "end a member by SIGKILL, as a crash would", "killed", (*localcluster.Cluster).Kill},
	{"freeze", "WHO", "stop a member in its tracks (SIGSTOP); its connections stay open", "froze", (*localcluster.Cluster).Freeze},
	{"thaw", "NAME", "let a frozen member go on (SIGCONT)", "thawed", (*localcluster.Cluster).Thaw},
	{"stop", "WHO", "end a member cleanly (SIGTERM)", "stopped", (*localcluster.Cluster).Stop},
	{"start", "NAME", "start a member again, on its old port with its data", "started", (*localcluster.Cluster).Start},
	{"stepdown", "WHO", "make the primary hand over to another member", "stepped down", (*localcluster.Cluster).StepDown},
}

func newClusterFaultCmd(env *environ, dir *string, f clusterFault) *cobra.Command {
	example := "  capstan cluster " + f.verb + " m1"
	long := strings.ToUpper(f.short[:1]) + f.short[1:] + ". Prints the member's name.\n\n"
	if f.verb == "stepdown" {
		example = "  capstan cluster stepdown primary"
		long += "WHO is primary, or the name of the member that is it: only the primary can step down."
	} else if f.who == "WHO" {
		example = "  capstan cluster " + f.verb + " primary\n" + example
		long += "WHO is a member's name (m0, m1, m2), primary or secondary; a role is waited for during an election."
	} else {
		long += "NAME is a member's name (m0, m1, m2): one that does not run has no role."
	}
	return &cobra.Command{
		Use:     f.verb + " " + f.who,
		Short:   f.short,
		Long:    long,
		Example: example,
		Args:    exactArgs(1, "one "+f.who),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := openCluster(*dir)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), clusterFaultTimeout)
			defer cancel()
			if f.verb == "start" && runs(cluster, args[0]) {
				env.note("%s already runs", args[0])
				_, err = fmt.Fprintln(env.stdout, args[0])
				return stdoutErr(err)
			}
			m, err := f.do(cluster, ctx, args[0])
			if err != nil {
				return err
			}
			env.note("%s %s (%s)", f.done, m.Name, m.Addr)
			_, err = fmt.Fprintln(env.stdout, m.Name)
			return stdoutErr(err)
		},
	}
}

// runs reports whether the member of that name runs.
func runs(c *localcluster.Cluster, name string) bool {
	for _, m := range c.Members() {
		if m.Name == name {
			return m.Running()
		}
	}
	return false
}
