package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/stream"
)

const produceHelp = `Send the lines of files, or of standard input, to a stream, in their order.

STREAM is DATABASE.COLLECTION. A line becomes the data of one message:

  --input lines    the line as a string, without its newline; it must be UTF-8
  --input ndjson   the JSON value of the line; blank lines are skipped; whole numbers become int32, int64
                   or decimal128, so that no digit is lost, other numbers doubles
  --input extjson  the same in MongoDB's Extended JSON: {"$oid": "..."} and so on become their types
  --input auto     looks at the first line: a JSON object means ndjson (or extjson, if it holds such a
                   type), anything else lines; which one it was is said on standard error

A line that cannot become a message (broken JSON, bad UTF-8, too long, refused by the server) stops the
run with its number, or is reported and skipped with --on-error skip.

From standard input the delivery is at-least-once at best: after a crash nobody knows how far it got,
and what is piped in again is sent again. With --durable NAME the lines of files are sent exactly once:
each message's _id is derived from the name and the number of the line, and how far the run got is
stored in the collection ` + checkpointCollection + `. Run the same command again after a crash, and
exactly the missing lines are added (as long as the stream still holds the last second's messages).
The files must not change before the place that was reached; lines may be added at the end.
`

const produceExample = `  seq 1 1000 | capstan produce demo.lines --create
  capstan produce demo.events --subject orders.eu events.ndjson
  capstan produce demo.events --durable import-2026-11 --on-error skip events.ndjson
  mongoexport -c things | capstan produce demo.things --input extjson --rate 500`

// produceOptions are the flags of produce.
type produceOptions struct {
	name     namespace
	files    []string
	input    string
	subject  string
	rate     float64
	count    int64
	create   bool
	size     string
	producer string
	durable  string
	onError  string
	journal  bool
}

// The policies for a bad line.
const (
	onErrorStop = "stop"
	onErrorSkip = "skip"
)

func newProduceCmd(env *environ) *cobra.Command {
	var o produceOptions
	cmd := &cobra.Command{
		Use:     "produce STREAM [FILE...]",
		Short:   "send lines, NDJSON or Extended JSON to a stream",
		Long:    produceHelp,
		Example: produceExample,
		Args:    minArgs(1, "a STREAM and optionally files"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.name, err = parseStream(args[0]); err != nil {
				return err
			}
			o.files = args[1:]
			if err := o.validate(); err != nil {
				return err
			}
			return produce(cmd.Context(), env, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.input, "input", inputAuto, "auto, lines, ndjson or extjson")
	f.StringVar(&o.subject, "subject", "", "subject of the messages")
	f.Float64Var(&o.rate, "rate", 0, "messages per second at most (0: no limit)")
	f.Int64Var(&o.count, "count", 0, "stop after this many messages (0: at the end of the input)")
	f.BoolVar(&o.create, "create", false, "create the stream if it does not exist")
	f.StringVar(&o.size, "size", humanize.Bytes(stream.DefaultSize), "with --create: size of the stream, with its unit")
	f.StringVar(&o.producer, "name", "", "name of the producer in src (default: the name of --durable, or this host's)")
	f.StringVar(&o.durable, "durable", "", "name under which the offset in the files is stored; a re-run adds what is missing")
	f.BoolVar(&o.journal, "journal", false, "acknowledge only what is in the server's journal on disk (a majority of a replica set is asked for either way)")
	f.StringVar(&o.onError, "on-error", onErrorStop, "stop or skip, at a line that cannot become a message")
	return cmd
}

func (o produceOptions) validate() error {
	switch {
	case !slices.Contains([]string{inputAuto, inputLines, inputNDJSON, inputExtJSON}, o.input):
		return usageError("--input is auto, lines, ndjson or extjson, not %q", o.input)
	case o.onError != onErrorStop && o.onError != onErrorSkip:
		return usageError("--on-error is stop or skip, not %q", o.onError)
	case o.rate < 0:
		return usageError("--rate must not be negative")
	case o.count < 0:
		return usageError("--count must not be negative")
	}
	if err := producer.CheckSubject(o.subject); err != nil {
		return usageError("--subject %q: %w", o.subject, err)
	}
	if _, err := parseSize(o.size); err != nil {
		return usageError("--size: %w", err)
	}
	if o.durable != "" && o.fromStdin() {
		return usageError("--durable needs files: what came from standard input cannot be read again after a crash, " +
			"so from there delivery is at-least-once. Write it to a file first, or leave --durable out")
	}
	return nil
}

func (o produceOptions) fromStdin() bool { return len(o.files) == 0 || slices.Contains(o.files, "-") }

// endless reports whether stopping on request is the normal end.
func (o produceOptions) endless() bool { return o.fromStdin() && o.count == 0 }

// namespace is a stream's database and collection.
type namespace struct{ db, coll string }

// String returns "db.coll", "db" where coll is empty, and "*" where both are.
func (n namespace) String() string {
	switch {
	case n.db == "":
		return "*"
	case n.coll == "":
		return n.db
	}
	return n.db + "." + n.coll
}

// parseNamespace reads DATABASE.COLLECTION; the collection may contain dots.
func parseNamespace(s string) (namespace, error) {
	db, coll, ok := strings.Cut(s, ".")
	if !ok || db == "" || coll == "" {
		return namespace{}, usageError("%q is no stream: want DATABASE.COLLECTION, for example demo.lines", s)
	}
	if err := checkDatabase(db); err != nil {
		return namespace{}, err
	}
	return namespace{db, coll}, nil
}

// parseStream is parseNamespace for what is written to, which cannot be one of the server's own
// collections (tail reads those, too).
func parseStream(s string) (namespace, error) {
	name, err := parseNamespace(s)
	if err != nil {
		return name, err
	}
	if err := stream.CheckName(name.db, name.coll); err != nil {
		return name, usageError("%q is no stream: %w", s, err)
	}
	if slices.Contains([]string{"local", "config", "admin"}, name.db) {
		return name, usageError("the database %s belongs to the server and holds no streams: choose another one, for example demo.%s", name.db, name.coll)
	}
	return name, nil
}

// checkDatabase refuses what can be no database of streams.
func checkDatabase(db string) error {
	switch {
	case db == "":
		return usageError("the database's name is empty")
	case strings.ContainsAny(db, `/\. "$*<>:|?`+"\x00"):
		return usageError("%q is no database: its name has no dot, blank, slash nor any of \"$*<>:|?", db)
	case len(db) > 63:
		return usageError("%q is no database: its name is longer than 63 bytes", db)
	}
	return nil
}

// parseSize reads a size with its unit: 100MB, 64MiB. A bare number is an error: bytes, or megabytes?
func parseSize(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if s == "" || !unicode.IsLetter(rune(s[len(s)-1])) {
		return 0, fmt.Errorf("%q has no unit: write 100MB or 64MiB", s)
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n == 0 || n > 1<<50 {
		return 0, fmt.Errorf("%q is no size: write 100MB or 64MiB", s)
	}
	return int64(n), nil
}

// produce sends the input and says the summary.
func produce(ctx context.Context, env *environ, o produceOptions) error {
	r, err := newProduceRun(ctx, env, o)
	if err != nil {
		return err
	}
	defer r.close(ctx)
	err = r.run(ctx)
	env.note("%s", r.summary())
	if errors.As(err, new(*stopError)) && o.endless() {
		return nil // Ctrl-C is how an endless input ends, and everything accepted was sent (I7)
	}
	return err
}
