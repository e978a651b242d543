package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-12ef14e5/capstan/experiment"
	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// demoDown is what the servers get to end; theirs are temporary folders, so they are killed at once.
const demoDown = 20 * time.Second

// demo is one run of the command.
type demo struct {
	env      *environ
	count    int
	rate     float64
	bare     int
	bareRate float64
	out      string
	seed     uint64
	machine  experiment.Machine // set when the first server is up
	connect  func(ctx context.Context, env *environ, uri string) (demoChain, error)
}

// run runs both loads and prints what they came to. The error is a codeError without text where the
// verdict says it all.
func (d *demo) run(ctx context.Context) error {
	b := buildInfo()
	d.env.note("capstan demo: seed %d, capstan %s (%.12s), %s, MongoDB driver %s", d.seed, b.Version, b.Commit, b.Go, b.Driver)
	began := time.Now()
	d.machine = experiment.ThisMachine("")
	d.machine.Commit = b.Commit
	d.machine.Command = fmt.Sprintf("capstan demo --count %d --rate %g --standalone-count %d --standalone-rate %g --seed %d", d.count, d.rate, d.bare, d.bareRate, d.seed)
	var results []*demoResult
	for _, load := range []func(context.Context) (*demoResult, error){d.replicaSet, d.standalone} {
		r, err := load(ctx)
		if r != nil {
			results = append(results, r)
		}
		if err != nil {
			return err
		}
	}
	return d.report(results, time.Since(began))
}

// replicaSet sends the load through a replica set, kills its primary and later freezes the next one.
func (d *demo) replicaSet(ctx context.Context) (*demoResult, error) {
	if d.count == 0 {
		return nil, nil
	}
	l := newDemoLoad(d.count, d.rate, d.seed)
	r := &demoResult{name: "replica-set", title: "Replica set of three, its primary killed, later the next one frozen", column: "replica set", load: l}
	d.env.note("\n1/2  a replica set of three; its primary is killed with -9, and when it is back, the next primary is frozen")
	return r, d.on(ctx, localcluster.Config{Members: 3}, r, func(ctx context.Context, c *localcluster.Cluster) error {
		return d.faults(ctx, c, r)
	})
}

// standalone sends a smaller load through one server, for the latency of the bare path.
func (d *demo) standalone(ctx context.Context) (*demoResult, error) {
	if d.bare == 0 {
		return nil, nil
	}
	r := &demoResult{name: "standalone", title: "Standalone server", column: "standalone", load: newDemoLoad(d.bare, d.bareRate, d.seed)}
	d.env.note("\n2/2  a standalone server, for the latency without replication")
	return r, d.on(ctx, localcluster.Config{Members: 1}, r, nil)
}

// on starts servers, runs r's load on them (and fault beside it), reads the stream back, judges, and
// takes the servers down, whatever happened.
func (d *demo) on(ctx context.Context, cfg localcluster.Config, r *demoResult, fault func(context.Context, *localcluster.Cluster) error) (err error) {
	began := time.Now()
	cfg.Logger = demoLog(d.env)
	c, err := localcluster.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoDown)
		defer cancel()
		err = errors.Join(err, c.Down(down))
	}()
	version, err := serverVersion(ctx, c.URI())
	if err != nil {
		return fmt.Errorf("ask the server for its version: %w", err)
	}
	d.machine.Mongod = version
	d.env.note("     mongod %s up in %s: %s", version, seconds(time.Since(began)), demoMembers(c))
	chain, err := d.connect(ctx, d.env, c.URI())
	if err != nil {
		return err
	}
	l := r.load
	d.env.note("     %s messages, %s a second: %s", humanize.Comma(int64(l.count)), humanize.Comma(int64(l.rate)),
		seconds(l.length()))
	show := watchDemo(d.env, l)
	faulted := make(chan error, 1)
	if fault != nil {
		go func() { faulted <- fault(ctx, c) }()
	} else {
		faulted <- nil
	}
	err = l.run(ctx, chain)
	show.end()
	if ctx.Err() != nil {
		d.env.note("stopped: sent %d, acknowledged %d, delivered %d", l.sent.Load(), l.acked.Load(), l.delivered.Load())
	}
	err = errors.Join(err, <-faulted)
	closed := chain.close(context.WithoutCancel(ctx))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// What failed is part of the result: the counts say what it cost.
	r.failed = errors.Join(err, l.first, closed)
	l.measure(r.faults)
	if err := l.readBack(ctx, c.URI(), demoDatabase, demoStream); err != nil {
		return err
	}
	r.verdict = l.judge()
	return r.save(d.out)
}

// report prints the tables on standard output and returns the verdict as an error.
func (d *demo) report(results []*demoResult, took time.Duration) error {
	var b, files strings.Builder
	ok := true
	tables := "\n" + demoTable(results) + "\n" + latencyTable(results)
	for _, r := range results {
		ok = ok && r.verdict.OK() && r.failed == nil
		fmt.Fprintf(&files, "  %-20s %s\n  %-20s %s\n", r.column, r.csv, "", r.png)
	}
	for _, r := range results {
		if r.failed != nil {
			fmt.Fprintf(&b, "\n%s: %s\n", r.column, config.Redact(r.failed.Error()))
		}
		if !r.verdict.OK() {
			fmt.Fprintf(&b, "\n%s: %s\n", r.column, r.verdict)
		}
	}
	for _, r := range results {
		if r.skipped != "" {
			fmt.Fprintf(&b, "\n%s\n", r.skipped)
		}
	}
	if note := busyNote(results); note != "" {
		fmt.Fprintf(&b, "\n%s", note)
	}
	word := "PASSED: no acknowledged message lost, none doubled, each producer's order kept"
	if !ok {
		word = "FAILED: see above"
	}
	fmt.Fprintf(&b, "\n%s (seed %d, %s)\n", word, d.seed, seconds(took))
	path := filepath.Join(d.out, "report.txt")
	fmt.Fprintf(&files, "  %-20s %s\n", "this report", path)
	if _, err := fmt.Fprintf(d.env.stdout, "%s\n%s%s", tables, files.String(), b.String()); err != nil {
		return stdoutErr(err)
	}
	if err := d.keep(path, tables+b.String()); err != nil {
		return err
	}
	if !ok {
		return &codeError{code: exitFailed}
	}
	return nil
}

// keep writes the report with what it was made by and on: figures without that mean nothing.
func (d *demo) keep(path, report string) error {
	if err := os.MkdirAll(d.out, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	m := d.machine
	return writeFile(path, func(f *os.File) error {
		_, err := fmt.Fprintf(f, "%s\n%s, at commit %s, %s.\n%s.\n", report, m.Command, m.Commit, m.Time, m)
		return err
	})
}

func demoMembers(c *localcluster.Cluster) string {
	var all []string
	for _, m := range c.Members() {
		all = append(all, fmt.Sprintf("%s on %s", m.Name, m.Addr))
	}
	return strings.Join(all, ", ")
}

// seconds writes a duration for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
