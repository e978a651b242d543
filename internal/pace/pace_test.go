package pace_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-12ef14e5/capstan/internal/pace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func waiter(t *testing.T) *pace.Waiter {
	t.Helper()
	w, err := pace.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func TestNoWaitEndsEarly(t *testing.T) {
	t.Parallel()
	w := waiter(t)
	for _, d := range []time.Duration{-time.Second, 0, 1, 50 * time.Microsecond, 256 * time.Microsecond, 3 * time.Millisecond, 20 * time.Millisecond} {
		at := time.Now().Add(d)
		if err := w.Until(t.Context(), at); err != nil || time.Now().Before(at) {
			t.Errorf("waiting %s ended %s early, error %v", d, time.Until(at), err)
		}
	}
}

func TestAWaitEndsWithItsContextAndTheNextOneIsWhole(t *testing.T) {
	t.Parallel()
	w := waiter(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
	if err := w.Until(ctx, time.Now().Add(time.Hour)); !errors.Is(err, cause) { // I8
		t.Errorf("error %v, want %v", err, cause)
	}
	if err := w.Until(ctx, time.Now()); !errors.Is(err, cause) {
		t.Errorf("with a context that has ended: error %v", err)
	}
	at := time.Now().Add(5 * time.Millisecond)
	if err := w.Until(t.Context(), at); err != nil || time.Now().Before(at) {
		t.Errorf("the wait after that: error %v, %s early", err, time.Until(at))
	}
}

func TestCloseEndsAWait(t *testing.T) {
	t.Parallel()
	w := waiter(t)
	time.AfterFunc(20*time.Millisecond, func() { _ = w.Close() })
	if err := w.Until(t.Context(), time.Now().Add(time.Hour)); !errors.Is(err, pace.ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}
