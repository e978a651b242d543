package tailer

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Defaults and limits of Config.
const (
	// DefaultAwait: an idle tail costs one command and 0.08 % of a core per second (measured on mongod
	// 6.0.5). It is the reaction time to everything except an insert: a drop, a rename, a killed cursor.
	DefaultAwait = time.Second
	// MinAwait: the server counts whole milliseconds, and the driver sends nothing below one, which
	// the server takes for its own default of one second.
	MinAwait = time.Millisecond
	// MaxAwait: a getMore that a killed reader left behind runs on until its await ends.
	MaxAwait = 10 * time.Second
	// DefaultAttemptTimeout bounds one command, and one getMore beyond its await.
	DefaultAttemptTimeout = 3 * time.Second
	// DefaultOverlap is how far before its position a tail starts to read again. The server stamps ts
	// before an insert gets its lock; 5.6 s early was seen with four writers on a small machine. It
	// must be at least twice the longest deadline of a producer's attempt.
	DefaultOverlap = 30 * time.Second
	// DefaultConnectTimeout bounds the first connection; later outages are bounded by MaxOutage.
	DefaultConnectTimeout = 5 * time.Second
	// DefaultMaxMarks bounds the number of srcs whose highest seq is kept (about 150 bytes each).
	DefaultMaxMarks = 10_000
	// DefaultBatchBytes is how much one batch carries, about, when BatchSize is 0. Large batches keep a
	// reader alive under a fast rollover; three of them are in memory at most.
	DefaultBatchBytes = 2 << 20
)

// Visibility says when a message may be delivered.
type Visibility uint8

// The visibilities.
const (
	// Auto is Majority on a replica set and Local on a standalone server.
	Auto Visibility = iota
	// Local delivers what the primary has: the lowest latency, but a failover may take a message back
	// (roll it back) after it was delivered.
	Local
	// Majority delivers what a majority of the members has: no failover takes it back. On a standalone
	// server it is the same as Local.
	Majority
)

// String returns "auto", "local" or "majority".
func (v Visibility) String() string {
	switch v {
	case Local:
		return "local"
	case Majority:
		return "majority"
	default:
		return "auto"
	}
}

// GapPolicy says what happens when messages were lost to this reader.
type GapPolicy uint8

// The policies.
const (
	// ReportGaps delivers a record of KindGap and goes on behind the gap.
	ReportGaps GapPolicy = iota
	// StopOnGap ends the stream with a *GapError.
	StopOnGap
)

// MissingPolicy says what happens while the stream does not exist.
type MissingPolicy uint8

// The policies.
const (
	// WaitForStream waits until somebody creates the stream, looking about once a second.
	WaitForStream MissingPolicy = iota
	// FailIfMissing ends the stream with ErrNotFound, at the start or after a drop.
	FailIfMissing
)

// Config holds the settings of a Stream. The zero Config is valid: it delivers every message that
// comes after the first Next, majority-visible on a replica set, and reports gaps.
type Config struct {
	// Start says where to begin. The zero Start is Latest: what is inserted behind the newest message
	// that the stream held when it was first opened (see Stream.Open).
	Start record.Start
	// Visibility says when a message may be delivered. The zero value is Auto.
	Visibility Visibility
	// Await is how long the server holds an idle getMore: 0 means DefaultAwait; otherwise MinAwait to
	// MaxAwait, cut to whole milliseconds.
	Await time.Duration
	// AttemptTimeout bounds every command, and every getMore beyond its Await: when it passes, the
	// cursor counts as dead and the tail opens again. 0 means DefaultAttemptTimeout.
	AttemptTimeout time.Duration
	// Overlap is how far before its position, in server timestamps, a tail reads again after it opened.
	// 0 means DefaultOverlap; less than twice AttemptTimeout is refused.
	Overlap time.Duration
	// ConnectTimeout bounds the first connection. 0 means DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// MaxOutage bounds one outage after the first connection: when no command succeeded for so long,
	// the stream ends with an *OutageError. 0 means for ever.
	MaxOutage time.Duration
	// BatchSize is the most documents in one batch. 0 means as many as make about DefaultBatchBytes.
	BatchSize int
	// MaxMarks bounds the number of srcs whose highest seq is kept; the src that was silent for longest
	// is forgotten first, and if it comes back it counts as new. 0 means DefaultMaxMarks.
	MaxMarks int
	// Subject selects messages (see record.ParseSubject); "" selects all. What it rejects is counted,
	// and the position moves over it.
	Subject string
	// Filter selects messages after Subject; nil selects all. It is called in the stream's own
	// goroutine, must be fast, and must not keep or change the document.
	Filter func(bson.Raw) bool
	// OnGap says what happens after a loss. The zero value is ReportGaps.
	OnGap GapPolicy
	// Progress is the least time between two records of KindProgress, which are sent while Subject or
	// Filter reject messages. 0 means that none are sent.
	Progress time.Duration
	// UntilEnd makes Next return io.EOF when the message that was the newest at the opening has been
	// passed, or nothing more is there.
	UntilEnd bool
	// Wait says what happens while the stream does not exist. The zero value is WaitForStream.
	Wait MissingPolicy
	// Prime, if not nil, is called when the stream is empty and must write its primer, so that the tail
	// stays alive. Set it only for streams that are capstan's own: other people's and read-only
	// collections are never written to, and an empty one is waited for. An error is logged, and the
	// stream is waited for as if Prime were nil.
	Prime func(ctx context.Context, coll *mongo.Collection) error
	// Plain sends every getMore through the driver. Otherwise they share a connection that is held for them
	// (package internal/wire), which saves most of what one costs the client; that is left out by itself
	// over TLS, with compression, behind a mongos, where base has a command monitor (OnCommand does not
	// count as one), and with a pool of less than four.
	Plain bool
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
	// Hooks are called on events; every one may be nil.
	Hooks Hooks
}

// Hooks observe a Stream. Each may be nil. OnRecord is called by Next in the caller's goroutine, the
// others in the stream's own; all are called synchronously and must be fast.
type Hooks struct {
	// OnOpen: a tail was opened on the member at addr ("host:port").
	OnOpen func(addr string)
	// OnRecord: Next returns r.
	OnRecord func(r record.Record)
	// OnReopen: the tail ended for the given reason (short, constant words) and is opened again.
	OnReopen func(reason string)
	// OnGap: messages were lost, or the position was ("position lost, 0 messages lost" has no entry in
	// Lost and is not delivered as a record).
	OnGap func(g record.Gap)
	// OnBatch: a batch of n documents with the given size in bytes came from the server.
	OnBatch func(n, bytes int)
	// OnCommand: a command is sent to the server ("find", "getMore", "hello" …). It is called in the
	// stream's goroutine or in one of its own, never by two at the same time.
	OnCommand func(name string)
	// OnMove: the tail leaves the member at from, because to takes the writes now.
	OnMove func(from, to string)
	// OnWait: there is nothing to tail, for the given reason; called once per look.
	OnWait func(reason string)
	// OnLag: after a batch was handed over, by how much its last ts is behind this machine's clock.
	OnLag func(behind time.Duration)
}

func (c Config) withDefaults() Config {
	if c.Await == 0 {
		c.Await = DefaultAwait
	}
	c.Await = c.Await.Truncate(time.Millisecond)
	if c.AttemptTimeout == 0 {
		c.AttemptTimeout = DefaultAttemptTimeout
	}
	if c.Overlap == 0 {
		c.Overlap = max(DefaultOverlap, 2*c.AttemptTimeout)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.MaxMarks == 0 {
		c.MaxMarks = DefaultMaxMarks
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Await < MinAwait || c.Await > MaxAwait:
		return fmt.Errorf("tailer: Await is %s, want %s to %s", c.Await, MinAwait, MaxAwait)
	case c.AttemptTimeout < MinAwait:
		return fmt.Errorf("tailer: AttemptTimeout is %s, want at least %s", c.AttemptTimeout, MinAwait)
	case c.Overlap < 2*c.AttemptTimeout:
		return fmt.Errorf("tailer: Overlap is %s, want at least twice AttemptTimeout (%s)", c.Overlap, 2*c.AttemptTimeout)
	case c.ConnectTimeout < 0 || c.MaxOutage < 0 || c.Progress < 0:
		return fmt.Errorf("tailer: ConnectTimeout, MaxOutage and Progress must not be negative")
	case c.BatchSize < 0 || c.BatchSize > 1_000_000:
		return fmt.Errorf("tailer: BatchSize is %d, want 0 to 1000000", c.BatchSize)
	case c.MaxMarks < 1:
		return fmt.Errorf("tailer: MaxMarks is %d, want at least 1", c.MaxMarks)
	case c.Visibility > Majority || c.OnGap > StopOnGap || c.Wait > FailIfMissing:
		return fmt.Errorf("tailer: Visibility, OnGap or Wait has an unknown value")
	case c.Start.Where > record.AtTime:
		return fmt.Errorf("tailer: Start.Where is %d, want one of record's constants", c.Start.Where)
	case c.Start.Where == record.AtTime && (c.Start.Time.Unix() < 0 || c.Start.Time.Unix() > 1<<32-1):
		return fmt.Errorf("tailer: Start.Time is %s, outside of what a BSON Timestamp holds", c.Start.Time)
	}
	return nil
}
