package main

import "sync"

// mark is a place in the input that may be stored as the offset: the end of a line.
type mark struct {
	lines, bytes int64
	sum          string // SHA-256 of everything before it, in hex
}

// offsets finds the highest mark with every line before it done, in whatever order lines get done.
// Done means acknowledged, found stored, or reported as bad and skipped. Safe for concurrent use.
type offsets struct {
	mu sync.Mutex
	// next is the lowest line that is not done; done holds those above it that are.
	next  int64
	done  map[int64]struct{}
	marks []mark // not yet reached, ascending
	safe  mark
}

// newOffsets starts behind from.
func newOffsets(from mark) *offsets {
	return &offsets{next: from.lines + 1, done: map[int64]struct{}{}, safe: from}
}

// add makes m a candidate. Marks are added in ascending order.
func (o *offsets) add(m mark) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.marks = append(o.marks, m)
	o.advance()
}

// finish says that line n is done.
func (o *offsets) finish(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n != o.next {
		o.done[n] = struct{}{}
		return
	}
	for o.next++; len(o.done) > 0; o.next++ {
		if _, ok := o.done[o.next]; !ok {
			break
		}
		delete(o.done, o.next)
	}
	o.advance()
}

// advance moves safe over the marks that have been reached.
func (o *offsets) advance() {
	for len(o.marks) > 0 && o.marks[0].lines < o.next { // I2: nothing undone is below the mark
		o.safe, o.marks = o.marks[0], o.marks[1:]
	}
}

// current returns the highest mark that is safe to store.
func (o *offsets) current() mark {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.safe
}
