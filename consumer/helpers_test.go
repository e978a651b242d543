package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

// handled records what a handler did, and lets a test say what it does.
type handled struct {
	mu    sync.Mutex
	order []record.Record
	// do, if set, runs before a record counts as handled; attempt counts from 1 per position.
	do       func(ctx context.Context, r record.Record, attempt int) error
	attempts map[record.Position]int
}

func (h *handled) Handle(ctx context.Context, r record.Record) error {
	h.mu.Lock()
	if h.attempts == nil {
		h.attempts = map[record.Position]int{}
	}
	h.attempts[r.Position]++
	attempt := h.attempts[r.Position]
	h.mu.Unlock()
	if h.do != nil {
		if err := h.do(ctx, r, attempt); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.order = append(h.order, r)
	h.mu.Unlock()
	return nil
}

func (h *handled) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.order)
}

// has reports whether the n-th record of a log was handled.
func (h *handled) has(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.order {
		if r.Position == positionOf(n) {
			return true
		}
	}
	return false
}

func newConsumer(t testing.TB, l *log, h consumer.Handler, store consumer.Checkpointer, cfg consumer.Config) *consumer.Consumer {
	t.Helper()
	c, err := consumer.New("orders", l.open, h, store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start runs a consumer in the background; the channel gives what Run returned.
func start(ctx context.Context, c *consumer.Consumer) <-chan error {
	out := make(chan error, 1)
	go func() { out <- c.Run(ctx) }()
	return out
}

func stored(t testing.TB, store *checkpoint.Memory) record.Checkpoint {
	t.Helper()
	cp, err := store.Load(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

func wantError[T error](t testing.TB, err error) T {
	t.Helper()
	e, ok := errors.AsType[T](err)
	if !ok {
		t.Fatalf("error %v (%T), want %T", err, err, e)
	}
	return e
}

// wait sleeps in a bubble of synctest.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var earliest = record.Start{Where: record.Earliest}

// faultyStore is a Memory whose Save can be made to fail.
type faultyStore struct {
	*checkpoint.Memory
	mu    sync.Mutex
	fail  func(record.Checkpoint) error
	saves []record.Checkpoint
}

func (s *faultyStore) setFail(fail func(record.Checkpoint) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *faultyStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.saves)
}

func (s *faultyStore) Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		if err := fail(cp); err != nil {
			return record.Checkpoint{}, err
		}
	}
	saved, err := s.Memory.Save(ctx, cp)
	if err == nil {
		s.mu.Lock()
		s.saves = append(s.saves, saved)
		s.mu.Unlock()
	}
	return saved, err
}
