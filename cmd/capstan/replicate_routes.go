package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// newReplicateRoutesCmds returns the subcommands of capstan replicate that look at what a destination remembers of its routes. They need
// no daemon.
func newReplicateRoutesCmds(env *environ) []*cobra.Command {
	var output, name string
	routes := &cobra.Command{
		Use:   "routes",
		Short: "list the routes that a destination remembers",
		Example: `  capstan replicate routes --target-uri mongodb://b1/?replicaSet=b
  capstan replicate routes --target-uri mongodb://b1/?replicaSet=b --output json`,
		Args: exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return atTarget(env, cmd, output, func(ctx context.Context, m memory) error { return m.listRoutes(ctx, env, output) })
		},
	}
	letters := &cobra.Command{
		Use:   "letters",
		Short: "list the documents that a destination has refused, with the reasons",
		Example: `  capstan replicate letters --target-uri mongodb://b1/?replicaSet=b
  capstan replicate letters --target-uri mongodb://b1/?replicaSet=b --name orders --output json`,
		Args: exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return atTarget(env, cmd, output, func(ctx context.Context, m memory) error { return m.listLetters(ctx, env, name, output) })
		},
	}
	letters.Flags().StringVar(&name, "name", "", "those of this route only")
	forget := &cobra.Command{
		Use:   "forget ROUTE",
		Short: "remove what a destination remembers of a route that nobody runs: its checkpoint and dead letters",
		Example: `  capstan replicate forget orders --target-uri mongodb://b1/?replicaSet=b
  CAPSTAN_TARGET_URI=mongodb://b1/?replicaSet=b capstan replicate forget orders/berlin`,
		Args: exactArgs(1, "the name of a route, as capstan replicate routes shows it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return atTarget(env, cmd, outputText, func(ctx context.Context, m memory) error { return m.forget(ctx, env, args[0]) })
		},
	}
	cmds := []*cobra.Command{routes, letters, forget}
	for _, cmd := range cmds {
		addSideFlags(cmd, sideTarget)
		if cmd != forget {
			cmd.Flags().StringVar(&output, "output", outputText, "text or json (one object per line)")
		}
	}
	return cmds
}

// addSideFlags gives a command the flags of one side, which sideOptions reads.
func addSideFlags(cmd *cobra.Command, side string) {
	name := side + "-uri"
	cmd.Flags().String(name, "", fmt.Sprintf("connection string of the %s (or %s); - reads it from standard input", side, config.EnvName(name)))
	cmd.Flags().String(name+"-file", "", fmt.Sprintf("file that holds the connection string of the %s", side))
}

// memory is what a destination remembers.
type memory struct {
	store   *mongodb.Store
	letters *mongodb.Letters
}

// atTarget connects to the destination for do.
func atTarget(env *environ, cmd *cobra.Command, output string, do func(context.Context, memory) error) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	opts, err := sideOptions(env, cmd, sideTarget)
	if err != nil {
		return err
	}
	env.sides = []*options.ClientOptions{opts}
	ctx := cmd.Context()
	_, closeClient, err := connectTo(ctx, opts) // a wrong address is said within seconds
	if err != nil {
		return &sideError{sideTarget, err}
	}
	closeClient()
	target, err := mongodb.NewTarget(opts, mongodb.TargetConfig{})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = target.Close(ctx) // nothing is in progress
	}()
	store, err := mongodb.NewStore(target, mongodb.StoreConfig{})
	if err != nil {
		return err
	}
	return do(ctx, memory{store, mongodb.NewLetters(target)})
}

// routeLineJSON is a route as JSON.
type routeLineJSON struct {
	Route       string    `json:"route"`
	Phase       string    `json:"phase"`
	Paused      bool      `json:"paused"`
	Reason      string    `json:"reason,omitempty"`
	Owner       string    `json:"owner"`
	Released    bool      `json:"released"`
	Checkpoint  string    `json:"checkpoint,omitempty"`
	Saved       time.Time `json:"saved"`
	Collections int       `json:"collections"`
	Letters     int64     `json:"dead_letters"`
}

func (m memory) listRoutes(ctx context.Context, env *environ, output string) error {
	states, damaged := m.store.List(ctx)
	if damaged != nil && len(states) == 0 {
		return damaged
	}
	w := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	enc := json.NewEncoder(env.stdout)
	if output == outputText && len(states) > 0 {
		_, _ = fmt.Fprintln(w, "ROUTE\tPHASE\tOWNER\tCHECKPOINT\tCOLLECTIONS\tDEAD LETTERS") // Flush reports
	}
	for _, st := range states {
		n, err := m.letters.Count(ctx, st.Route)
		if err != nil {
			return err
		}
		line := routeLineOf(st, n)
		if output == outputJSON {
			if err := enc.Encode(line); err != nil {
				return stdoutErr(err)
			}
			continue
		}
		phase, owner := line.Phase, line.Owner
		if line.Paused {
			phase += " (paused)"
		}
		if line.Released {
			owner = "nobody"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\n", line.Route, phase, owner, cmp.Or(line.Checkpoint, "-"), line.Collections, n) // Flush reports
	}
	if len(states) == 0 {
		env.note("the destination remembers no route")
	}
	return errors.Join(stdoutErr(w.Flush()), damaged)
}

func routeLineOf(st replicator.State, letters int64) routeLineJSON {
	line := routeLineJSON{
		Route: st.Route, Phase: cmp.Or(string(st.Phase), "not begun"), Paused: st.Paused, Reason: config.Redact(st.Reason), // I10
		Owner: st.Owner, Released: st.Clean, Saved: st.Updated.UTC(), Collections: len(st.Collections), Letters: letters,
	}
	if t := st.Position.TS.T; t > 0 {
		line.Checkpoint = time.Unix(int64(t), 0).UTC().Format(time.RFC3339)
	}
	return line
}

// letterLineJSON is a dead letter as JSON.
type letterLineJSON struct {
	Route     string          `json:"route"`
	Namespace string          `json:"namespace"`
	ID        json.RawMessage `json:"_id"`
	Reason    string          `json:"reason"`
	Attempts  int             `json:"attempts"`
	Time      time.Time       `json:"time"`
}

func (m memory) listLetters(ctx context.Context, env *environ, name, output string) error {
	names := []string{name}
	var damaged error
	if name == "" {
		var states []replicator.State
		states, damaged = m.store.List(ctx)
		names = nil
		for _, st := range states {
			names = append(names, st.Route)
		}
	}
	found := false
	enc := json.NewEncoder(env.stdout)
	enc.SetEscapeHTML(false)
	for _, route := range names {
		letters, err := m.letters.List(ctx, route, 0)
		if err != nil {
			return err
		}
		for _, l := range letters {
			found = true
			id, err := idJSON(bson.RawValue{Type: l.ID.Type, Value: l.ID.Value})
			if err != nil {
				return err
			}
			line := letterLineJSON{l.Route, l.Source.String(), id, config.Redact(withoutDump(l.Reason)), l.Attempts, l.Time} // I10
			if output == outputJSON {
				err = enc.Encode(line)
			} else {
				_, err = fmt.Fprintf(env.stdout, "%s: %s _id %s: %s (attempts: %d)\n", line.Route, line.Namespace, line.ID, strings.ReplaceAll(line.Reason, "\n", " "), line.Attempts)
			}
			if err != nil {
				return stdoutErr(err)
			}
		}
	}
	if !found && damaged == nil {
		env.note("there are no dead letters")
	}
	return damaged
}

// idJSON returns an _id as Extended JSON, so that its type is seen.
func idJSON(id bson.RawValue) (json.RawMessage, error) {
	text, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: id}}, false, false)
	if err != nil {
		return nil, fmt.Errorf("write an _id as Extended JSON: %w", err)
	}
	var doc struct{ V json.RawMessage }
	err = json.Unmarshal(text, &doc)
	return doc.V, err
}

// forget holds the route while it removes: nobody can begin it in between, and a call that is cut off can be repeated.
func (m memory) forget(ctx context.Context, env *environ, route string) error {
	_, err := m.store.Load(ctx, route)
	if errors.Is(err, replicator.ErrNoRoute) {
		return fmt.Errorf("%w; capstan replicate routes lists what there is", err)
	}
	var st replicator.State
	if err == nil {
		st, err = m.store.Acquire(ctx, route, owner(), false)
	}
	if errors.As(err, new(*replicator.BusyError)) {
		return fmt.Errorf("%w; stop what runs it, or take it out of the file of capstan serve", err)
	}
	if err != nil {
		return err
	}
	n, err := m.letters.Count(ctx, route)
	if err == nil {
		err = m.letters.Forget(ctx, route)
	}
	if err = errors.Join(err, m.store.Release(ctx, st)); err != nil {
		return err
	}
	if err := m.store.Remove(ctx, route); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "%s is forgotten, with %s; its documents stay\n", route, deadLetters(n))
	return stdoutErr(err)
}

// deadLetters counts in words.
func deadLetters(n int64) string {
	if n == 1 {
		return "1 dead letter"
	}
	return fmt.Sprintf("%d dead letters", n)
}
