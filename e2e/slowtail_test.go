package e2e

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// A reader that is slower than three producers on a stream of 1 MB is overrun again and again. I5: it
// is told exactly what it lost, per producer, and goes on: delivered and lost are what was sent.
func TestASlowTailLearnsExactlyWhatItLost(t *testing.T) {
	b := newBench(t, mongotest.ReplicaSet(t), 1<<20)
	each := sized(10_000, 60_000)
	const producers = 3
	// The stream holds about 4,000 of these messages, and the tail has some 1,500 in its hands.
	const read, meanwhile = 1_000, 8_000
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s := b.tail(tailer.Config{Start: record.Start{Where: record.Earliest}, BatchSize: 500})

	var senders []*sender
	var acknowledged atomic.Int64
	for _, name := range []string{"a", "b", "c"} {
		senders = append(senders, b.sender(name, func(producer.Result) { acknowledged.Add(1) }))
	}
	if len(senders) != producers {
		t.Fatal("producers")
	}
	var sending sync.WaitGroup
	payload := strings.Repeat("x", 150)
	for _, p := range senders {
		sending.Go(func() {
			for range each {
				if err := p.send(ctx, payload); err != nil {
					t.Errorf("send: %v", err)
					return
				}
			}
			if err := p.p.Flush(ctx); err != nil {
				t.Errorf("flush: %v", err)
			}
		})
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sending.Wait()
		// When the flood is over each producer sends one more, so that each is seen behind every gap.
		for _, p := range senders {
			if err := p.send(ctx, "last"); err != nil {
				t.Errorf("send: %v", err)
			}
			if err := p.finish(); err != nil {
				t.Errorf("finish: %v", err)
			}
		}
	}()

	reader := b.rec.Reader("slow")
	gaps, last := 0, 0
	for n := 0; last < producers; n++ {
		r, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("after %d records and %d gaps: %v", n, gaps, err)
		}
		if !note(reader, r) {
			gaps++
			t.Logf("gap: %s", r.Gap)
			continue
		}
		if data, _ := r.Raw.Lookup(record.FieldData).StringValueOK(); data == "last" {
			last++
		}
		if n%read == 0 { // slow: it lets the stream turn over
			reach(ctx, &acknowledged, min(acknowledged.Load()+meanwhile, int64(producers*each)))
		}
	}
	<-sent
	v := b.judge(history.Rules{Readers: map[string]history.ReaderRules{"slow": {}}})
	got := v.Reader("slow")
	if total := producers * (each + 1); got.Delivered+got.Reported != total || v.Sent != total {
		t.Errorf("delivered %d + lost %d, sent %d, want %d each", got.Delivered, got.Reported, v.Sent, total)
	}
	if got.ReportedAtMost != 0 {
		t.Errorf("%d messages are not counted exactly, although every producer was seen from its first message on", got.ReportedAtMost)
	}
	if gaps == 0 {
		t.Error("the tail was never overrun: the test shows nothing")
	}
}
