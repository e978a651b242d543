package producer

import (
	"context"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// I4: per sender, what is stored is in the order of its sends, with many of them at once.
func TestManySendersKeepTheirOrder(t *testing.T) {
	w := &memory{}
	p, err := New(w, Config{MaxBuffered: 50, MaxBufferedBytes: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	const senders, each = 8, 500
	var wg sync.WaitGroup
	results := 0 // callbacks come one at a time
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				m := Message{Data: value(t, bson.D{{Key: "s", Value: int32(s)}, {Key: "i", Value: int32(i)}, {Key: "pad", Value: strings.Repeat("x", i%400)}})}
				if err := p.Send(context.Background(), m, func(r Result) { results++ }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	next := map[int32]int32{}
	for i, r := range w.all() {
		var d struct{ S, I int32 }
		if err := r.Data().Unmarshal(&d); err != nil {
			t.Fatal(err)
		}
		if d.I != next[d.S] || r.Seq != int64(i+1) {
			t.Fatalf("message %d: seq %d, sender %d sent %d, want %d", i, r.Seq, d.S, d.I, next[d.S])
		}
		next[d.S]++
	}
	if results != senders*each || len(w.all()) != results {
		t.Errorf("%d results, %d stored", results, len(w.all()))
	}
}

func TestSendAllocatesNothing(t *testing.T) {
	p, err := New(sink{}, Config{MaxBuffered: 1000})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	ctx, m := context.Background(), Message{Subject: "a.b", Data: value(t, strings.Repeat("x", 100))}
	done := func(Result) {}
	const burst = 900 // fits the buffer: nothing waits
	round := func() {
		for range burst {
			if err := p.Send(ctx, m, done); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	round() // the buffer and the batches grow once
	perRound := testing.AllocsPerRun(10, round)
	if perRound > burst/20 { // Flush, and what the runtime does beside
		t.Errorf("%v allocations in %d sends", perRound, burst)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}
