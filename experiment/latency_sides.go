package experiment

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/record"
)

// The two ends of a latency variant, each in a process of its own. They work in slices: the parent
// tells a reader and a sender how many messages come next, so that two variants can take turns and see
// the same machine.

// What a worker of a latency variant does.
const (
	Send = "send"
	Read = "read"
)

// Styles of a reader that uses the driver's cursor.
const (
	// styleSleep is tailable without await; it sleeps where it finds nothing.
	styleSleep = "sleep"
	// styleSpin is tailable without await; it asks again at once.
	styleSpin = "spin"
	// styleAwait is tailable with await, as the driver's documentation shows it.
	styleAwait = "await"
	// styleFind reads what is there, once.
	styleFind = "find"
	// styleChanges is capstan's change stream on the collection.
	styleChanges = "changes"
)

// Write concerns of a capstan sender.
const (
	concernOne      = "1"
	concernMajority = "majority"
)

// LatencyJob says what one end of a latency variant does. It is a part of Job.
type LatencyJob struct {
	// Style is how a Driver or Raw reader reads, or styleChanges.
	Style string `json:"style,omitempty"`
	// Requery is the wait before a tail on an empty stream is opened again; 0: at once.
	Requery time.Duration `json:"requery,omitempty"`
	// Rate is in messages per second; 0 is flat out.
	Rate float64 `json:"rate,omitempty"`
	// Producers is how many producers share the rate.
	Producers int `json:"producers,omitempty"`
	// Concern is the write concern, concernOne or concernMajority.
	Concern string `json:"concern,omitempty"`
	// Majority: majority-visible; otherwise local.
	Majority bool `json:"majority,omitempty"`
	// Samples is the file into which a reader writes its latencies as CSV.
	Samples string `json:"samples,omitempty"`
}

// order is what the parent tells a worker of a latency variant.
type order struct {
	// N is the number of messages of the next slice.
	N int64 `json:"n,omitempty"`
	// Idle makes a reader wait where nothing comes, for so long.
	Idle time.Duration `json:"idle,omitempty"`
	// End: write the samples and stop.
	End bool `json:"end,omitempty"`
}

// slice is a worker's answer to an order.
type slice struct {
	// Begin and End are the wall clock, in seconds since the Unix epoch, of the order and of its end: the
	// last acknowledgement or delivery.
	Begin float64 `json:"begin"`
	End   float64 `json:"end"`
	// CPU is user and system time of the worker's process.
	CPU float64 `json:"cpu_seconds"`
	// GetMores, Queries and Inserts are commands sent so far, Batches the batches that were not empty.
	GetMores int64 `json:"getmores"`
	Queries  int64 `json:"queries"`
	Inserts  int64 `json:"inserts"`
	Batches  int64 `json:"batches"`
	// Behind are the delays against the schedule, in nanoseconds; a sender's answer to End only.
	Behind []int64 `json:"behind,omitempty"`
}

// sender sends messages. messages and batches are its own count.
type sender interface {
	// send sends one message whose time is now. It may return before the message is stored.
	send(ctx context.Context) error
	// flush returns when all that was sent is acknowledged.
	flush(ctx context.Context) error
	close(ctx context.Context)
}

// reader reads messages.
type reader interface {
	// read calls got for the next n messages, each as soon as it is there: with its time, src and seq.
	read(ctx context.Context, n int64, got func(doc arrival)) error
	// idle waits where nothing comes until ctx ends.
	idle(ctx context.Context) error
	close(ctx context.Context)
}

// arrival is what is looked at of a message.
type arrival struct {
	time int64 // in microseconds since the Unix epoch
	src  string
	seq  int64
}

// arrivalOf reads a document in the layout of a message, the first fields at their fixed places.
func arrivalOf(doc bson.Raw) arrival {
	t, _ := doc.Lookup(record.FieldTime).Int64OK()
	src, _ := doc.Lookup(record.FieldSrc).StringValueOK()
	seq, _ := doc.Lookup(record.FieldSeq).Int64OK()
	return arrival{t, src, seq}
}

// counts are the commands that a client sends. Safe for concurrent use.
type counts struct{ getMores, queries, inserts, batches atomic.Int64 }

// monitor counts what a driver's client sends. It looks at names only.
func (c *counts) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) { c.add(e.CommandName) }}
}

func (c *counts) add(command string) {
	switch command {
	case "getMore":
		c.getMores.Add(1)
	case "find", "aggregate":
		c.queries.Add(1)
	case "insert":
		c.inserts.Add(1)
	}
}

func (c *counts) into(s *slice) {
	s.GetMores, s.Queries, s.Inserts, s.Batches = c.getMores.Load(), c.queries.Load(), c.inserts.Load(), c.batches.Load()
}

// sending is the sending end of a variant.
type sending struct {
	sender
	counts *counts
	rate   float64
	wait   *pace.Waiter
	behind []int64
}

// slice sends n messages on a schedule that starts now.
func (s *sending) slice(ctx context.Context, n int64) (slice, error) {
	cpu, begin := cpuTime(), time.Now()
	for i := range n {
		if s.rate > 0 {
			due := begin.Add(time.Duration(float64(i) / s.rate * float64(time.Second)))
			if err := s.wait.Until(ctx, due); err != nil {
				return slice{}, err
			}
			s.behind = append(s.behind, int64(time.Since(due)))
		}
		if err := s.send(ctx); err != nil {
			return slice{}, err
		}
	}
	if err := s.flush(ctx); err != nil {
		return slice{}, err
	}
	out := slice{Begin: epoch(begin), End: epoch(time.Now()), CPU: (cpuTime() - cpu).Seconds()}
	s.counts.into(&out)
	return out, nil
}

func epoch(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// reading is the reading end of a variant. It keeps the latency of every message in the order of
// delivery.
type reading struct {
	reader
	counts  *counts
	samples []time.Duration
	last    map[string]int64
	late    error
}

func (r *reading) slice(ctx context.Context, n int64) (slice, error) {
	cpu, begin := cpuTime(), time.Now()
	err := r.read(ctx, n, func(a arrival) {
		now := time.Now()
		r.samples = append(r.samples, time.Duration(now.UnixNano()-a.time*1000))
		if want := r.last[a.src] + 1; a.seq != want && r.late == nil {
			r.late = fmt.Errorf("message %d of %s came where %d was due: one was lost, doubled or moved", a.seq, a.src, want)
		}
		r.last[a.src] = a.seq
	})
	if err = errors.Join(err, r.late); err != nil {
		return slice{}, fmt.Errorf("read message %d: %w", len(r.samples)+1, err)
	}
	out := slice{Begin: epoch(begin), End: epoch(time.Now()), CPU: (cpuTime() - cpu).Seconds()}
	r.counts.into(&out)
	return out, nil
}

// wait measures what waiting costs.
func (r *reading) wait(ctx context.Context, d time.Duration) (slice, error) {
	begin, cpu := time.Now(), cpuTime()
	// No deadline: the driver would make one of the server's out of it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(d, cancel).Stop()
	if err := r.idle(ctx); err != nil {
		return slice{}, err
	}
	return slice{Begin: epoch(begin), End: epoch(time.Now()), CPU: (cpuTime() - cpu).Seconds()}, nil
}

// save writes the samples.
func (r *reading) save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	w := latency.NewWriter(f)
	for _, s := range r.samples {
		if err := w.Add(s); err != nil {
			break // Flush returns it
		}
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	return nil
}

// runSide is RunWorker for one end of a latency variant: it answers orders until the last.
func runSide(ctx context.Context, j Job, lines *bufio.Reader, out io.Writer) error {
	do, done, err := prepareSide(ctx, j)
	if err != nil {
		return fmt.Errorf("prepare %s %s: %w", j.Who, j.What, err)
	}
	defer done(context.WithoutCancel(ctx))
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return fmt.Errorf("report ready: %w", err)
	}
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("wait for an order: %w", err)
		}
		var o order
		if err := json.Unmarshal(line, &o); err != nil {
			return fmt.Errorf("decode an order: %w", err)
		}
		s, err := do(ctx, o)
		if err != nil {
			return fmt.Errorf("%s %s: %w", j.Who, j.What, err)
		}
		if err := json.NewEncoder(out).Encode(s); err != nil {
			return fmt.Errorf("report a slice: %w", err)
		}
		if o.End {
			return nil
		}
	}
}

// prepareSide makes one end ready: connected, its tail open.
func prepareSide(ctx context.Context, j Job) (do func(context.Context, order) (slice, error), done func(context.Context), err error) {
	if j.What == Send {
		s := &sending{counts: &counts{}, rate: j.Latency.Rate}
		if s.wait, err = pace.New(); err != nil {
			return nil, nil, err
		}
		if s.sender, err = newSender(ctx, j, s.counts); err != nil {
			return nil, nil, errors.Join(err, s.wait.Close())
		}
		s.behind = make([]int64, 0, j.Count)
		return func(ctx context.Context, o order) (slice, error) {
				if o.End {
					slices.Sort(s.behind)
					return slice{Behind: quantiles(s.behind)}, nil
				}
				return s.slice(ctx, o.N)
			}, func(ctx context.Context) {
				s.close(ctx)
				_ = s.wait.Close()
			}, nil
	}
	r := &reading{counts: &counts{}, last: map[string]int64{}, samples: make([]time.Duration, 0, j.Count)}
	if r.reader, err = newReader(ctx, j, r.counts); err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, o order) (slice, error) {
		switch {
		case o.End:
			return slice{}, r.save(j.Latency.Samples)
		case o.Idle > 0:
			return r.wait(ctx, o.Idle)
		}
		return r.slice(ctx, o.N)
	}, r.close, nil
}

// quantiles returns the 50th and 99th percentile and the largest of sorted values.
func quantiles(sorted []int64) []int64 {
	if len(sorted) == 0 {
		return nil
	}
	at := func(p float64) int64 { return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)] }
	return []int64{at(0.5), at(0.99), at(1)}
}
