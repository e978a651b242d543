package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/replicator/statefile"
)

const replicateHelp = `Copy collections from one MongoDB to another and keep them in step.

The source is a replica set; the destination may be anything that takes writes. What is selected by --include
(all, unless it is given) and not by --exclude is copied, several collections and several parts of one side by side, and
changes from then on are applied until Ctrl-C. A pattern is DATABASE.COLLECTION, where * stands for any text.

The route remembers where it is under its --name in the database "capstan" of the destination: run the same
command again after a stop, a crash or a kill -9, and it goes on there. With another scope or another source
under the same name it is refused. --state-file PATH keeps the checkpoint in a file of this machine instead, together with those of
other routes; another destination is then refused too. Dead letters stay at the destination.

--filter is a query on documents, applied by the server or here; it may use all of MongoDB's query language. A document that no
longer matches is deleted at the destination.

--existing says what happens to documents that the destination has when the route begins: refuse (the default), merge
(compare: what differs is replaced, what the source does not have is removed), or drop.

--until copied ends when the copy is done, --until live when the destination has what the source had by then; --until finalized
then ends the route for good, when nobody writes to the source any more.

TTL indexes are created with the longest time there is, so that nothing expires at the destination by itself (the source's
expirations are replicated); finalizing the route gives them their own time when the destination takes over.

A document that the destination refuses is set aside with the reason as a dead letter (capstan.deadletters there), and tried again by the
next run; capstan replicate retry tries again in a daemon.

--dry-run connects to both sides, lists what will and will not be replicated, and changes nothing; code 1 if something is in the way.

--stream NAMESPACE replicates one stream, a capped collection, instead: its order is kept, and the source need not be a
replica set.

capstan verify compares both sides, also while a route works. capstan serve runs many routes as a daemon.`

const replicateExample = `  capstan replicate --source-uri mongodb://a1,a2,a3/?replicaSet=a --target-uri mongodb://b1/?replicaSet=b --include 'shop.*'
  capstan replicate --source-uri "$A" --target-uri "$B" --include shop --filter 'shop.orders={"status": "open"}' --rename shop=archive
  capstan replicate --source-uri "$A" --target-uri "$B" --include 'shop.*' --dry-run
  capstan replicate --source-uri "$A" --target-uri "$B" --include shop --name shop --state-file /var/lib/capstan/routes.json
  capstan replicate --source-uri "$A" --target-uri "$B" --stream ops.events`

// replicateOptions are the flags of replicate beside those of the two sides.
type replicateOptions struct {
	name                     string
	existing, onLost, until  string
	stream, output           string
	stateFile                string
	workers, readers, window int
	letters                  int
	save                     time.Duration
	resync, takeOver, shared bool
	keepTTL, dryRun          bool
}

func newReplicateCmd(env *environ) *cobra.Command {
	var o replicateOptions
	cmd := &cobra.Command{
		Use:     "replicate",
		Short:   "copy collections to another MongoDB and keep them in step",
		Long:    replicateHelp,
		Example: replicateExample,
		Args:    cobra.ArbitraryArgs,
		// It does something by itself, beside what its subcommands do.
		Annotations: map[string]string{"runs": "true"},
	}
	sides := addSourceTargetFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		if cmd.Flags().NFlag() == 0 && env.getenv("CAPSTAN_SOURCE_URI") == "" {
			return cmd.Help()
		}
		st, err := sides.parse(env, cmd)
		if err != nil {
			return err
		}
		if err := o.check(); err != nil {
			return err
		}
		return replicate(cmd.Context(), env, st, o)
	}
	o.register(cmd)
	cmd.AddCommand(append(newReplicateControls(env), newReplicateRoutesCmds(env)...)...)
	return cmd
}

func (o *replicateOptions) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&o.name, "name", "default", "the route's name, under which the destination remembers where it is")
	fl.StringVar(&o.stateFile, "state-file", "", "keep the checkpoint in this file instead of at the destination: always give the same one")
	fl.StringVar(&o.existing, "existing", string(replicator.RefuseExisting), "refuse, merge or drop what the destination has already")
	fl.StringVar(&o.onLost, "on-lost", string(replicator.StopOnLost), "stop (code 5) or resync, when the source's oplog no longer reaches back to the checkpoint")
	fl.StringVar(&o.until, "until", "", "copied, live or finalized: end there (default: never)")
	fl.BoolVar(&o.resync, "resync", false, "copy again, comparing with what is there")
	fl.BoolVar(&o.takeOver, "take-over", false, "take the route from a process that seems to be alive")
	fl.BoolVar(&o.shared, "shared", false, "other routes may write to the same collections, with other _ids")
	fl.BoolVar(&o.keepTTL, "keep-ttl", false, "let TTL indexes expire documents at the destination too")
	fl.IntVar(&o.workers, "workers", replicator.DefaultWorkers, "appliers of changes at the same time")
	fl.IntVar(&o.readers, "readers", replicator.DefaultReaders, "parts that are copied at the same time")
	fl.IntVar(&o.window, "window", 0, fmt.Sprintf("documents of the copy to look at with one read (default %d, %d with a filter)", replicator.DefaultWindow, replicator.FilteredWindow))
	fl.IntVar(&o.letters, "max-dead-letters", replicator.DefaultMaxLetters, "documents that may be set aside before the route fails (-1: none)")
	fl.DurationVar(&o.save, "save-every", replicator.DefaultSaveEvery, "how often the checkpoint is stored")
	fl.BoolVar(&o.dryRun, "dry-run", false, "list what will and will not be replicated, and change nothing")
	fl.StringVar(&o.output, "output", outputText, "text or json, for --dry-run")
	fl.StringVar(&o.stream, "stream", "", "replicate this stream, DATABASE.COLLECTION, instead of collections")
}

func (o *replicateOptions) check() error {
	oneOf := func(flag, v string, ok ...string) error {
		for _, s := range ok {
			if v == s {
				return nil
			}
		}
		return usageError("--%s is %q; it is one of: %s", flag, v, strings.TrimPrefix(strings.Join(ok, ", "), ", "))
	}
	switch {
	case o.workers < 1 || o.workers > replicator.MaxWorkers:
		return usageError("--workers is %d; it must be 1 to %d", o.workers, replicator.MaxWorkers)
	case o.readers < 1 || o.readers > replicator.MaxReaders:
		return usageError("--readers is %d; it must be 1 to %d", o.readers, replicator.MaxReaders)
	case o.window < 0:
		return usageError("--window is %d; it must not be negative", o.window)
	case o.letters < -1:
		return usageError("--max-dead-letters is %d; it must be -1 (none) or more", o.letters)
	case o.save <= 0:
		return usageError("--save-every is %s; it must be positive", o.save)
	case o.output != outputText && !o.dryRun:
		return usageError("--output is for --dry-run; capstan status and capstan verify have their own")
	}
	return errors.Join(
		oneOf("existing", o.existing, "refuse", "merge", "drop"),
		oneOf("on-lost", o.onLost, "stop", "resync"),
		oneOf("until", o.until, "", "copied", "live", "finalized"),
		oneOf("output", o.output, outputText, outputJSON),
		o.checkStateFile())
}

// checkStateFile refuses a state file where it would have no effect.
func (o *replicateOptions) checkStateFile() error {
	if o.stateFile != "" && o.stream != "" {
		return usageError("--state-file is for collections: the checkpoint of a --stream is at the destination")
	}
	return nil
}

func (o *replicateOptions) config(env *environ, st sourceTarget) replicator.Config {
	return replicator.Config{
		Scope: st.Scope, Owner: owner(), TakeOver: o.takeOver, Existing: replicator.Existing(o.existing), OnLost: replicator.OnLost(o.onLost),
		Until: replicator.Until(o.until), Resync: o.resync, Shared: o.shared, KeepTTL: o.keepTTL,
		Workers: o.workers, Readers: o.readers, Window: o.window, MaxLetters: o.letters, SaveEvery: o.save, Logger: env.log,
	}
}

// replicate runs one route until it ends or is asked to stop.
func replicate(ctx context.Context, env *environ, st sourceTarget, o replicateOptions) error {
	if err := st.reach(ctx); err != nil {
		return err
	}
	switch {
	case o.dryRun:
		return replicateDryRun(ctx, env, st, o)
	case o.stream != "":
		return replicateStream(ctx, env, st, o)
	}
	cfg := mongodb.RouteConfig{Logger: env.log}
	if o.stateFile != "" {
		states, err := statefile.New(o.stateFile, statefile.Config{})
		if err != nil {
			return err
		}
		cfg.States = states
	}
	route, err := mongodb.OpenRoute(st.Source, st.Target, o.name, o.config(env, st), cfg)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = route.Close(cctx) // nothing is in progress
	}()
	return runRoute(ctx, env, route.Link)
}

// aRoute is what both kinds of routes are.
type aRoute interface {
	Run(ctx context.Context) error
	Status() replicator.Status
}

// runRoute runs a route, shows how far it is, and says the summary.
func runRoute(ctx context.Context, env *environ, r aRoute) error {
	show := newRouteProgress(env, r.Status)
	err := r.Run(ctx)
	show.end()
	text := routeSummary(r.Status())
	if err == nil && r.Status().Phase != replicator.PhaseFinalized {
		text += "; the same command goes on here"
	}
	env.note("%s", text)
	return err
}

// routeSummary says where a route ended and how to go on.
func routeSummary(s replicator.Status) string {
	text := fmt.Sprintf("route %s: %s; copied %s documents (%s looked at), applied %s changes",
		s.Route, s.Phase, humanize.Comma(s.Copy.Matched), humanize.Comma(s.Copy.Scanned), humanize.Comma(s.Totals.Applied))
	if s.Letters > 0 {
		text += fmt.Sprintf(", dead letters: %d (capstan replicate retry)", s.Letters)
	}
	if s.Checkpoint.Time != "" {
		text += ", checkpoint " + s.Checkpoint.Time
	}
	return text
}

// routeLine says in one line what a route does.
func routeLine(s replicator.Status) string {
	if s.LastError != "" {
		return fmt.Sprintf("%s: trying again after: %s", s.Phase, s.LastError)
	}
	switch s.Phase {
	case replicator.PhaseCopying:
		c := s.Copy
		text := fmt.Sprintf("copying: %s of %s documents looked at, %s copied, %s docs/s, %s/s", humanize.Comma(c.Scanned), humanize.Comma(c.Documents),
			humanize.Comma(c.Matched), humanize.Comma(int64(c.DocumentsPerSecond)), humanize.Bytes(uint64(c.BytesPerSecond)))
		if c.SecondsLeft != nil {
			text += fmt.Sprintf(", %s left", time.Duration(*c.SecondsLeft*float64(time.Second)).Round(time.Second))
		}
		return text
	case replicator.PhaseCatchingUp, replicator.PhaseLive:
		text := fmt.Sprintf("%s: %s changes applied", s.Phase, humanize.Comma(s.Totals.Applied))
		if s.LagSeconds != nil {
			text += fmt.Sprintf(", lag %.0f s", *s.LagSeconds)
		}
		if s.LagOperations != nil {
			text += fmt.Sprintf(" (%s operations)", humanize.Comma(*s.LagOperations))
		}
		if s.OplogLeftSeconds != nil {
			text += fmt.Sprintf(", the source's oplog holds the checkpoint for %s", time.Duration(*s.OplogLeftSeconds*float64(time.Second)).Round(time.Second))
		}
		if s.Letters > 0 {
			text += fmt.Sprintf(", dead letters: %d", s.Letters)
		}
		return text
	}
	if s.Reason != "" {
		return fmt.Sprintf("%s: %s", s.Phase, s.Reason)
	}
	return string(s.Phase)
}

// routeProgress shows a route: a bar per collection while it copies, on a terminal; else a plain line every few seconds.
type routeProgress struct {
	stop chan struct{}
	done chan struct{}
}

func newRouteProgress(env *environ, status func() replicator.Status) *routeProgress {
	p := &routeProgress{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.watch(env, status)
	}()
	return p
}

// watch shows one bar after the other: of the copy, then of the changes.
func (p *routeProgress) watch(env *environ, status func() replicator.Status) {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	var bar *progress
	var shown replicator.Phase
	for {
		s := status()
		if kind := barOf(s); kind != shown {
			if bar != nil {
				bar.end()
			}
			shown = kind
			total := int64(0)
			if kind == replicator.PhaseCopying {
				total = s.Copy.Documents
			}
			bar = showProgress(env, total, func() int64 { return status().Copy.Scanned }, func() string { return routeLine(status()) })
		}
		select {
		case <-t.C:
		case <-p.stop:
			if bar != nil {
				bar.end()
			}
			return
		}
	}
}

// barOf returns copying while there is a total to show, and live for everything else.
func barOf(s replicator.Status) replicator.Phase {
	if s.Phase == replicator.PhaseCopying && s.Copy.Documents > 0 {
		return replicator.PhaseCopying
	}
	return replicator.PhaseLive
}

func (p *routeProgress) end() {
	close(p.stop)
	<-p.done
}
