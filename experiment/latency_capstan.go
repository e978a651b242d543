package experiment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

func newSender(ctx context.Context, j Job, c *counts) (sender, error) {
	switch j.Who {
	case Capstan:
		return newCapstanSender(ctx, j, c)
	case Driver:
		return newDriverSender(j, c)
	case Raw:
		return newRawSender(ctx, j, c)
	}
	return nil, fmt.Errorf("nobody named %q sends", j.Who)
}

func newReader(ctx context.Context, j Job, c *counts) (reader, error) {
	switch j.Who {
	case Capstan:
		if j.Latency.Style == styleChanges {
			return newChangesReader(ctx, j, c)
		}
		return newCapstanReader(ctx, j, c)
	case Driver:
		return newDriverReader(ctx, j, c)
	case Raw:
		return newRawReader(ctx, j, c)
	}
	return nil, fmt.Errorf("nobody named %q reads", j.Who)
}

// capstanSender is capstan's producer, or several that take turns.
type capstanSender struct {
	layer     *failover.Layer
	producers []*producer.Producer
	data      []bson.RawValue
	n         int
	done      func(producer.Result)
	failed    atomic.Pointer[error]
	running   sync.WaitGroup
}

func newCapstanSender(ctx context.Context, j Job, c *counts) (*capstanSender, error) {
	info, err := lookup(ctx, j)
	if err != nil {
		return nil, err
	}
	concern := failover.One
	if j.Latency.Concern == concernMajority {
		concern = failover.Majority
	}
	s := &capstanSender{}
	if s.layer, err = failover.New(options.Client().ApplyURI(j.URI), failover.Config{WriteConcern: concern}); err != nil {
		return nil, err
	}
	for range max(1, j.Latency.Producers) {
		w := s.layer.Stream(j.Database, j.Stream, failover.StreamConfig{UUID: info.UUID, Size: info.Size})
		p, err := producer.New(w, producer.Config{Name: "bench", Hooks: producer.Hooks{OnBatch: func(producer.Batch) { c.inserts.Add(1) }}})
		if err != nil {
			s.close(context.WithoutCancel(ctx))
			return nil, err
		}
		s.producers = append(s.producers, p)
		s.running.Go(func() { _ = p.Run(ctx) }) // Flush returns its error
	}
	for _, text := range payloads(differentPayloads, j.Payload, j.Seed) {
		s.data = append(s.data, bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, text)})
	}
	s.done = func(r producer.Result) {
		if r.Err != nil {
			err := r.Err // taking r's address would move every Result to the heap
			s.failed.CompareAndSwap(nil, &err)
		}
	}
	return s, nil
}

func (s *capstanSender) send(ctx context.Context) error {
	p := s.producers[s.n%len(s.producers)]
	m := producer.Message{Data: s.data[s.n%len(s.data)]}
	s.n++
	return p.Send(ctx, m, s.done)
}

func (s *capstanSender) flush(ctx context.Context) error {
	for _, p := range s.producers {
		if err := p.Flush(ctx); err != nil {
			return err
		}
	}
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *capstanSender) close(ctx context.Context) {
	for _, p := range s.producers {
		_ = p.Close()
	}
	s.running.Wait()
	_ = s.layer.Close(ctx)
}

// capstanReader is capstan's tailer.
type capstanReader struct{ s *tailer.Stream }

func newCapstanReader(ctx context.Context, j Job, c *counts) (*capstanReader, error) {
	cfg := tailer.Config{Start: record.Start{Where: record.Earliest}, Visibility: tailer.Local,
		Hooks: tailer.Hooks{OnBatch: func(int, int) { c.batches.Add(1) }, OnCommand: c.add}}
	if j.Latency.Majority {
		cfg.Visibility = tailer.Majority
	}
	base := options.Client().ApplyURI(j.URI)
	s, err := tailer.New(base, j.Database, j.Stream, cfg)
	if err != nil {
		return nil, err
	}
	if j.Latency.Style != styleFind { // a replay pays for its opening
		if err := s.Open(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return &capstanReader{s}, nil
}

func (r *capstanReader) read(ctx context.Context, n int64, got func(arrival)) error {
	for range n {
		rec, err := r.s.Next(ctx)
		if err != nil {
			return err
		}
		if rec.Kind != record.KindMessage {
			return fmt.Errorf("the tail reports a gap where nothing was lost: %+v", rec.Gap)
		}
		got(arrival{rec.Time, rec.Src, rec.Seq})
	}
	return nil
}

func (r *capstanReader) idle(ctx context.Context) error { return nothing(r.s.Next(ctx)) }

// nothing returns nil if a wait ended with its context, and an error if something came.
func nothing(rec record.Record, err error) error {
	if err == nil {
		return fmt.Errorf("a record of kind %d came where nothing was sent", rec.Kind)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (r *capstanReader) close(context.Context) { _ = r.s.Close() }

// changesReader is capstan's change stream on the same collection.
type changesReader struct {
	c      *tailer.Changes
	intern record.Interner
}

func newChangesReader(ctx context.Context, j Job, c *counts) (*changesReader, error) {
	cfg := tailer.ChangesConfig{Hooks: tailer.Hooks{OnBatch: func(int, int) { c.batches.Add(1) }, OnCommand: c.add}}
	s, err := tailer.NewChanges(options.Client().ApplyURI(j.URI), j.Database, j.Stream, cfg)
	if err != nil {
		return nil, err
	}
	if err := s.Open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &changesReader{s, make(record.Interner)}, nil
}

func (r *changesReader) read(ctx context.Context, n int64, got func(arrival)) error {
	for range n {
		rec, err := r.c.Next(ctx)
		if err != nil {
			return err
		}
		if rec.Kind != record.KindChange || rec.Change.Op != record.OpInsert {
			return fmt.Errorf("a %s came where only inserts were sent", rec.Kind)
		}
		m, err := record.Decode(rec.Change.Document, r.intern)
		if err != nil {
			return err
		}
		got(arrival{m.Time, m.Src, m.Seq})
	}
	return nil
}

func (r *changesReader) idle(ctx context.Context) error { return nothing(r.c.Next(ctx)) }

func (r *changesReader) close(context.Context) { _ = r.c.Close() }
