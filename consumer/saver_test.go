package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

var errAway = errors.New("store is away")

func TestHandlingGoesOnWhileCheckpointsCannotBeStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Memory: checkpoint.NewMemory()}
		h := &handled{do: slow(100 * time.Millisecond)}
		var failures int
		cfg := consumer.Config{Start: earliest, Hooks: consumer.Hooks{OnCheckpoint: func(_ record.Checkpoint, err error) {
			if err != nil {
				failures++
			}
		}}}
		done := start(t.Context(), newConsumer(t, fill(3000, 1), h, store, cfg))
		time.Sleep(5 * time.Second)
		store.setFail(func(record.Checkpoint) error { return errAway })
		time.Sleep(2 * time.Minute)
		if n := h.count(); n < 1200 {
			t.Errorf("%d handled in two minutes without a store, want 20 a second... of 100 ms each", n)
		}
		store.setFail(nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if failures < 20 || failures > 400 {
			t.Errorf("%d attempts to store in two minutes", failures)
		}
		if got := stored(t, store.Memory).Position; got != positionOf(3000) {
			t.Errorf("checkpoint at %s", got)
		}
		last := record.Position{}
		for _, cp := range store.saves {
			if cp.Position.TS.Compare(last.TS) < 0 {
				t.Fatalf("checkpoint went back from %s to %s", last, cp.Position)
			}
			last = cp.Position
		}
	})
}

func TestAnOutageOfTheStoreEndsRunAfterTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Memory: checkpoint.NewMemory()}
		l := newLog()
		l.append(message(1, "p/1", 1))
		done := start(t.Context(), newConsumer(t, l, &handled{}, store, consumer.Config{Start: earliest, OutageLimit: 2 * time.Minute}))
		time.Sleep(10 * time.Second)
		store.setFail(func(record.Checkpoint) error { return errAway })
		l.append(message(2, "p/1", 2))
		begun := time.Now()
		err := <-done
		e := wantError[*consumer.CheckpointError](t, err)
		if took := time.Since(begun); !errors.Is(err, errAway) || e.For < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("error %v after %s", err, took)
		}
	})
}

func TestTwoConsumersOfOneNameFenceEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Memory: checkpoint.NewMemory()}
		l := newLog()
		feed := func(from, to int) {
			for n := from; n <= to; n++ {
				l.append(message(n, "p/1", int64(n)))
			}
		}
		first, second := &handled{}, &handled{}
		feed(1, 10)
		cfg := consumer.Config{Start: earliest, Owner: "the same host"}
		one := start(t.Context(), newConsumer(t, l, first, store, cfg))
		time.Sleep(5 * time.Second)
		ctx, stop := context.WithCancel(t.Context())
		two := start(ctx, newConsumer(t, l, second, store, cfg))
		time.Sleep(time.Second)
		feed(11, 20)
		e := wantError[*record.FencedError](t, <-one)
		if e.Name != "orders" || e.Owner == "" {
			t.Errorf("error %v", e)
		}
		time.Sleep(5 * time.Second)
		stop()
		if err := <-two; err != nil {
			t.Fatal(err)
		}
		if first.count() < 10 || second.count() != 10 || stored(t, store.Memory).Position != positionOf(20) {
			t.Errorf("first handled %d, second %d, checkpoint %s", first.count(), second.count(), stored(t, store.Memory).Position)
		}
	})
}

func TestAFencedConsumerStoresNothingMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Memory: checkpoint.NewMemory()}
		h := &handled{do: slow(time.Second)}
		var logged bytes.Buffer
		cfg := consumer.Config{Start: earliest, Logger: zerolog.New(&logged)}
		done := start(t.Context(), newConsumer(t, fill(100, 1), h, store, cfg))
		time.Sleep(10 * time.Second)
		if err := store.Set(t.Context(), record.Checkpoint{Name: "orders", Position: positionOf(1)}); err != nil {
			t.Fatal(err)
		}
		wantError[*record.FencedError](t, <-done)
		if logged.Len() > 0 {
			t.Errorf("the log says of what Run returns: %s", logged.String())
		}
		if got := stored(t, store.Memory).Position; got != positionOf(1) {
			t.Errorf("checkpoint at %s, want where the person put it", got)
		}
	})
}

func TestACheckpointOfAnotherStreamIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	store := checkpoint.NewMemory()
	h := &handled{}
	if err := newConsumer(t, fill(3, 1), h, store, consumer.Config{Start: earliest, Stream: "db.orders"}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := newConsumer(t, fill(3, 1), h, store, consumer.Config{Start: earliest, Stream: "db.returns"}).Run(t.Context())
	if e := wantError[*checkpoint.OtherStreamError](t, err); e.Stored != "db.orders" || e.Asked != "db.returns" || h.count() != 3 {
		t.Errorf("error %v, %d handled", err, h.count())
	}
}

func TestCheckpointsAreDueByCountAndByTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Memory: checkpoint.NewMemory()}
		l := newLog()
		ctx, stop := context.WithCancel(t.Context())
		cfg := consumer.Config{Start: earliest, CheckpointEvery: time.Hour, CheckpointRecords: 10}
		done := start(ctx, newConsumer(t, l, &handled{}, store, cfg))
		for n := 1; n <= 25; n++ {
			l.append(message(n, "p/1", int64(n)))
			synctest.Wait()
		}
		if got := stored(t, store.Memory).Position; got != positionOf(20) {
			t.Errorf("after 25 records checkpoint at %s, want every 10", got)
		}
		time.Sleep(2 * time.Hour)
		if got := stored(t, store.Memory).Position; got != positionOf(25) {
			t.Errorf("after the time checkpoint at %s, want 25", got)
		}
		saves := store.count()
		time.Sleep(24 * time.Hour)
		if more := store.count() - saves; more != 0 {
			t.Errorf("%d checkpoints of an idle consumer", more)
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
