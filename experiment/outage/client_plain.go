package outage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/internal/pace"
)

// The controls: what people write, and what goes wrong with it.

// CollectionOf returns the collection that a role writes to.
func CollectionOf(r Role) string {
	if r == Writer || r == Reader {
		return Writes
	}
	return strings.ReplaceAll(string(r), "-", "_")
}

// document returns what the experiment writes: the four fields of 2015, and who wrote it under which
// number, by which documents are told apart whatever their _id.
func (c *client) document(id bson.ObjectID, seq int64) bson.D {
	rng := rand.New(rand.NewPCG(c.cfg.Seed, uint64(seq)))
	return bson.D{
		{Key: "_id", Value: id},
		{Key: "time", Value: time.Now().UnixMicro()},
		{Key: "value", Value: rng.Float64()},
		{Key: "title", Value: fmt.Sprintf("measurement %d", seq)},
		{Key: "type", Value: []string{"temperature", "pressure", "humidity"}[rng.IntN(3)]},
		{Key: "writer", Value: c.cfg.Name},
		{Key: "seq", Value: seq},
	}
}

// control connects as a plain program would.
func (c *client) control(ctx context.Context, o *options.ClientOptions, call func(ctx context.Context, coll *mongo.Collection, seq int64) Event) error {
	m, err := mongo.Connect(o)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = m.Disconnect(ctx) // all is known by then
	}()
	coll := m.Database(Database).Collection(CollectionOf(c.cfg.Role))
	return c.loop(ctx, func(ctx context.Context, seq int64) bool {
		start := Now()
		e := call(ctx, coll, seq)
		e.Kind, e.Start, e.Took = KindWrite, start, Now().Sub(start).Microseconds()
		e.Src, e.Seq, e.Overrun = c.cfg.Name, seq, c.timer.since(start)
		c.emit(e)
		return e.OK
	})
}

// closeTimeout bounds closing connections.
const closeTimeout = 2 * time.Second

// result is the event of one plain call: with an error, a plain program knows nothing.
func result(err error) Event {
	if err != nil {
		return Event{Outcome: Unknown, Attempts: 1, Err: err.Error()}
	}
	return Event{OK: true, Attempts: 1}
}

// plain inserts without a deadline; its context ends with the process only.
func (c *client) plain(ctx context.Context) error {
	return c.control(ctx, c.options(), func(ctx context.Context, coll *mongo.Collection, seq int64) Event {
		_, err := coll.InsertOne(ctx, c.document(bson.NewObjectID(), seq))
		return result(err)
	})
}

const (
	// controlAttempt is the deadline of one attempt of the controls that have one.
	controlAttempt = 500 * time.Millisecond
	// controlPause is the wait between two of their attempts.
	controlPause = 50 * time.Millisecond
)

// freshID retries an insert after a time-out as many a program does: by calling InsertOne again, which
// makes a new _id.
func (c *client) freshID(ctx context.Context) error {
	return c.control(ctx, c.options().SetRetryWrites(false), func(ctx context.Context, coll *mongo.Collection, seq int64) Event {
		var e Event
		for attempts := 1; ; attempts++ {
			err := attempt(ctx, func(ctx context.Context) error {
				_, err := coll.InsertOne(ctx, c.document(bson.NewObjectID(), seq))
				return err
			})
			e = result(err)
			e.Attempts = attempts
			if err == nil || pace.Sleep(ctx, controlPause) != nil {
				return e
			}
		}
	})
}

func attempt(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, controlAttempt)
	defer cancel()
	return do(ctx)
}

// one asks the primary alone, and believes it.
func (c *client) one(ctx context.Context) error {
	o := c.options().SetRetryWrites(false).SetWriteConcern(writeconcern.W1()).SetServerSelectionTimeout(controlAttempt)
	return c.control(ctx, o, func(ctx context.Context, coll *mongo.Collection, seq int64) Event {
		err := attempt(ctx, func(ctx context.Context) error {
			_, err := coll.InsertOne(ctx, c.document(bson.NewObjectID(), seq))
			return err
		})
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return result(err)
	})
}
