package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/record"
)

// checkpoints is what the checkpoint command needs of a store.
type checkpoints interface {
	Load(ctx context.Context, name string) (record.Checkpoint, error)
	List(ctx context.Context) ([]record.Checkpoint, error)
	Set(ctx context.Context, cp record.Checkpoint) error
	Delete(ctx context.Context, name string) error
}

// checkpointFlags are the flags of all checkpoint commands.
type checkpointFlags struct{ file, output string }

func newCheckpointCmd(env *environ) *cobra.Command {
	var f checkpointFlags
	cmd := newGroup("checkpoint", "list, show, set and delete stored positions", `  capstan checkpoint list demo
  capstan checkpoint show demo billing
  capstan checkpoint set demo billing --stream demo.events --position 1764532800.7-692c9e80a1b2c3d4e5f60718
  capstan checkpoint delete --checkpoint-file billing.json billing`)
	cmd.Long = `Look at and change the positions that durable readers and producers store under their names.

They are in the collection ` + checkpointCollection + ` of the stream's DATABASE, or in the file of
--checkpoint-file; then DATABASE is left out. A producer's entry is called ` + producerPrefix + `NAME.

Stop the reader before you change its position: a running one is fenced off and ends.`
	p := cmd.PersistentFlags()
	p.StringVar(&f.file, "checkpoint-file", "", "file that holds the checkpoints, instead of a database")
	p.StringVar(&f.output, "output", outputText, "text or json")
	cmd.AddCommand(newCheckpointListCmd(env, &f), newCheckpointShowCmd(env, &f), newCheckpointSetCmd(env, &f), newCheckpointDeleteCmd(env, &f))
	return cmd
}

// with runs do with the store, and the arguments behind DATABASE, of which there must be n.
func (f *checkpointFlags) with(cmd *cobra.Command, env *environ, args []string, what string, n int, do func(context.Context, checkpoints, []string) error) error {
	if err := checkOutput(f.output); err != nil {
		return err
	}
	if f.file == "" {
		n++
		what = strings.TrimSpace("DATABASE " + what)
	}
	if len(args) != n {
		return usageError("%s takes %s\nRun '%s --help' for examples.", cmd.CommandPath(), what, cmd.CommandPath())
	}
	if f.file != "" {
		store, err := checkpoint.NewFile(f.file, checkpoint.FileConfig{})
		if err != nil {
			return err
		}
		return do(cmd.Context(), store, args)
	}
	client, closeClient, err := env.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer closeClient()
	db, _, _ := strings.Cut(args[0], ".") // a stream's name will do
	store, err := env.checkpoints(client.Database(db))
	if err != nil {
		return err
	}
	return do(cmd.Context(), store, args[1:])
}

func newCheckpointListCmd(env *environ, f *checkpointFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list [DATABASE]",
		Short: "list who reads what, and how far",
		Example: `  capstan checkpoint list demo
  capstan checkpoint list --checkpoint-file billing.json --output json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd, env, args, "", 0, func(ctx context.Context, s checkpoints, _ []string) error {
				list, err := s.List(ctx)
				return errors.Join(f.print(env, list), err) // what can be read, and what cannot
			})
		},
	}
}

func newCheckpointShowCmd(env *environ, f *checkpointFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "show [DATABASE] NAME",
		Short: "show one checkpoint",
		Example: `  capstan checkpoint show demo billing
  capstan checkpoint show demo billing --output json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd, env, args, "NAME", 1, func(ctx context.Context, s checkpoints, args []string) error {
				cp, err := s.Load(ctx, args[0])
				if err != nil {
					return notStored(ctx, s, args[0], err)
				}
				if f.output == outputJSON {
					return f.print(env, []record.Checkpoint{cp})
				}
				return showCheckpoint(env, cp)
			})
		},
	}
}

func newCheckpointSetCmd(env *environ, f *checkpointFlags) *cobra.Command {
	var ns, position string
	cmd := &cobra.Command{
		Use:   "set [DATABASE] NAME --position POSITION",
		Short: "set the position of a reader by hand",
		Long: `Set the position under a name; the reader goes on behind it. A position is printed by tail and by
stream describe. The stream is the one that the name already has, unless --stream says another.`,
		Example: `  capstan checkpoint set demo billing --position 1764532800.7-692c9e80a1b2c3d4e5f60718
  capstan checkpoint set demo billing --stream demo.events --position 1764532800.7-692c9e80a1b2c3d4e5f60718`,
		RunE: func(cmd *cobra.Command, args []string) error {
			pos, err := record.ParsePosition(position)
			if err != nil {
				return usageError("--position: %w", err)
			}
			if pos.IsZero() {
				return usageError("--position is missing (to begin anew: capstan checkpoint delete)")
			}
			if ns != "" {
				if _, err := parseNamespace(ns); err != nil {
					return err
				}
			}
			return f.with(cmd, env, args, "NAME", 1, func(ctx context.Context, s checkpoints, args []string) error {
				return setCheckpoint(ctx, env, s, args[0], ns, pos)
			})
		},
	}
	cmd.Flags().StringVar(&position, "position", "", "position, as capstan prints it")
	cmd.Flags().StringVar(&ns, "stream", "", "the stream that it is a position of")
	return cmd
}

func setCheckpoint(ctx context.Context, env *environ, s checkpoints, name, ns string, pos record.Position) error {
	cp := record.Checkpoint{Name: name, Stream: ns, Position: pos}
	old, err := s.Load(ctx, name)
	switch {
	case errors.Is(err, checkpoint.ErrNotFound):
		if ns == "" {
			return usageError("nothing is stored under %q yet, so --stream must say of which stream the position is", name)
		}
	case err == nil && strings.HasPrefix(name, producerPrefix):
		return usageError("%q is the offset of a producer, which a position cannot set; delete it to send the file again", name)
	case err == nil:
		// The marks belong to the old position: with them, the reader would not go back.
		if cp.Fingerprint = old.Fingerprint; ns != "" && ns != old.Stream {
			cp.Fingerprint = ""
		}
	}
	if err := s.Set(ctx, cp); err != nil {
		return err
	}
	env.note("checkpoint %q is at %s", name, pos)
	return nil
}

func newCheckpointDeleteCmd(env *environ, f *checkpointFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "delete [DATABASE] NAME",
		Short: "delete a checkpoint: the next run begins anew",
		Example: `  capstan checkpoint delete demo billing
  capstan checkpoint delete demo ` + producerPrefix + `import-2026-11`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd, env, args, "NAME", 1, func(ctx context.Context, s checkpoints, args []string) error {
				if err := s.Delete(ctx, args[0]); err != nil {
					return err
				}
				env.note("checkpoint %q is deleted", args[0])
				return nil
			})
		},
	}
}

// checkpointJSON is a checkpoint in JSON output.
type checkpointJSON struct {
	Name        string           `json:"name"`
	Stream      string           `json:"stream"`
	Position    string           `json:"position,omitempty"`
	Marks       map[string]int64 `json:"marks,omitempty"`
	Lines       int64            `json:"lines,omitempty"`
	Bytes       int64            `json:"bytes,omitempty"`
	Fingerprint string           `json:"fingerprint,omitempty"`
	Owner       string           `json:"owner"`
	Revision    int64            `json:"revision"`
	Updated     time.Time        `json:"updated"`
}

func (f *checkpointFlags) print(env *environ, list []record.Checkpoint) error {
	if f.output == outputJSON {
		enc := json.NewEncoder(env.stdout)
		for _, c := range list {
			err := enc.Encode(checkpointJSON{c.Name, c.Stream, c.Position.String(), c.Marks, c.Lines, c.Bytes, c.Fingerprint, c.Owner, c.Revision, c.Updated})
			if err != nil {
				return stdoutErr(err)
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAME\tSTREAM\tAT\tAGE\tUPDATED\tOWNER") // Flush reports
	for _, c := range list {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, c.Stream, at(c), age(c, time.Now()), c.Updated.UTC().Format(time.RFC3339), c.Owner)
	}
	return stdoutErr(w.Flush())
}

// at says how far a checkpoint is.
func at(c record.Checkpoint) string {
	switch {
	case c.Lines > 0:
		return fmt.Sprintf("line %d", c.Lines)
	case c.Position.IsZero():
		return "-"
	}
	return c.Position.String()
}

// age says how long ago the message at a checkpoint was written, by the server's clock.
func age(c record.Checkpoint, now time.Time) string {
	if c.Lines > 0 || c.Position.TS.IsZero() {
		return "-"
	}
	return max(0, now.Sub(time.Unix(int64(c.Position.TS.T), 0))).Round(time.Second).String()
}

// notStored adds to a missing checkpoint that a producer has one of the name, if so.
func notStored(ctx context.Context, s checkpoints, name string, err error) error {
	if errors.Is(err, checkpoint.ErrNotFound) && !strings.HasPrefix(name, producerPrefix) {
		if _, perr := s.Load(ctx, producerPrefix+name); perr == nil {
			return fmt.Errorf("%w; a producer's offset is: %s%s", err, producerPrefix, name)
		}
	}
	return err
}

func showCheckpoint(env *environ, c record.Checkpoint) error {
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	rows := [][2]string{
		{"name", c.Name}, {"stream", c.Stream}, {"at", at(c)}, {"owner", c.Owner},
		{"revision", fmt.Sprint(c.Revision)}, {"updated", c.Updated.UTC().Format(time.RFC3339Nano)}, {"fingerprint", c.Fingerprint},
	}
	if c.Lines > 0 {
		rows = append(rows, [2]string{"bytes", fmt.Sprint(c.Bytes)})
	}
	for _, src := range slices.Sorted(maps.Keys(c.Marks)) {
		rows = append(rows, [2]string{"done of " + src, fmt.Sprintf("seq %d", c.Marks[src])})
	}
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\n", r[0], r[1]) // Flush reports
	}
	return stdoutErr(w.Flush())
}
