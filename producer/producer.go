package producer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/seed-12ef14e5/capstan/record"
)

// incarnationLength is the number of base32 digits behind the name in src: 65 random bits, so that of a
// million incarnations of one name two are equal with a probability of about 1 in 70 million.
const incarnationLength = 13

// Producer sends messages to one stream. Make it with New, let it work with Run. All methods are safe
// for concurrent use.
//
// While an insert is in flight, what arrives is the next batch: under light load a message leaves at
// once, under heavy load batches grow by themselves, and there is never a second insert in flight,
// because two would have no one order (and are slower on a capped collection).
//
// Callbacks are called in the order in which the messages were accepted, one at a time, by a goroutine of
// Run (of Close, if Run was never called). They must not block: while one runs, the next insert goes on,
// but the one after it waits. They may call TrySend, and must not call Send, SendSync, Flush or Close,
// which wait for callbacks.
type Producer struct {
	w     Writer
	cfg   Config
	src   string
	queue *queue

	// spare holds batches that nobody uses, done those whose callbacks are to be called: two batches go
	// round, so that callbacks run while the next insert is in flight. Policy when full: the sender waits.
	spare, done chan *batch
	// closing and aborting are closed by Close and Abort, ended when no callback will be called any more.
	closing, aborting, ended chan struct{}

	life                     sync.Mutex
	started, closed, aborted bool
	err                      error // how Run ended
}

// batches is the number of batches that go round: one in flight, one being reported.
const batches = 2

// New returns a Producer that writes through w, which nobody else may use meanwhile. It checks cfg,
// takes random bytes for the incarnation, and does nothing else: Send may be called at once, and what it
// accepts is sent when Run is called.
func New(w Writer, cfg Config) (*Producer, error) {
	if w == nil {
		return nil, errors.New("producer: no Writer")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.With().Str("component", "producer").Logger()
	src := cfg.Name + "/" + strings.ToLower(rand.Text()[:incarnationLength])
	p := &Producer{
		w: w, cfg: cfg, src: src,
		queue:    newQueue(newLayout(src, cfg.MaxMessageBytes), cfg.MaxBuffered, cfg.MaxBufferedBytes),
		spare:    make(chan *batch, batches),
		done:     make(chan *batch, batches),
		closing:  make(chan struct{}),
		aborting: make(chan struct{}),
		ended:    make(chan struct{}),
	}
	for range batches {
		p.spare <- &batch{}
	}
	return p, nil
}

// Src returns what the messages' src is: the name, "/" and a random incarnation. It does not block.
func (p *Producer) Src() string { return p.src }

// Buffered returns how many messages and bytes are accepted and have no result yet. It does not block.
func (p *Producer) Buffered() (messages, bytes int) { return p.queue.buffered() }

// Send accepts m, and blocks while the buffer is full. done, which may be nil, is called exactly once
// with what became of m, later and on another goroutine (see Producer); after an error it is never called.
//
// Errors: *InvalidError and *SizeError for a message that cannot be stored; record.ErrClosed after the
// producer was told to stop; *NotSentError after it failed; the cause of ctx if that ends before there
// is room. ctx has no effect on m once Send has returned.
func (p *Producer) Send(ctx context.Context, m Message, done func(Result)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := p.put(m, done, true, ctx.Done())
	if errors.Is(err, errCancelled) {
		return context.Cause(ctx)
	}
	return err
}

// TrySend is Send that does not block: it returns ErrFull where Send would wait.
func (p *Producer) TrySend(m Message, done func(Result)) error {
	return p.put(m, done, false, nil)
}

func (p *Producer) put(m Message, done func(Result), block bool, cancelled <-chan struct{}) error {
	d := draft{Message: m}
	if err := p.queue.layout.prepare(&d); err != nil {
		return err
	}
	return p.queue.put(&d, done, block, cancelled)
}

// SendSync is Send that waits for the result; the error is Result.Err or that of Send. If ctx ends
// first, the message stays accepted: the error wraps the cause of ctx, Result.ID is its _id, and its
// outcome remains unknown to the caller. It waits for Run, and must not be called from a callback.
func (p *Producer) SendSync(ctx context.Context, m Message) (Result, error) {
	if m.ID.IsZero() {
		m.ID = record.NewID()
	}
	result := make(chan Result, 1) // the callback never blocks, whether or not anyone still waits
	if err := p.Send(ctx, m, func(r Result) { result <- r }); err != nil {
		return Result{ID: m.ID, Src: p.src, Err: err}, err
	}
	select {
	case r := <-result:
		return r, r.Err
	case <-ctx.Done():
	}
	select {
	case r := <-result: // both at once: the result counts
		return r, r.Err
	default:
		err := fmt.Errorf("wait for the result of message %s: %w", m.ID, context.Cause(ctx))
		return Result{ID: m.ID, Src: p.src, Err: err}, err
	}
}

// Flush waits until every message accepted before the call has had its result and its callback has
// returned. It returns nil then, whatever the results were, unless the producer failed: then the
// failure. If ctx ends first it returns its cause. Before Run it waits for it.
func (p *Producer) Flush(ctx context.Context) error {
	done := p.queue.flushed()
	select {
	case <-done:
	case <-ctx.Done():
		p.queue.forget(done)
		return context.Cause(ctx)
	}
	return p.queue.failure()
}

// Close tells the producer to take no more, waits until what is buffered is sent (see Run), and returns
// what Run returned. If Run was never called, every accepted message gets a *NotSentError and Close
// returns nil. It waits for DrainTimeout at most, plus what the Writer needs to return after its context
// has ended. Closing again waits for the same and returns the same. It must not be called from a callback.
func (p *Producer) Close() error {
	p.life.Lock()
	first, started := !p.closed, p.started
	p.closed = true
	p.life.Unlock()
	if first {
		close(p.closing)
		if !started {
			p.abandon()
		}
	}
	<-p.ended
	p.life.Lock()
	defer p.life.Unlock()
	return p.err
}

// Abort skips the drain: it tells the producer to stop and cuts off the insert in flight. It does not
// wait, and may be called at any time and more than once.
func (p *Producer) Abort() {
	p.life.Lock()
	defer p.life.Unlock()
	if !p.aborted {
		p.aborted = true
		close(p.aborting)
	}
}

// abandon ends a producer that was never run.
func (p *Producer) abandon() {
	p.queue.stop(record.ErrClosed)
	deliver := make(chan struct{})
	go func() {
		defer close(deliver)
		p.deliverAll()
	}()
	p.giveUp(record.ErrClosed)
	close(p.done)
	<-deliver
	p.end(nil)
}
