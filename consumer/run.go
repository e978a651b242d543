package consumer

import (
	"context"
	"errors"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/record"
)

// The second that Run may take after the drain (I8), divided.
const (
	// handlerGrace is what handlers get to return after their context ended at a hard stop.
	handlerGrace = 250 * time.Millisecond
	// closing is what the last checkpoint and the source get after that, at least.
	closing = 650 * time.Millisecond
)

var (
	errStopped    = errors.New("consumer stops")
	errSaveTime   = errors.New("no time left for the last checkpoint")
	errSourceHung = errors.New("source (or OnGap) did not return after the stop, its goroutine is left behind")
	errStoreHung  = errors.New("checkpoint store did not return, its goroutine is left behind")
)

// run is what one Run shares between its goroutines: a reader, the workers, the saver, and the
// supervisor, which is the goroutine that called Run.
type run struct {
	name    string
	handler Handler
	store   Checkpointer
	cfg     *Config
	log     zerolog.Logger
	begun   time.Time

	front   *frontier
	workers []*worker
	saver   *saver

	// failures has a place for the one failure that each worker and the saver may report.
	failures chan error
	// exits has a place for each worker.
	exits chan *worker
	// stopping is closed when nothing more is to be begun beyond number last.
	stopping chan struct{}
	last     atomic.Uint64
}

func newRun(c *Consumer, cp record.Checkpoint) *run {
	r := &run{
		name: c.name, handler: c.handler, store: c.store, cfg: &c.cfg, log: c.cfg.Logger.With().Str("consumer", c.name).Logger(),
		begun: time.Now(), front: newFrontier(&c.cfg, cp), saver: newSaver(cp),
		failures: make(chan error, c.cfg.Workers+1), exits: make(chan *worker, c.cfg.Workers), stopping: make(chan struct{}),
	}
	r.last.Store(noLimit)
	for range c.cfg.Workers {
		r.workers = append(r.workers, &worker{queue: make(chan uint64, c.cfg.MaxInFlight)})
	}
	return r
}

// now returns nanoseconds since the run began, never 0.
func (r *run) now() int64 { return int64(time.Since(r.begun)) + 1 }

// fail reports a failure that ends the run. It does not block: each caller has one place.
func (r *run) fail(err error) { r.failures <- err }

// supervise starts the goroutines, sees them through the stages of a stop, and returns what Run returns.
//
// The order of closing, and what it prevents: the reader ends first, or the drain would never end;
// then the workers, or the last checkpoint would miss what they finish; then the saver, which stores
// that checkpoint on a context of its own, as the caller's has ended; then the reader's Close is
// waited for. A goroutine that does not end is left behind and named in the error.
func (r *run) supervise(ctx, reading context.Context, stopReading context.CancelCauseFunc, src Source) error {
	detached := context.WithoutCancel(ctx)
	work, endWork := context.WithCancelCause(detached)
	saving, endSaving := context.WithCancelCause(detached)
	untilLast, lastSave := context.WithCancel(detached)
	defer lastSave()
	defer endSaving(nil)
	defer endWork(nil)

	read := make(chan error, 1)
	d := &reader{r: r, seed: maphash.MakeSeed(), anchored: r.hasAnchor()}
	go func() { read <- d.run(reading, src) }()
	for _, w := range r.workers {
		go w.run(work, r)
	}
	saved := make(chan error, 1)
	go func() { saved <- r.saver.run(saving, untilLast, r) }()

	s := newStages(r, stopReading, endWork)
	s.wait(ctx, read)
	endWork(ErrHardStop) // for those left behind

	end := s.end()
	lastSave()
	timer := time.AfterFunc(time.Until(end), func() { endSaving(errSaveTime) })
	defer timer.Stop()
	s.join(await(saved, end.Add(closing/10), errStoreHung))
	s.collect() // the saver may have been fenced in between
	if s.read == nil {
		stopReading(errStopped)
		s.join(await(read, end.Add(closing/10), errSourceHung))
	}
	return s.result()
}

// hasAnchor reports whether a restart would begin at or before the first record of this run anyhow.
func (r *run) hasAnchor() bool {
	cp := r.saver.cp
	return !cp.Position.IsZero() || len(cp.Marks) > 0 || r.cfg.Start.Where == record.After
}

// await returns what comes from c, or late if nothing came by end.
func await(c <-chan error, end time.Time, late error) error {
	t := time.NewTimer(time.Until(end))
	defer t.Stop()
	select {
	case err := <-c:
		return err
	case <-t.C:
	}
	select {
	case err := <-c: // both were ready
		return err
	default:
		return late
	}
}
