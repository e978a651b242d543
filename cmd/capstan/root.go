package main

import (
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

const rootHelp = `Capstan is a message log on MongoDB's capped collections that never loses silently:
every reader is told what it lost, and how much.

Data goes to standard output, everything else to standard error.

MongoDB's connection string comes from --uri, CAPSTAN_URI, --uri-file, CAPSTAN_URI_FILE or the file
given with -c (the first of these that is set), else it is ` + config.DefaultURI + `.
"--uri -" reads it from the first line of standard input. Each of the flags below has an environment
variable: --log-level is CAPSTAN_LOG_LEVEL.

Exit codes:
    0  done, or stopped on request after a drain (Ctrl-C on an endless tail; a closed pipe)
    1  failed
    2  wrong usage
    3  bad configuration
    4  cannot connect or authenticate
    5  position lost: a resync is needed
    6  a verification found a difference
  124  --timeout reached
  130  second Ctrl-C, or Ctrl-C before --count or --until was reached (143: SIGTERM)
`

const rootExample = `  capstan cluster up --members 3 --detach           # a real replica set on this machine; prints its URI
  seq 1 1000 | capstan produce demo.lines --create  # a message per line
  capstan tail demo.lines --from earliest           # and back again`

// run executes one command line and returns the exit code. It blocks until the command has ended, or
// for hardGrace after the second signal.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	return newEnviron(stdin, stdout, stderr, getenv).run(ctx, args)
}

func (e *environ) run(ctx context.Context, args []string) int {
	ctx, e.stop = newStopper(ctx)
	defer e.stop.close()
	root := newRootCmd(e)
	root.SetArgs(args)
	result := make(chan error, 1) // 1: a command that outlives hardGrace still ends its goroutine
	go func() { result <- root.ExecuteContext(ctx) }()
	select {
	case err := <-result:
		return e.finish(err)
	case <-e.stop.hard:
	}
	select {
	case <-result:
	case <-time.After(hardGrace):
	}
	return exitCode(e.stop.cause)
}

// finish says what went wrong, redacted (I10), and returns the exit code.
func (e *environ) finish(err error) int {
	code := exitCode(err)
	if coded := (*codeError)(nil); code == exitOK || errors.As(err, &coded) && coded.err == nil {
		return code
	}
	e.say("capstan: %s", errorText(err))
	what := hint(err)
	if mongoerr.IsUnauthorized(err) && !e.hasUser() {
		// Not the user's rights are missing, but the user.
		code, what = exitConnect, "the server wants a user, and the connection string names none"
	}
	if what != "" {
		e.say("hint: %s", what)
	}
	return code
}

// hasUser reports whether the connection string says who connects; where a command has two, whether both do.
func (e *environ) hasUser() bool {
	if len(e.sides) > 0 {
		return !slices.ContainsFunc(e.sides, func(o *options.ClientOptions) bool { return o.Auth == nil })
	}
	o, err := e.clientOptions()
	return err != nil || o.Auth != nil
}

func newRootCmd(env *environ) *cobra.Command {
	root := newGroup("capstan", "a message log on MongoDB that never loses silently", rootExample)
	root.Long = rootHelp
	root.Version = version()
	root.SilenceUsage = true
	root.SilenceErrors = true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return env.prepare(cmd) }
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetHelpTemplate(helpTemplate)
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpCommand(newHelpCmd())
	root.CompletionOptions.DisableDefaultCmd = true // newCompletionCmd has examples
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.String("uri", "", "connection string of MongoDB; - reads it from standard input")
	f.String("uri-file", "", "file that holds the connection string")
	f.StringP("config", "c", "", "configuration file (YAML)")
	f.CountP("verbose", "v", "log more (-vv: debug, -vvv: trace)")
	f.BoolP("quiet", "q", false, "say nothing but errors")
	f.String("log-level", config.DefaultLogLevel, "trace, debug, info, warn, error or off")
	f.String("log-format", config.DefaultLogFormat, "auto (text on a terminal, else JSON), text or json")
	f.String("color", config.DefaultColor, "auto, always or never")
	root.AddCommand(
		newProduceCmd(env),
		newTailCmd(env),
		newConsumeCmd(env),
		newReplicateCmd(env),
		newVerifyCmd(env),
		newStreamCmd(env),
		newCheckpointCmd(env),
		newClusterCmd(env),
		newDemoCmd(env),
		newBenchCmd(env),
		newServeCmd(env),
		newStatusCmd(env),
		newConfigCmd(env),
		newVersionCmd(env),
		newCompletionCmd(env),
	)
	return root
}

// newGroup returns a command that only holds others: without arguments it prints its help, and an
// unknown one is a usage error that names the nearest.
func newGroup(use, short, example string) *cobra.Command {
	return &cobra.Command{
		Use:                        use,
		Short:                      short,
		Example:                    example,
		Args:                       cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
}

// newHelpCmd is cobra's help command, for which an unknown topic is wrong usage.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "help about a command",
		Example: "  capstan help tail\n  capstan help stream create",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || found == nil {
				return unknownCommand(cmd.Root(), args[0])
			}
			if len(rest) > 0 {
				return unknownCommand(found, rest[0])
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// exactArgs demands n positional arguments; what names them in the error.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		if n == 0 {
			return usageError("%s takes no arguments, not %q", cmd.CommandPath(), args)
		}
		return usageError("%s takes %s\nRun '%s --help' for examples.", cmd.CommandPath(), what, cmd.CommandPath())
	}
}

// minArgs demands at least n positional arguments.
func minArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= n {
			return nil
		}
		return usageError("%s takes %s\nRun '%s --help' for examples.", cmd.CommandPath(), what, cmd.CommandPath())
	}
}

// helpTemplate puts the examples first.
const helpTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}{{with (or .Long .Short)}}{{. | trimTrailingWhitespaces}}

{{end}}{{if or .Runnable .HasSubCommands}}{{.UsageString}}{{end}}`

const usageTemplate = `Usage:
{{if index .Annotations "runs"}}  {{.UseLine}}
{{end}}  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Global flags:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
`

// bareDuration finds the number of a duration that was given without a unit, in an error of pflag.
var bareDuration = regexp.MustCompile(`^invalid argument "(\d+)" for .*time: missing unit in duration`)

// flagError adds the nearest flag's name to an unknown flag.
func flagError(cmd *cobra.Command, err error) error {
	if n := bareDuration.FindStringSubmatch(err.Error()); n != nil {
		return usageError("%w: write %ss for seconds (or ms, m, h)", err, n[1])
	}
	return usageError("%w%s\nRun '%s --help' for the flags.", err, nearestFlag(cmd, err), cmd.CommandPath())
}

func unknownCommand(cmd *cobra.Command, name string) error {
	near := ""
	if s := cmd.SuggestionsFor(name); len(s) > 0 {
		near = "; did you mean " + strings.Join(s, " or ") + "?"
	}
	return usageError("unknown command %q for %q%s\nRun '%s --help' for the commands.", name, cmd.CommandPath(), near, cmd.CommandPath())
}
