package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/retry"
)

var (
	errBudget     = errors.New("the call's time budget has ended")
	errNewPrimary = errors.New("another member is primary now")
)

// attempt runs do, which is one command or a few, under its own deadline. With cut it is also ended as
// soon as another member than the one it may be talking to is primary: an answer from the old one would be
// "not primary" or silence, and this is what frees a writer from a primary that is frozen. (With a single
// server there is nowhere else to go: then only the deadline ends an attempt.) a says what it is.
func (l *Layer) attempt(ctx context.Context, a Attempt, cut bool, do func(context.Context) error) error {
	timeout := l.cfg.AttemptTimeout
	if cut {
		timeout = l.attemptTimeout()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout) // I8: no command waits for TCP
	defer cancel()
	to := &member{}
	ctx, abort := context.WithCancelCause(context.WithValue(ctx, memberKey{}, to))
	defer abort(nil)
	if cut {
		unwatch := l.onNewPrimary(true, func() { abort(errNewPrimary) })
		defer unwatch()
	}
	a.Start, a.Timeout = time.Now(), timeout
	a.Err = do(ctx)
	a.Took = time.Since(a.Start)
	a.Member = to.String()
	l.learn(a)
	l.cfg.Hooks.attempt(a)
	return a.Err
}

// onNewPrimary calls f once if the primary becomes another member than it is now. While none is
// known, the first to be seen is the one that counts as "now" if adopt is true, and calls f
// otherwise. f must be short, as it runs in the driver's monitor. After unwatch it is not called.
func (l *Layer) onNewPrimary(adopt bool, f func()) (unwatch func()) {
	var from string
	first, called := true, false
	return l.primary.Watch(func(addr string) {
		switch {
		case first:
			from, first = addr, false
		case called, addr == "", addr == from:
		case from == "" && adopt:
			from = addr
		default:
			called = true
			f()
		}
	})
}

// effort is the state of what is tried again and again: the waits, and the outage. It is for one
// goroutine.
type effort struct {
	layer *Layer
	name  string // the collection's, or the caller's
	log   string // the key of name in the log
	loop  *retry.Loop
	// outage has a zero Start while there is none.
	outage Outage
}

// failing counts a failed attempt that began at start. unknown: something may have been written.
func (e *effort) failing(start time.Time, unknown bool, err error) {
	c := mongoerr.Classify(err)
	if errors.Is(err, errUncommitted) {
		c = mongoerr.Class{Event: errUncommitted.Error()}
	}
	if e.outage.Start.IsZero() {
		e.outage.Start = start
		e.layer.cfg.Logger.Warn().Err(err).Str(e.log, e.name).Str("event", c.Event).Msg("attempts fail, trying again")
	}
	e.outage.Attempts++
	e.layer.cfg.Hooks.retry(Retry{Name: e.name, Attempt: e.outage.Attempts, Event: c.Event, Code: c.Code, Unknown: unknown, Err: err})
}

// pause waits between attempts; a new primary ends the wait at once. The error is that of ctx.
func (e *effort) pause(ctx context.Context, last error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w; the last attempt ended with: %w", context.Cause(ctx), last)
	}
	if e.loop == nil {
		e.loop = retry.New(retry.Policy{})
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	unwatch := e.layer.onNewPrimary(false, cancel)
	defer unwatch()
	if err := e.loop.Wait(wait, last); err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

// progress notes that something became known.
func (e *effort) progress() {
	if e.loop != nil {
		e.loop.Progress()
	}
	e.ended(nil)
}

// ended ends an outage, if there is one: err is nil if it is over, else what the call gave up with.
func (e *effort) ended(err error) {
	if e.outage.Start.IsZero() {
		return
	}
	o := e.outage
	e.outage = Outage{}
	o.Took, o.Err = time.Since(o.Start), err
	e.layer.cfg.Hooks.outage(o)
	if err == nil {
		e.layer.cfg.Logger.Info().Str(e.log, e.name).Dur("outage", o.Took).Int("attempts", o.Attempts).Msg("attempts succeed again")
	}
}
