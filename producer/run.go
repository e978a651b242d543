package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// Run sends until ctx is cancelled, Close is called, or the producer fails. It may be called once.
//
// Stopping has two stages. First nothing more is accepted (Send returns record.ErrClosed) and what is
// buffered is sent; then, when DrainTimeout is over or Abort is called, the insert in flight is cut off
// and the rest gets a *NotSentError. Run returns nil if it was asked to stop and sent everything,
// otherwise an error that wraps ErrDrainTimeout, ErrAborted, or the failure. Before it returns, every
// accepted message has had its result.
//
// The producer fails, and Run returns the error, when the outcome of an insert stays unknown
// (*record.UnknownOutcomeError: later messages cannot be numbered without a possible hole), or when the
// Writer says that nothing can be written. A successor is a new Producer and so a new src.
func (p *Producer) Run(ctx context.Context) error {
	if err := p.begin(); err != nil {
		return err
	}
	// The writes outlive ctx by the drain time: hard is their context.
	hard, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	finished := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { p.watch(ctx, cut, finished) })
	wg.Go(p.deliverAll)

	p.cfg.Logger.Debug().Str("src", p.src).Msg("producer runs")
	err := p.send(hard)

	// The order of closing: nothing new may come in before the rest is handed over (it would have no
	// result); the rest goes through the deliverer, so its callbacks come after all earlier ones; the
	// deliverer ends when done is closed; the watcher ends when finished is.
	if err != nil {
		p.queue.fail(err)
	}
	p.giveUp(err)
	close(p.done)
	close(finished)
	wg.Wait()
	cut(nil)
	p.end(err)
	return err
}

// begin marks the producer as run.
func (p *Producer) begin() error {
	p.life.Lock()
	defer p.life.Unlock()
	switch {
	case p.closed:
		return record.ErrClosed
	case p.started:
		return ErrStarted
	}
	p.started = true
	return nil
}

// end publishes how Run ended.
func (p *Producer) end(err error) {
	p.life.Lock()
	p.err = err
	p.life.Unlock()
	close(p.ended)
}

// watch turns the wish to stop into the two stages.
func (p *Producer) watch(ctx context.Context, cut context.CancelCauseFunc, finished <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-p.closing:
	case <-p.aborting:
	case <-finished:
		return
	}
	p.queue.stop(record.ErrClosed)
	t := time.NewTimer(p.cfg.DrainTimeout)
	defer t.Stop()
	select {
	case <-t.C:
		cut(ErrDrainTimeout) // I8
	case <-p.aborting:
		cut(ErrAborted)
	case <-finished:
	}
}

// send writes batch after batch, one at a time, until the queue is stopped and empty (nil) or the
// producer fails.
func (p *Producer) send(hard context.Context) error {
	seq, size := int64(1), newSizer(p.cfg)
	for {
		b := <-p.spare // the deliverer gives it back: callbacks that lag behind hold the sender here
		drained := p.queue.form(b, size.messages.now, size.bytes.now, seq)
		if len(b.entries) == 0 {
			p.spare <- b
			if drained {
				return nil // I7: everything accepted was sent
			}
			<-p.queue.wake // put and stop signal it
			continue
		}
		if hard.Err() != nil {
			p.spare <- b
			return context.Cause(hard)
		}
		start := time.Now()
		applied, err := p.w.WriteBatch(hard, b.docs)
		took := time.Since(start)
		size.observe(b, took)
		failure := p.settle(hard, b, applied, err)
		seq += int64(b.applied)
		if h := p.cfg.Hooks.OnBatch; h != nil {
			h(Batch{Messages: len(b.docs), Bytes: b.bytes, Applied: b.applied, Took: took, Limit: size.messages.now, Err: err})
		}
		p.queue.decide(len(b.entries))
		p.done <- b
		if failure != nil {
			return failure
		}
	}
}

// settle reads what the Writer said: it cuts b to the entries that are decided now, sets what became
// of them, and returns why the producer cannot go on, if so.
func (p *Producer) settle(hard context.Context, b *batch, applied int, err error) error {
	n := len(b.entries)
	if err == nil && applied == n {
		b.applied = n
		return nil
	}
	var rejected *record.RejectedError
	if errors.As(err, &rejected) && rejected.Index >= 0 && rejected.Index < n {
		b.applied = rejected.Index
		clear(b.entries[rejected.Index+1:])
		b.entries = b.entries[:rejected.Index+1] // the rest is sent again, with the numbers moved up
		existed := p.cfg.AcceptExisting && errors.Is(err, record.ErrExists)
		b.fate = func(_ int, r Result) Result {
			if r.Existed = existed; !existed {
				r.Err = rejected
			}
			return r
		}
		return nil
	}
	var unknown *record.UnknownOutcomeError
	switch b.applied = min(max(applied, 0), n); {
	case errors.As(err, &unknown):
	case err == nil || errors.As(err, &rejected):
		// It says nothing that can be true. What is behind applied may be stored or not.
		err = fmt.Errorf("writer answered with %d of %d messages applied and %w", applied, n, orNothing(err))
		unknown = &record.UnknownOutcomeError{IDs: p.ids(b.entries[b.applied:]), Attempts: 1, Err: err}
		err = unknown
	}
	if cause := context.Cause(hard); cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	b.fate = p.fateAfter(b, err, unknown)
	return fmt.Errorf("write batch of %d messages: %w", n, err)
}

var errNothing = errors.New("no error")

func orNothing(err error) error {
	if err == nil {
		return errNothing
	}
	return err
}

// fateAfter tells the messages whose outcome is unknown from those that are certainly not stored.
func (p *Producer) fateAfter(b *batch, err error, unknown *record.UnknownOutcomeError) func(int, Result) Result {
	notSent := &NotSentError{Err: err}
	if unknown == nil {
		return withError(notSent)
	}
	open := make(map[record.ID]bool, len(unknown.IDs))
	for _, id := range unknown.IDs {
		open[id] = true
	}
	return func(i int, r Result) Result {
		if r.Err = notSent; open[r.ID] {
			r.Seq, r.Err = b.first+int64(i), unknown
		}
		return r
	}
}

func withError(err error) func(int, Result) Result {
	return func(_ int, r Result) Result {
		r.Err = err
		return r
	}
}

func (p *Producer) ids(entries []entry) []record.ID {
	ids := make([]record.ID, len(entries))
	for i, e := range entries {
		ids[i] = p.queue.layout.idOf(e.doc, e.seqAt)
	}
	return ids
}

// giveUp hands everything that is still queued to the deliverer as not sent because of err.
func (p *Producer) giveUp(err error) {
	notSent := &NotSentError{Err: err}
	for {
		b := <-p.spare
		p.queue.form(b, p.cfg.MaxBatch, p.cfg.MaxBufferedBytes, 0)
		if len(b.entries) == 0 {
			return
		}
		b.fate = withError(notSent)
		p.queue.decide(len(b.entries))
		p.done <- b
	}
}

// deliverAll calls the callbacks of batch after batch, in order, until done is closed.
func (p *Producer) deliverAll() {
	for b := range p.done {
		p.deliver(b)
		p.queue.release(b.entries)
		p.spare <- b
	}
}

func (p *Producer) deliver(b *batch) {
	for i := range b.entries {
		e := &b.entries[i]
		if e.done == nil {
			continue
		}
		r := Result{ID: p.queue.layout.idOf(e.doc, e.seqAt), Src: p.src}
		if i < b.applied {
			r.Seq = b.first + int64(i)
		} else {
			r = b.fate(i, r)
		}
		e.done(r)
	}
}
