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
	// firstBatch is the limit before anything has been measured: 10 ms of work for a standalone mongod
	// 6.0.5 and 125 ms for three members on one small machine (97,000 and 8,000 messages a second).
	firstBatch = 1000
)

// sizer adapts the size of a batch so that one insert takes about target longer than a small one.
// The round trip of a small insert is taken off because no batch size changes it: with a member far
// away, or with slow commits, shrinking would only lower the rate. It is owned by the sender.
type sizer struct {
	target                time.Duration
	messages, bytes       int
	maxMessages, maxBytes int
	// trip is the round trip of a small insert; 0: none seen.
	trip time.Duration
}

func newSizer(c Config) sizer {
	return sizer{
		target: c.TargetInsert, maxMessages: c.MaxBatch, maxBytes: c.MaxBatchBytes,
		messages: min(firstBatch, c.MaxBatch), bytes: c.MaxBatchBytes,
	}
}

// observe learns from an insert of n messages.
func (s *sizer) observe(b *batch, took time.Duration) {
	if len(b.entries) <= minBatch && b.bytes <= minBatchBytes {
		if s.trip == 0 || took < s.trip {
			s.trip = took
		} else {
			s.trip += (took - s.trip) / 16 // one insert in an outage must not count for long
		}
	}
	if b.bound == byNothing {
		return // it took all there was: says nothing about the limits
	}
	took -= min(took, s.trip)
	switch b.bound {
	case byMessages:
		s.messages = adapt(s.messages, minBatch, s.maxMessages, took, s.target)
	case byBytes:
		s.bytes = adapt(s.bytes, minBatchBytes, s.maxBytes, took, s.target)
	}
}

// adapt doubles limit where there is room for it, and lowers it in proportion, to a half at most at
// once, where target is exceeded.
func adapt(limit, least, most int, took, target time.Duration) int {
	switch {
	case took < target/2:
		limit *= 2
	case took > target:
		limit = max(limit/2, int(float64(limit)*float64(target)/float64(took)))
	}
	return min(max(limit, least), most)
}
