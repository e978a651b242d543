package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/time/rate"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
)

// produceRun is one run of `capstan produce`.
type produceRun struct {
	env    *environ
	o      produceOptions
	info   stream.Info
	client *mongo.Client
	// disconnect closes client.
	disconnect func()
	layer      *failover.Layer
	prod       *producer.Producer
	in         *lineReader
	form       string
	limit      *rate.Limiter
	durable    *durableInput // nil without --durable
	started    time.Time

	sent, acknowledged, rejected, existed atomic.Int64
	handled                               atomic.Int64 // bytes of the input that are sent
	// ended is cancelled by the first thing that makes going on useless; its cause is the reason.
	fail  context.CancelCauseFunc
	bad   atomic.Int64 // how many bad lines were named, see reject
	total int64        // bytes of the input, 0 if not known
}

// newProduceRun finds or creates the stream, and prepares the rest.
func newProduceRun(ctx context.Context, env *environ, o produceOptions) (_ *produceRun, err error) {
	r := &produceRun{env: env, o: o, form: o.input, started: time.Now()}
	if r.total, err = inputSize(o.files); err != nil {
		return nil, err // before anything is created
	}
	opts, err := env.clientOptions()
	if err != nil {
		return nil, err
	}
	if r.client, r.disconnect, err = env.connect(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.close(ctx)
		}
	}()
	if r.info, err = findStream(ctx, env, r.client, o); err != nil {
		return nil, err
	}
	if r.layer, err = failover.New(opts, failover.Config{Journal: o.journal, Logger: env.log}); err != nil {
		return nil, err
	}
	w := r.layer.Stream(o.name.db, o.name.coll, failover.StreamConfig{UUID: r.info.UUID, Size: r.info.Size})
	r.prod, err = producer.New(w, producer.Config{
		Name:            producerName(o),
		MaxMessageBytes: int(min(r.info.Size, record.MaxDocumentSize)),
		AcceptExisting:  o.durable != "",
		Logger:          env.log,
	})
	if err != nil {
		return nil, usageError("--name: %w", err)
	}
	if o.rate > 0 {
		r.limit = rate.NewLimiter(rate.Limit(o.rate), max(1, int(o.rate/20)))
	}
	r.in = newLineReader(o.files, env.stdin, o.durable != "")
	if o.durable != "" {
		r.durable, err = openDurable(ctx, r)
	}
	return r, err
}

// findStream returns the stream; --create makes it, and says its size.
func findStream(ctx context.Context, env *environ, client *mongo.Client, o produceOptions) (stream.Info, error) {
	db := client.Database(o.name.db)
	info, err := stream.Lookup(ctx, db, o.name.coll)
	if err == nil || !errors.Is(err, stream.ErrNotFound) {
		return info, err
	}
	if !o.create {
		return info, fmt.Errorf("%w; --create creates it", err)
	}
	size, err := parseSize(o.size)
	if err != nil {
		return info, err
	}
	if info, err = stream.Ensure(ctx, db, o.name.coll, stream.Config{Size: size, Logger: env.log}); err == nil {
		env.note("created stream %s, %s: when it is full, each new message takes the place of the oldest (--size sets it)", o.name, o.size)
	}
	return info, err
}

func producerName(o produceOptions) string {
	name := o.producer
	if name == "" {
		name = o.durable
	}
	if name == "" {
		name, _ = os.Hostname()
	}
	return strings.ReplaceAll(name, "/", "-") // "/" ends the name in src
}

// inputSize is for the progress bar, and finds a missing file before anything is sent.
func inputSize(files []string) (int64, error) {
	var sum int64
	known := len(files) > 0
	for _, f := range files {
		if f == "-" {
			known = false
			continue
		}
		st, err := os.Stat(f)
		if err != nil {
			return 0, fmt.Errorf("open %s: %w", f, plainError(err))
		}
		known = known && st.Mode().IsRegular()
		sum += st.Size()
	}
	if !known {
		sum = 0
	}
	return sum, nil
}

// run sends the input until it ends, something fails, or ctx ends.
func (r *produceRun) run(ctx context.Context) error {
	feeding, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	r.fail = fail
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		// Not ctx: on request the feeding stops, and what was accepted is sent (I7).
		err := r.prod.Run(context.WithoutCancel(ctx))
		if err != nil && !errors.Is(err, record.ErrClosed) { // closed before it ran: there was nothing to send
			fail(err)
		}
	})
	finished := make(chan struct{})
	defer close(finished)
	wg.Go(func() {
		select {
		case <-r.env.stop.hard: // the second signal
			r.prod.Abort()
		case <-finished:
		}
	})
	bar := showProgress(r.env, r.total, r.handled.Load, r.facts)
	defer bar.end()
	if r.durable != nil {
		wg.Go(func() { r.durable.keep(feeding) })
	}

	err := r.feed(feeding)
	if err == nil {
		err = r.prod.Flush(feeding) // no time limit: the input is there, the server may come back
	} else {
		r.drain(ctx)
	}
	if cerr := r.prod.Close(); cerr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = cerr
	}
	if r.durable != nil {
		err = errors.Join(err, r.durable.finish(ctx))
	}
	if cause := context.Cause(feeding); err == nil && cause != nil {
		err = cause // a line that the server refused after the last one was read
	}
	return err
}

// drain sends what was accepted before the feeding stopped (I7). Close would do, if it were certain
// that the producer has begun to run.
func (r *produceRun) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), producer.DefaultDrainTimeout)
	defer cancel()
	_ = r.prod.Flush(ctx) // Close says what is wrong
}

// feed reads and sends. nil: all is accepted.
func (r *produceRun) feed(ctx context.Context) error {
	chunks := r.in.chunks(ctx)
	for {
		var c chunk
		select {
		case c = <-chunks:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		done, err := r.feedChunk(ctx, c)
		switch {
		case err != nil:
			return err
		case done || errors.Is(c.err, io.EOF):
			return nil
		case c.err != nil:
			return c.err
		}
	}
}

// feedChunk sends the lines of a chunk; done says that --count is reached.
func (r *produceRun) feedChunk(ctx context.Context, c chunk) (done bool, err error) {
	stored, err := r.durable.lookUp(ctx, r, c.lines)
	if err != nil {
		return false, err
	}
	for _, l := range c.lines {
		if r.o.count > 0 && r.sent.Load() >= r.o.count {
			return true, nil
		}
		data, err := r.decode(l)
		switch {
		case errors.Is(err, errBlank):
			r.finish(l)
			continue
		case err != nil:
			if err := r.reject(l, err); err != nil {
				return false, err
			}
			continue
		}
		m := producer.Message{Subject: r.o.subject, Data: data}
		if r.durable != nil {
			m.ID = r.durable.id(l)
			if doc, ok := stored[m.ID]; ok {
				if err := r.found(l, m, doc); err != nil {
					return false, err
				}
				continue
			}
		}
		if r.limit != nil {
			if err := r.limit.Wait(ctx); err != nil {
				return false, context.Cause(ctx)
			}
		}
		if err := r.send(ctx, l, m); err != nil {
			return false, err
		}
	}
	return r.o.count > 0 && r.sent.Load() >= r.o.count, nil
}

func (r *produceRun) decode(l line) (bson.RawValue, error) {
	if l.err != nil {
		return bson.RawValue{}, l.err
	}
	if r.form == inputAuto {
		if len(strings.TrimSpace(string(l.text))) == 0 {
			r.form = inputLines
		} else {
			r.form = guessForm(l.text)
		}
		r.env.note("input: %s (--input says otherwise)", r.form)
	}
	return decodeLine(r.form, l.text)
}

// send hands one message to the producer.
func (r *produceRun) send(ctx context.Context, l line, m producer.Message) error {
	l.text = nil // the data is in m
	if r.durable == nil {
		m.ID = record.ID{}
	}
	held := producer.Message{ID: m.ID}
	if r.durable != nil {
		held = m // to compare it with what is stored
	}
	err := r.prod.Send(ctx, m, func(res producer.Result) { r.result(l, held, res) })
	switch {
	case err == nil:
		r.sent.Add(1)
		r.handled.Store(l.end)
		return nil
	case errors.As(err, new(*producer.InvalidError)), errors.As(err, new(*producer.SizeError)):
		return r.reject(l, err)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// result takes what became of a message. The producer calls it, in order.
func (r *produceRun) result(l line, m producer.Message, res producer.Result) {
	switch {
	case res.Err == nil && res.Existed:
		r.durable.verifyLater(l, m) // it is finished when the content is compared
	case res.Err == nil:
		r.acknowledged.Add(1)
		r.finish(l)
	case errors.As(res.Err, new(*record.RejectedError)):
		if err := r.reject(l, res.Err); err != nil {
			r.fail(err)
		}
	case errors.As(res.Err, new(*producer.NotSentError)):
		// Run says why the producer stopped.
	default:
		r.fail(fmt.Errorf("%s: %w", l.where(), res.Err))
	}
}

// maxNamed is how many bad lines are named one by one with --on-error skip; the rest is counted.
const maxNamed = 20

// reject counts a line that cannot become a message. It returns an error if the run must stop.
func (r *produceRun) reject(l line, why error) error {
	r.rejected.Add(1)
	err := fmt.Errorf("%s: %w", l.where(), why)
	if r.o.onError == onErrorStop {
		return err
	}
	switch n := r.bad.Add(1); {
	case n <= maxNamed:
		r.env.say("skipped %v", err)
	case n == maxNamed+1:
		r.env.say("more lines are skipped; the summary counts them")
	}
	r.finish(l)
	return nil
}

// found takes a line whose message is stored already, by an earlier run.
func (r *produceRun) found(l line, m producer.Message, doc bson.Raw) error {
	if !sameContent(m, doc) {
		return r.reject(l, errOtherContent)
	}
	r.existed.Add(1)
	r.handled.Store(l.end)
	r.finish(l)
	return nil
}

// finish says that a line needs nothing more.
func (r *produceRun) finish(l line) {
	if r.durable != nil {
		r.durable.offsets.finish(l.number)
	}
}

// facts is the progress in words.
func (r *produceRun) facts() string {
	sent, acked := r.sent.Load(), r.acknowledged.Load()
	return fmt.Sprintf("sent %d, acknowledged %d, rejected %d, existed %d, %s",
		sent, acked, r.rejected.Load(), r.existed.Load(), perSecond(acked, time.Since(r.started)))
}

func (r *produceRun) summary() string {
	took := time.Since(r.started)
	return fmt.Sprintf("%s: sent %d, acknowledged %d, rejected %d, existed %d in %.2f s, %s, src %s", r.o.name,
		r.sent.Load(), r.acknowledged.Load(), r.rejected.Load(), r.existed.Load(), took.Seconds(), perSecond(r.acknowledged.Load(), took), r.prod.Src())
}

func perSecond(n int64, took time.Duration) string {
	if took <= 0 {
		return "0 msg/s"
	}
	return fmt.Sprintf("%.0f msg/s", float64(n)/took.Seconds())
}

// close lets go of the connections. It may be called on a run that was not fully made, once it is connected.
func (r *produceRun) close(ctx context.Context) {
	if r.layer != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = r.layer.Close(ctx) // nothing is in progress
	}
	r.disconnect()
}
