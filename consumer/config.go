package consumer

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/record"
)

// Defaults of Config.
const (
	DefaultWorkers           = 1
	DefaultMaxInFlight       = 1024
	DefaultMaxInFlightBytes  = 64 << 20 // four messages of the largest size that MongoDB stores
	DefaultMaxMarks          = 4096     // some 100 bytes each in a checkpoint
	DefaultHandlerTimeout    = time.Minute
	DefaultHangGrace         = 5 * time.Second
	DefaultMaxAttempts       = 5
	DefaultRetryInitial      = 750 * time.Millisecond // doubled each time: 5 attempts span some 11 s, the restart of a backend
	DefaultRetryMax          = 30 * time.Second
	DefaultCheckpointEvery   = time.Second
	DefaultCheckpointRecords = 10_000
	DefaultCheckpointTimeout = 15 * time.Second // an election with a server's default settings
	DefaultOutageLimit       = 5 * time.Minute
	DefaultDrainTimeout      = 10 * time.Second
)

// Config configures a Consumer. The zero value is valid.
type Config struct {
	// Stream is the namespace that is read, "database.collection": a checkpoint of another stream is
	// refused. "" is not checked.
	Stream string
	// Owner names this process in the checkpoint, for people; "" means host and process id. A random
	// part is added, so that two runs never have the same owner.
	Owner string
	// Start is where to begin under a name that has no checkpoint; the zero value is record.Latest.
	Start record.Start

	// Workers is how many handlers run at a time; 0 means DefaultWorkers.
	Workers int
	// Key groups records: those with the same key are handled one after the other in the order of the
	// source. nil means the record's Src. It is called once per message, in order, and must be fast.
	// Records of programs other than capstan have no Src: without a Key they all go to one worker.
	Key func(record.Record) string
	// MaxInFlight bounds how far reading may be ahead of the safe position, in records; 0 means
	// DefaultMaxInFlight. When it is reached, reading waits.
	MaxInFlight int
	// MaxInFlightBytes bounds the documents that wait or are being handled, in bytes; one document is
	// always let through. 0 means DefaultMaxInFlightBytes.
	MaxInFlightBytes int64

	// HandlerTimeout ends the context of one call of the handler, with ErrHandlerTimeout as its cause,
	// at most a twentieth (or a second, or 5 ms) late; 0 means DefaultHandlerTimeout,
	// negative means none (then a handler that hangs is noticed only when the consumer stops).
	HandlerTimeout time.Duration
	// HangGrace is how long a handler may take to return after HandlerTimeout before it counts as
	// hung, which ends Run; 0 means DefaultHangGrace.
	HangGrace time.Duration
	// MaxAttempts is how often the handler is called with a record before it is given up; 0 means
	// DefaultMaxAttempts, negative means without limit.
	MaxAttempts int
	// RetryInitial and RetryMax are the first and the longest wait between attempts, each up to a half
	// more or less at random; the waits double. 0 means DefaultRetryInitial and DefaultRetryMax (or
	// RetryInitial, if that is more). Other records of the same worker wait too.
	RetryInitial, RetryMax time.Duration
	// DeadLetters takes what was given up. nil: Run ends with a *HandlerError.
	DeadLetters DeadLetters
	// OnGap is told of a gap, once per gap and delivery, by the reading goroutine: it must return. A
	// checkpoint passes the gap only after nil; an error ends Run with an *OnGapError. nil means log
	// it and go on.
	OnGap func(record.Record) error

	// CheckpointEvery and CheckpointRecords say when the safe position is stored: after that time or
	// that many records, whichever comes first. 0 means DefaultCheckpointEvery and DefaultCheckpointRecords.
	CheckpointEvery   time.Duration
	CheckpointRecords int
	// CheckpointTimeout bounds each call of the Checkpointer and of DeadLetters; 0 means
	// DefaultCheckpointTimeout.
	CheckpointTimeout time.Duration
	// OutageLimit is how long checkpoints, or one dead letter, may fail to be stored before Run ends;
	// meanwhile handling goes on. 0 means DefaultOutageLimit, negative means without limit.
	OutageLimit time.Duration
	// MaxMarks bounds the srcs in a checkpoint; the ones not seen for longest are left out. 0 means
	// DefaultMaxMarks.
	MaxMarks int

	// DrainTimeout is how long a stop waits for handlers before it ends their context; 0 means
	// DefaultDrainTimeout, negative means not at all.
	DrainTimeout time.Duration
	// HardStop, when closed, stops at once: the handlers' context ends now and not after DrainTimeout.
	// It is for the second signal of an operator. nil: never.
	HardStop <-chan struct{}

	// Logger takes what nobody else is told; the zero Logger discards.
	Logger zerolog.Logger
	Hooks  Hooks
}

// Hooks are told what happens, for metrics. Every field may be nil. They are called synchronously,
// from several goroutines, and must be fast.
type Hooks struct {
	// OnHandled: a message was handled by that many attempts; the last one took that long.
	OnHandled func(r record.Record, attempts int, took time.Duration)
	// OnFailure: that attempt failed, the last one too. An attempt that a stop interrupts has not failed.
	OnFailure func(r record.Record, attempt int, err error)
	// OnRetry: that attempt failed and another one follows. OnFailure is called before it.
	OnRetry func(r record.Record, attempt int, err error)
	// OnDeadLetter: a message was set aside, and that is stored. Without it, the Logger is told.
	OnDeadLetter func(record.DeadLetter)
	// OnGap: messages were lost to this reader. It is called before Config.OnGap.
	OnGap func(record.Record)
	// OnCheckpoint: a checkpoint was stored, or not.
	OnCheckpoint func(cp record.Checkpoint, err error)
	// OnLag: how far handling is behind reading, every Config.CheckpointEvery.
	OnLag func(Status)
}

// Status says how far a consumer is. Times are those of the messages, in microseconds since the Unix
// epoch (0: none yet, or not a message of capstan).
type Status struct {
	// Seen is the last position read and its message's time; for lag only.
	Seen     record.Position
	SeenTime int64
	// Safe is the position with everything at or below it done, and its message's time.
	Safe     record.Position
	SafeTime int64
	// InFlight is how many records wait or are being handled, Held how many are done but behind one that is not.
	InFlight, Held int
	// Read and Done count the records read and those at or below Safe, in this run.
	Read, Done uint64
}

func (c Config) withDefaults() Config {
	def(&c.Workers, DefaultWorkers)
	def(&c.MaxInFlight, DefaultMaxInFlight)
	def(&c.MaxInFlightBytes, DefaultMaxInFlightBytes)
	def(&c.MaxMarks, DefaultMaxMarks)
	def(&c.HandlerTimeout, DefaultHandlerTimeout)
	def(&c.HangGrace, DefaultHangGrace)
	def(&c.MaxAttempts, DefaultMaxAttempts)
	def(&c.RetryInitial, DefaultRetryInitial)
	def(&c.RetryMax, max(DefaultRetryMax, c.RetryInitial))
	def(&c.CheckpointEvery, DefaultCheckpointEvery)
	def(&c.CheckpointRecords, DefaultCheckpointRecords)
	def(&c.CheckpointTimeout, DefaultCheckpointTimeout)
	def(&c.OutageLimit, DefaultOutageLimit)
	def(&c.DrainTimeout, DefaultDrainTimeout)
	c.DrainTimeout = max(c.DrainTimeout, 0)
	if c.Key == nil {
		c.Key = func(r record.Record) string { return r.Src }
	}
	c.Logger = c.Logger.With().Str("component", "consumer").Logger()
	return c
}

func def[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

func (c Config) validate() error {
	const maxWorkers = 10_000 // more is a mistake: each has a queue of MaxInFlight entries of 8 bytes
	switch {
	case c.Workers < 1 || c.Workers > maxWorkers:
		return fmt.Errorf("consumer: Workers is %d, it must be 1 to %d", c.Workers, maxWorkers)
	case c.MaxInFlight < 1 || c.MaxInFlight > 1<<24:
		return fmt.Errorf("consumer: MaxInFlight is %d, it must be 1 to %d", c.MaxInFlight, 1<<24)
	case c.MaxInFlightBytes < 0:
		return fmt.Errorf("consumer: MaxInFlightBytes is %d, it must be positive", c.MaxInFlightBytes)
	case c.MaxMarks < 0:
		return fmt.Errorf("consumer: MaxMarks is %d, it must be positive", c.MaxMarks)
	case c.HangGrace < 0:
		return fmt.Errorf("consumer: HangGrace is %s, it must be positive", c.HangGrace)
	case c.RetryInitial < 0 || c.RetryMax < c.RetryInitial:
		return fmt.Errorf("consumer: RetryInitial is %s and RetryMax %s, they must be positive and RetryMax the greater", c.RetryInitial, c.RetryMax)
	case c.CheckpointEvery < 0 || c.CheckpointRecords < 0 || c.CheckpointTimeout < 0:
		return fmt.Errorf("consumer: CheckpointEvery is %s, CheckpointRecords %d, CheckpointTimeout %s, they must be positive",
			c.CheckpointEvery, c.CheckpointRecords, c.CheckpointTimeout)
	}
	return nil
}
