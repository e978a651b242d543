package producer

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// Defaults of Config.
const (
	// DefaultName is the producer's name where none is given. A library does not look up the host's
	// name by itself; a program that wants it in src sets Config.Name.
	DefaultName = "producer"
	// DefaultMaxBuffered is a few of the largest batches, so that the next one is always ready.
	DefaultMaxBuffered = 16384
	// DefaultMaxBufferedBytes and DefaultMaxBatchBytes keep a producer of messages of 1 KB under 50 MB
	// resident: 42 MB at the peak, of which 19 are the pages of the program; it was 94 to 112 MB with
	// four and eight times as much. The driver holds four copies of a command while it sends it.
	DefaultMaxBufferedBytes = 4 << 20
	// DefaultMaxMessageBytes is the largest document that a MongoDB server stores.
	DefaultMaxMessageBytes = record.MaxDocumentSize
	// DefaultMaxBatch is well behind where larger inserts stop raising the rate (see DESIGN.md).
	DefaultMaxBatch = 4000
	// DefaultMaxBatchBytes is some two thousand small messages, or five hundred of 1 KB: beyond that the
	// rate grows little.
	DefaultMaxBatchBytes = 512 << 10
	// DefaultTargetInsert is a fifth of the half second that one attempt of an insert usually gets, so
	// that a batch that suddenly takes three times as long still fits one attempt.
	DefaultTargetInsert = 100 * time.Millisecond
	// DefaultDrainTimeout is how long a stopping producer goes on sending what it holds.
	DefaultDrainTimeout = 10 * time.Second

	// MaxNameBytes bounds Config.Name: src is stored in every message.
	MaxNameBytes = 128
)

// Writer stores a batch and says what became of it. failover.StreamWriter is one; tests have one in
// memory.
//
// WriteBatch stores docs in their order and blocks until the outcome of all of them is known, or ctx
// ends; it must return soon after ctx has ended. The producer calls it from one goroutine, one call
// at a time. docs and the bytes behind it are reused afterwards: an implementation must not keep them.
// They fit one insert command, see Config.MaxBatchBytes.
//
// A nil error means that all docs are applied and committed. Otherwise docs[:applied] are, and:
//   - *record.RejectedError: docs[Index] is refused for good (with record.ErrExists: its _id holds
//     other content), nothing behind it is applied;
//   - *record.UnknownOutcomeError: its IDs may be applied, the others behind applied are not;
//   - any other error: nothing behind applied is, and nothing can be.
type Writer interface {
	WriteBatch(ctx context.Context, docs []bson.Raw) (applied int, err error)
}

// Config of a Producer. The zero Config is valid.
type Config struct {
	// Name is the first part of src and names the producer to people; "" means DefaultName. It must
	// be valid UTF-8 of at most MaxNameBytes without "/" (which ends the name in src), NUL or other
	// control characters. Two producers with one name are told apart by the random second part of src.
	Name string
	// MaxBuffered and MaxBufferedBytes bound what is accepted and has no result yet, in messages and in
	// bytes of their documents; 0 means DefaultMaxBuffered and DefaultMaxBufferedBytes. When either is
	// reached, Send blocks and TrySend fails. A message larger than MaxBufferedBytes is accepted when
	// nothing else is buffered.
	MaxBuffered      int
	MaxBufferedBytes int
	// MaxMessageBytes is the largest document accepted, with _id, src and the other fields; 0 means
	// DefaultMaxMessageBytes, which is also the most. Set it to the stream's size where that is less: a
	// message larger than its stream would evict everything else.
	MaxMessageBytes int
	// MaxBatch and MaxBatchBytes bound one insert, in messages and in bytes; 0 means DefaultMaxBatch and
	// DefaultMaxBatchBytes; MaxBatchBytes is at most record.MaxDocumentSize, as a batch must fit one
	// command. A single message may always exceed MaxBatchBytes. Below these bounds the batch size adapts:
	// it doubles while full batches take less than half of TargetInsert and shrinks when they take more.
	MaxBatch      int
	MaxBatchBytes int
	// TargetInsert is how long one insert should take, apart from the round trip of a small one; 0 means
	// DefaultTargetInsert. Keep it a fraction of the Writer's deadline per attempt.
	TargetInsert time.Duration
	// AcceptExisting counts a message whose _id is already stored with other content (a rejection that
	// wraps record.ErrExists) as success with Result.Existed. It is for callers that derive the _id from
	// their input and send it again after a crash.
	AcceptExisting bool
	// DrainTimeout is how long Run goes on sending after it was told to stop; 0 means
	// DefaultDrainTimeout.
	DrainTimeout time.Duration
	// Logger is silent by default.
	Logger zerolog.Logger
	// Hooks observe the producer.
	Hooks Hooks
}

// Hooks are called synchronously by the goroutines of Run: they must be fast and must not call the
// producer. Nil ones are skipped.
type Hooks struct {
	// OnBatch is called after each insert.
	OnBatch func(Batch)
}

// Batch describes one insert to Hooks.OnBatch.
type Batch struct {
	// Messages and Bytes are what was sent, Applied is how many of them are stored.
	Messages, Bytes, Applied int
	// Took is how long the Writer took.
	Took time.Duration
	// Limit is the most messages that the next batch may have.
	Limit int
	Err   error
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Name == "" {
		c.Name = DefaultName
	}
	def(&c.MaxBuffered, DefaultMaxBuffered)
	def(&c.MaxBufferedBytes, DefaultMaxBufferedBytes)
	def(&c.MaxMessageBytes, DefaultMaxMessageBytes)
	def(&c.MaxBatch, DefaultMaxBatch)
	def(&c.MaxBatchBytes, DefaultMaxBatchBytes)
	if c.TargetInsert == 0 {
		c.TargetInsert = DefaultTargetInsert
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	return c
}

func (c Config) validate() error {
	if err := checkName(c.Name); err != nil {
		return err
	}
	for _, f := range []struct {
		field      string
		value, max int
	}{
		{"MaxBuffered", c.MaxBuffered, maxInt32},
		{"MaxBufferedBytes", c.MaxBufferedBytes, maxInt32},
		{"MaxMessageBytes", c.MaxMessageBytes, record.MaxDocumentSize},
		{"MaxBatch", c.MaxBatch, maxServerBatch},
		{"MaxBatchBytes", c.MaxBatchBytes, record.MaxDocumentSize},
	} {
		if f.value < 1 || f.value > f.max {
			return fmt.Errorf("producer: Config.%s is %d, want 1 to %d", f.field, f.value, f.max)
		}
	}
	if c.TargetInsert < 0 {
		return fmt.Errorf("producer: Config.TargetInsert is %v, want more than 0", c.TargetInsert)
	}
	if c.DrainTimeout < 0 {
		return fmt.Errorf("producer: Config.DrainTimeout is %v, want more than 0", c.DrainTimeout)
	}
	return nil
}

const (
	maxInt32 = 1<<31 - 1
	// maxServerBatch is maxWriteBatchSize, the most documents that a MongoDB server takes in one command.
	maxServerBatch = 100_000
)

func checkName(name string) error {
	switch {
	case !utf8.ValidString(name):
		return fmt.Errorf("producer: Config.Name %q is not valid UTF-8", name)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("producer: Config.Name has %d bytes, want at most %d", len(name), MaxNameBytes)
	case strings.Contains(name, "/"):
		return fmt.Errorf("producer: Config.Name %q contains \"/\", which ends the name in src", name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("producer: Config.Name %q contains a NUL or another control character", name)
	}
	return nil
}
