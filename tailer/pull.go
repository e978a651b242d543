package tailer

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/seed-12ef14e5/capstan/record"
)

// pull is the pull side of a source: a goroutine that reads ahead by one batch, and Next, which takes
// what it read. One goroutine at a time may call nextRecord; the rest is safe for concurrent use.
type pull struct {
	run      func(ctx context.Context) error // reads until ctx ends or nothing more can be read; says why
	onRecord func(r record.Record)           // may be nil

	// Owned by the goroutine that calls nextRecord.
	batch []record.Record
	next  int

	batches chan []record.Record
	free    chan []record.Record
	ready   chan struct{} // closed when the first cursor is open
	done    chan struct{} // closed when the reading goroutine has ended
	err     error         // why it ended; read after done or a closed batches

	closed atomic.Bool
	mu     sync.Mutex
	// Guarded by mu.
	cancel  context.CancelFunc
	started bool
}

func newPull(run func(ctx context.Context) error, onRecord func(r record.Record)) *pull {
	return &pull{
		run: run, onRecord: onRecord,
		batches: make(chan []record.Record, handedOver),
		free:    make(chan []record.Record, recycled),
		ready:   make(chan struct{}),
		done:    make(chan struct{}),
	}
}

// open starts the reading goroutine and blocks until its first cursor is open, ctx ends, or it has ended.
func (s *pull) open(ctx context.Context) error {
	if !s.start(ctx) {
		return record.ErrClosed
	}
	select {
	case <-s.ready:
		return nil
	default:
	}
	select {
	case <-s.ready:
		return nil
	case <-s.done:
		if s.closed.Load() {
			return record.ErrClosed
		}
		if errors.Is(s.err, io.EOF) {
			return nil
		}
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nextRecord returns the next record. A ctx that ends costs nothing.
func (s *pull) nextRecord(ctx context.Context) (record.Record, error) {
	for {
		if s.closed.Load() {
			return record.Record{}, record.ErrClosed
		}
		if ctx.Err() != nil {
			return record.Record{}, context.Cause(ctx)
		}
		if s.next < len(s.batch) {
			r := s.batch[s.next]
			s.batch[s.next] = record.Record{} // what the caller drops can be collected
			s.next++
			if s.onRecord != nil {
				s.onRecord(r)
			}
			return r, nil
		}
		if err := s.fill(ctx); err != nil {
			return record.Record{}, err
		}
	}
}

// fill takes the next batch.
func (s *pull) fill(ctx context.Context) error {
	if !s.start(ctx) {
		return record.ErrClosed
	}
	if cap(s.batch) > 0 {
		select {
		case s.free <- s.batch:
		default:
		}
		s.batch, s.next = nil, 0
	}
	select {
	case b, ok := <-s.batches:
		switch {
		case ok:
			s.batch, s.next = b, 0
			return nil
		case s.closed.Load():
			return record.ErrClosed
		default:
			return s.err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end ends the goroutine and waits for it.
func (s *pull) end() error {
	s.mu.Lock()
	s.closed.Store(true)
	cancel, started := s.cancel, s.started
	s.mu.Unlock()
	if started {
		cancel()
		<-s.done
	}
	return nil
}

// start starts the reading goroutine, once. It returns false if the stream is closed.
func (s *pull) start(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return false
	}
	if s.started {
		return true
	}
	s.started = true
	// The reading goroutine outlives this call: it ends with Close, or by itself.
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(s.done)
		s.err = s.run(ctx)
		close(s.batches)
	}()
	return true
}

// sequence returns what next yields, up to the end of data or the first error.
func sequence(ctx context.Context, next func(context.Context) (record.Record, error)) iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		for {
			r, err := next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}
