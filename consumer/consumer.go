// Package consumer runs a handler over a source of records and remembers how far it came.
//
// It promises at-least-once: every message that the source yields is handled, set aside as a dead
// letter, or the reason why Run ended; none is skipped. The checkpoint is the safe position, the one
// with everything at or below it done, so a restart begins at or before the first record that was
// not handled. Records with the same key are handled in the order of the source; records with
// different keys in any order. It does not promise exactly-once: after a crash, a hard stop or a
// take-over by another consumer of the same name, records behind the last checkpoint are handled
// again, so a handler must bear a repetition.
//
// The package knows no database: where records come from, where checkpoints and dead letters go is
// behind the small interfaces below.
package consumer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/seed-12ef14e5/capstan/record"
)

// Source yields records in an order in which they may be resumed.
type Source interface {
	// Next blocks until there is a record, ctx ends, or the source cannot go on. io.EOF means that
	// there will be no more, and is no failure; any other error is final. It is called by one
	// goroutine, and must return soon after ctx has ended.
	Next(ctx context.Context) (record.Record, error)
	// Close releases what the source holds. It is called once, after the last Next returned.
	Close() error
}

// Open makes the source that begins at start. The source must not hold on to ctx beyond its own life.
type Open func(ctx context.Context, start record.Start) (Source, error)

// Handler does the work.
type Handler interface {
	// Handle returns nil when the effect of the message is safe: the checkpoint may then pass it, and
	// it may never come again. Any error is a failed attempt, which is repeated later with the same
	// record; see Permanent and Stop. ctx ends after Config.HandlerTimeout (by cancelling: it has no deadline),
	// at a hard stop, and when Handle returns. Handle must be safe for concurrent use if Config.Workers is more
	// than 1, and must not change the record.
	Handle(ctx context.Context, r record.Record) error
}

// HandlerFunc makes a Handler of a function.
type HandlerFunc func(ctx context.Context, r record.Record) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, r record.Record) error { return f(ctx, r) }

// Checkpointer stores where to resume. A consumer calls it from one goroutine at a time.
type Checkpointer interface {
	// Acquire makes owner the holder of name and returns what is stored under it, or an empty
	// checkpoint. Whoever held the name before gets a *record.FencedError at its next Save.
	Acquire(ctx context.Context, name, stream, owner string) (record.Checkpoint, error)
	// Save stores cp if its owner and revision are still the stored ones, and returns it with the
	// revision for the next Save. A *record.FencedError is final. After any other error it is called
	// again with the same revision and the same or a later position; it must then not take its own
	// earlier call for another process's.
	Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error)
}

// DeadLetter is a record that was given up.
type DeadLetter = record.DeadLetter

// DeadLetters takes what could not be handled.
type DeadLetters interface {
	// Add stores the letter and returns nil when it is safe: the checkpoint then passes the record. It
	// must be idempotent: the same letter comes again after a crash. Safe for concurrent use.
	Add(ctx context.Context, letter DeadLetter) error
}

// Consumer handles the records of one source under one durable name. Make it with New.
type Consumer struct {
	name    string
	open    Open
	handler Handler
	store   Checkpointer
	cfg     Config

	used  atomic.Bool
	front atomic.Pointer[frontier] // set by Run when reading begins
}

// New returns a consumer that has not started: it does no I/O. name is the durable name under which
// store keeps the position. Errors name the field and the limit.
func New(name string, open Open, h Handler, store Checkpointer, cfg Config) (*Consumer, error) {
	switch {
	case name == "":
		return nil, errors.New("consumer: the durable name is empty")
	case open == nil:
		return nil, errors.New("consumer: open is nil")
	case h == nil:
		return nil, errors.New("consumer: the handler is nil")
	case store == nil:
		return nil, errors.New("consumer: the checkpoint store is nil")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Consumer{name: name, open: open, handler: h, store: store, cfg: cfg}, nil
}

// Status says how far the consumer is. It is the zero Status before Run has begun to read. Safe for
// concurrent use.
func (c *Consumer) Status() Status {
	if f := c.front.Load(); f != nil {
		return f.status()
	}
	return Status{}
}

// Run takes the name over, opens the source where the checkpoint says, and handles records until it
// is stopped. It blocks, and may be called once.
//
// It returns nil if the source ended (io.EOF) and everything was handled and stored, or if ctx ended
// and the consumer drained. Otherwise it returns the first failure: of the checkpoint store at the
// start, of open, *HandlerError, *HungError, *OnGapError, *CheckpointError, *record.FencedError (a
// consumer of the same name took over), the source's error (wrapped), *UnfinishedError (the stop was
// hard); and joined to it what went wrong while stopping.
//
// Stopping has two stages. When ctx ends, or something fails, nothing more is read, and what was read
// but not begun is left for the next run; only what is in front of something that has begun is still
// begun, for half of Config.DrainTimeout. Handlers get all of it; then, or when Config.HardStop is
// closed, their context ends. Run returns at most a second after that. The end of the source and a failure of the source are different: what was
// read is all handled, however long it takes, as it may never be read again.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.used.CompareAndSwap(false, true) {
		return ErrUsed
	}
	owner := ownerOf(c.cfg.Owner)
	cp, err := c.acquire(ctx, owner)
	if err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop before there was anything to do
		}
		return fmt.Errorf("start consumer %q: %w", c.name, err)
	}
	// A checkpoint holds all that is needed to resume, so from here on a crash costs duplicates only (I3).
	reading, stopReading := context.WithCancelCause(ctx)
	defer stopReading(nil)
	src, err := c.open(reading, record.StartOf(cp, c.cfg.Start))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("open source for %q: %w", c.name, err)
	}
	r := newRun(c, cp)
	c.front.Store(r.front)
	return r.supervise(ctx, reading, stopReading, src)
}

func (c *Consumer) acquire(ctx context.Context, owner string) (record.Checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CheckpointTimeout)
	defer cancel()
	return c.store.Acquire(ctx, c.name, c.cfg.Stream, owner)
}

// ownerOf returns an owner that no other run has: fencing tells two holders apart by it, and two
// containers may well have the same host name and process id.
func ownerOf(owner string) string {
	if owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		owner = fmt.Sprintf("%s pid %d", host, os.Getpid())
	}
	return owner + " run " + strings.ToLower(rand.Text()[:10])
}
