package experiment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// What capstan does: its producer and its tailer with their defaults, wired as the command wires them.

// differentPayloads is how many payloads take turns.
const differentPayloads = 100

// capstanProduce sends with Send from one goroutine, as a program with a lot to say would.
func capstanProduce(ctx context.Context, j Job) (task, func(), error) {
	info, err := lookup(ctx, j)
	if err != nil {
		return nil, nil, err
	}
	layer, err := failover.New(options.Client().ApplyURI(j.URI), failover.Config{})
	if err != nil {
		return nil, nil, err
	}
	w := layer.Stream(j.Database, j.Stream, failover.StreamConfig{UUID: info.UUID, Size: info.Size})
	p, err := producer.New(w, producer.Config{Name: "bench"})
	if err != nil {
		return nil, nil, err
	}
	// Few enough that they do not count in the process's memory.
	var data []bson.RawValue
	for _, s := range payloads(differentPayloads, j.Payload, j.Seed) {
		data = append(data, bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, s)})
	}
	ran := make(chan error, 1)
	run := func(ctx context.Context, out *Outcome) error {
		go func() { ran <- p.Run(ctx) }()
		var failed atomic.Pointer[error]
		done := func(r producer.Result) {
			if r.Err != nil {
				err := r.Err // taking r's address would move every Result to the heap
				failed.CompareAndSwap(nil, &err)
				return
			}
			out.Messages++ // callbacks come one at a time, and Flush waits for the last
		}
		for i := range j.Count {
			if err := p.Send(ctx, producer.Message{Data: data[i%int64(len(data))]}, done); err != nil {
				return err
			}
		}
		if err := p.Flush(ctx); err != nil {
			return err
		}
		if err := failed.Load(); err != nil {
			return *err
		}
		return nil
	}
	return run, func() {
		_ = p.Close()
		_ = layer.Close(context.WithoutCancel(ctx))
	}, nil
}

func lookup(ctx context.Context, j Job) (stream.Info, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(j.URI))
	if err != nil {
		return stream.Info{}, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	return stream.Lookup(ctx, client.Database(j.Database), j.Stream)
}

// capstanTail reads until it has seen j.Count messages.
func capstanTail(_ context.Context, j Job) (task, func(), error) {
	start, err := startOf(j.From)
	if err != nil {
		return nil, nil, err
	}
	s, err := tailer.New(options.Client().ApplyURI(j.URI), j.Database, j.Stream, tailer.Config{Start: start})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, out *Outcome) error {
		begin := time.Now()
		for out.Messages < j.Count {
			r, err := s.Next(ctx)
			if err != nil {
				return err
			}
			if r.Kind != record.KindMessage {
				out.Gaps++
				continue
			}
			if out.Messages == 0 {
				out.First = time.Since(begin).Seconds()
			}
			out.Messages++
			out.Bytes += int64(len(r.Raw))
		}
		return nil
	}, func() { _ = s.Close() }, nil
}

func startOf(p *Place) (record.Start, error) {
	if p == nil {
		return record.Start{Where: record.Earliest}, nil
	}
	pos, err := record.ParsePosition(p.Position)
	return record.Start{Where: record.After, Position: pos, Marks: p.Marks, Fingerprint: p.Fingerprint}, err
}

// counter counts the commands that a tail sends, by name.
type counter struct {
	mu sync.Mutex
	n  map[string]int64
}

func (c *counter) add(command string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[command]++
}

// take returns the counts and starts at nought.
func (c *counter) take() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.n
	c.n = map[string]int64{}
	return n
}

// idleStart is how long an idle tail gets to connect and open before it is watched.
const idleStart = 3 * time.Second

// capstanIdle opens a tail at the end of a stream, waits until it is at rest, and then counts what
// it sends.
func capstanIdle(ctx context.Context, j Job) (task, func(), error) {
	c := &counter{n: map[string]int64{}}
	s, err := tailer.New(options.Client().ApplyURI(j.URI), j.Database, j.Stream, tailer.Config{Hooks: tailer.Hooks{OnCommand: c.add}})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := s.Next(ctx)
		ended <- err
	}()
	stop := func() {
		cancel()
		<-ended
		_ = s.Close()
	}
	select {
	case err := <-ended:
		ended <- err
		stop()
		return nil, nil, errors.Join(errors.New("the idle tail did not stay idle"), err)
	case <-time.After(idleStart):
	}
	c.take()
	return func(_ context.Context, out *Outcome) error {
		select {
		case err := <-ended:
			ended <- err
			return errors.Join(errors.New("the idle tail did not stay idle"), err)
		case <-time.After(j.For):
		}
		out.Commands = c.take()
		return nil
	}, stop, nil
}
