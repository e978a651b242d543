package experiment

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/experiment/raw"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// BenchmarkInsertForms compares the ways to send one batch of encoded messages: what the client
// costs per message in CPU, allocations and bytes. What was found is in docs/EXPERIMENTS.md,
// section "Client cost".
func BenchmarkInsertForms(b *testing.B) {
	d := mongotest.Standalone(b)
	uri := d.URI
	for _, n := range []int{10, 1000} {
		for _, form := range insertForms {
			b.Run(fmt.Sprintf("%s/batch=%d", form.name, n), func(b *testing.B) {
				db := "bench_forms"
				c, err := raw.Dial(b.Context(), d.Cluster.Members()[0].Addr, raw.Config{})
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				defer func() { _ = c.DropDatabase(db) }()
				if err := c.CreateCapped(db, "s", 100_000_000); err != nil {
					b.Fatal(err)
				}
				client, err := mongo.Connect(options.Client().ApplyURI(uri).SetRetryWrites(false))
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = client.Disconnect(context.Background()) }()
				blk := newBlock("bench/1", payloads(n, 100, 1))
				insert := form.make(c, client.Database(db), blk)
				blk.stamp(time.Now())
				if err := insert(b.Context()); err != nil { // connects, warms the pools
					b.Fatal(err)
				}
				b.ReportAllocs()
				before := cpuTime()
				for b.Loop() {
					blk.stamp(time.Now())
					if err := insert(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				msgs := float64(b.N) * float64(n)
				b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/msgs, "client-ns/msg")
				b.ReportMetric(msgs/b.Elapsed().Seconds(), "msg/s")
			})
		}
	}
}

type insertForm struct {
	name string
	make func(c *raw.Conn, db *mongo.Database, blk *block) func(context.Context) error
}

var insertForms = []insertForm{
	{"raw socket, document sequence", func(c *raw.Conn, db *mongo.Database, blk *block) func(context.Context) error {
		return func(context.Context) error { _, err := c.Insert(db.Name(), "s", blk.docs); return err }
	}},
	{"raw socket, array", func(c *raw.Conn, db *mongo.Database, blk *block) func(context.Context) error {
		var arr []byte
		return func(context.Context) error {
			arr = appendArray(arr[:0], blk)
			_, err := c.InsertArray(db.Name(), "s", arr)
			return err
		}
	}},
	{"RunCommand, bson.Raw", func(_ *raw.Conn, db *mongo.Database, blk *block) func(context.Context) error {
		var cmd []byte
		return func(ctx context.Context) error {
			idx, b := bsoncore.AppendDocumentStart(cmd[:0])
			b = bsoncore.AppendStringElement(b, "insert", "s")
			b = bsoncore.AppendHeader(b, bsoncore.TypeArray, "documents")
			b = appendArray(b, blk)
			b, _ = bsoncore.AppendDocumentEnd(b, idx)
			cmd = b
			return db.RunCommand(ctx, bson.Raw(b)).Err()
		}
	}},
	{"RunCommand, bson.D of bson.A", func(_ *raw.Conn, db *mongo.Database, blk *block) func(context.Context) error {
		return func(ctx context.Context) error {
			var a bson.A
			for _, d := range blk.documents() {
				a = append(a, d)
			}
			return db.RunCommand(ctx, bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: a}}).Err()
		}
	}},
	{"InsertMany of bson.Raw", func(_ *raw.Conn, db *mongo.Database, blk *block) func(context.Context) error {
		return func(ctx context.Context) error {
			var a []any
			for _, d := range blk.documents() {
				a = append(a, d)
			}
			_, err := db.Collection("s").InsertMany(ctx, a)
			return err
		}
	}},
}

// appendArray appends a BSON array of the block's messages.
func appendArray(dst []byte, blk *block) []byte {
	idx, dst := bsoncore.AppendArrayStart(dst)
	for i, d := range blk.documents() {
		dst = append(dst, byte(bson.TypeEmbeddedDocument))
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, 0)
		dst = append(dst, d...)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, idx)
	return dst
}
