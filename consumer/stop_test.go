package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

func slow(d time.Duration) func(context.Context, record.Record, int) error {
	return func(ctx context.Context, _ record.Record, _ int) error { return wait(ctx, d) }
}

// I7: a stop finishes what has begun, stores that, and leaves the rest to the next run.
func TestAStopFinishesWhatHasBegunAndStoresIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handled{do: slow(3 * time.Second)}
		store := checkpoint.NewMemory()
		l := fill(100, 5)
		ctx, stop := context.WithCancel(t.Context())
		done := start(ctx, newConsumer(t, l, h, store, consumer.Config{Start: earliest, CheckpointEvery: time.Hour}))
		time.Sleep(10 * time.Second)
		stop()
		begun := time.Now()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > consumer.DefaultDrainTimeout {
			t.Errorf("the stop took %s, a handler takes 3 s", took)
		}
		n := h.count()
		if got := stored(t, store).Position; n == 0 || n == 100 || got != positionOf(n) {
			t.Errorf("%d handled, checkpoint %s: want everything that was handled below it, so that nothing is repeated", n, got)
		}
		if err := newConsumer(t, l, h, store, consumer.Config{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h.count() != 100 {
			t.Errorf("%d handled in two runs, want 100 and no repetition", h.count())
		}
	})
}

func TestAWorkerFarBehindTheOthersDoesNotMakeAStopHard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handled{do: func(ctx context.Context, r record.Record, _ int) error {
			if r.Src == "p0/run" {
				return wait(ctx, 3*time.Second)
			}
			return nil
		}}
		store := checkpoint.NewMemory()
		l := fill(1000, 10)
		ctx, stop := context.WithCancel(t.Context())
		done := start(ctx, newConsumer(t, l, h, store, consumer.Config{Workers: 10, Start: earliest}))
		time.Sleep(10 * time.Second)
		stop()
		begun := time.Now()
		if err := <-done; err != nil || time.Since(begun) > consumer.DefaultDrainTimeout {
			t.Errorf("error %v after %s: want a drain, although one worker has a hundred records in front of the others", err, time.Since(begun))
		}
		safe := stored(t, store).Position.TS.I
		for n := 1; n <= int(safe); n++ {
			if !h.has(n) { // I2
				t.Errorf("record %d is below the checkpoint and was not handled", n)
			}
		}
	})
}

func TestAfterTheDrainHandlersAreInterruptedAndTheRecordsComeAgain(t *testing.T) {
	t.Parallel()
	for name, hard := range map[string]bool{"drain timeout": false, "hard stop": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &handled{do: func(ctx context.Context, r record.Record, _ int) error {
					if r.Seq == 8 {
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return nil
				}}
				store := checkpoint.NewMemory()
				second := make(chan struct{})
				ctx, stop := context.WithCancel(t.Context())
				done := start(ctx, newConsumer(t, fill(20, 1), h, store, consumer.Config{Start: earliest, HardStop: second}))
				time.Sleep(5 * time.Second)
				stop()
				begun := time.Now()
				limit := consumer.DefaultDrainTimeout
				if hard {
					time.Sleep(time.Second)
					close(second)
					limit = time.Second
				}
				e := wantError[*consumer.UnfinishedError](t, <-done)
				if e.Records != 1 || e.First.Seq != 8 {
					t.Errorf("error %v", e)
				}
				if took := time.Since(begun); took < limit || took > limit+time.Second { // I8
					t.Errorf("the stop took %s, want at most %s and a second", took, limit)
				}
				if got := stored(t, store).Position; got != positionOf(7) {
					t.Errorf("checkpoint at %s", got)
				}
			})
		})
	}
}

func TestAHandlerThatIgnoresTheHardStopIsLeftBehindAndNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := &handled{do: func(_ context.Context, r record.Record, _ int) error {
			if r.Seq == 8 {
				<-release
			}
			return nil
		}}
		store := checkpoint.NewMemory()
		ctx, stop := context.WithCancel(t.Context())
		done := start(ctx, newConsumer(t, fill(20, 1), h, store, consumer.Config{Start: earliest, HandlerTimeout: -1}))
		time.Sleep(5 * time.Second)
		stop()
		begun := time.Now()
		e := wantError[*consumer.HungError](t, <-done)
		if took := time.Since(begun); e.Record.Seq != 8 || took > consumer.DefaultDrainTimeout+time.Second { // I8
			t.Errorf("error %v after %s", e, took)
		}
		if got := stored(t, store).Position; got != positionOf(7) {
			t.Errorf("checkpoint at %s", got)
		}
		close(release)
		synctest.Wait()
		if got := stored(t, store).Position; got != positionOf(7) {
			t.Errorf("what was left behind moved the checkpoint to %s", got)
		}
	})
}

func TestAStopInterruptsBackOffOnlyAfterTheDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handled{do: failAt(3, errBad)}
		ctx, stop := context.WithCancel(t.Context())
		store := checkpoint.NewMemory()
		cfg := consumer.Config{Start: earliest, MaxAttempts: -1, RetryMax: 10 * time.Second, DrainTimeout: 30 * time.Second}
		done := start(ctx, newConsumer(t, fill(5, 1), h, store, cfg))
		time.Sleep(time.Hour)
		stop()
		e := wantError[*consumer.UnfinishedError](t, <-done)
		if e.First.Seq != 3 || h.attempts[positionOf(3)] < 300 || stored(t, store).Position != positionOf(2) {
			t.Errorf("error %v after %d attempts, checkpoint %s", e, h.attempts[positionOf(3)], stored(t, store).Position)
		}
	})
}

func TestAStopBeforeAnythingBeganIsNoFailure(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := newConsumer(t, newLog(), &handled{}, checkpoint.NewMemory(), consumer.Config{}).Run(ctx); err != nil {
		t.Errorf("error %v", err)
	}
}

func TestAFailureToOpenIsReturned(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	open := func(context.Context, record.Start) (consumer.Source, error) { return nil, refused }
	c, err := consumer.New("orders", open, &handled{}, checkpoint.NewMemory(), consumer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); !errors.Is(err, refused) {
		t.Errorf("error %v, want %v", err, refused)
	}
}

// stuck is a source that does not know about contexts.
type stuck struct{ release chan struct{} }

func (s *stuck) Next(context.Context) (record.Record, error) {
	<-s.release
	return record.Record{}, errors.New("released")
}
func (s *stuck) Close() error { return nil }

func TestASourceOrStoreThatIgnoresItsContextDoesNotHoldRunBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		src := &stuck{make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		c, err := consumer.New("orders", func(context.Context, record.Start) (consumer.Source, error) { return src, nil },
			&handled{}, checkpoint.NewMemory(), consumer.Config{})
		if err != nil {
			t.Fatal(err)
		}
		done := start(ctx, c)
		time.Sleep(time.Second)
		stop()
		begun := time.Now()
		if err := <-done; err == nil || time.Since(begun) > consumer.DefaultDrainTimeout+time.Second {
			t.Errorf("error %v after %s", err, time.Since(begun))
		}
		close(src.release)
	})
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		store := &faultyStore{Memory: checkpoint.NewMemory()}
		ctx, stop := context.WithCancel(t.Context())
		l := fill(10, 1)
		l.ended = false
		done := start(ctx, newConsumer(t, l, &handled{}, store, consumer.Config{Start: earliest}))
		time.Sleep(10 * time.Second)
		store.setFail(func(record.Checkpoint) error { <-release; return errors.New("released") })
		l.append(message(11, "p0/run", 11))
		time.Sleep(10 * time.Second)
		stop()
		begun := time.Now()
		if err := <-done; err == nil || time.Since(begun) > consumer.DefaultDrainTimeout+time.Second {
			t.Errorf("error %v after %s", err, time.Since(begun))
		}
		close(release)
	})
}

func TestDrainTimeoutsOfAnyLengthEndInTime(t *testing.T) {
	t.Parallel()
	for _, drain := range []time.Duration{-1, time.Millisecond, time.Second, time.Minute} {
		t.Run(fmt.Sprint(drain), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &handled{do: func(ctx context.Context, _ record.Record, _ int) error { <-ctx.Done(); return ctx.Err() }}
				store := &faultyStore{Memory: checkpoint.NewMemory()}
				ctx, stop := context.WithCancel(t.Context())
				cfg := consumer.Config{Workers: 8, Start: earliest, DrainTimeout: drain, HandlerTimeout: -1}
				done := start(ctx, newConsumer(t, fill(100, 20), h, store, cfg))
				time.Sleep(5 * time.Second)
				store.setFail(func(record.Checkpoint) error { return errors.New("away") })
				stop()
				begun := time.Now()
				wantError[*consumer.UnfinishedError](t, <-done)
				if took, limit := time.Since(begun), max(drain, 0)+time.Second; took > limit {
					t.Errorf("the stop took %s, want at most %s", took, limit)
				}
			})
		})
	}
}
