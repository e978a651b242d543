package outage

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
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
)

const (
	// callGrace is how long a call in flight may go on after the client was told to stop.
	callGrace = 3 * time.Second
	// messagesSize holds a whole run: 50 messages a second, some 200 bytes each, for a day.
	messagesSize = 1 << 30
	// readPatience bounds one call of a reader, in attempts.
	readPatience = 4
)

// calls counts what happens within the one call that is in flight.
type calls struct {
	c        *client
	kind     Kind
	deadline time.Duration // of an attempt

	// The hooks of a failover layer are called by a producer's goroutine, not by the call's.
	attempts, doubtful atomic.Int64
}

func (k *calls) hooks() failover.Hooks {
	return failover.Hooks{
		OnAttempt: func(a failover.Attempt) {
			k.attempts.Add(1)
			if a.Err == nil {
				return
			}
			start := Now() - Moment(time.Since(a.Start).Microseconds())
			k.c.emit(Event{Kind: KindTry, Found: mongoerr.IsDuplicateID(a.Err), Start: start, Took: a.Took.Microseconds(), Deadline: a.Timeout.Microseconds(),
				Overrun: k.c.timer.since(start), Member: a.Member, Err: a.Err.Error()})
		},
		OnRetry: func(r failover.Retry) {
			if r.Unknown {
				k.doubtful.Add(1)
			}
		},
	}
}

// layer returns a failover layer, and what counts the attempts of its calls. The caller closes it.
func (c *client) layer(kind Kind) (*failover.Layer, *calls, error) {
	k := &calls{c: c, kind: kind, deadline: c.cfg.Profile.Settings().AttemptTimeout}
	l, err := failover.New(c.options(), failover.Config{Profile: c.cfg.Profile, Hooks: k.hooks()})
	return l, k, err
}

func closeLayer(ctx context.Context, l *failover.Layer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = l.Close(ctx) // every outcome is known by then
}

// lasting returns a context that ends some time after ctx does, so that a call in flight can finish.
func lasting(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var timer *time.Timer
	var mu sync.Mutex
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		timer = time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
	})
	return out, func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		cancel(nil)
	}
}

// timed makes one call and emits its event.
func (k *calls) timed(ctx context.Context, seq int64, call func(ctx context.Context, e *Event) error) bool {
	ctx, cancel := lasting(ctx, callGrace)
	defer cancel()
	k.attempts.Store(0)
	k.doubtful.Store(0)
	e := Event{Kind: k.kind, Seq: seq}
	e.Start = Now()
	err := call(ctx, &e)
	e.Took = Now().Sub(e.Start).Microseconds()
	e.OK = err == nil
	e.Attempts, e.Doubtful, e.Overrun = int(k.attempts.Load()), int(k.doubtful.Load()), k.c.timer.since(e.Start)
	if err != nil {
		e.Err = err.Error()
		if k.kind == KindWrite {
			e.Outcome = NotApplied
			if _, unknown := errors.AsType[*record.UnknownOutcomeError](err); unknown {
				e.Outcome = Unknown
			}
		}
	}
	k.c.emit(e)
	return e.OK
}

// writer is the headline's writer.
func (c *client) writer(ctx context.Context) error {
	layer, k, err := c.layer(KindWrite)
	if err != nil {
		return err
	}
	defer closeLayer(ctx, layer)
	w := layer.Collection(Database, Writes, failover.CollectionConfig{})
	return c.loop(ctx, func(ctx context.Context, seq int64) bool {
		doc, err := bson.Marshal(c.document(bson.NewObjectID(), seq))
		if err != nil {
			return false // it consists of numbers and strings
		}
		return k.timed(ctx, seq, func(ctx context.Context, e *Event) error {
			e.Src = c.cfg.Name
			return w.InsertOne(ctx, doc)
		})
	})
}

// reader is the headline's reader.
func (c *client) reader(ctx context.Context) error {
	return c.reads(ctx, Writes, bson.D{{Key: "writer", Value: c.cfg.Name}}, bson.D{{Key: "seq", Value: -1}})
}

// reads asks for the newest document that a majority has, on a secondary if there is one.
func (c *client) reads(ctx context.Context, coll string, filter, sort bson.D) error {
	layer, k, err := c.layer(KindRead)
	if err != nil {
		return err
	}
	defer closeLayer(ctx, layer)
	bound := readPatience * k.deadline
	find := func(ctx context.Context, e *Event) error {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		e.Deadline = bound.Microseconds()
		return layer.Read(ctx, Database, failover.ReadConfig{Preference: readpref.SecondaryPreferred(), Concern: readconcern.Majority(), Name: "newest"},
			func(ctx context.Context, db *mongo.Database) error { return newest(ctx, db, coll, filter, sort, e) })
	}
	return c.loop(ctx, func(ctx context.Context, seq int64) bool {
		return k.timed(ctx, seq, find)
	})
}

// newest notes in e which document is the newest, and how old. That there is none is an answer, too.
func newest(ctx context.Context, db *mongo.Database, coll string, filter, sort bson.D, e *Event) error {
	raw, err := db.Collection(coll).FindOne(ctx, filter, options.FindOne().SetSort(sort)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil
	}
	if err != nil {
		return err
	}
	e.Seen, _ = raw.Lookup("seq").AsInt64OK()
	for _, field := range []string{"writer", record.FieldSrc} {
		if src, ok := raw.Lookup(field).StringValueOK(); ok {
			e.Src = src
		}
	}
	if at, ok := raw.Lookup("time").AsInt64OK(); ok && at > 0 {
		e.Stale = time.Now().UnixMicro() - at
	}
	return nil
}

// prober sends to the stream, and reads beside that.
func (c *client) prober(ctx context.Context) error {
	info, err := c.ensureStream(ctx)
	if err != nil {
		return err
	}
	layer, k, err := c.layer(KindWrite)
	if err != nil {
		return err
	}
	defer closeLayer(ctx, layer)
	w := layer.Stream(Database, Messages, failover.StreamConfig{UUID: info.UUID, Size: info.Size})
	p, err := producer.New(w, producer.Config{Name: c.cfg.Name})
	if err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.Run(context.WithoutCancel(ctx)) }) // each call has its own result
	wg.Go(func() {
		natural := bson.D{{Key: "$natural", Value: -1}}
		if err := c.reads(reading, Messages, bson.D{}, natural); err != nil {
			c.emit(Event{Kind: KindTry, Start: Now(), Err: err.Error()})
		}
	})
	err = c.loop(ctx, func(ctx context.Context, seq int64) bool {
		return k.timed(ctx, seq, func(ctx context.Context, e *Event) error {
			r, err := p.SendSync(ctx, producer.Message{})
			e.Seq, e.Src = r.Seq, p.Src()
			return err
		})
	})
	stop()
	_ = p.Close() // each call has its own result
	wg.Wait()
	return err
}

// ensureStream makes the stream, if the prober runs by itself, and finds it.
func (c *client) ensureStream(ctx context.Context) (stream.Info, error) {
	m, err := mongo.Connect(c.cfg.Options())
	if err != nil {
		return stream.Info{}, fmt.Errorf("connect: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = m.Disconnect(ctx) // it has only asked
	}()
	return stream.Ensure(ctx, m.Database(Database), Messages, stream.Config{Size: messagesSize})
}
