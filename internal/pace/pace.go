// Package pace waits until a moment, more exactly than Go's timers do in a process that is idle most of
// the time: as exactly as a message every quarter of a millisecond needs.
//
// A Go timer of less than a millisecond ends late by up to one where every goroutine waits, because the
// runtime then sleeps in whole milliseconds. A sleep in the kernel (nanosleep) is exact, but it holds
// on to the scheduler's place of its goroutine for some time, so that a goroutine that was just made
// ready has to be woken on another thread. On Linux a Waiter is a timer of the kernel that the runtime's
// poller waits for, as it waits for a socket: exact to some 0.06 ms, and in nobody's way.
package pace

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrClosed says that the Waiter was closed.
var ErrClosed = errors.New("waiter is closed")

// Until returns at at, or a little later. It returns at once if at has passed, and the cause of ctx if
// that ends first.
func (w *Waiter) Until(ctx context.Context, at time.Time) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for d := time.Until(at); d > 0; d = time.Until(at) {
		if err := w.sleep(ctx, d); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("wait for %s: %w", d, err)
		}
	}
	return nil
}

// Sleep waits for d with an ordinary timer, where a millisecond does not matter, or until ctx ends: then
// it returns its cause.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
