package failover

import (
	"context"
	"errors"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
)

var (
	errBudget     = errors.New("the write's time budget has ended")
	errNewPrimary = errors.New("another member is primary now")
)

// attempt runs do, which is one command, under its own deadline, and cuts it as soon as another
// member than the one it may be talking to is primary: an answer from the old one would be "not
// primary" or silence, and this is what frees a writer from a primary that is frozen. (With a single
// server there is nowhere else to go: then only the deadline ends an attempt.)
func (l *Layer) attempt(ctx context.Context, documents int, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AttemptTimeout) // I8: no command waits for TCP
	defer cancel()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	unwatch := l.onNewPrimary(true, func() { abort(errNewPrimary) })
	defer unwatch()

	start := time.Now()
	err := do(ctx)
	l.cfg.Hooks.attempt(Attempt{Start: start, Took: time.Since(start), Documents: documents, Err: err})
	return err
}

// pause waits between attempts; a new primary ends the wait at once. The error is that of ctx.
func (l *Layer) pause(ctx context.Context, loop *retry.Loop, last error) error {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	unwatch := l.onNewPrimary(false, cancel)
	defer unwatch()
	if err := loop.Wait(wait, last); err != nil && ctx.Err() != nil {
		return err
	}
	return nil
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
