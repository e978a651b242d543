package producer

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// simulate lets a sizer work against a server whose insert takes trip and perMessage, always with more
// to send, and returns the limit and the longest insert after it has settled.
func simulate(alone bool, trip, perMessage time.Duration) (limit int, took time.Duration) {
	s := newSizer(Config{}.withDefaults())
	if alone { // the first message leaves alone
		s.observe(&batch{entries: make([]entry, 1)}, trip+perMessage)
	}
	b := batch{entries: make([]entry, DefaultMaxBatch), bound: byMessages}
	for range 400 {
		n := s.messages.now
		b.entries = b.entries[:n]
		took = trip + time.Duration(n)*perMessage
		s.observe(&b, took)
	}
	return s.messages.now, took
}

func TestBatchesGrowWhileInsertsAreFastAndShrinkWhereTheyAreSlow(t *testing.T) {
	for name, c := range map[string]struct {
		trip, perMessage time.Duration
		least, most      int
	}{
		"fast":                       {400 * time.Microsecond, 10 * time.Microsecond, DefaultMaxBatch, DefaultMaxBatch},
		"three members, one machine": {5 * time.Millisecond, 125 * time.Microsecond, 400, 850},
		"very slow":                  {5 * time.Millisecond, 10 * time.Millisecond, minBatch, minBatch},
		"far away":                   {200 * time.Millisecond, 10 * time.Microsecond, DefaultMaxBatch, DefaultMaxBatch},
	} {
		for _, alone := range []bool{true, false} {
			limit, took := simulate(alone, c.trip, c.perMessage)
			if limit < c.least || limit > c.most {
				t.Errorf("%s (first message alone: %v): batches of %d taking %v, want %d to %d", name, alone, limit, took, c.least, c.most)
			}
		}
	}
}

func TestOneSlowInsertHalvesTheBatchAtMost(t *testing.T) {
	s := newSizer(Config{}.withDefaults())
	s.observe(&batch{entries: make([]entry, firstBatch), bound: byMessages}, 10*time.Second)
	if s.messages.now != firstBatch/2 {
		t.Errorf("limit %d", s.messages.now)
	}
	for range 10 {
		s.observe(&batch{entries: make([]entry, s.messages.now), bound: byMessages}, time.Millisecond)
	}
	if s.messages.now != DefaultMaxBatch {
		t.Errorf("after health: limit %d", s.messages.now)
	}
}

func TestLargeMessagesShrinkTheBytesAndNotTheCount(t *testing.T) {
	s := newSizer(Config{}.withDefaults())
	for range 20 {
		s.observe(&batch{entries: make([]entry, 4), bytes: s.bytes.now, bound: byBytes}, time.Duration(s.bytes.now)*time.Microsecond) // 1 MB a second
	}
	if s.bytes.now != minBatchBytes || s.messages.now != firstBatch {
		t.Errorf("bytes %d, messages %d", s.bytes.now, s.messages.now)
	}
}

func TestABatchFitsItsBounds(t *testing.T) {
	q := newQueue(newLayout("p/1", DefaultMaxMessageBytes), 1000, 1<<20)
	put := func(size int) {
		d := draft{Message: Message{Data: bson.RawValue{Type: bson.TypeBinary, Value: append([]byte{byte(size), byte(size >> 8), byte(size >> 16), 0, 0}, make([]byte, size)...)}}}
		if err := q.layout.prepare(&d); err != nil {
			t.Fatal(err)
		}
		if err := q.put(&d, nil, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, size := range []int{10, 10, 10, 100_000, 10, 10} {
		put(size)
	}
	var got []int
	var bounds []bound
	b := &batch{}
	for {
		if q.form(b, 2, 5000, 1); len(b.entries) == 0 {
			break
		}
		got, bounds = append(got, len(b.entries)), append(bounds, b.bound)
		q.decide(len(b.entries))
		q.release(b.entries)
	}
	// Two by count; one before the large one; the large one alone, although it exceeds the bound; the rest.
	want := []int{2, 1, 1, 2}
	if len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("batches of %v, want %v", got, want)
	}
	if len(bounds) != 4 || bounds[0] != byMessages || bounds[1] != byBytes || bounds[2] != byBytes || bounds[3] != byNothing {
		t.Errorf("bounds %v", bounds)
	}
}
