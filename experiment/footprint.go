package experiment

import (
	"context"
	"fmt"

	"github.com/seed-12ef14e5/capstan/internal/pace"
)

// Limits from the project's requirements.
const (
	maxResidentMB   = 50
	maxIdleCommands = 2 // per second
	maxIdleShare    = 1 // percent of one core
)

// memory measures the resident memory of a producer that sends flat out messages of just under 1 KB,
// of the tail attached to it, and of a tail that catches up on a full stream of them, each in a
// process of its own.
func (c *core) memory(ctx context.Context) error {
	messages := c.cfg.StreamBytes * 9 / 10 / int64(c.cfg.LargePayload+150)
	s, err := c.produceOnce(ctx, Capstan, messages, c.cfg.LargePayload)
	if err != nil {
		return err
	}
	db := database("memory", Capstan)
	count, _, err := c.fill(ctx, db, c.cfg.LargePayload)
	if err != nil {
		return err
	}
	defer func() { _ = c.conn.DropDatabase(db) }()
	job := Job{Who: Capstan, What: Tail, Database: db, Stream: benchStream, Count: count}
	o, err := c.one(ctx, job)
	if err != nil {
		return err
	}
	size := o.Bytes / max(o.Messages, 1)
	add := func(what string, o Outcome) {
		l := Limit{Name: fmt.Sprintf("peak resident memory of %s, messages of %d bytes", what, size),
			Unit: "MB", Value: float64(o.PeakRSS) / 1e6, Limit: maxResidentMB, Workers: []Outcome{o}}
		c.report.Limits = append(c.report.Limits, l)
		c.cfg.Note(fmt.Sprintf("%s: %.1f MB", l.Name, l.Value))
	}
	add("the producer flat out", s.Workers[0])
	add("the tail attached to it", s.Workers[1])
	add("the tail catching up", o)
	return nil
}

// idle measures what a tail costs on which nothing happens: its commands, its CPU time and the
// server's, the latter against the same time without it.
func (c *core) idle(ctx context.Context) error {
	db := database("idle", Capstan)
	if _, err := c.fresh(ctx, db, benchStream); err != nil {
		return err
	}
	defer func() { _ = c.conn.DropDatabase(db) }()
	before := processCPU(c.cfg.ServerPID)
	if err := pace.Sleep(ctx, c.cfg.Idle); err != nil {
		return err
	}
	alone := processCPU(c.cfg.ServerPID) - before
	w, err := startWorker(ctx, c.cfg.Worker, Job{Who: Capstan, What: Idle, URI: c.cfg.URI, Database: db, Stream: benchStream, For: c.cfg.Idle})
	if err != nil {
		return err
	}
	before = processCPU(c.cfg.ServerPID)
	if err := w.begin(); err != nil {
		return err
	}
	o, err := w.wait()
	if err != nil {
		return err
	}
	server := processCPU(c.cfg.ServerPID) - before - alone
	var commands int64
	for _, n := range o.Commands {
		commands += n
	}
	from := []Outcome{o}
	c.report.Limits = append(c.report.Limits,
		Limit{Name: "commands of an idle tail, topology monitoring apart", Unit: "per second", Value: float64(commands) / o.Seconds, Limit: maxIdleCommands, Workers: from},
		Limit{Name: "CPU of an idle tail's process, of one core", Unit: "%", Value: 100 * o.CPU / o.Seconds, Limit: maxIdleShare, Workers: from})
	if c.cfg.ServerPID != 0 {
		c.report.Limits = append(c.report.Limits,
			Limit{Name: "CPU that an idle tail costs the server, of one core", Unit: "%", Value: 100 * server / o.Seconds})
	}
	c.cfg.Note(fmt.Sprintf("idle tail: %.2f commands/s, %.2f %% of a core, server %.2f %%", float64(commands)/o.Seconds, 100*o.CPU/o.Seconds, 100*server/o.Seconds))
	return nil
}
