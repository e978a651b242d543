package experiment

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"

	"github.com/seed-12ef14e5/capstan/experiment/raw"
	"github.com/seed-12ef14e5/capstan/record"
)

// What the floor does: the raw client's producer and tail, and the driver's plain find.

// tailAwait is the await of the raw tail's getMore, the longest that the project's tails use.
const tailAwait = time.Second

// host returns the one address in a connection string.
func host(uri string) (string, error) {
	cs, err := connstring.ParseAndValidate(uri)
	if err != nil {
		return "", fmt.Errorf("read connection string: %w", err)
	}
	if len(cs.Hosts) != 1 {
		return "", fmt.Errorf("read connection string: %d hosts; the raw client needs one standalone server", len(cs.Hosts))
	}
	return cs.Hosts[0], nil
}

func dialRaw(ctx context.Context, uri string) (*raw.Conn, error) {
	addr, err := host(uri)
	if err != nil {
		return nil, err
	}
	return raw.Dial(ctx, addr, raw.Config{})
}

// rawProduce inserts blocks of j.Batch messages one after the other. The messages are encoded
// before the start; identity, seq and time are new in every one, as in a real producer.
func rawProduce(ctx context.Context, j Job) (task, func(), error) {
	c, err := dialRaw(ctx, j.URI)
	if err != nil {
		return nil, nil, err
	}
	b := newBlock("raw/"+bson.NewObjectID().Hex()[16:], payloads(j.Batch, j.Payload, j.Seed))
	return func(ctx context.Context, out *Outcome) error {
		for out.Messages < j.Count && ctx.Err() == nil {
			b.stamp(time.Now())
			n, err := c.Insert(j.Database, j.Stream, b.docs)
			if err != nil {
				return err
			}
			out.Messages += int64(n)
			out.Bytes += int64(len(b.docs))
		}
		return context.Cause(ctx)
	}, func() { _ = c.Close() }, nil
}

// rawTail reads with a tailable cursor until it has seen j.Count messages. Connecting is part of
// what is measured, as it is for the others.
func rawTail(_ context.Context, j Job) (task, func(), error) {
	var c *raw.Conn
	return func(ctx context.Context, out *Outcome) error {
			start := time.Now()
			var err error
			if c, err = dialRaw(ctx, j.URI); err != nil {
				return err
			}
			cur, err := c.Find(j.Database, j.Stream, raw.Query{Filter: filterFrom(j.From), Tailable: true})
			if err != nil {
				return err
			}
			for ctx.Err() == nil {
				for doc, ok := cur.Next(); ok; doc, ok = cur.Next() {
					if record.IsPrimer(doc) {
						continue
					}
					if out.Messages == 0 {
						out.First = time.Since(start).Seconds()
					}
					out.Messages++
					out.Bytes += int64(len(doc))
					if out.Messages == j.Count {
						return cur.Close()
					}
				}
				if cur.ID() == 0 {
					return fmt.Errorf("tail of %s.%s ended after %d of %d messages", j.Database, j.Stream, out.Messages, j.Count)
				}
				if err := cur.GetMore(tailAwait); err != nil {
					return err
				}
			}
			return context.Cause(ctx)
		}, func() {
			if c != nil {
				_ = c.Close()
			}
		}, nil
}

// filterFrom matches what is not before a place, by the server's timestamp.
func filterFrom(p *Place) bson.Raw {
	if p == nil {
		return nil
	}
	bound := bsoncore.NewDocumentBuilder().AppendTimestamp("$gte", p.Seconds, p.Increment).Build()
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendDocument(record.FieldTS, bound).Build())
}

// driverFind reads the stream with the driver's Find and Next, and looks at nothing.
func driverFind(_ context.Context, j Job) (task, func(), error) {
	var client *mongo.Client
	return func(ctx context.Context, out *Outcome) (err error) {
			start := time.Now()
			if client, err = mongo.Connect(options.Client().ApplyURI(j.URI)); err != nil {
				return err
			}
			filter := filterFrom(j.From)
			if filter == nil {
				filter = bson.Raw(bsoncore.NewDocumentBuilder().Build())
			}
			cur, err := client.Database(j.Database).Collection(j.Stream).Find(ctx, filter)
			if err != nil {
				return err
			}
			defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
			for out.Messages < j.Count && cur.Next(ctx) {
				if record.IsPrimer(cur.Current) {
					continue
				}
				if out.Messages == 0 {
					out.First = time.Since(start).Seconds()
				}
				out.Messages++
				out.Bytes += int64(len(cur.Current))
			}
			if err := cur.Err(); err != nil {
				return err
			}
			if out.Messages < j.Count {
				return fmt.Errorf("find in %s.%s gave %d of %d messages", j.Database, j.Stream, out.Messages, j.Count)
			}
			return nil
		}, func() {
			if client != nil {
				_ = client.Disconnect(context.Background())
			}
		}, nil
}
