// Package retry is capstan's one back-off: cenkalti/backoff/v4, jittered, capped, bound to a
// context, and reset by progress (a record handed over, a write acknowledged), not by a dial.
package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Defaults of Policy.
const (
	DefaultInitial = 20 * time.Millisecond
	DefaultMax     = time.Second
)

// Policy says how long to wait between attempts.
type Policy struct {
	// Initial is the mean of the first wait; 0 means DefaultInitial.
	Initial time.Duration
	// Max caps every wait; 0 means DefaultMax.
	Max time.Duration
}

// Loop is the state of one retried activity. It never gives up by itself: the context does, or the
// caller by Attempts. Not safe for concurrent use: one per loop.
type Loop struct {
	b        *backoff.ExponentialBackOff
	max      time.Duration
	attempts int
}

// New returns a Loop that has not waited yet.
func New(p Policy) *Loop {
	if p.Initial <= 0 {
		p.Initial = DefaultInitial
	}
	if p.Max <= 0 {
		p.Max = DefaultMax
	}
	b := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(p.Initial),
		backoff.WithMaxInterval(p.Max),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0), // the default gives up after 15 minutes
	)
	return &Loop{b: b, max: p.Max}
}

// Wait counts a failed attempt and waits before the next one. It returns nil when it is time, or,
// when ctx ends first, an error that wraps both the context's cause and the last real error.
func (l *Loop) Wait(ctx context.Context, last error) error {
	l.attempts++
	d := min(l.b.NextBackOff(), l.max) // the library adds its jitter on top of the cap
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		if last == nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w (attempts: %d): %w", context.Cause(ctx), l.attempts, last)
	}
}

// Progress resets the waits and the count: the next failure is a first one.
func (l *Loop) Progress() {
	if l.attempts > 0 {
		l.attempts = 0
		l.b.Reset()
	}
}

// Attempts returns the number of failed attempts since the last progress.
func (l *Loop) Attempts() int { return l.attempts }
