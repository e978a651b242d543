package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
)

func newStreamCmd(env *environ) *cobra.Command {
	cmd := newGroup("stream", "create, describe and list streams", `  capstan stream create demo.lines --size 1GB
  capstan stream describe demo.lines
  capstan stream list demo`)
	cmd.AddCommand(newStreamCreateCmd(env), newStreamDescribeCmd(env), newStreamListCmd(env))
	return cmd
}

func newStreamCreateCmd(env *environ) *cobra.Command {
	var size string
	var most int64
	cmd := &cobra.Command{
		Use:   "create STREAM",
		Short: "create a stream; one that exists is left as it is",
		Long: `Create a capped collection as a stream, and prime it, so that tails on it stay alive while it is empty.
It is idempotent: a stream that exists is left as it is and reported. A collection of that name that is
not capped is an error that says what to do.`,
		Example: `  capstan stream create demo.lines
  capstan stream create demo.events --size 1GB --max 10000000`,
		Args: exactArgs(1, "one STREAM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := parseStream(args[0])
			if err != nil {
				return err
			}
			bytes, err := parseSize(size)
			if err != nil {
				return usageError("--size: %w", err)
			}
			if most < 0 {
				return usageError("--max must not be negative")
			}
			return streamCreate(cmd.Context(), env, name, stream.Config{Size: bytes, Max: most, Logger: env.log})
		},
	}
	cmd.Flags().StringVar(&size, "size", humanize.Bytes(stream.DefaultSize), "size in bytes of documents, with its unit (100MB, 64MiB)")
	cmd.Flags().Int64Var(&most, "max", 0, "number of messages at most (0: only the size counts)")
	return cmd
}

func streamCreate(ctx context.Context, env *environ, name namespace, c stream.Config) error {
	client, closeClient, err := env.connect(ctx)
	if err != nil {
		return err
	}
	defer closeClient()
	info, err := stream.Ensure(ctx, client.Database(name.db), name.coll, c)
	if err != nil {
		return err
	}
	what := "created stream"
	if !info.Created {
		what = "stream exists:"
	}
	env.note("%s %s, %s", what, info.Namespace, limits(info))
	return nil
}

func limits(i stream.Info) string {
	s := humanize.Bytes(uint64(i.Size))
	if i.Max > 0 {
		s += fmt.Sprintf(", at most %s messages", humanize.Comma(i.Max))
	}
	return s
}

func newStreamListCmd(env *environ) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list DATABASE",
		Short: "list the capped collections of a database",
		Example: `  capstan stream list demo
  capstan stream list demo --output json`,
		Args: exactArgs(1, "one DATABASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if db, _, ok := strings.Cut(args[0], "."); ok {
				return usageError("%s takes a DATABASE, not a stream: capstan stream list %s (capstan stream describe %s for the stream)", cmd.CommandPath(), db, args[0])
			}
			if err := checkDatabase(args[0]); err != nil {
				return err
			}
			return streamList(cmd.Context(), env, args[0], output)
		},
	}
	cmd.Flags().StringVar(&output, "output", outputText, "text or json")
	return cmd
}

func checkOutput(s string) error {
	if s != outputText && s != outputJSON {
		return usageError("--output is text or json, not %q", s)
	}
	return nil
}

// streamJSON is a stream in JSON output.
type streamJSON struct {
	Stream string `json:"stream"`
	UUID   string `json:"uuid"`
	Size   int64  `json:"size_bytes"`
	Max    int64  `json:"max_messages,omitempty"`
	Ours   bool   `json:"created_by_capstan"`
}

func toJSON(i stream.Info) streamJSON {
	return streamJSON{Stream: i.Namespace, UUID: i.Fingerprint(), Size: i.Size, Max: i.Max, Ours: i.Ours}
}

func streamList(ctx context.Context, env *environ, db, output string) error {
	client, closeClient, err := env.connect(ctx)
	if err != nil {
		return err
	}
	defer closeClient()
	infos, err := stream.List(ctx, client.Database(db))
	if err != nil {
		return err
	}
	if output == outputJSON {
		enc := json.NewEncoder(env.stdout)
		for _, i := range infos {
			if err := enc.Encode(toJSON(i)); err != nil {
				return stdoutErr(err)
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "STREAM\tSIZE\tUUID") // Flush reports
	for _, i := range infos {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", i.Namespace, limits(i), i.Fingerprint())
	}
	return stdoutErr(w.Flush())
}

// describeFlags are the flags of stream describe.
type describeFlags struct{ output, reader, rate string }

func newStreamDescribeCmd(env *environ) *cobra.Command {
	var f describeFlags
	cmd := &cobra.Command{
		Use:   "describe STREAM",
		Short: "say how full a stream is, how far back it reaches, and when a reader is overrun",
		Example: `  capstan stream describe demo.lines
  capstan stream describe demo.lines --output json
  capstan stream describe demo.lines --reader 1764532800.7-692c9e80a1b2c3d4e5f60718 --rate 5MB`,
		Args: exactArgs(1, "one STREAM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := parseNamespace(args[0])
			if err != nil {
				return err
			}
			if err := checkOutput(f.output); err != nil {
				return err
			}
			var c stream.DescribeConfig
			if f.rate != "" {
				n, err := parseSize(strings.TrimSuffix(f.rate, "/s"))
				if err != nil {
					return usageError("--rate: %w", err)
				}
				c.Rate = float64(n)
			}
			return streamDescribe(cmd.Context(), env, name, c, f)
		},
	}
	cmd.Flags().StringVar(&f.output, "output", outputText, "text or json")
	cmd.Flags().StringVar(&f.reader, "reader", "", "position of a reader, or the name of its checkpoint in the database: says how far it is from being overrun")
	cmd.Flags().StringVar(&f.rate, "rate", "", "how much is written per second, with its unit (default: the mean of what the stream holds)")
	return cmd
}

func streamDescribe(ctx context.Context, env *environ, name namespace, c stream.DescribeConfig, f describeFlags) error {
	client, closeClient, err := env.connect(ctx)
	if err != nil {
		return err
	}
	defer closeClient()
	if c.Reader, err = readerPosition(ctx, env, client, name, f.reader); err != nil {
		return err
	}
	d, err := stream.Describe(ctx, client.Database(name.db), name.coll, c)
	if err != nil {
		return err
	}
	rate := d.Rate
	if c.Rate > 0 {
		rate = c.Rate
	}
	if f.output == outputJSON {
		return stdoutErr(json.NewEncoder(env.stdout).Encode(describeJSON(d, rate)))
	}
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	for _, row := range describeRows(d, rate) {
		_, _ = fmt.Fprintf(w, "%s\t%s\n", row[0], row[1]) // Flush reports
	}
	return stdoutErr(w.Flush())
}

// readerPosition reads --reader: a position, or the name of a checkpoint of the stream.
func readerPosition(ctx context.Context, env *environ, client *mongo.Client, name namespace, reader string) (record.Position, error) {
	pos, err := record.ParsePosition(reader)
	if err == nil {
		return pos, nil
	}
	store, serr := env.checkpoints(client.Database(name.db))
	if serr != nil {
		return pos, serr
	}
	cp, serr := store.Load(ctx, reader)
	switch {
	case errors.Is(serr, checkpoint.ErrNotFound):
		return pos, usageError("--reader %q is neither a position nor the name of a checkpoint in %s", reader, name.db)
	case serr != nil:
		return pos, serr
	case cp.Stream != name.String():
		return pos, usageError("--reader %q reads %s and not %s", reader, cp.Stream, name)
	case cp.Position.IsZero():
		return pos, usageError("--reader %q has no position", reader)
	}
	return cp.Position, nil
}

// describeRows is a description for people.
func describeRows(d stream.Description, rate float64) [][2]string {
	rows := [][2]string{
		{"stream", d.Namespace},
		{"uuid", d.Fingerprint()},
		{"size", limits(d.Info)},
		{"messages", humanize.Comma(d.Messages)},
		{"full", fmt.Sprintf("%.1f %% (%s, %s per message)", 100*d.Full, humanize.Bytes(uint64(d.Bytes)), humanize.Bytes(uint64(d.AvgBytes)))},
	}
	if d.Oldest == nil || d.Newest == nil {
		return append(rows, [2]string{"oldest", "no message yet"})
	}
	rows = append(rows,
		[2]string{"oldest", endText(d.Oldest)},
		[2]string{"newest", endText(d.Newest)},
		[2]string{"age of the oldest", d.Age.Round(time.Second).String()},
		[2]string{"rate", humanize.Bytes(uint64(rate)) + "/s"},
	)
	// A reader at the newest message is overrun when everything after it was written once around.
	if rate > 0 {
		rows = append(rows, [2]string{"a reader that stops now is overrun in", overrunText(stream.TimeToOverrun(d.Size, rate))})
	}
	if r := d.Reader; r != nil {
		if !r.Found {
			return append(rows, [2]string{"reader", "its position is not in the stream (any more)"})
		}
		rows = append(rows,
			[2]string{"reader is behind by", humanize.Comma(r.Behind) + " messages"},
			[2]string{"reader is overrun in", overrunText(r.Overrun)})
	}
	return rows
}

func overrunText(d time.Duration) string {
	if d > 100*365*24*time.Hour {
		return "never at this rate"
	}
	return d.Round(time.Second).String()
}

func endText(e *stream.End) string {
	s := e.Position.String()
	if !e.At.IsZero() {
		s += " at " + e.At.UTC().Format(time.RFC3339)
	}
	if e.Src != "" {
		s += fmt.Sprintf(", src %s, seq %d", e.Src, e.Seq)
	}
	return s
}

// endJSON is a message in JSON output.
type endJSON struct {
	Position string `json:"position"`
	At       string `json:"at,omitempty"`
	Src      string `json:"src,omitempty"`
	Seq      int64  `json:"seq,omitempty"`
}

// descriptionJSON is a description in JSON output; times are in seconds.
type descriptionJSON struct {
	streamJSON
	Messages int64    `json:"messages"`
	Bytes    int64    `json:"bytes"`
	Full     float64  `json:"full"`
	Oldest   *endJSON `json:"oldest,omitempty"`
	Newest   *endJSON `json:"newest,omitempty"`
	Age      float64  `json:"age_seconds"`
	Rate     float64  `json:"rate_bytes_per_second"`
	Overrun  *float64 `json:"overrun_seconds,omitempty"`
	Reader   *struct {
		Found   bool     `json:"found"`
		Behind  int64    `json:"behind_messages"`
		Free    int64    `json:"free_bytes"`
		Overrun *float64 `json:"overrun_seconds,omitempty"`
	} `json:"reader,omitempty"`
}

func describeJSON(d stream.Description, rate float64) descriptionJSON {
	out := descriptionJSON{
		streamJSON: toJSON(d.Info), Messages: d.Messages, Bytes: d.Bytes, Full: d.Full,
		Oldest: toEndJSON(d.Oldest), Newest: toEndJSON(d.Newest), Age: d.Age.Seconds(), Rate: rate,
	}
	if rate > 0 {
		out.Overrun = new(stream.TimeToOverrun(d.Size, rate).Seconds())
	}
	if r := d.Reader; r != nil {
		out.Reader = &struct {
			Found   bool     `json:"found"`
			Behind  int64    `json:"behind_messages"`
			Free    int64    `json:"free_bytes"`
			Overrun *float64 `json:"overrun_seconds,omitempty"`
		}{r.Found, r.Behind, r.Free, nil}
		if r.Found && r.Rate > 0 {
			out.Reader.Overrun = new(r.Overrun.Seconds())
		}
	}
	return out
}

func toEndJSON(e *stream.End) *endJSON {
	if e == nil {
		return nil
	}
	out := &endJSON{Position: e.Position.String(), Src: e.Src, Seq: e.Seq}
	if !e.At.IsZero() {
		out.At = e.At.UTC().Format(time.RFC3339)
	}
	return out
}
