package e2e

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// bench is one stream with what a test does to it, and the history of that. The history's keys are
// the src and seq of the stream: what the producer reported, and what the reader got.
type bench struct {
	t    *testing.T
	d    *mongotest.Deployment
	db   *mongo.Database
	coll string
	info stream.Info
	rec  history.Recorder
}

// newBench creates a stream of size bytes.
func newBench(t *testing.T, d *mongotest.Deployment, size int64) *bench {
	t.Helper()
	b := &bench{t: t, d: d, db: d.DB(t), coll: "messages"}
	b.ensure(size)
	return b
}

func (b *bench) ensure(size int64) {
	b.t.Helper()
	var err error
	if b.info, err = stream.Ensure(within(b.t), b.db, b.coll, stream.Config{Size: size}); err != nil {
		b.t.Fatal(err)
	}
}

// sender is a producer with its layer, which records what it is told.
type sender struct {
	b     *bench
	layer *failover.Layer
	p     *producer.Producer
	ran   chan error
	acked func(producer.Result) // called after each acknowledgement; may be nil
	seq   int64                 // sent so far; owned by the test
}

// sender starts a producer. The test calls finish.
func (b *bench) sender(name string, acked func(producer.Result)) *sender {
	b.t.Helper()
	layer, err := failover.New(b.d.Options(), failover.Config{})
	if err != nil {
		b.t.Fatal(err)
	}
	w := layer.Stream(b.db.Name(), b.coll, failover.StreamConfig{UUID: b.info.UUID, Size: b.info.Size})
	p, err := producer.New(w, producer.Config{Name: name})
	if err != nil {
		b.t.Fatal(err)
	}
	s := &sender{b: b, layer: layer, p: p, ran: make(chan error, 1), acked: acked}
	go func() { s.ran <- p.Run(context.WithoutCancel(b.t.Context())) }()
	return s
}

// send sends one message. Nothing is refused in these tests, so its seq is its number.
func (s *sender) send(ctx context.Context, data string) error {
	s.seq++
	key := history.Key{Src: s.p.Src(), Seq: s.seq}
	s.b.rec.Sent(key)
	err := s.p.Send(ctx, producer.Message{Data: text(data)}, func(r producer.Result) {
		got := history.Key{Src: r.Src, Seq: r.Seq}
		switch {
		case r.Err == nil:
			s.b.rec.Acknowledged(got)
			if s.acked != nil {
				s.acked(r)
			}
		case errors.As(r.Err, new(*record.UnknownOutcomeError)):
			s.b.rec.Unknown(got)
		default:
			s.b.rec.Rejected(key)
		}
	})
	if err != nil {
		s.b.rec.Rejected(key)
	}
	return err
}

func text(s string) bson.RawValue {
	typ, value, err := bson.MarshalValue(s)
	if err != nil {
		panic(err) // a string
	}
	return bson.RawValue{Type: typ, Value: value}
}

// finish waits until everything sent has its outcome, and closes.
func (s *sender) finish() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.b.t.Context()), patience)
	defer cancel()
	err := errors.Join(s.p.Flush(ctx), s.p.Close(), <-s.ran)
	return errors.Join(err, s.layer.Close(ctx))
}

// tail opens a tail of the stream; it is closed with the test.
func (b *bench) tail(cfg tailer.Config) *tailer.Stream {
	b.t.Helper()
	s, err := tailer.New(b.d.Options(), b.db.Name(), b.coll, cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, record.ErrClosed) {
			b.t.Errorf("close tail: %v", err)
		}
	})
	return s
}

// note records what a reader got. It returns false for records that are no message.
func note(reader *history.Reader, r record.Record) bool {
	switch r.Kind {
	case record.KindGap:
		reader.Gap(r.Gap)
		return false
	case record.KindMessage:
		reader.Delivered(history.Key{Src: r.Src, Seq: r.Seq})
		return true
	}
	return false
}

// follow reads s into the history until done returns true for a record, ctx ends, or s ends.
func (b *bench) follow(ctx context.Context, s *tailer.Stream, name string, done func(record.Record) bool) error {
	reader := b.rec.Reader(name)
	for {
		r, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if note(reader, r) && done(r) {
			return nil
		}
	}
}

// counter returns a done function that is true once n messages came.
func counter(n int) func(record.Record) bool {
	return func(record.Record) bool { n--; return n <= 0 }
}

// readBack records the whole stream as a plain majority read sees it, as the reader "read back".
func (b *bench) readBack() {
	b.t.Helper()
	ctx := within(b.t)
	reader := b.rec.Reader("read back")
	err := b.db.Client().UseSession(ctx, func(ctx context.Context) error {
		c := b.db.Collection(b.coll, options.Collection().SetReadConcern(readconcern.Majority()))
		if err := c.FindOne(ctx, bson.D{}).Err(); err != nil { // the session waits for what this one saw
			return err
		}
		cur, err := c.Find(ctx, bson.D{})
		if err != nil {
			return err
		}
		defer func() { _ = cur.Close(ctx) }()
		for cur.Next(ctx) {
			if record.IsPrimer(cur.Current) {
				continue
			}
			r, err := record.Decode(cur.Current, record.Interner{})
			if err != nil {
				return err
			}
			reader.Delivered(history.Key{Src: r.Src, Seq: r.Seq})
		}
		return cur.Err()
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// judge fails the test unless the history keeps the rules.
func (b *bench) judge(rules history.Rules) history.Verdict {
	b.t.Helper()
	v := history.Check(b.rec.Events(), rules)
	b.t.Log(v)
	if !v.OK() {
		b.t.Error("the history breaks its rules, see above")
	}
	return v
}

// overran measures how much a timer in this process comes too late: the slack that a loaded machine
// is owed. Call the function returned at the end for the worst case.
func overran(t *testing.T) func() time.Duration {
	ctx, cancel := context.WithCancel(t.Context())
	worst := make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		for ctx.Err() == nil {
			start := time.Now()
			time.Sleep(10 * time.Millisecond)
			most = max(most, time.Since(start)-10*time.Millisecond)
		}
		worst <- most
	}()
	t.Cleanup(cancel)
	return func() time.Duration { cancel(); return <-worst }
}
