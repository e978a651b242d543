package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/verify"
)

// verifyMemory is what the garbage collector tries to stay below, in bytes, while a comparison runs: what it does not reach by
// itself costs a little time instead of the machine's memory.
const verifyMemory = 64 << 20

// verifyListed is how many differing documents the text lists unless --max-differences says more.
const verifyListed = 20

const verifyHelp = `Compare a source and a target: which collections there are, their options and indexes, every document byte for
byte, and the order of capped collections. It only reads, holds little memory at any size, and may run while a route works: a
document that differs is looked at again until it is equal, or has differed for --settle.

The same --include, --exclude, --rename and --filter as for "capstan replicate" say what is compared with what. --route NAME takes all of
that, and both sides, from a route in the configuration of "capstan serve" (-c or CAPSTAN_CONFIG); NAME is ROUTE or ROUTE/TARGET.
Exit code 6: something differs.`

type verifyFlags struct {
	sides            *sourceTargetFlags
	output, progress string
	route            string
	settle, timeout  time.Duration
	max, diffs       int
	workers          int
	quiet            bool
	noIndexes        bool
	strictTTL        bool
	newTimestamps    bool
	listAll          bool // --max-differences is given: what the library lists is what is asked for
}

func newVerifyCmd(env *environ) *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "compare a source and a target, collection by collection and document by document",
		Long:  verifyHelp,
		Example: `  capstan verify --source-uri mongodb://a/ --target-uri mongodb://b/ --include 'shop.*'
  capstan verify --include shop.orders --filter '{"region":"eu"}' --rename shop=shop_eu --progress verify.state
  capstan verify --include 'shop.*' --idle --output json | jq .equal
  capstan verify --route orders/berlin -c /etc/capstan.yaml`,
		Args: exactArgs(0, "flags only"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(f.output); err != nil {
				return err
			}
			if f.settle < 0 || f.timeout < 0 || f.workers < 0 || f.workers > verify.MaxWorkers {
				return usageError("--settle and --timeout must not be negative, and --workers is at most %d", verify.MaxWorkers)
			}
			f.listAll = cmd.Flags().Changed("max-differences")
			st, err := f.parse(env, cmd)
			if err != nil {
				return err
			}
			return runVerify(cmd.Context(), env, st, f)
		},
	}
	f.sides = addSourceTargetFlags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.route, "route", "", "compare the two sides of this route of the daemon's configuration, ROUTE or ROUTE/TARGET")
	fl.StringVar(&f.output, "output", outputText, "text or json")
	fl.DurationVar(&f.settle, "settle", verify.DefaultSettle, "how long a document must have stayed different")
	fl.BoolVar(&f.quiet, "idle", false, "nothing writes to either side: what differs is looked at only once more")
	fl.StringVar(&f.progress, "progress", "", "file that keeps how far it is: after an interruption the next run goes on from there")
	fl.IntVar(&f.max, "max-differences", verify.DefaultMaxDifferences, fmt.Sprintf("how many differing documents are listed; all are counted (default %d in text)", verifyListed))
	fl.IntVar(&f.diffs, "diffs", verify.DefaultDiffs, "of how many differing documents the fields are listed")
	fl.IntVar(&f.workers, "workers", verify.DefaultWorkers, "ranges of documents that are compared at the same time")
	fl.BoolVar(&f.noIndexes, "no-indexes", false, "do not compare indexes")
	fl.BoolVar(&f.strictTTL, "strict-ttl", false, "count a TTL index as different that the target holds back")
	fl.BoolVar(&f.newTimestamps, "new-timestamps", false, "in capped collections, do not compare ts and the primer, which a route of streams makes anew")
	fl.DurationVar(&f.timeout, "timeout", 0, "give up after this time (0: never)")
	return cmd
}

func (f verifyFlags) config(env *environ, st sourceTarget) verify.Config {
	none := func(n int) int { // 0 means the default to the library
		if n <= 0 {
			return -1
		}
		return n
	}
	c := verify.Config{
		Scope: st.Scope, Quiet: f.quiet, Settle: max(f.settle, time.Nanosecond), MaxDifferences: none(f.max), Diffs: none(f.diffs),
		NoIndexes: f.noIndexes, StrictTTL: f.strictTTL, NewTimestamps: f.newTimestamps, Progress: f.progress, Workers: f.workers,
		Logger: env.log,
	}
	return c
}

func runVerify(ctx context.Context, env *environ, st sourceTarget, f verifyFlags) error {
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, errTimeout)
		defer cancel()
	}
	if err := st.reach(ctx); err != nil {
		return err
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(verifyMemory))
	view := &verifyView{env: env, settle: f.settle}
	c := f.config(env, st)
	c.Hooks = verify.Hooks{OnNamespace: view.namespace, OnWindow: view.window, OnSettle: view.wait}
	v, err := verify.New(st.Source, st.Target, c)
	if err != nil {
		return err
	}
	rep, err := v.Run(ctx)
	view.end()
	if err != nil {
		if f.progress != "" && !errors.As(err, new(*verify.ProgressError)) && len(rep.Namespaces) > 0 {
			env.note("stopped after %d equal documents; the same command goes on from there", rep.Documents)
		}
		return err
	}
	if err := writeVerify(env, rep, f.output, f.listAll); err != nil {
		return err
	}
	if !rep.Equal {
		return &codeError{exitDifference, nil}
	}
	return nil
}

func writeVerify(env *environ, rep verify.Report, output string, listAll bool) error {
	if output != outputJSON {
		if !listAll {
			rep = rep.First(verifyListed)
		}
		return stdoutErr(rep.Write(env.stdout))
	}
	enc := json.NewEncoder(env.stdout)
	enc.SetEscapeHTML(false)
	return stdoutErr(enc.Encode(rep))
}

// verifyView shows how far a comparison is, one collection after the other.
type verifyView struct {
	env    *environ
	settle time.Duration
	shown  *progress
	// waiting: everything is read; pending is how many documents have no verdict.
	waiting bool
	pending atomic.Int64

	name             string
	total            int64
	documents, bytes atomic.Int64
	since            time.Time
}

// namespace begins to show a collection. The library calls it for one after the other.
func (v *verifyView) namespace(ns record.Namespace, total int64) {
	v.end()
	v.name, v.total, v.since = ns.String(), total, time.Now()
	v.documents.Store(0)
	v.bytes.Store(0)
	v.shown = showProgress(v.env, total, v.documents.Load, v.text)
}

func (v *verifyView) window(_ record.Namespace, documents, bytes int64) {
	v.documents.Add(documents)
	v.bytes.Add(bytes)
}

// wait shows that documents which differ are waited for: as a view of its own once everything is read, as the last collection's
// bar is full then. The library calls it from one goroutine, and behind the last namespace if read is true.
func (v *verifyView) wait(documents int, read bool) {
	v.pending.Store(int64(documents))
	if !read || v.waiting {
		return
	}
	v.end()
	v.waiting = true
	v.shown = showProgress(v.env, 0, v.pending.Load, v.waitText)
}

func (v *verifyView) waitText() string {
	n := v.pending.Load()
	s := fmt.Sprintf("%d documents differ", n)
	if n == 1 {
		s = "1 document differs"
	}
	return s + fmt.Sprintf("; waiting up to %s for a live route (--settle, --idle)", v.settle)
}

// text is how far a collection is, in words.
func (v *verifyView) text() string {
	n, seconds := v.documents.Load(), time.Since(v.since).Seconds()
	rate := float64(n) / max(seconds, 0.001)
	s := fmt.Sprintf("%s: %d of %d documents, %.0f/s, %.1f MB/s", v.name, n, v.total, rate, float64(v.bytes.Load())/1e6/max(seconds, 0.001))
	if left := v.total - n; left > 0 && rate > 0 {
		s += fmt.Sprintf(", %s left", time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second))
	}
	return s
}

func (v *verifyView) end() {
	if v.shown != nil {
		v.shown.end()
		v.shown = nil
	}
}
