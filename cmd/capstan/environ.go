package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/logging"
)

// selectTimeout is how long a command looks for a server before it says that there is none. A
// three-member set elects within it after a clean stepdown; after a crash the libraries' own budgets
// decide, because they have had a connection before.
const selectTimeout = 5 * time.Second

// environ is what a subcommand gets from the process: its streams, the environment and, once the
// flags are parsed, the settings, the logger and the stop signals. Nothing below it touches
// os.Stdout or os.Getenv.
type environ struct {
	stdin  io.Reader
	stdout io.Writer
	stderr *lockedWriter
	getenv func(string) string
	stop   *stopper
	// newLink makes the links of capstan serve.
	newLink linkMaker

	// Set by prepare, which runs before every subcommand.
	settings config.Settings
	log      zerolog.Logger
	quiet    bool // -q: no notes and no summary on stderr, errors only
	verbose  int  // -v, repeatable
	color    bool // of stderr

	// sides are the options of a command with a source and a target, which has no use for settings.URI.
	sides []*options.ClientOptions
}

func newEnviron(stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) *environ {
	return &environ{stdin: stdin, stdout: stdout, stderr: &lockedWriter{w: stderr}, getenv: getenv, newLink: newMongoLink}
}

// prepare finds out the settings and builds the logger. It connects to nothing.
func (e *environ) prepare(cmd *cobra.Command) error {
	flags := cmd.Flags()
	s, err := config.Load(e.input(cmd))
	if err != nil {
		return err
	}
	e.settings = s
	e.verbose, _ = flags.GetCount("verbose")
	e.quiet, _ = flags.GetBool("quiet")
	tty := isTerminal(e.stderr)
	e.color = s.Color.Text == "always" ||
		s.Color.Text == "auto" && tty && e.getenv("NO_COLOR") == "" && e.getenv("TERM") != "dumb"
	e.log = logging.New(e.stderr, logging.Config{
		Level:  e.level(),
		Text:   s.LogFormat.Text == "text" || s.LogFormat.Text == "auto" && tty,
		Color:  e.color,
		Redact: config.Redact,
	})
	if s.ArgvSecret {
		e.note("warning: the password in --uri may be visible to system status programs such as ps; use CAPSTAN_URI, --uri-file or --uri - instead")
	}
	return nil
}

// input is where a command's settings come from.
func (e *environ) input(cmd *cobra.Command) config.Input {
	return config.Input{
		Flag: func(name string) (string, bool) {
			f := cmd.Flags().Lookup(name)
			if f == nil || !f.Changed {
				return "", false
			}
			return f.Value.String(), true
		},
		Getenv: e.getenv,
		Stdin:  e.stdin,
	}
}

// level is the log level: what was set, else what -q and -v ask for, else the default.
func (e *environ) level() string {
	switch {
	case e.settings.LogLevel.Source != "default":
		return e.settings.LogLevel.Text
	case e.quiet:
		return "error"
	case e.verbose >= 3:
		return "trace"
	case e.verbose == 2:
		return "debug"
	case e.verbose == 1:
		return "info"
	}
	return config.DefaultLogLevel
}

// clientOptions returns fresh options for a client of the configured MongoDB. The libraries that own
// a client set what they need on top.
func (e *environ) clientOptions() (*options.ClientOptions, error) {
	return clientOptionsOf("uri", e.settings.URI)
}

// clientOptionsOf returns fresh options for a client of the connection string uri, which the setting key holds.
func clientOptionsOf(key string, uri config.Value) (*options.ClientOptions, error) {
	o := options.Client().ApplyURI(uri.Text)
	if o.ServerSelectionTimeout == nil {
		o.SetServerSelectionTimeout(selectTimeout)
	}
	if o.ConnectTimeout == nil {
		o.SetConnectTimeout(selectTimeout)
	}
	if o.AppName == nil {
		o.SetAppName("capstan")
	}
	if err := o.Validate(); err != nil {
		return nil, &config.Error{Key: key, Source: uri.Source, Err: parseError(uri.Text, err)}
	}
	return o, nil
}

// parseError returns what the driver says about the connection string, unless that could quote a part
// of its password, without any sign that Redact knows (I10).
func parseError(uri string, err error) error {
	switch {
	case config.Redact(uri) == uri:
		return err
	case !config.HasPassword(uri):
		return errors.New("it cannot be parsed: what stands behind the host's colon is no port number " +
			"(mongodb://HOST:PORT/, or mongodb://USER:PASSWORD@HOST:PORT/)")
	}
	return errors.New("it cannot be parsed (what the driver says may quote the password and is not shown): in the user's name " +
		"and the password, an at sign is written %40, a colon %3A, a slash %2F and a percent sign %25")
}

// note tells a person something, on stderr and redacted (I10). -q silences it.
func (e *environ) note(format string, args ...any) {
	if !e.quiet {
		e.say(format, args...)
	}
}

// say is note for what must be said even with -q.
func (e *environ) say(format string, args ...any) {
	_, _ = fmt.Fprintln(e.stderr, config.Redact(fmt.Sprintf(format, args...)))
}

// animate reports whether progress bars may be drawn on stderr.
func (e *environ) animate() bool {
	return !e.quiet && isTerminal(e.stderr) && e.getenv("TERM") != "dumb"
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	if l, ok := stream.(*lockedWriter); ok {
		stream = l.raw()
	}
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// lockedWriter lets the logger, the notes and the progress share stderr: one whole line at a time.
type lockedWriter struct {
	mu   sync.Mutex
	w    io.Writer
	over io.Writer // set while a bar is drawn: it prints above itself
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		if n, err := l.over.Write(p); err == nil {
			return n, nil
		}
	}
	return l.w.Write(p)
}

// raw returns the stream itself.
func (l *lockedWriter) raw() io.Writer { return l.w }

// redirect sends what is written to w, until redirect(nil).
func (l *lockedWriter) redirect(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = w
}
