package replicator

import (
	"context"
	"sync"

	"github.com/seed-12ef14e5/capstan/record"
)

// streamQueue holds what was read and is not yet written: at most maxItems records and about maxBytes, or one larger. Full: the
// reader waits, and the source keeps the messages. Group commit lives here: while a write is in progress, what
// arrives is the next batch.
type streamQueue struct {
	maxItems, maxBytes int

	filled chan struct{} // has a place: something is there, or the reader has ended
	room   chan struct{} // has a place: there is room

	mu    sync.Mutex
	items []record.Record
	bytes int
	err   error // why the reader ended
}

func newStreamQueue(maxItems, maxBytes int) *streamQueue {
	return &streamQueue{maxItems: maxItems, maxBytes: maxBytes, filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put adds r, and waits for room until ctx ends.
func (q *streamQueue) put(ctx context.Context, r record.Record) error {
	for {
		q.mu.Lock()
		if len(q.items) == 0 || len(q.items) < q.maxItems && q.bytes+len(r.Raw) <= q.maxBytes {
			q.items = append(q.items, r)
			q.bytes += len(r.Raw)
			first := len(q.items) == 1
			q.mu.Unlock()
			if first {
				wake(q.filled)
			}
			return nil
		}
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end says that nothing more comes, and why.
func (q *streamQueue) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	wake(q.filled)
}

// take moves what is there to the end of into: at most n records of about size bytes, and at least one if one is there. With
// nothing there it returns why the reader ended, nil if it goes on.
func (q *streamQueue) take(into []record.Record, n, size int) ([]record.Record, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return into, q.err
	}
	k, bytes := 0, 0
	for k < len(q.items) && k < n && (k == 0 || bytes+len(q.items[k].Raw) <= size) {
		bytes += len(q.items[k].Raw)
		k++
	}
	into = append(into, q.items[:k]...)
	left := copy(q.items, q.items[k:])
	clear(q.items[left:]) // what was taken belongs to the taker alone
	q.items, q.bytes = q.items[:left], q.bytes-bytes
	wake(q.room)
	if left > 0 || q.err != nil {
		wake(q.filled)
	}
	return into, nil
}

// empty reports whether nothing is waiting.
func (q *streamQueue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0
}
