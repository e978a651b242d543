package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

// noMap is for a panic of the runtime.
var noMap map[string]int

var errBad = errors.New("bad order")

// letters is a DeadLetters in memory, whose Add can be made to fail.
type letters struct {
	mu   sync.Mutex
	all  []consumer.DeadLetter
	fail error
}

func (d *letters) Add(_ context.Context, l consumer.DeadLetter) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	d.all = append(d.all, l)
	return nil
}

// failAt fails with err at the n-th record.
func failAt(n int, err error) func(context.Context, record.Record, int) error {
	return func(_ context.Context, r record.Record, _ int) error {
		if r.Position == positionOf(n) {
			return err
		}
		return nil
	}
}

func TestAFailureIsRetriedWithBackOffAndTheOrderIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		h := &handled{do: func(_ context.Context, r record.Record, attempt int) error {
			if r.Position != positionOf(3) {
				return nil
			}
			times = append(times, time.Now())
			if attempt < 4 {
				return errBad
			}
			return nil
		}}
		var retries []int
		cfg := consumer.Config{Start: earliest, RetryInitial: time.Second, RetryMax: 3 * time.Second,
			Hooks: consumer.Hooks{OnRetry: func(_ record.Record, attempt int, err error) {
				retries = append(retries, attempt)
				if !errors.Is(err, errBad) {
					t.Errorf("retry after %v", err)
				}
			}}}
		if err := newConsumer(t, fill(10, 1), h, checkpoint.NewMemory(), cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, r := range h.order {
			if r.Seq != int64(i+1) {
				t.Errorf("number %d handled is seq %d", i+1, r.Seq)
			}
		}
		if len(times) != 4 || len(retries) != 3 {
			t.Fatalf("%d attempts, %d retries, want 4 and 3", len(times), len(retries))
		}
		for i := 1; i < len(times); i++ {
			if d := times[i].Sub(times[i-1]); d < 400*time.Millisecond || d > 3*time.Second {
				t.Errorf("wait %d is %s", i, d)
			}
		}
	})
}

// I2: what is not the record's fault makes no dead letter, and the record comes again.
func TestAHandlerThatAsksToStopStopsInFrontOfTheRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dead := &letters{}
		h := &handled{do: failAt(5, consumer.Stop(errBad))}
		store := checkpoint.NewMemory()
		err := newConsumer(t, fill(10, 1), h, store, consumer.Config{Start: earliest, DeadLetters: dead}).Run(t.Context())
		if e := wantError[*consumer.HandlerError](t, err); e.Attempts != 1 || !errors.Is(err, errBad) {
			t.Errorf("error %v after %d attempts", err, e.Attempts)
		}
		if len(dead.all) != 0 || h.count() != 4 || stored(t, store).Position != positionOf(4) {
			t.Errorf("%d letters, %d handled, checkpoint %s", len(dead.all), h.count(), stored(t, store).Position)
		}
		if consumer.Stop(nil) != nil {
			t.Error("Stop(nil) is an error")
		}
	})
}

// A backend that restarts must not send every message to the dead letters.
func TestTheDefaultAttemptsOutlastTheRestartOfABackend(t *testing.T) {
	t.Parallel()
	var total time.Duration
	const runs = 50
	for range runs {
		synctest.Test(t, func(t *testing.T) {
			dead := &letters{}
			begun := time.Now()
			cfg := consumer.Config{Start: earliest, DeadLetters: dead}
			if err := newConsumer(t, fill(1, 1), &handled{do: failAt(1, errBad)}, checkpoint.NewMemory(), cfg).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			took := time.Since(begun)
			if total += took; len(dead.all) != 1 || took < 5*time.Second || took > 20*time.Second {
				t.Errorf("%d letters after %s, want one after some 8 to 15 s", len(dead.all), took)
			}
		})
	}
	if mean := total / runs; mean < 8*time.Second || mean > 15*time.Second {
		t.Errorf("%d attempts span %s in the mean, want 8 to 15 s", consumer.DefaultMaxAttempts, mean)
	}
}

func TestWithoutDeadLettersAFailingRecordStopsTheConsumerInFrontOfIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err      error
		attempts int
	}{
		"after the last attempt":            {errBad, consumer.DefaultMaxAttempts},
		"at once if it is permanent":        {consumer.Permanent(errBad), 1},
		"also if permanent is wrapped":      {fmt.Errorf("order 7: %w", consumer.Permanent(errBad)), 1},
		"a poison document is not skipped ": {record.ErrMalformed, consumer.DefaultMaxAttempts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &handled{do: failAt(30, tc.err)}
				store := checkpoint.NewMemory()
				cfg := consumer.Config{Workers: 4, Start: earliest}
				err := newConsumer(t, fill(100, 10), h, store, cfg).Run(t.Context())
				e := wantError[*consumer.HandlerError](t, err)
				if e.Record.Position != positionOf(30) || e.Attempts != tc.attempts || !errors.Is(err, errBad) && !errors.Is(err, record.ErrMalformed) {
					t.Errorf("error %v: attempts %d, want %d", err, e.Attempts, tc.attempts)
				}
				if got := stored(t, store).Position; got != positionOf(29) { // I2
					t.Errorf("checkpoint at %s, want in front of record 30", got)
				}
				for _, r := range h.order {
					if r.Src == e.Record.Src && r.Seq >= e.Record.Seq {
						t.Errorf("seq %d of the failing key was handled, after the failing seq %d", r.Seq, e.Record.Seq)
					}
				}
			})
		})
	}
	if consumer.Permanent(nil) != nil {
		t.Error("Permanent(nil) is an error")
	}
}

func TestAGivenUpRecordIsStoredAsADeadLetterBeforeTheCheckpointPassesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handled{do: failAt(5, errBad)}
		store := checkpoint.NewMemory()
		dead := &letters{fail: errors.New("disk full")}
		failures := 0
		var logged bytes.Buffer
		cfg := consumer.Config{Start: earliest, Stream: "db.orders", MaxAttempts: 3, DeadLetters: dead, Logger: zerolog.New(&logged),
			Hooks: consumer.Hooks{OnFailure: func(record.Record, int, error) { failures++ }}}
		done := start(t.Context(), newConsumer(t, fill(10, 1), h, store, cfg))
		time.Sleep(time.Minute)
		if got := stored(t, store).Position; got != positionOf(4) || h.count() != 4 {
			t.Errorf("checkpoint at %s, %d handled, while the letter is not stored", got, h.count())
		}
		dead.mu.Lock()
		dead.fail = nil
		dead.mu.Unlock()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if len(dead.all) != 1 || h.count() != 9 || failures != 3 || stored(t, store).Position != positionOf(10) {
			t.Fatalf("%d letters, %d handled, %d failures, checkpoint %s", len(dead.all), h.count(), failures, stored(t, store).Position)
		}
		if n := strings.Count(logged.String(), "dead letter"); n != 1 {
			t.Errorf("the log tells %d times of one letter, and no hook does: %s", n, logged.String())
		}
		l := dead.all[0]
		if l.Consumer != "orders" || l.Stream != "db.orders" || l.Record.Position != positionOf(5) || l.Attempts != 3 ||
			l.Err != errBad.Error() || l.Time.IsZero() || len(l.Record.Raw) == 0 {
			t.Errorf("letter %+v", l)
		}
	})
}

func TestDeadLettersThatCannotBeStoredStopTheConsumerAfterTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("disk full")
		store := checkpoint.NewMemory()
		cfg := consumer.Config{Start: earliest, DeadLetters: &letters{fail: full}, OutageLimit: time.Minute}
		err := newConsumer(t, fill(10, 1), &handled{do: failAt(5, errBad)}, store, cfg).Run(t.Context())
		wantError[*consumer.HandlerError](t, err)
		if !errors.Is(err, full) || !errors.Is(err, errBad) || stored(t, store).Position != positionOf(4) {
			t.Errorf("error %v, checkpoint %s", err, stored(t, store).Position)
		}
	})
}

func TestAPanicIsAFailedAttemptWithItsStack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dead := &letters{}
		h := &handled{do: func(_ context.Context, r record.Record, attempt int) error {
			switch {
			case r.Position == positionOf(2) && attempt == 1:
				panic(errBad) // once: a retry cures it
			case r.Position == positionOf(4):
				noMap["x"] = 1
			}
			return nil
		}}
		cfg := consumer.Config{Start: earliest, DeadLetters: dead}
		if err := newConsumer(t, fill(5, 1), h, checkpoint.NewMemory(), cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h.count() != 4 || len(dead.all) != 1 || !strings.Contains(dead.all[0].Err, "nil map") || !strings.Contains(dead.all[0].Err, "failure_test.go") {
			t.Errorf("%d handled, letters %+v", h.count(), dead.all)
		}
		err := newConsumer(t, fill(2, 1), consumer.HandlerFunc(func(context.Context, record.Record) error { panic(errBad) }),
			checkpoint.NewMemory(), consumer.Config{Start: earliest, MaxAttempts: 1}).Run(t.Context())
		if wantError[*consumer.PanicError](t, err); !errors.Is(err, errBad) {
			t.Errorf("error %v does not wrap the panic's", err)
		}
	})
}

func TestAHandlerThatEndsItsGoroutineStopsTheConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handled{do: func(_ context.Context, r record.Record, _ int) error {
			if r.Seq == 3 {
				runtime.Goexit()
			}
			return nil
		}}
		store := checkpoint.NewMemory()
		err := newConsumer(t, fill(5, 1), h, store, consumer.Config{Start: earliest}).Run(t.Context())
		if e := wantError[*consumer.HandlerError](t, err); e.Record.Seq != 3 || stored(t, store).Position != positionOf(2) {
			t.Errorf("error %v, checkpoint %s", err, stored(t, store).Position)
		}
	})
}

func TestAHandlerThatTakesTooLongIsInterruptedAndTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var causes []error
		h := &handled{do: func(ctx context.Context, r record.Record, attempt int) error {
			if r.Seq == 2 && attempt < 3 {
				<-ctx.Done()
				causes = append(causes, context.Cause(ctx))
				return ctx.Err()
			}
			return nil
		}}
		var last error
		cfg := consumer.Config{Start: earliest, HandlerTimeout: 10 * time.Second, RetryInitial: time.Millisecond,
			Hooks: consumer.Hooks{OnRetry: func(_ record.Record, _ int, err error) { last = err }}}
		if err := newConsumer(t, fill(3, 1), h, checkpoint.NewMemory(), cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); h.count() != 3 || took < 20*time.Second || took > 22*time.Second {
			t.Errorf("%d handled in %s, want two time-outs of 10 s", h.count(), took)
		}
		if len(causes) != 2 || !errors.Is(causes[0], consumer.ErrHandlerTimeout) || !errors.Is(last, consumer.ErrHandlerTimeout) {
			t.Errorf("causes %v, last error %v", causes, last)
		}
	})
}

func TestAHandlerThatHangsEndsRunWithItsRecordNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := &handled{do: func(_ context.Context, r record.Record, _ int) error {
			if r.Position == positionOf(50) {
				<-release // whatever the context says
			}
			return nil
		}}
		store := checkpoint.NewMemory()
		cfg := consumer.Config{Workers: 3, Start: earliest, HandlerTimeout: 10 * time.Second, HangGrace: 2 * time.Second,
			DrainTimeout: 5 * time.Second, Key: func(r record.Record) string { return fmt.Sprint(r.Position) }}
		begun := time.Now()
		l := fill(100, 5)
		l.ended = false
		err := newConsumer(t, l, h, store, cfg).Run(t.Context())
		took := time.Since(begun)
		if e := wantError[*consumer.HungError](t, err); e.Record.Position != positionOf(50) {
			t.Errorf("error %v", err)
		}
		// I8: noticed after time-out and grace, and back within the drain and a second.
		if took < 12*time.Second || took > 12*time.Second+cfg.DrainTimeout+time.Second {
			t.Errorf("Run took %s", took)
		}
		if got := stored(t, store).Position; got != positionOf(49) { // I2
			t.Errorf("checkpoint at %s, want in front of the record that hangs", got)
		}
		close(release)
		synctest.Wait()
	})
}
