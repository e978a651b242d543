package retry_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
)

func TestWaitsGrowAndAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := retry.New(retry.Policy{})
		var longest time.Duration
		for i := range 50 {
			before := time.Now()
			if err := l.Wait(t.Context(), io.EOF); err != nil {
				t.Fatal(err)
			}
			d := time.Since(before)
			if d > retry.DefaultMax {
				t.Fatalf("wait %d lasted %v, more than %v", i, d, retry.DefaultMax)
			}
			if i == 0 && d > 2*retry.DefaultInitial {
				t.Errorf("the first wait lasted %v", d)
			}
			longest = max(longest, d)
		}
		if longest < retry.DefaultMax/2 {
			t.Errorf("the longest of 50 waits was %v: they do not grow", longest)
		}
		if l.Attempts() != 50 {
			t.Errorf("%d attempts counted, want 50", l.Attempts())
		}
	})
}

func TestItNeverGivesUpByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := retry.New(retry.Policy{})
		for start := time.Now(); time.Since(start) < time.Hour; {
			if err := l.Wait(t.Context(), io.EOF); err != nil {
				t.Fatalf("gave up after %v: %v", time.Since(start), err)
			}
		}
	})
}

func TestProgressMakesTheNextFailureAFirstOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := retry.New(retry.Policy{})
		for range 20 {
			if err := l.Wait(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		l.Progress()
		before := time.Now()
		if err := l.Wait(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(before); d > 2*retry.DefaultInitial || l.Attempts() != 1 {
			t.Errorf("after progress the wait lasted %v and %d attempts are counted", d, l.Attempts())
		}
	})
}

// I8: a wait ends with its context, and the last real error is kept.
func TestAWaitEndsWithItsContextAndKeepsTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := errors.New("asked to stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		l := retry.New(retry.Policy{Initial: time.Minute, Max: time.Hour})
		time.AfterFunc(time.Second, func() { cancel(stop) })
		before := time.Now()
		err := l.Wait(ctx, io.ErrUnexpectedEOF)
		if !errors.Is(err, stop) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v; want the cause and the last error", err)
		}
		if d := time.Since(before); d != time.Second {
			t.Errorf("returned after %v, want 1s", d)
		}
	})
}
