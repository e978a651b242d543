package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/record"
)

// errUntil ends a tail whose --until, a time, has come.
var errUntil = errors.New("--until reached")

// errDone ends the printing: --count or --until is reached.
var errDone = errors.New("done")

// waitBeyond is how long after a future --until its last messages may still come.
const waitBeyond = 2 * time.Second

// lookEvery is how often an idle tail looks whether its standard output is still read.
const lookEvery = 200 * time.Millisecond

// tailRun is one run of `capstan tail`. Everything is owned by the goroutine that calls run.
type tailRun struct {
	env     *environ
	o       tailOptions
	subject record.SubjectPattern
	src     tailSource
	out     *recordWriter
	durable *tailCheckpoint // nil without --durable
	samples *latency.Writer // nil without --latency-csv
	file    *os.File

	delivered, lost int64
	lostMore        bool // lost is the least
	uncounted       bool
	position        record.Position // everything up to it is printed or not wanted
}

// newTailRun opens what is needed; the tail itself connects in run.
func newTailRun(ctx context.Context, env *environ, o tailOptions) (_ *tailRun, err error) {
	t := &tailRun{env: env, o: o, out: newRecordWriter(env.stdout, o.format)}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close(ctx))
		}
	}()
	if t.subject, err = record.ParseSubject(o.subject); err != nil {
		return t, err
	}
	start := o.from
	if o.durable != "" {
		if t.durable, err = openTailCheckpoint(ctx, env, o); err != nil {
			return t, err
		}
		start = record.StartOf(t.durable.stored, o.from)
		t.position = t.durable.stored.Position
	}
	if o.latencyCSV != "" {
		if t.file, err = os.Create(o.latencyCSV); err != nil {
			return t, err
		}
		t.samples = latency.NewWriter(t.file)
	}
	src, err := openTailSource(ctx, env, o, start, time.Now())
	if err == nil {
		t.src = src
	}
	return t, err
}

// arrival is what the reading goroutine hands over.
type arrival struct {
	record record.Record
	at     time.Time
	err    error
}

// arrivals is how many records may wait for the printer: enough to keep both sides busy.
const arrivals = 256

// run prints records until something ends it. nil: the wanted end was reached.
func (t *tailRun) run(ctx context.Context) error {
	ctx, cancel := t.limits(ctx)
	defer cancel()
	reading, stop := context.WithCancel(ctx)
	in := make(chan arrival, arrivals)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.read(reading, in)
	}()
	defer func() {
		stop()
		<-ended
	}()
	err := t.printAll(ctx, in)
	// What was printed must be out before its position is stored.
	if ferr := t.out.flush(); ferr != nil {
		return ferr
	}
	switch {
	case errors.Is(err, errDone), errors.Is(err, errUntil), errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// limits adds --timeout and a future --until to ctx.
func (t *tailRun) limits(ctx context.Context) (context.Context, context.CancelFunc) {
	cancel := func() {}
	if t.o.timeout > 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, t.o.timeout, errTimeout)
	}
	if t.o.until.at.After(time.Now()) {
		outer := cancel
		var inner context.CancelFunc
		ctx, inner = context.WithDeadlineCause(ctx, t.o.until.at.Add(waitBeyond), errUntil)
		cancel = func() { inner(); outer() }
	}
	return ctx, cancel
}

// read hands over what the stream yields, and its end.
func (t *tailRun) read(ctx context.Context, out chan<- arrival) {
	for {
		r, err := t.src.Next(ctx)
		select {
		case out <- arrival{r, time.Now(), err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// printAll prints what comes, and flushes whenever nothing is waiting.
func (t *tailRun) printAll(ctx context.Context, in <-chan arrival) error {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		var a arrival
		select {
		case a = <-in:
		default:
			if err := t.out.flush(); err != nil {
				return err
			}
			select {
			case a = <-in:
			case <-tick.C:
				if err := t.save(ctx); err != nil {
					return err
				}
				continue
			case <-look.C:
				// Nobody would notice before the next message: "tail | head" has to end without one.
				if readerGone(t.env.stdout) {
					return &stdoutError{syscall.EPIPE}
				}
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if a.err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return a.err
		}
		if err := t.print(a); err != nil {
			return err
		}
		select {
		case <-tick.C: // a busy stream must be stored too
			if err := t.save(ctx); err != nil {
				return err
			}
		default:
		}
	}
}

// print takes one record. errDone: it was the last.
func (t *tailRun) print(a arrival) error {
	r := a.record
	if t.o.until.beyond(r) {
		return errDone
	}
	switch r.Kind {
	case record.KindGap:
		t.gap(r)
	case record.KindMessage:
		if t.subject.MatchesAll() || t.subject.Match(r.Subject) {
			if err := t.message(a); err != nil {
				return err
			}
		}
	case record.KindChange:
		if err := t.message(a); err != nil {
			return err
		}
	}
	t.position = r.Position
	if t.durable != nil {
		t.durable.done(r)
	}
	if t.o.until.last(r) || t.o.count > 0 && t.delivered >= t.o.count {
		return errDone
	}
	return nil
}

func (t *tailRun) message(a arrival) error {
	r := a.record
	if (!t.o.until.pos.IsZero() || r.Kind == record.KindChange) && !t.o.accepts(r.Raw) {
		return nil
	}
	if err := t.out.write(r); err != nil {
		return err
	}
	if at := writtenAt(r); t.samples != nil && !at.IsZero() {
		if err := t.samples.Put(t.delivered, a.at.Sub(at)); err != nil {
			return fmt.Errorf("write %s: %w", t.o.latencyCSV, err)
		}
	}
	t.delivered++
	return nil
}

// writtenAt is when a message was sent, or the server wrote a change; zero if that is not known.
func writtenAt(r record.Record) time.Time {
	switch {
	case r.Change != nil:
		return r.Change.Wall
	case r.Time == 0:
		return time.Time{}
	}
	return time.UnixMicro(r.Time)
}

// gap reports lost messages: also with -q, because losing messages is not silent here (I5).
func (t *tailRun) gap(r record.Record) {
	t.lost += r.Gap.Exact()
	t.lostMore = t.lostMore || !r.Gap.Complete()
	t.uncounted = t.uncounted || r.Gap.Uncounted
	t.env.say("gap: %s", r.Gap)
}

// save stores the position of what has left the process.
func (t *tailRun) save(ctx context.Context) error {
	if t.durable == nil {
		return nil
	}
	if err := t.out.flush(); err != nil {
		return err
	}
	return t.durable.save(ctx) // I2: behind the flush
}

// close stores the last position and closes everything. It may be called on a run that was not fully
// made, and when ctx has ended.
func (t *tailRun) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	var errs []error
	if t.src != nil {
		errs = append(errs, t.src.Close())
	}
	if t.durable != nil {
		if !t.out.failed {
			t.durable.moved = t.durable.moved || t.durable.idle
			errs = append(errs, t.durable.save(ctx))
		}
		t.durable.close()
	}
	if t.samples != nil {
		errs = append(errs, t.samples.Flush())
	}
	if t.file != nil {
		errs = append(errs, t.file.Close())
	}
	return errors.Join(errs...)
}
