// Package memory is a stream in memory: a source of records without a server, for tests of what reads
// a source and as the second implementation that the conformance suite of sources knows.
//
// It promises the same as tailer.Stream: order per src, every message once, gaps counted by seq. It
// keeps nothing when the process ends.
package memory

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// DefaultCapacity is how many messages a Stream holds.
const DefaultCapacity = 100_000

// Stream holds the last messages that were sent to it. Safe for concurrent use.
type Stream struct {
	capacity int

	mu sync.Mutex
	// Guarded by mu.
	messages []record.Record
	dropped  int // messages overwritten so far
	seqs     map[string]int64
	tick     uint32
	changed  chan struct{}
}

// New returns an empty Stream that holds up to capacity messages; 0 means DefaultCapacity.
func New(capacity int) *Stream {
	if capacity <= 0 {
		capacity = DefaultCapacity
	}
	return &Stream{capacity: capacity, seqs: make(map[string]int64), changed: make(chan struct{})}
}

// Send appends a message of src and returns it as it will be delivered. It does not block: the oldest
// message is overwritten when the stream is full.
func (s *Stream) Send(src, subject string, data any) (record.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick++
	now := time.Now()
	doc, err := bson.Marshal(bson.D{
		{Key: record.FieldID, Value: bson.NewObjectID()},
		{Key: record.FieldTime, Value: now.UnixMicro()},
		{Key: record.FieldSrc, Value: src},
		{Key: record.FieldSeq, Value: s.seqs[src] + 1},
		{Key: record.FieldTS, Value: bson.Timestamp{T: uint32(now.Unix()), I: s.tick}},
		{Key: record.FieldSubject, Value: subject},
		{Key: record.FieldData, Value: data},
	})
	if err != nil {
		return record.Record{}, fmt.Errorf("encode message: %w", err)
	}
	r, err := record.Decode(doc, make(record.Interner))
	if err != nil {
		return record.Record{}, fmt.Errorf("encode message: %w", err)
	}
	s.seqs[src]++
	s.messages = append(s.messages, r)
	if over := len(s.messages) - s.capacity; over > 0 {
		s.messages = slices.Delete(s.messages, 0, over)
		s.dropped += over
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return r, nil
}

// Config holds the settings of a Reader. The zero Config is valid: what is sent after Open.
type Config struct {
	// Start says where to begin; Fingerprint is not looked at.
	Start record.Start
	// UntilEnd makes Next return io.EOF at the end of what is there.
	UntilEnd bool
}

// Open returns a Reader. It does no I/O; with record.Latest, what is sent from now on is delivered.
func (s *Stream) Open(cfg Config) *Reader {
	r := &Reader{s: s, cfg: cfg, marks: make(map[string]int64), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch cfg.Start.Where {
	case record.Latest:
		r.at = s.dropped + len(s.messages)
		for _, m := range s.messages {
			r.marks[m.Src] = m.Seq
		}
	case record.AtTime:
		from := record.Timestamp{T: uint32(cfg.Start.Time.Unix())}
		i := slices.IndexFunc(s.messages, func(m record.Record) bool { return m.Position.TS.Compare(from) >= 0 })
		if i < 0 {
			i = len(s.messages)
		}
		r.at = s.dropped + i
	case record.After:
		r.after = cfg.Start.Position
		for src, seq := range cfg.Start.Marks {
			r.marks[src] = seq
		}
		i := slices.IndexFunc(s.messages, func(m record.Record) bool { return m.Position.ID == cfg.Start.Position.ID })
		r.at = s.dropped + i + 1
		if i >= 0 {
			r.marks[s.messages[i].Src] = max(r.marks[s.messages[i].Src], s.messages[i].Seq)
		} else {
			r.lost = s.dropped > 0
		}
	default:
		r.at, r.birth = s.dropped, s.dropped == 0
	}
	return r
}

// Reader reads a Stream. One goroutine at a time may call Next; Close may be called at any time.
type Reader struct {
	s     *Stream
	cfg   Config
	done  chan struct{}
	close sync.Once

	// Owned by the goroutine that calls Next.
	at    int // the number of the next message, counted from the stream's first
	after record.Position
	marks map[string]int64
	lost  bool // a position was lost
	birth bool
}

// Next returns the next record. It blocks until there is one, ctx ends (the reader stays usable), the
// reader is closed (record.ErrClosed), or the end is reached (io.EOF, with Config.UntilEnd).
func (r *Reader) Next(ctx context.Context) (record.Record, error) {
	for {
		select {
		case <-r.done:
			return record.Record{}, record.ErrClosed
		case <-ctx.Done():
			return record.Record{}, context.Cause(ctx)
		default:
		}
		rec, ok, changed := r.take()
		switch {
		case ok:
			return rec, nil
		case r.cfg.UntilEnd:
			return record.Record{}, io.EOF
		}
		select {
		case <-changed:
		case <-r.done:
		case <-ctx.Done():
		}
	}
}

// take returns the next record, if there is one.
func (r *Reader) take() (record.Record, bool, <-chan struct{}) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.at < s.dropped {
		r.at, r.lost = s.dropped, true
	}
	for ; r.at < s.dropped+len(s.messages); r.at++ {
		m := s.messages[r.at-s.dropped]
		last, known := r.marks[m.Src]
		if known && m.Seq <= last {
			continue
		}
		if m.Seq > last+1 && (known || r.lost || r.birth) {
			return r.gap(s.messages[r.at-s.dropped:]), true, nil
		}
		r.marks[m.Src], r.after = m.Seq, m.Position
		r.at++
		return m, true, nil
	}
	return record.Record{}, false, s.changed
}

// gap accounts for everything that is missing up to the first message of each src in rest.
func (r *Reader) gap(rest []record.Record) record.Record {
	g := &record.Gap{Cause: record.CauseRollover, After: r.after, Before: rest[0].Position}
	open := make(map[string]bool)
	for src := range r.marks {
		open[src] = true
	}
	met := make(map[string]bool)
	for _, m := range rest {
		last, known := r.marks[m.Src]
		delete(open, m.Src)
		if !met[m.Src] && m.Seq > last+1 {
			g.Lost = append(g.Lost, record.Loss{Src: m.Src, From: last + 1, To: m.Seq - 1, Exact: known || r.birth})
			r.marks[m.Src] = m.Seq - 1
		}
		met[m.Src] = true
	}
	for src := range open {
		g.Open = append(g.Open, src)
	}
	slices.Sort(g.Open)
	at := r.after
	if at.IsZero() {
		at.TS = record.Timestamp{T: g.Before.TS.T, I: g.Before.TS.I - 1}
	}
	return record.Record{Kind: record.KindGap, Position: at, Gap: g}
}

// Close ends the reader: a Next that waits returns record.ErrClosed. It is idempotent and returns nil.
func (r *Reader) Close() error {
	r.close.Do(func() { close(r.done) })
	return nil
}
