package replicator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
)

var (
	errStreamStarted = errors.New("a stream route is run once: make a new one")
	// errStreamResync ends a session: the next one begins at the oldest message.
	errStreamResync = errors.New("resync")
	// errStreamUntil ends Run by itself, with nil.
	errStreamUntil = errors.New("the route has come to where it was to end")
)

// streamRun is one Run. All of it belongs to its goroutine, except the queue.
type streamRun struct {
	l        *StreamLink
	src, dst StreamInfo
	held     StreamHeld

	// cp is what is stored; pos and marks are the frontier: everything up to them is at the destination, was there, was rejected by
	// the filter, or is a loss that was reported.
	cp    record.Checkpoint
	pos   record.Position
	marks *streamMarks
	dirty bool
	// unsaved counts what was written behind cp: it must stay at the destination until cp moves.
	unsavedDocs, unsavedBytes int64
	saved                     time.Time

	batch []record.Record
	items []streamItem
	buf   []byte

	// goal is the head that the present phase must pass; nil: the next one that is known.
	goal      *StreamHead
	first     bool // the goal is that of the start
	head      StreamHead
	read      bool // something came since the last head
	finalizes chan error
	paused    bool
	resynced  chan error
	waits     *retry.Loop
}

// Run replicates until ctx ends (nil, after a last checkpoint), StreamConfig.Until is reached (nil), or it cannot go on:
// ErrNotEmpty, ErrLoop, *RecreatedError, *MismatchError, *StreamRefusedError, *record.FencedError, or what the servers refuse for good.
// Servers that are away are waited for.
func (l *StreamLink) Run(ctx context.Context) error {
	l.mu.Lock()
	if l.started {
		l.mu.Unlock()
		return errStreamStarted
	}
	l.started = true
	l.mu.Unlock()
	defer close(l.ended)
	r := &streamRun{l: l, waits: retry.New(retry.Policy{}), marks: newStreamMarks(l.cfg.MaxMarks, nil)}
	err := r.run(ctx)
	_, fenced := errors.AsType[*record.FencedError](err)
	switch {
	case fenced: // also at the last checkpoint
	case errors.Is(err, errStreamUntil), err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		err = nil // it was to end here, or was asked to stop
	}
	if err != nil {
		l.failed(err)
		l.log.Error().Err(err).Msg("the stream route has ended")
	}
	return err
}

func (r *streamRun) run(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.paused = r.l.cfg.Paused
	r.l.setPaused(r.paused)
	for {
		err := r.session(ctx)
		if !errors.Is(err, errStreamResync) {
			return err
		}
		if err := r.restart(ctx); err != nil {
			return err
		}
	}
}

// begin makes the two ends and the checkpoint known. Until it has looked at all of them it changes nothing but the checkpoint's owner, and
// that the destination exists.
func (r *streamRun) begin(ctx context.Context) error {
	l := r.l
	err := r.patiently(ctx, "look at the source", func() (err error) {
		r.src, err = l.source.Describe(ctx)
		return err
	})
	if err != nil {
		return err
	}
	err = r.patiently(ctx, "open the destination", func() (err error) {
		r.dst, err = l.target.Open(ctx, r.src)
		return err
	})
	if err != nil {
		return err
	}
	if r.src.UUID == r.dst.UUID {
		return fmt.Errorf("route %q: %w", l.route, ErrLoop)
	}
	owner := l.cfg.Owner
	if owner == "" {
		owner = l.route + " " + strings.ToLower(rand.Text()[:8])
	}
	r.cp, err = l.store.Acquire(ctx, l.route, r.src.Name.String()+" > "+r.dst.Name.String(), owner)
	if err != nil {
		return fmt.Errorf("route %q: take the checkpoint: %w", l.route, err)
	}
	if err := r.compare(); err != nil {
		return err
	}
	l.describe(r.src, r.dst)
	if r.cp.Fingerprint == "" || l.cfg.Resync {
		return r.restart(ctx)
	}
	r.pos, r.marks = r.cp.Position, newStreamMarks(l.cfg.MaxMarks, r.cp.Marks)
	l.count(streamCounts{}, r.pos)
	l.stored(r.pos)
	return r.survey(ctx, PhaseCatchingUp)
}

// compare refuses a checkpoint of something else.
func (r *streamRun) compare() error {
	l := r.l
	now := r.fingerprint()
	if r.cp.Fingerprint == "" {
		if r.dst.Messages > 0 && l.cfg.Existing == RefuseExisting && !l.cfg.Resync {
			return fmt.Errorf("route %q: %w (%s, about %d): choose another destination, or say that what is there counts as replicated", l.route, ErrNotEmpty, r.dst.Name, r.dst.Messages)
		}
		return nil
	}
	if l.cfg.Resync || r.cp.Fingerprint == now {
		return nil
	}
	stored, want := strings.Split(r.cp.Fingerprint, "/"), strings.Split(now, "/")
	for len(stored) < len(want) {
		stored = append(stored, "unknown")
	}
	switch {
	case stored[0] != want[0]:
		return &RecreatedError{Route: l.route, Source: r.src.Name, Stored: stored[0], Now: want[0]}
	case stored[1] != want[1]:
		return &MismatchError{Route: l.route, What: "destination stream", Stored: stored[1], Now: want[1]}
	}
	return &MismatchError{Route: l.route, What: "filter", Stored: stored[2], Now: want[2]}
}

// fingerprint identifies the route: the UUIDs of both streams, and a hash of what is selected.
func (r *streamRun) fingerprint() string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %x", r.l.cfg.Subject, []byte(r.l.cfg.Filter)) // a hash takes everything
	return r.src.UUID + "/" + r.dst.UUID + "/" + hex.EncodeToString(h.Sum(nil)[:8])
}

// restart makes the frontier the beginning of the source. The fingerprint is stored before the first message is written: a checkpoint
// that has one tells a destination that this route has begun to fill from one that it found full.
func (r *streamRun) restart(ctx context.Context) error {
	if r.resynced != nil { // the stream may be another one by now
		err := r.patiently(ctx, "look at the source", func() (err error) {
			r.src, err = r.l.source.Describe(ctx)
			return err
		})
		if err != nil {
			return err
		}
	}
	r.pos, r.marks = record.Position{}, newStreamMarks(r.l.cfg.MaxMarks, nil)
	r.cp.Fingerprint = r.fingerprint()
	if err := r.mustSave(ctx); err != nil {
		return err
	}
	return r.survey(ctx, PhaseCopying)
}

// survey finds out what the destination has behind the frontier, and where the source ends.
func (r *streamRun) survey(ctx context.Context, phase Phase) error {
	if err := r.look(ctx); err != nil {
		return err
	}
	err := r.patiently(ctx, "look at the end of the source", func() (err error) {
		r.head, err = r.l.source.Head(ctx, record.Position{})
		return err
	})
	if err != nil {
		return err
	}
	goal := r.head
	r.goal, r.first = &goal, true
	r.l.enter(phase, r.src)
	return nil
}

func (r *streamRun) look(ctx context.Context) error {
	return r.patiently(ctx, "look at what the destination has", func() (err error) {
		r.held, err = r.l.target.Held(ctx, r.marks.snapshot(), r.pos)
		return err
	})
}

// patiently repeats do while its error may pass.
func (r *streamRun) patiently(ctx context.Context, what string, do func() error) error {
	for {
		err := do()
		if err == nil {
			r.waits.Progress()
			r.l.trouble(nil)
			return nil
		}
		err = fmt.Errorf("route %q: %s: %w", r.l.route, what, err)
		if p, ok := errors.AsType[Passing](err); !ok || !p.TryAgain() || ctx.Err() != nil {
			return err
		}
		if err := r.wait(ctx, err); err != nil {
			return err
		}
	}
}

// wait says what went wrong and waits before the next attempt.
func (r *streamRun) wait(ctx context.Context, err error) error {
	r.l.trouble(err)
	if hook := r.l.cfg.Hooks.OnRetry; hook != nil {
		hook(err)
	}
	return r.waits.Wait(ctx, err)
}

// session reads from the frontier on until ctx ends, or nothing more can be done.
//
// The order of the end: the loop finishes its write first, then the reader is closed, whose goroutine ends with it; the
// checkpoint is last, as it must know the last write.
func (r *streamRun) session(ctx context.Context) error {
	start := record.Start{Where: record.Earliest, Fingerprint: r.src.UUID}
	if !r.pos.IsZero() || len(r.marks.all) > 0 {
		start = record.Start{Where: record.After, Position: r.pos, Marks: r.marks.snapshot(), Fingerprint: r.src.UUID}
	}
	reader, err := r.l.source.Open(start, r.l.waiting)
	if err != nil {
		return fmt.Errorf("route %q: open the source: %w", r.l.route, err)
	}
	if r.resynced != nil {
		r.resynced <- nil
		r.resynced = nil
	}
	q := newStreamQueue(2*r.l.cfg.Batch, r.l.cfg.BatchBytes)
	looks := make(chan streamLook)
	sctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { readStream(sctx, reader, q) })
	all.Go(func() { r.l.clock(sctx, looks) })
	err = r.loop(ctx, q, looks)
	stop()
	err = errors.Join(err, reader.Close())
	all.Wait()
	if errors.Is(err, errStreamResync) {
		return err
	}
	return errors.Join(err, r.lastSave(ctx))
}

// readStream moves records from the reader to the queue.
func readStream(ctx context.Context, reader StreamReader, q *streamQueue) {
	for {
		rec, err := reader.Next(ctx)
		if err == nil {
			err = q.put(ctx, rec)
		}
		if err != nil {
			q.end(err)
			return
		}
	}
}

// streamLook is what the clock saw: where the source ends, or the UUID of another stream under its name.
type streamLook struct {
	head  StreamHead
	other string
}

// clock asks the source for its newest message.
func (l *StreamLink) clock(ctx context.Context, looks chan<- streamLook) {
	tick := time.NewTicker(l.cfg.ClockEvery)
	defer tick.Stop()
	for {
		var look streamLook
		var err error
		look.head, err = l.source.Head(ctx, l.applied())
		if errors.Is(err, ErrGone) {
			// Dropped: it is waited for. Created again: that is another stream, which need not have a message yet.
			var info StreamInfo
			if info, err = l.source.Describe(ctx); err == nil {
				look.other = info.UUID
			}
		}
		if err == nil {
			select {
			case looks <- look:
			case <-ctx.Done():
				return
			}
		} else if ctx.Err() == nil {
			l.log.Debug().Err(err).Msg("the end of the source is not known")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// loop is what the goroutine of Run does most of the time. nil: ctx has ended.
func (r *streamRun) loop(ctx context.Context, q *streamQueue, looks <-chan streamLook) error {
	tick := time.NewTicker(max(r.l.cfg.SaveEvery/2, time.Millisecond))
	defer tick.Stop()
	maxDocs, maxBytes := r.limits()
	for {
		filled := q.filled
		if r.paused {
			filled = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case req := <-r.l.requests:
			if err := r.request(ctx, req); err != nil {
				return err
			}
		case look := <-looks:
			if err := r.looked(look, q.empty()); err != nil {
				return err
			}
		case <-tick.C:
			if err := r.ticked(ctx); err != nil {
				return err
			}
		case <-filled:
			var err error
			if r.batch, err = q.take(r.batch[:0], maxDocs, maxBytes); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("route %q: read %s: %w", r.l.route, r.src.Name, err)
			}
			if err := r.replicate(ctx, r.batch); err != nil {
				return err
			}
			clear(r.batch)
		}
	}
}

// request does what a control method asks for.
func (r *streamRun) request(ctx context.Context, req streamRequest) error {
	switch req.kind {
	case streamPause:
		r.paused = true
		err := r.save(ctx)
		r.l.setPaused(true)
		req.done <- err
	case streamResume:
		r.paused = false
		r.l.setPaused(false)
		req.done <- nil
	case streamResync:
		r.paused = false
		r.l.setPaused(false)
		r.resynced = req.done
		return errStreamResync
	case streamFinalize:
		if !r.l.isLive() {
			req.done <- fmt.Errorf("route %q: %w", r.l.route, ErrNotLive)
			return nil
		}
		head, err := r.l.source.Head(ctx, record.Position{})
		if err != nil {
			req.done <- fmt.Errorf("route %q: look at the end of the source: %w", r.l.route, err)
			return nil
		}
		r.paused, r.goal, r.finalizes = false, &head, req.done
		r.l.setPaused(false)
		return r.progressed()
	}
	return nil
}
