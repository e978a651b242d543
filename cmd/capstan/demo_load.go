package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// demoConsumer and demoReadBack are the names of the demo's two readers in its history.
	demoConsumer = "consumer"
	demoReadBack = "read back"
	// demoSource is the src in the history's keys. The demo numbers its messages itself, in the payload,
	// so that it need not believe the producer's seq.
	demoSource = "demo"
	// demoPatience is how long nothing may arrive before the demo stops waiting for the rest.
	demoPatience = 30 * time.Second
	// demoPayload bounds the random text in a message, in bytes.
	demoPayload = 160
)

// demoLoad sends numbered messages at a steady rate and receives them, and keeps a history of both.
//
// It is an open loop: message i is due at start + i/rate and carries that as its time, whether or not
// the ones before it have been acknowledged. So an outage is seen by every message that was due
// meanwhile, and not by one that waits for it.
type demoLoad struct {
	count int
	rate  float64
	seed  uint64

	rec                    history.Recorder
	sent, acked, delivered atomic.Int64
	start                  time.Time // set by run, before anything is sent

	// watch is told of an acknowledgement; nil for none.
	watch atomic.Pointer[demoWatch]
	// ended is closed once every message has its outcome, or none will come any more.
	ended chan struct{}

	// late is by how much messages were sent after they were due; owned by sendAll.
	late *latency.Histogram
	// Owned by the producer's callbacks, which come one at a time; read after the producer's end.
	acks  []time.Duration
	first error
	// Owned by the consumer's only worker; read after the consumer's end.
	samples []latency.Sample
	got     []bool
}

// demoWatch waits for the acknowledgement of the message from, or of a later one, which closes seen.
type demoWatch struct {
	from int64
	seen chan struct{}
}

func newDemoLoad(count int, rate float64, seed uint64) *demoLoad {
	return &demoLoad{count: count, rate: rate, seed: seed, ended: make(chan struct{}), late: latency.NewHistogram(),
		acks: make([]time.Duration, 0, count), samples: make([]latency.Sample, 0, count), got: make([]bool, count)}
}

// length is how long the load takes.
func (l *demoLoad) length() time.Duration {
	return time.Duration(float64(l.count) / l.rate * float64(time.Second))
}

// left is how long messages will still be due; negative when none are. Call it after the first was sent.
func (l *demoLoad) left() time.Duration { return l.length() - time.Since(l.start) }

// fresh returns a channel that is closed by the first acknowledgement of a message that is sent from now on.
func (l *demoLoad) fresh() <-chan struct{} {
	w := &demoWatch{from: l.sent.Load() + 1, seen: make(chan struct{})}
	l.watch.Store(w)
	return w.seen
}

// reach waits until message n is sent. It returns false if the load or ctx ends before.
func (l *demoLoad) reach(ctx context.Context, n int64) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for l.sent.Load() < n {
		select {
		case <-ctx.Done():
			return false
		case <-l.ended:
			return l.sent.Load() >= n
		case <-tick.C:
		}
	}
	return true
}

func demoKey(n int64) history.Key { return history.Key{Src: demoSource, Seq: n} }

// sendAll sends all messages through p, which must be running, and returns once each of them has its
// outcome, or ctx ends.
func (l *demoLoad) sendAll(ctx context.Context, p *producer.Producer) error {
	rng := rand.New(rand.NewPCG(l.seed, 1))
	text := make([]byte, demoPayload)
	for i := range text {
		text[i] = byte('a' + rng.IntN(26))
	}
	wait, err := pace.New()
	if err != nil {
		return err
	}
	defer func() { _ = wait.Close() }()
	for n := 1; n <= l.count; n++ {
		due := l.start.Add(time.Duration(float64(n-1) / l.rate * float64(time.Second)))
		if err := wait.Until(ctx, due); err != nil {
			return err
		}
		l.late.Add(time.Since(due))
		key := demoKey(int64(n))
		l.rec.Sent(key)
		l.sent.Store(int64(n))
		m := producer.Message{Time: due.UnixMicro(), Data: demoData(n, text[:20+rng.IntN(demoPayload-20)])}
		if err := p.Send(ctx, m, func(r producer.Result) { l.settled(key, r) }); err != nil {
			l.rec.Rejected(key) // it was not accepted
			return fmt.Errorf("send message %d: %w", n, err)
		}
	}
	return p.Flush(ctx)
}

// demoData returns {n: n, text: text}.
func demoData(n int, text []byte) bson.RawValue {
	doc, err := bson.Marshal(bson.D{{Key: "n", Value: int64(n)}, {Key: "text", Value: string(text)}})
	if err != nil {
		panic(err) // two plain fields
	}
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
}

// demoNumber returns the number in a message of the demo, or 0.
func demoNumber(doc bson.Raw) int64 {
	n, _ := doc.Lookup(record.FieldData, "n").AsInt64OK()
	return n
}

func (l *demoLoad) settled(key history.Key, r producer.Result) {
	var unknown *record.UnknownOutcomeError
	switch {
	case r.Err == nil:
		l.rec.Acknowledged(key)
		l.acks = append(l.acks, time.Since(l.start))
		l.acked.Add(1)
		if w := l.watch.Load(); w != nil && key.Seq >= w.from && l.watch.CompareAndSwap(w, nil) {
			close(w.seen)
		}
		return
	case errors.As(r.Err, &unknown):
		l.rec.Unknown(key)
	default:
		l.rec.Rejected(key)
	}
	if l.first == nil {
		l.first = r.Err
	}
}

// receive is the consumer's handler.
func (l *demoLoad) receive(reader *history.Reader, r record.Record) error {
	if r.Kind == record.KindGap {
		reader.Gap(r.Gap)
		return nil
	}
	now := time.Now()
	n := demoNumber(r.Raw)
	reader.Delivered(demoKey(n))
	if n >= 1 && n <= int64(l.count) && !l.got[n-1] {
		l.got[n-1] = true
		l.samples = append(l.samples, latency.Sample{Loc: n - 1,
			Took: time.Duration(now.UnixMicro()-r.Time) * time.Microsecond, At: time.UnixMicro(r.Time).Sub(l.start)})
		l.delivered.Add(1)
	}
	reader.Handled(demoKey(n))
	return nil
}

// awaitDelivery returns once as many distinct messages are delivered as were acknowledged, or nothing
// has arrived for demoPatience, or ctx ends. Whether that is right is for the oracle to say.
func (l *demoLoad) awaitDelivery(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last, since := l.delivered.Load(), time.Now()
	for l.delivered.Load() < l.acked.Load() && time.Since(since) < demoPatience {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := l.delivered.Load(); now != last {
			last, since = now, time.Now()
		}
	}
}

// measure finds what each fault has cost: the longest interval without an acknowledgement that ends
// between it and the next fault. CaughtUp is before Back where what had piled up was not delivered by
// then. faults are in their order. Call it after the end.
func (l *demoLoad) measure(faults []demoFault) {
	since := time.Duration(0)
	for i := range faults {
		until := time.Duration(math.MaxInt64)
		if i+1 < len(faults) {
			until = faults[i+1].outage.Fault
		}
		o, longest := l.outage(since, faults[i].outage.Fault, until)
		faults[i].outage, faults[i].longest = o, longest
		since = max(o.Back, o.CaughtUp)
	}
}

// outage measures the fault at the time fault. What is usual is taken from the time since the outage before it.
func (l *demoLoad) outage(since, fault, until time.Duration) (o latency.Outage, longest time.Duration) {
	o.Fault, o.Back, o.CaughtUp = fault, fault, fault
	for i := 1; i < len(l.acks); i++ {
		if silence := l.acks[i] - l.acks[i-1]; l.acks[i] > fault && l.acks[i] <= until && silence > longest {
			longest, o.Back = silence, l.acks[i]
		}
	}
	var before []latency.Sample
	for _, s := range l.samples {
		if s.At >= since && s.At+s.Took < fault {
			before = append(before, s)
		}
	}
	// The pile is gone when a message due after the first acknowledgement is as fast as before.
	h := latency.Of(before)
	usual := max(2*h.Quantile(50), h.Quantile(90), time.Millisecond)
	for _, s := range l.samples {
		if s.At > o.Back && s.At <= until && s.Took <= usual {
			o.CaughtUp = s.At
			break
		}
	}
	return o, longest
}
