package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/pace"
)

// slicePatience is how much longer than planned a slice may take before its variant counts as hung.
const slicePatience = 2 * time.Minute

// pair is a variant that runs: its two workers, and what they said so far.
type pair struct {
	v          variant
	db         string
	send, read *worker
	done       int64
	result     VariantResult
	seconds    float64 // of its slices
	sent, seen slice   // the last answers, whose counters are totals
}

// group runs variants that take turns, slice by slice.
func (l *latencyRun) group(ctx context.Context, g []variant) (err error) {
	if err := l.enter(ctx, g[0].set); err != nil {
		return err
	}
	var pairs []*pair
	defer func() {
		for _, p := range pairs {
			p.kill()
			dropCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workerGrace)
			_ = l.client.Database(p.db).Drop(dropCtx) // the next run drops it, too
			cancel()
		}
	}()
	for _, v := range g {
		if why := l.skip(v); why != "" {
			l.run.Skipped[v.name] = why
			l.cfg.Note(v.name + " is skipped: " + why)
			continue
		}
		if v.name == naivePaced || v.name == primedAtNaive {
			v.rate = l.run.Variant(naiveUnpaced).Throughput / 2
		}
		l.cfg.Note(v.name + ": " + v.what)
		l.cfg.Progress(v.name, 0, l.cfg.Count)
		p, err := l.start(ctx, v)
		if p != nil {
			pairs = append(pairs, p)
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", v.name, err)
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	for i := range pairs[0].v.slices {
		for k := range pairs {
			p := pairs[(i+k)%len(pairs)] // A B, B A, A B …
			if err := l.slice(ctx, p, i); err != nil {
				return fmt.Errorf("run %s: %w", p.v.name, err)
			}
		}
	}
	for _, p := range pairs {
		if err := l.finish(ctx, p); err != nil {
			if ctx.Err() != nil { // it ended the workers
				err = errors.Join(context.Cause(ctx), err)
			}
			return fmt.Errorf("finish %s: %w", p.v.name, err)
		}
		l.run.Variants = append(l.run.Variants, p.result)
	}
	return nil
}

// start creates the stream and the workers.
func (l *latencyRun) start(ctx context.Context, v variant) (*pair, error) {
	p := &pair{v: v, result: VariantResult{Name: v.name, What: v.what, Deviation2011: v.deviation, Base: v.base, Payload: v.payload,
		Producers: v.producers, Rate: v.rate, N: l.cfg.Count, Load: firstWord("/proc/loadavg")}}
	var err error
	if p.db, err = l.fresh(ctx, v); err != nil {
		return nil, err
	}
	job := Job{URI: l.server.URI, Database: p.db, Stream: benchStream, Count: l.cfg.Count, Payload: v.payload, Seed: l.cfg.Seed, Batch: DefaultBatch}
	side := func(what string, e end) (*worker, error) {
		j := job
		j.Who, j.What = e.who, what
		j.Latency = &LatencyJob{Style: e.style, Requery: e.requery, Rate: v.rate, Producers: v.producers, Majority: v.majority,
			Concern: concern(v), Samples: filepath.Join(l.dir, v.name+".csv")}
		return startWorker(ctx, l.cfg.Worker, j)
	}
	if p.read, err = side(Read, v.read); err != nil {
		return p, err
	}
	p.send, err = side(Send, v.send)
	return p, err
}

// concern is the write concern of a variant.
func concern(v variant) string {
	if v.set {
		return concernMajority
	}
	return concernOne
}

// slice runs the i-th slice of a variant.
func (l *latencyRun) slice(ctx context.Context, p *pair, i int) error {
	n := l.cfg.Count/int64(p.v.slices) + min(1, max(0, l.cfg.Count%int64(p.v.slices)-int64(i)))
	patience := slicePatience
	if p.v.rate > 0 {
		patience += time.Duration(float64(n) / p.v.rate * float64(time.Second))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%d messages took longer than %s", n, patience))
	defer cancel()
	stop := context.AfterFunc(ctx, p.kill) // which ends the waiting for its answers
	defer stop()
	cpu := l.serverCPU()
	var err error
	if p.v.replay {
		if p.sent, err = p.send.order(order{N: n}); err == nil {
			p.seen, err = p.read.order(order{N: n})
		}
	} else {
		err = l.both(ctx, p, n, i)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return err
	}
	begin := p.sent.Begin
	if p.v.replay {
		begin = p.seen.Begin
	}
	p.seconds += p.seen.End - begin
	p.result.ConsumerCPU += p.seen.CPU
	p.result.ProducerCPU += p.sent.CPU
	p.result.ServerCPU += l.serverCPU() - cpu
	p.done += n
	l.cfg.Progress(p.v.name, p.done, l.cfg.Count)
	return nil
}

// both lets the reader wait and then the sender send.
func (l *latencyRun) both(ctx context.Context, p *pair, n int64, i int) error {
	if err := p.read.tell(order{N: n}); err != nil {
		return err
	}
	lead := sliceLead
	if i == 0 {
		lead = p.v.lead
	}
	if err := pace.Sleep(ctx, lead); err != nil {
		return err
	}
	var err error
	if p.sent, err = p.send.order(order{N: n}); err != nil {
		return err
	}
	p.seen, err = p.read.answer()
	return err
}

// sliceLead is how long a reader gets to be waiting before the next slice.
const sliceLead = 20 * time.Millisecond

func (l *latencyRun) serverCPU() float64 {
	var sum float64
	for _, pid := range l.server.PIDs {
		sum += processCPU(pid)
	}
	return sum
}

// finish measures what waiting costs, ends the workers and makes the result.
func (l *latencyRun) finish(ctx context.Context, p *pair) error {
	ctx, cancel := context.WithTimeout(ctx, slicePatience)
	defer cancel()
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	r := &p.result
	r.GetMores, r.Queries, r.Inserts = p.seen.GetMores, p.seen.Queries, p.sent.Inserts
	if p.v.waits {
		idle, err := p.read.order(order{Idle: idleMeasure})
		if err != nil {
			return err
		}
		r.WaitingCPU = idle.CPU / (idle.End - idle.Begin)
	}
	sent, err := p.send.order(order{End: true})
	if err != nil {
		return err
	}
	if _, err := p.read.order(order{End: true}); err != nil {
		return err
	}
	if len(sent.Behind) == 3 {
		ns := func(v int64) float64 { return float64(v) / 1e9 }
		r.BehindP50, r.BehindP99, r.BehindMax = ns(sent.Behind[0]), ns(sent.Behind[1]), ns(sent.Behind[2])
	}
	for _, w := range []*worker{p.send, p.read} {
		if err := w.end(); err != nil {
			return err
		}
	}
	f, err := os.Open(filepath.Join(l.dir, p.v.name+".csv"))
	if err != nil {
		return fmt.Errorf("read samples: %w", err)
	}
	r.Samples, err = latency.Read(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	r.Throughput = float64(r.N) / p.seconds
	if r.Inserts > 0 {
		r.InsertBatch = float64(r.N) / float64(r.Inserts)
	}
	if p.seen.Batches > 0 {
		r.ReadBatch = float64(r.N) / float64(p.seen.Batches)
	}
	r.describe()
	return nil
}

// describe fills in what the samples say.
func (v *VariantResult) describe() {
	secs := make([]float64, len(v.Samples))
	for i, s := range v.Samples {
		secs[i] = s.Took.Seconds()
	}
	v.N = int64(len(secs))
	if len(secs) == 0 {
		return
	}
	v.First = secs[0]
	v.Mean, v.StdDev = deviation(secs)
	slices.Sort(secs)
	at := func(p float64) float64 { return secs[min(max(int(math.Ceil(p*float64(len(secs))))-1, 0), len(secs)-1)] }
	v.P50, v.P99, v.P999, v.Max = at(0.5), at(0.99), at(0.999), secs[len(secs)-1]
	_, v.StdDevP99 = deviation(secs[:int(math.Ceil(0.99*float64(len(secs))))])
}

// deviation returns the mean and the standard deviation.
func deviation(v []float64) (mean, dev float64) {
	for _, x := range v {
		mean += x
	}
	mean /= float64(len(v))
	for _, x := range v {
		dev += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(dev / float64(len(v)))
}

// tell gives a worker an order.
func (w *worker) tell(o order) error {
	b, err := json.Marshal(o)
	if err == nil {
		_, err = w.stdin.Write(append(b, '\n'))
	}
	if err != nil {
		return w.abandon(err)
	}
	return nil
}

// answer waits for what a worker says to an order.
func (w *worker) answer() (slice, error) {
	var s slice
	line, err := w.stdout.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s)
	}
	if err != nil {
		return s, w.abandon(err)
	}
	return s, nil
}

func (w *worker) order(o order) (slice, error) {
	if err := w.tell(o); err != nil {
		return slice{}, err
	}
	return w.answer()
}

// end waits for the process of a worker that has answered its last order.
func (w *worker) end() error {
	_ = w.stdin.Close()
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("end worker %s %s: %w: %s", w.job.Who, w.job.What, err, w.said())
	}
	return nil
}

// kill ends what is left of a pair. It may be called at any time, and more than once.
func (p *pair) kill() {
	for _, w := range []*worker{p.send, p.read} {
		if w != nil && w.cmd.Process != nil {
			_ = w.cmd.Process.Kill()
		}
	}
}
