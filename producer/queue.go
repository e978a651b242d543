package producer

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// chunkSize is the unit in which the buffer grows and is used again. A message larger than a quarter
	// of it has memory of its own, so at most a quarter of a chunk stays unused.
	chunkSize = 256 << 10
	// elementBytes is what one document costs in the insert command beyond its own bytes: the type, up to
	// six digits of index, and a NUL.
	elementBytes = 8
)

// chunk is a piece of the buffer; messages lie in it one behind the other.
type chunk struct {
	buf  []byte
	live int // messages in it that have no result yet
}

// entry is one accepted message.
type entry struct {
	doc   []byte
	in    *chunk // nil: doc has memory of its own
	done  func(Result)
	seqAt int
}

// waiter is a Send that waits for room.
type waiter struct {
	size    int
	ready   chan struct{} // closed when granted, or when the queue stops
	granted bool
}

// flusher is a Flush that waits until everything before index at has its result.
type flusher struct {
	at   int64
	done chan struct{}
}

// errCancelled: the caller of put stopped waiting.
var errCancelled = errors.New("cancelled")

// queue holds what is accepted and has no result yet: a ring of entries that point into chunks, both
// used again and again, so that a message costs no allocation.
//
// A ring and not a channel, because a batch takes what is there without removing it: what a rejection
// leaves over goes into the next batch with other numbers. Policy when full: Send blocks, in order of
// arrival (else a large message would starve behind small ones), TrySend fails.
type queue struct {
	layout               layout
	maxMessages, maxSize int
	// wake has room for one signal: the sender looks at the queue again.
	wake chan struct{}

	mu sync.Mutex
	// ring has a power of two of places; entry i is at i & (len-1). [head, next) are decided and wait for
	// their callbacks, [next, tail) are to be sent.
	ring             []entry
	head, next, tail int64
	// count and bytes include what is granted and not yet written.
	count, bytes int
	current      *chunk
	free         []*chunk
	waiters      []*waiter
	flushers     []flusher
	// stopped is why nothing is accepted any more; failed is why the producer failed, nil if it did not.
	stopped, failed error
	// idle: the sender waits for wake.
	idle bool
}

func newQueue(l layout, maxMessages, maxBytes int) *queue {
	return &queue{layout: l, maxMessages: maxMessages, maxSize: maxBytes, wake: make(chan struct{}, 1)}
}

// put encodes d into the buffer. If there is no room it waits for it until cancelled is closed (then
// errCancelled), or returns ErrFull if block is false. After an error done is never called.
func (q *queue) put(d *draft, done func(Result), block bool, cancelled <-chan struct{}) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.stopped != nil:
		return q.stopped
	case len(q.waiters) == 0 && q.fits(d.size):
		q.count++
		q.bytes += d.size
	case !block:
		return ErrFull
	default:
		if err := q.await(cancelled, d.size); err != nil {
			return err
		}
	}
	// I4: from here to the ring under one lock: the order of the ring is the order of acceptance.
	e := entry{done: done}
	e.doc, e.in = q.alloc(d.size)
	e.seqAt = q.layout.encode(e.doc, d)
	if int(q.tail-q.head) == len(q.ring) {
		q.grow()
	}
	*q.at(q.tail) = e
	q.tail++
	q.signal()
	return nil
}

func (q *queue) at(i int64) *entry { return &q.ring[i&int64(len(q.ring)-1)] }

func (q *queue) fits(size int) bool {
	return q.count < q.maxMessages && (q.bytes+size <= q.maxSize || q.count == 0)
}

// await gives up the lock until there is room for size bytes, and takes it.
func (q *queue) await(cancelled <-chan struct{}, size int) error {
	w := &waiter{size: size, ready: make(chan struct{})}
	q.waiters = append(q.waiters, w)
	q.mu.Unlock()
	select {
	case <-w.ready:
	case <-cancelled:
	}
	q.mu.Lock()
	if w.granted && q.stopped == nil {
		return nil
	}
	if w.granted {
		q.count--
		q.bytes -= size
	} else if i := slices.Index(q.waiters, w); i >= 0 {
		q.waiters = slices.Delete(q.waiters, i, i+1)
	}
	q.grant() // those behind may fit where this one did not
	if q.stopped != nil {
		return q.stopped
	}
	return errCancelled
}

// grant hands room to waiters in their order.
func (q *queue) grant() {
	for len(q.waiters) > 0 && q.stopped == nil && q.fits(q.waiters[0].size) {
		w := q.waiters[0]
		q.waiters = slices.Delete(q.waiters, 0, 1)
		q.count++
		q.bytes += w.size
		w.granted = true
		close(w.ready)
	}
}

func (q *queue) grow() {
	bigger := make([]entry, max(64, 2*len(q.ring)))
	for i := q.head; i < q.tail; i++ {
		bigger[i&int64(len(bigger)-1)] = *q.at(i)
	}
	q.ring = bigger
}

func (q *queue) alloc(size int) ([]byte, *chunk) {
	if size > chunkSize/4 {
		return make([]byte, size), nil
	}
	c := q.current
	if c == nil || cap(c.buf)-len(c.buf) < size {
		if n := len(q.free); n > 0 {
			c, q.free = q.free[n-1], q.free[:n-1]
		} else {
			c = &chunk{buf: make([]byte, 0, chunkSize)}
		}
		q.current = c
	}
	at := len(c.buf)
	c.buf = c.buf[:at+size]
	c.live++
	return c.buf[at : at+size : at+size], c
}

// signal wakes the sender if it sleeps.
func (q *queue) signal() {
	if q.idle {
		q.idle = false
		q.wake <- struct{}{} // never blocks: one signal per sleep
	}
}

// form fills b with the messages to send next, numbered from seq, and reports whether the queue is
// stopped and has nothing more to send. If it returns an empty batch and false, wait for q.wake.
func (q *queue) form(b *batch, messages, bytes int, seq int64) (drained bool) {
	b.reset(seq)
	q.mu.Lock()
	for i := q.next; i < q.tail; i++ {
		e := q.at(i)
		if len(b.entries) >= messages {
			b.bound = byMessages
			break
		}
		if n := len(e.doc) + elementBytes; len(b.entries) > 0 && b.bytes+n > bytes {
			b.bound = byBytes
			break
		}
		b.entries = append(b.entries, *e)
		b.bytes += len(e.doc) + elementBytes
	}
	if len(b.entries) == 0 {
		drained = q.stopped != nil
		q.idle = !drained
	}
	q.mu.Unlock()
	for i, e := range b.entries {
		// The number is given here and not in Send: after a rejection the next message takes it over.
		binary.LittleEndian.PutUint64(e.doc[e.seqAt:], uint64(seq+int64(i)))
		b.docs = append(b.docs, bson.Raw(e.doc))
	}
	return drained
}

// decide says that the next n messages have an outcome and are not sent again.
func (q *queue) decide(n int) {
	q.mu.Lock()
	q.next += int64(n)
	q.mu.Unlock()
}

// release frees the room of the oldest messages, whose callbacks have been called.
func (q *queue) release(entries []entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		q.bytes -= len(e.doc)
		*q.at(q.head) = entry{}
		q.head++
		if c := e.in; c != nil {
			if c.live--; c.live == 0 {
				c.buf = c.buf[:0]
				if c != q.current {
					q.free = append(q.free, c)
				}
			}
		}
	}
	q.count -= len(entries)
	q.grant()
	for len(q.flushers) > 0 && q.flushers[0].at <= q.head {
		close(q.flushers[0].done)
		q.flushers = slices.Delete(q.flushers, 0, 1)
	}
}

// fail is stop for a producer that cannot go on.
func (q *queue) fail(err error) {
	q.mu.Lock()
	q.failed = err
	q.mu.Unlock()
	q.stop(&NotSentError{Err: err})
}

func (q *queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed
}

// stop makes every put fail with err from now on; the first err stays.
func (q *queue) stop(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped != nil {
		return
	}
	q.stopped = err
	for _, w := range q.waiters {
		close(w.ready)
	}
	q.waiters = nil
	q.signal()
}

// flushed returns a channel that is closed when everything accepted so far has its result.
func (q *queue) flushed() <-chan struct{} {
	f := flusher{done: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	if f.at = q.tail; f.at == q.head {
		close(f.done)
	} else {
		q.flushers = append(q.flushers, f) // in order of at: tail only grows
	}
	return f.done
}

// forget removes a flusher whose caller no longer waits.
func (q *queue) forget(done <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushers = slices.DeleteFunc(q.flushers, func(f flusher) bool { return f.done == done })
}

func (q *queue) buffered() (messages, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count, q.bytes
}
