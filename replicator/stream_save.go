package replicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// streamSaveTimeout bounds one attempt to store the checkpoint.
	streamSaveTimeout = 20 * time.Second
	// streamLastSave bounds the last checkpoint, when the route has been told to stop.
	streamLastSave = 3 * time.Second
	// streamLease is how old the last save may be when something is written, and streamRenew how old it gets on an idle route. A process
	// that was stopped for long and wakes up finds out that the route has another owner before it writes, and not after:
	// what it has in hand may have come and gone at the destination.
	streamLease = 10 * time.Second
	streamRenew = 5 * time.Second
)

// makeRoom stores the checkpoint where a write of that size could evict what was written behind the stored one: after a crash,
// what is read again must still be there, to be told by its _id and seq (I1). It also renews the lease.
func (r *streamRun) makeRoom(ctx context.Context, docs, bytes int64) error {
	full := r.dst.Size > 0 && r.unsavedBytes+bytes > r.dst.Size/2 || r.dst.Max > 0 && r.unsavedDocs+docs > r.dst.Max/2
	if r.unsavedDocs > 0 && full || time.Since(r.saved) > streamLease {
		return r.mustSave(ctx)
	}
	return nil
}

// mustSave stores the checkpoint, however long it takes.
func (r *streamRun) mustSave(ctx context.Context) error {
	for {
		err := r.store(ctx)
		if err == nil {
			r.waits.Progress()
			return nil
		}
		if final := r.unsaved(ctx, err); final != nil {
			return final
		}
		if err := r.wait(ctx, err); err != nil {
			return err
		}
	}
}

// save stores the checkpoint once; an error that may pass is said, and the next save tells more. Writing goes on meanwhile.
func (r *streamRun) save(ctx context.Context) error {
	err := r.store(ctx)
	if err == nil {
		return nil
	}
	r.l.trouble(err)
	return r.unsaved(ctx, err)
}

// unsaved returns the error that ends the route, nil if a later save may succeed.
func (r *streamRun) unsaved(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, fenced := errors.AsType[*record.FencedError](err); fenced {
		return err // the route is another's: whatever is written from now on is written twice
	}
	return nil
}

// store stores the frontier.
func (r *streamRun) store(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, streamSaveTimeout)
	defer cancel()
	cp := r.cp
	cp.Position, cp.Marks = r.pos, r.marks.snapshot()
	start := time.Now()
	saved, err := r.l.store.Save(ctx, cp)
	if err != nil {
		return fmt.Errorf("route %q: store the checkpoint: %w", r.l.route, err)
	}
	// The lease runs from before the save: what came in between is not known.
	r.cp, r.saved, r.dirty, r.unsavedDocs, r.unsavedBytes = saved, start, false, 0, 0
	r.l.stored(r.pos)
	if hook := r.l.cfg.Hooks.OnSaved; hook != nil {
		hook(r.pos)
	}
	return nil
}

// lastSave stores where the route has come to, after ctx has ended too.
func (r *streamRun) lastSave(ctx context.Context) error {
	if !r.dirty {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), streamLastSave)
	defer cancel()
	err := r.store(ctx)
	if _, fenced := errors.AsType[*record.FencedError](err); fenced {
		return err
	}
	if err != nil { // the next run reads a little more again
		r.l.log.Warn().Err(err).Msg("the last checkpoint is not stored")
	}
	return nil
}

// ticked is called several times a second at the most.
func (r *streamRun) ticked(ctx context.Context) error {
	since := time.Since(r.saved)
	if r.dirty && since >= r.l.cfg.SaveEvery || since >= streamRenew {
		return r.save(ctx)
	}
	return nil
}

// looked is called with what the source has now. idle is true if nothing is waiting to be written.
func (r *streamRun) looked(look streamLook, idle bool) error {
	idle = idle && !r.read
	r.read = false
	if look.other != "" {
		if idle && !r.paused && look.other != r.src.UUID {
			return &RecreatedError{Route: r.l.route, Source: r.src.Name, Stored: r.src.UUID, Now: look.other}
		}
		return nil
	}
	head := look.head
	r.head = head
	if r.goal == nil || idle {
		// Where nothing comes and the goal is not passed, what was to be passed is gone from the source, or the source cannot be
		// read at present: the newest message that it has tells which.
		r.goal = &head
	}
	r.l.headed(head, r.passed(head))
	return r.progressed()
}

// passed reports whether the frontier is at or behind head.
func (r *streamRun) passed(head StreamHead) bool {
	return head.Position.IsZero() || head.Position.ID == r.pos.ID || head.Seq > 0 && r.marks.get(head.Src) >= head.Seq
}

// progressed moves the phase on when its goal is passed. It returns errStreamUntil when Run is to end.
func (r *streamRun) progressed() error {
	if r.goal == nil || !r.passed(*r.goal) || r.paused {
		return nil
	}
	r.goal = nil
	if r.finalizes != nil {
		r.l.enter(PhaseFinalized, r.src)
		r.finalizes <- nil
		return errStreamUntil
	}
	switch phase := r.l.phase(); {
	case phase == PhaseCopying:
		r.l.enter(PhaseCatchingUp, r.src) // behind what was there at the start; the next head says whether that is all
	case phase == PhaseCatchingUp:
		r.l.enter(PhaseLive, r.src)
	}
	if r.first && r.l.cfg.Until == UntilCopied || r.l.phase() == PhaseLive && r.l.cfg.Until == UntilLive {
		return errStreamUntil
	}
	r.first = false
	return nil
}
