package producer

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// bound says what kept a batch from taking more.
type bound uint8

const (
	byNothing bound = iota // there was no more
	byMessages
	byBytes
)

// batch is one insert and its outcome. Two of them go round between the sender and the deliverer.
type batch struct {
	entries []entry
	docs    []bson.Raw
	bytes   int
	bound   bound
	// first is the number of entries[0].
	first int64
	// applied of the entries are stored; fate completes the Result of entry i behind them. It works on a
	// copy, as a pointer would move the Result of every message to the heap.
	applied int
	fate    func(i int, r Result) Result
}

func (b *batch) reset(seq int64) {
	clear(b.entries) // callbacks and documents must not outlive their batch
	clear(b.docs)
	*b = batch{entries: b.entries[:0], docs: b.docs[:0], first: seq}
}

// Bounds and weights of the sizer.
const (
	// minBatch and minBatchBytes are what an insert may always carry: below that the cost of the
	// command outweighs that of its documents.
	minBatch      = 100
	minBatchBytes = 256 << 10
	// smallInsert is how many messages an insert may carry to count as a round trip: few, and only where
	// nothing more was waiting, or a slow server's work would pass for distance.
	smallInsert = 10
	// firstBatch is the limit before anything has been measured: 10 ms of work for a standalone mongod
	// 6.0.5 and 125 ms for three members on one small machine (97,000 and 8,000 messages a second).
	firstBatch = 1000
)

// sizer adapts the size of a batch so that one insert takes about target longer than its round trip.
// The round trip is taken off because no batch size changes it: with a member far away, or with slow
// commits, shrinking would only lower the rate. It is owned by the sender.
type sizer struct {
	target          time.Duration
	messages, bytes limit
	// trip is what an insert takes whatever its size; 0: not known.
	trip time.Duration
}

// limit is one bound of a batch, in messages or in bytes.
type limit struct {
	now, least, most int
	// size and took are the last insert that this limit bounded.
	size int
	took time.Duration
}

func newSizer(c Config) sizer {
	return sizer{
		target:   c.TargetInsert,
		messages: limit{now: min(firstBatch, c.MaxBatch), least: min(minBatch, c.MaxBatch), most: c.MaxBatch},
		bytes:    limit{now: c.MaxBatchBytes, least: min(minBatchBytes, c.MaxBatchBytes), most: c.MaxBatchBytes},
	}
}

// observe learns from an insert.
func (s *sizer) observe(b *batch, took time.Duration) {
	switch b.bound {
	case byMessages:
		s.adapt(&s.messages, len(b.entries), took)
	case byBytes:
		s.adapt(&s.bytes, b.bytes, took)
	default: // it took all there was: that says nothing about the limits
		if len(b.entries) > smallInsert || b.bytes > minBatchBytes {
			return
		}
		if s.trip == 0 || took < s.trip {
			s.trip = took
		} else {
			s.trip += (took - s.trip) / 16 // one insert in an outage must not count for long
		}
	}
}

// adapt doubles the limit where there is room for it, and lowers it in proportion, to a half at most at
// once, where target is exceeded.
func (s *sizer) adapt(l *limit, size int, took time.Duration) {
	s.learn(l, size, took)
	switch work := took - min(took, s.trip); {
	case work < s.target/2:
		l.now *= 2
	case work > s.target:
		l.now = max(l.now/2, int(float64(l.now)*float64(s.target)/float64(work)))
	}
	l.now = min(max(l.now, l.least), l.most)
}

// learn splits what two inserts of different size took into what grows with the size and what does
// not: a producer that is flat out from its first message on sends no small insert to measure.
func (s *sizer) learn(l *limit, size int, took time.Duration) {
	before, beforeTook := l.size, l.took
	l.size, l.took = size, took
	if diff := max(size, before) - min(size, before); before == 0 || diff < size/4 {
		return
	}
	// The line through both, at size 0. An outage during one of them must not pass for a long way: the
	// trip is never more than the shorter one took.
	at0 := (float64(took)*float64(before) - float64(beforeTook)*float64(size)) / float64(before-size)
	trip := time.Duration(min(max(at0, 0), float64(min(took, beforeTook))))
	if s.trip == 0 {
		s.trip = trip
	}
	s.trip += (trip - s.trip) / 4
}
