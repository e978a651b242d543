package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
)

// worker handles the records of its keys, one after the other.
type worker struct {
	// queue holds numbers of records in order. It has a place for each record that may be in flight, so
	// sending to it never blocks: a slow worker does not keep the reader from serving the others (I6).
	// The reader closes it when the source has ended.
	queue chan uint64
	// current is the number of the record that was begun last.
	current atomic.Uint64
	// open: it was begun and is not done.
	open atomic.Bool
	took time.Duration // of the last attempt, if a hook wants to know; the worker's own

	mu     sync.Mutex
	since  int64                   // when the handler was called, by run.now; 0: it is not running
	cancel context.CancelCauseFunc // ends the context of the call that is running
}

// run handles records until the source ended or the run stops. It always tells the supervisor that
// it ended, also if a handler ends the goroutine.
func (w *worker) run(ctx context.Context, r *run) {
	// A parent of its own, or all workers would meet at one lock with every call.
	ctx, end := context.WithCancelCause(ctx)
	returned := false
	defer func() {
		end(nil)
		if !returned {
			if rec, ok := r.front.lookup(w.current.Load()); ok {
				r.fail(&HandlerError{Record: rec, Attempts: 1, Err: errExited})
			}
		}
		r.exits <- w
	}()
	for w.step(ctx, r) {
	}
	returned = true
}

// step handles one record. It returns false when there will be no more.
func (w *worker) step(ctx context.Context, r *run) bool {
	n, ok := w.next(r)
	if !ok || ctx.Err() != nil {
		return false
	}
	w.current.Store(n)
	if n > r.last.Load() {
		return true // stopping: not begun, so it is left to the next run
	}
	w.open.Store(true)
	if !w.process(ctx, r, n) {
		return false
	}
	w.open.Store(false)
	return true
}

// next returns the number of the next record. When the run stops, what is queued still comes.
func (w *worker) next(r *run) (n uint64, ok bool) {
	select {
	case n, ok := <-w.queue: // the usual case, without the cost of a second channel
		return n, ok
	default:
	}
	select {
	case n, ok := <-w.queue:
		return n, ok
	case <-r.stopping:
	}
	select {
	case n, ok := <-w.queue:
		return n, ok
	default:
		return 0, false
	}
}

// process calls the handler until the record is done, or gives it up. It returns false if the worker
// must stop: the record is not done, and neither may what is behind it be (I2).
func (w *worker) process(ctx context.Context, r *run, n uint64) bool {
	rec := r.front.record(n)
	var waits *retry.Loop // made at the first failure
	for attempt := 1; ; attempt++ {
		err := w.attempt(ctx, r, rec)
		if err == nil {
			if hook := r.cfg.Hooks.OnHandled; hook != nil {
				hook(*rec, attempt, w.took)
			}
			break
		}
		if ctx.Err() != nil {
			return false // interrupted: neither a failure nor done
		}
		if isStop(err) {
			r.fail(&HandlerError{Record: *rec, Attempts: attempt, Err: err})
			return false
		}
		if hook := r.cfg.Hooks.OnFailure; hook != nil {
			hook(*rec, attempt, err)
		}
		if isPermanent(err) || (r.cfg.MaxAttempts > 0 && attempt >= r.cfg.MaxAttempts) {
			if !r.giveUp(ctx, *rec, attempt, err) {
				return false
			}
			break
		}
		r.log.Debug().Err(err).Stringer("position", rec.Position).Int("attempt", attempt).Msg("handler failed")
		if hook := r.cfg.Hooks.OnRetry; hook != nil {
			hook(*rec, attempt, err)
		}
		if waits == nil {
			waits = retry.New(retry.Policy{Initial: r.cfg.RetryInitial, Max: r.cfg.RetryMax})
		}
		if waits.Wait(ctx, err) != nil {
			return false
		}
	}
	r.front.done(n) // I2: after the effect, never before
	return true
}

// attempt calls the handler once. Its time is kept by the supervisor, which looks from time to time:
// a context with a deadline costs a timer per record, twice as much as everything else together.
func (w *worker) attempt(ctx context.Context, r *run, rec *record.Record) error {
	ctx, cancel := context.WithCancelCause(ctx)
	begun := r.now()
	w.running(begun, cancel)
	err := protect(func() error { return r.handler.Handle(ctx, *rec) })
	w.running(0, nil)
	timedOut := err != nil && errors.Is(context.Cause(ctx), ErrHandlerTimeout)
	cancel(nil)
	if r.cfg.Hooks.OnHandled != nil {
		w.took = time.Duration(r.now() - begun)
	}
	if timedOut {
		return fmt.Errorf("%w after %s: %w", ErrHandlerTimeout, r.cfg.HandlerTimeout, err)
	}
	return err
}

func (w *worker) running(since int64, cancel context.CancelCauseFunc) {
	w.mu.Lock()
	w.since, w.cancel = since, cancel
	w.mu.Unlock()
}

// runningSince returns when the call that is running began, by run.now; 0 if none is.
func (w *worker) runningSince() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.since
}

// expire ends the context of the call that is running if it began at or before limit.
func (w *worker) expire(limit int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since != 0 && w.since <= limit {
		w.cancel(ErrHandlerTimeout)
	}
}

// protect makes an error of a panic in f.
func protect(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}

// giveUp sets a record aside. It returns false if that is not possible, so that the run must end.
func (r *run) giveUp(ctx context.Context, rec record.Record, attempts int, cause error) bool {
	if r.cfg.DeadLetters == nil {
		r.fail(&HandlerError{Record: rec, Attempts: attempts, Err: cause})
		return false
	}
	letter := DeadLetter{
		Consumer: r.name, Stream: r.cfg.Stream, Record: rec, Err: cause.Error(), Attempts: attempts, Time: time.Now(),
	}
	begun := time.Now()
	waits := retry.New(retry.Policy{Initial: storeRetryInitial, Max: storeRetryMax})
	for {
		err := r.addLetter(ctx, letter)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return false
		}
		if r.outage(time.Since(begun)) || waits.Wait(ctx, err) != nil {
			if ctx.Err() == nil {
				r.fail(&HandlerError{Record: rec, Attempts: attempts, Err: errors.Join(cause, fmt.Errorf("store dead letter: %w", err))})
			}
			return false
		}
	}
	if hook := r.cfg.Hooks.OnDeadLetter; hook != nil {
		hook(letter)
		return true
	}
	r.log.Warn().Err(cause).Stringer("position", rec.Position).Str("src", rec.Src).Int64("seq", rec.Seq).
		Int("attempts", attempts).Msg("message set aside as a dead letter")
	return true
}

func (r *run) addLetter(ctx context.Context, letter DeadLetter) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckpointTimeout)
	defer cancel()
	return r.cfg.DeadLetters.Add(ctx, letter)
}

// outage reports whether something has been failing for longer than the Config allows.
func (r *run) outage(since time.Duration) bool {
	return r.cfg.OutageLimit > 0 && since > r.cfg.OutageLimit
}

// noLimit is run.last while the run is not stopping.
const noLimit = math.MaxUint64
