package mongoerr_test

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// rest reads a cursor to its end and returns why it ended.
func rest(ctx context.Context, cur *mongo.Cursor) error {
	for cur.Next(ctx) {
	}
	return cur.Err()
}

// waiting starts the next batch of a tail that has nothing to read, and returns its operation and a
// channel with its error.
func waiting(t *testing.T, w *world, c *mongo.Collection, cur *mongo.Cursor) (op any, ended <-chan error) {
	t.Helper()
	ch := make(chan error, 1)
	go func() { ch <- rest(t.Context(), cur) }()
	return w.operation(t, bson.D{e("ns", c.Database().Name()+"."+c.Name()), e("command.getMore", bson.D{e("$exists", true)})}), ch
}

// operation waits for a running operation that filter finds in the primary's list, and returns its number.
func (w *world) operation(t *testing.T, filter bson.D) any {
	t.Helper()
	return operationOn(t, w.client, filter)
}

func operationOn(t *testing.T, client *mongo.Client, filter bson.D) any {
	t.Helper()
	var op struct{ OpID any }
	until(t, "the operation", func() error {
		cur, err := client.Database("admin").Aggregate(t.Context(), mongo.Pipeline{{e("$currentOp", bson.D{})}, {e("$match", filter)}})
		if err != nil {
			return err
		}
		defer cur.Close(t.Context())
		if !cur.Next(t.Context()) {
			return errors.New("it does not run")
		}
		return cur.Decode(&op)
	})
	return op.OpID
}

var tailEvents = []happening{
	{2, asTail, "tail on a collection that is not capped", func(t *testing.T, w *world) answer {
		_, err := w.made(t).Find(t.Context(), bson.D{}, options.Find().SetCursorType(options.Tailable))
		return answer{err: err}
	}},
	{168, asTail, "tail on a view", func(t *testing.T, w *world) answer {
		_, err := view(t, w).Find(t.Context(), bson.D{}, options.Find().SetCursorType(options.Tailable))
		return answer{err: err}
	}},
	{136, asTail, "rolled over", func(t *testing.T, w *world) answer {
		c, cur := w.capped(t)
		for i := range 10 {
			if err := insert(t.Context(), c, doc(i)); err != nil {
				t.Fatal(err)
			}
		}
		return answer{err: rest(t.Context(), cur)}
	}},
	{175, asTail, "dropped under a waiting tail", func(t *testing.T, w *world) answer {
		c, cur := w.capped(t)
		_, ended := waiting(t, w, c, cur)
		if err := c.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		return answer{err: <-ended}
	}},
	{175, asTail, "renamed under a tail", func(t *testing.T, w *world) answer {
		c, cur := w.capped(t)
		ns := c.Database().Name() + "."
		run(t, w.client, e("renameCollection", ns+c.Name()), e("to", ns+w.coll().Name()))
		return answer{err: rest(t.Context(), cur)}
	}},
	{43, asTail, "cursor killed between two batches", func(t *testing.T, w *world) answer {
		c, cur := w.capped(t)
		if err := w.db.RunCommand(t.Context(), bson.D{e("killCursors", c.Name()), e("cursors", bson.A{cur.ID()})}).Err(); err != nil {
			t.Fatal(err)
		}
		return answer{err: rest(t.Context(), cur)}
	}},
	{237, asTail, "cursor killed while it waits", func(t *testing.T, w *world) answer {
		c, cur := w.capped(t)
		_, ended := waiting(t, w, c, cur)
		if err := w.db.RunCommand(t.Context(), bson.D{e("killCursors", c.Name()), e("cursors", bson.A{cur.ID()})}).Err(); err != nil {
			t.Fatal(err)
		}
		return answer{err: <-ended}
	}},
	{11601, asTail, "killOp of a waiting tail", func(t *testing.T, w *world) answer {
		c, cur := w.capped(t)
		op, ended := waiting(t, w, c, cur)
		run(t, w.client, e("killOp", 1), e("op", op))
		return answer{err: <-ended}
	}},
	{50, asRead, "read that takes too long", func(t *testing.T, w *world) answer {
		c := w.coll()
		if err := insert(t.Context(), c, doc(1)); err != nil {
			t.Fatal(err)
		}
		cmd := bson.D{e("find", c.Name()), e("filter", bson.D{e("$where", "sleep(20000) || true")}), e("maxTimeMS", 100)}
		return answer{err: w.db.RunCommand(t.Context(), cmd).Err()}
	}},
}

// streamEvents end change streams.
var streamEvents = []happening{
	{280, asTail, "change stream whose tokens a stage removed", func(t *testing.T, w *world) answer {
		c := w.made(t)
		s, err := c.Watch(t.Context(), mongo.Pipeline{{e("$project", bson.D{e("_id", 0)})}})
		return answer{err: streamed(t, s, err, func() error { return insert(t.Context(), c, doc(1)) })}
	}},
	{260, asTail, "change stream resumed from an invalidate event", func(t *testing.T, w *world) answer {
		c := w.made(t)
		s, err := c.Watch(t.Context(), mongo.Pipeline{})
		if err := streamed(t, s, err, func() error { return c.Drop(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		_, err = c.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetResumeAfter(s.ResumeToken()))
		return answer{err: err}
	}},
	{47, asTail, "change stream that requires an image which is not kept", func(t *testing.T, w *world) answer {
		c := w.made(t)
		s, err := c.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetFullDocumentBeforeChange(options.Required))
		return answer{err: streamed(t, s, err, func() error {
			if err := insert(t.Context(), c, doc(1)); err != nil {
				return err
			}
			_, err := c.UpdateOne(t.Context(), doc(1), bson.D{e("$set", bson.D{e("n", 1)})})
			return err
		})}
	}},
	{10334, asTail, "change stream event of more than 16 MiB", func(t *testing.T, w *world) answer {
		c := w.made(t, options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{e("enabled", true)}))
		large := make([]byte, 9<<20)
		if err := insert(t.Context(), c, doc(1, e("data", large))); err != nil {
			t.Fatal(err)
		}
		s, err := c.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetFullDocument(options.UpdateLookup).SetFullDocumentBeforeChange(options.Required))
		return answer{err: streamed(t, s, err, func() error {
			_, err := c.UpdateOne(t.Context(), doc(1), bson.D{e("$set", bson.D{e("n", 1)})})
			return err
		})}
	}},
}

// streamed makes something happen and reads a change stream until it ends.
func streamed(t *testing.T, s *mongo.ChangeStream, err error, do func() error) error {
	t.Helper()
	if err != nil {
		return err
	}
	defer s.Close(context.WithoutCancel(t.Context()))
	if err := do(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	for s.Next(ctx) {
	}
	return s.Err()
}
