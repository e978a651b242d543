package replicator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/match"
	"github.com/seed-12ef14e5/capstan/record"
)

// Defaults of StreamConfig.
const (
	// DefaultStreamBatch and DefaultStreamBatchBytes are the most that one write carries. What is there is taken: under light load
	// a message is written at once, under heavy load batches grow by themselves.
	DefaultStreamBatch      = 1000
	DefaultStreamBatchBytes = 16_000_000
	// DefaultStreamMarks bounds the number of srcs whose highest seq is kept, as in package tailer.
	DefaultStreamMarks = 10_000
	// DefaultStreamDrain is how long a write that is in progress may go on after the route was told to stop.
	DefaultStreamDrain = 5 * time.Second
)

// StreamConfig configures a StreamLink. The zero Config is valid: it replicates every message that the source holds, and then
// every one that comes, into an empty destination.
type StreamConfig struct {
	// Subject and Filter select messages: a pattern as of record.ParseSubject, and a query of package internal/match. What they
	// reject is counted and leaves holes of seq at the destination, by design.
	Subject string
	Filter  bson.Raw
	// Owner names this process in the checkpoint; "" means the route's name and a random number.
	Owner string
	// Existing says what happens if the destination holds messages when the route begins. "" means RefuseExisting. With MergeExisting
	// what is there counts as replicated: of each src everything up to its newest seq. DropExisting is refused.
	Existing Existing
	// Resync begins again at the oldest message of the source, whatever the checkpoint says. What the destination holds already is not
	// written again. It is the way on after a *RecreatedError or a *MismatchError.
	Resync bool
	// Until ends Run by itself: "" never, UntilCopied when what the source held at the start is replicated, UntilLive
	// when the destination has caught up.
	Until Until
	// Paused starts the route paused.
	Paused bool
	// Batch and BatchBytes bound one write; 0 means DefaultStreamBatch and DefaultStreamBatchBytes. A single message may be larger.
	Batch, BatchBytes int
	// SaveEvery is how often the checkpoint is stored while it moves, ClockEvery how often the source is asked for its newest message.
	// 0 means DefaultSaveEvery and DefaultClockEvery.
	SaveEvery, ClockEvery time.Duration
	// MaxMarks bounds the number of srcs in the checkpoint; 0 means DefaultStreamMarks.
	MaxMarks int
	// Drain is how long a write in progress may go on after Run's context has ended; 0 means DefaultStreamDrain.
	Drain time.Duration
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
	// Hooks are called on events, by the goroutine of Run; every one may be nil. OnLetter is never called.
	Hooks Hooks
	// OnGap is called when the source has lost messages to this route; may be nil.
	OnGap func(record.Gap)
}

func (c StreamConfig) withDefaults() StreamConfig {
	for v, d := range map[*int]int{&c.Batch: DefaultStreamBatch, &c.BatchBytes: DefaultStreamBatchBytes, &c.MaxMarks: DefaultStreamMarks} {
		if *v == 0 {
			*v = d
		}
	}
	for v, d := range map[*time.Duration]time.Duration{&c.SaveEvery: DefaultSaveEvery, &c.ClockEvery: DefaultClockEvery, &c.Drain: DefaultStreamDrain} {
		if *v == 0 {
			*v = d
		}
	}
	if c.Existing == "" {
		c.Existing = RefuseExisting
	}
	return c
}

func (c StreamConfig) validate() error {
	switch {
	case c.Batch < 1 || c.BatchBytes < 1 || c.BatchBytes > record.MaxDocumentSize:
		return fmt.Errorf("fields Batch and BatchBytes are %d and %d; they must be positive, and BatchBytes at most %d", c.Batch, c.BatchBytes, record.MaxDocumentSize)
	case c.SaveEvery < 0 || c.ClockEvery < 0 || c.Drain < 0:
		return errors.New("fields SaveEvery, ClockEvery and Drain must not be negative")
	case c.MaxMarks < 1:
		return fmt.Errorf("field MaxMarks is %d; it must be positive", c.MaxMarks)
	case c.Existing != RefuseExisting && c.Existing != MergeExisting:
		return fmt.Errorf("field Existing is %q; for a stream it must be refuse or merge", c.Existing)
	case c.Until != UntilStopped && c.Until != UntilCopied && c.Until != UntilLive:
		return fmt.Errorf("field Until is %q; it must be empty, copied or live", c.Until)
	}
	return nil
}

// StreamLink replicates one stream to another: one reader, one ordered writer. Every message of the source arrives once, in the
// source's order per src (I4), whoever is killed on the way; ts is made anew by the destination's server; the primer stays at home;
// what the source has lost to the route is reported, and is missing at the destination as holes of seq (I5).
//
// The destination must have no other writer: with one, the order holds per src only, and a stream that turns over while the
// route is down may store twice.
//
// After a crash the route reads again from its checkpoint. Two things keep a message from being stored twice: its _id, which the
// destination refuses while it holds it; and the newest seq per src at the destination, read at the start. Both need what was
// written since the checkpoint to be there still, so a checkpoint is stored before half of the destination is written anew.
//
// A pause and a finalization are of this run: a new Run goes on from the checkpoint. Status and the control methods are safe for
// concurrent use; Run is called once.
type StreamLink struct {
	route  string
	source StreamSource
	target StreamTarget
	store  Checkpointer
	cfg    StreamConfig

	subject record.SubjectPattern
	filter  *match.Matcher // nil: everything
	log     zerolog.Logger

	requests chan streamRequest
	ended    chan struct{} // closed when Run returns

	mu      sync.Mutex
	started bool
	status  streamStatus
}

// NewStreamLink returns a StreamLink for the route of that name. It does no I/O. Errors: an empty name, a Subject or Filter that
// cannot be read, a Config that is out of range.
func NewStreamLink(route string, source StreamSource, target StreamTarget, store Checkpointer, cfg StreamConfig) (*StreamLink, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if err == nil && route == "" {
		err = errors.New("the route has no name")
	}
	l := &StreamLink{
		route: route, source: source, target: target, store: store, cfg: cfg, requests: make(chan streamRequest), ended: make(chan struct{}),
		log: cfg.Logger.With().Str("component", "replicator").Str("route", route).Logger(),
	}
	if err == nil {
		l.subject, err = record.ParseSubject(cfg.Subject)
	}
	if err == nil && len(cfg.Filter) > 0 {
		if l.filter, err = match.Compile(cfg.Filter); err != nil {
			err = fmt.Errorf("field Filter: %w", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("configure the stream route %q: %w", route, err)
	}
	l.status.phase, l.status.since = PhaseStarting, time.Now()
	return l, nil
}

// streamRequest asks the goroutine of Run for something.
type streamRequest struct {
	kind streamRequestKind
	done chan error // has a place
}

type streamRequestKind uint8

const (
	streamPause streamRequestKind = iota
	streamResume
	streamResync
	streamFinalize
)

// Pause stops reading and writing after the write in progress, and returns when that is so. The source goes on: what it
// overwrites meanwhile is lost to the route, and reported. ErrNotRunning if Run does not run.
func (l *StreamLink) Pause(ctx context.Context) error { return l.ask(ctx, streamPause) }

// Resume ends a pause. ErrNotRunning if Run does not run.
func (l *StreamLink) Resume(ctx context.Context) error { return l.ask(ctx, streamResume) }

// Resync begins again at the oldest message of the source, without writing what the destination holds. It returns when reading has
// begun. ErrNotRunning if Run does not run: see StreamConfig.Resync.
func (l *StreamLink) Resync(ctx context.Context) error { return l.ask(ctx, streamResync) }

// Finalize ends the route when everything is replicated that the source has now; then Run returns nil. It refuses with
// ErrNotLive before the route is live. There is nothing to give back at the destination.
func (l *StreamLink) Finalize(ctx context.Context) error { return l.ask(ctx, streamFinalize) }

// Retry has nothing to do: a stream has no dead letters, as a message that is set aside would be a silent hole. A message that the
// destination refuses ends Run.
func (l *StreamLink) Retry(context.Context) (done, left int64, err error) { return 0, 0, nil }

func (l *StreamLink) ask(ctx context.Context, kind streamRequestKind) error {
	l.mu.Lock()
	started := l.started
	l.mu.Unlock()
	if !started {
		return ErrNotRunning
	}
	req := streamRequest{kind: kind, done: make(chan error, 1)}
	select {
	case l.requests <- req:
	case <-l.ended:
		return ErrNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-req.done:
		return err
	case <-l.ended:
		select {
		case err := <-req.done: // both were ready
			return err
		default:
			return ErrNotRunning
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
