package replicator

import (
	"context"
	"sync"

	"github.com/seed-12ef14e5/capstan/record"
)

// maxQueued bounds the bytes of changes that wait to be applied. When it is reached the reader blocks, and the server's cursor
// waits: a slow destination costs no memory.
const maxQueued = 24 << 20

// queue hands records from the goroutine that reads changes to the one that applies them. It holds at most maxQueued
// bytes (or one record) and max records; when it is full, put blocks.
type queue struct {
	max int

	mu      sync.Mutex
	records []record.Record
	bytes   int
	err     error // why no more will come

	filled, emptied chan struct{} // 1: a wake-up, not a count
}

func newQueue(limit int) *queue {
	return &queue{max: limit, filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1)}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put appends a record, waiting for room until ctx ends.
func (q *queue) put(ctx context.Context, r record.Record) error {
	for {
		q.mu.Lock()
		if len(q.records) == 0 || len(q.records) < q.max && q.bytes < maxQueued {
			// A position that only moved says nothing beside the next one.
			if n := len(q.records); n > 0 && q.records[n-1].Kind == record.KindProgress {
				q.records = q.records[:n-1]
			}
			q.records = append(q.records, r)
			q.bytes += len(r.Raw)
			q.mu.Unlock()
			wake(q.filled)
			return nil
		}
		q.mu.Unlock()
		select {
		case <-q.emptied:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end says why no more records will come.
func (q *queue) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	wake(q.filled)
}

// take returns everything that is there, waiting for the first record until ctx ends. What was put before end comes before its error.
func (q *queue) take(ctx context.Context) ([]record.Record, error) {
	for {
		q.mu.Lock()
		if len(q.records) > 0 {
			batch := q.records
			q.records, q.bytes = nil, 0
			q.mu.Unlock()
			wake(q.emptied)
			return batch, nil
		}
		err := q.err
		q.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-q.filled:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
