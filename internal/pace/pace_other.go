//go:build !linux

package pace

import (
	"context"
	"sync"
	"time"
)

// Waiter waits until moments, one at a time: it is for one goroutine. Make it with New; Close it.
type Waiter struct {
	once sync.Once
	done chan struct{}
}

// New returns a Waiter, which is as exact as Go's timers are here.
func New() (*Waiter, error) { return &Waiter{done: make(chan struct{})}, nil }

// Close ends the Waiter. It may be called at any time, and ends a wait with ErrClosed.
func (w *Waiter) Close() error {
	w.once.Do(func() { close(w.done) })
	return nil
}

func (w *Waiter) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-w.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
