package mongodb_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/stream"
)

const (
	streamBenchMessages = 200_000
	streamBenchPayload  = 100 // about 200 bytes a message
)

// BenchmarkStreamRoute compares a route with the naive way: a tailable cursor and an ordered InsertMany of a thousand, which loses its
// place when anything happens. Run it with -benchtime 1x -count 3.
func BenchmarkStreamRoute(b *testing.B) {
	for name, deployment := range map[string]func(testing.TB) *mongotest.Deployment{"standalone": mongotest.Standalone, "three members": mongotest.ReplicaSet} {
		b.Run(name, func(b *testing.B) {
			d := deployment(b)
			db := d.DB(b)
			if _, err := stream.Ensure(b.Context(), db, "in", stream.Config{Size: 100_000_000}); err != nil {
				b.Fatal(err)
			}
			fillStream(b, db)
			n := 0
			b.Run("naive", func(b *testing.B) {
				for b.Loop() {
					n++
					measureStream(b, func() { naiveStream(b, db, fmt.Sprintf("naive%d", n)) })
				}
			})
			b.Run("capstan", func(b *testing.B) {
				for b.Loop() {
					n++
					measureStream(b, func() { routeStream(b, d, db, fmt.Sprintf("capstan%d", n)) })
				}
			})
		})
	}
}

func fillStream(b *testing.B, db *mongo.Database) {
	data := make([]byte, streamBenchPayload)
	docs := make([]bson.D, 0, 2000)
	for seq := range int64(streamBenchMessages) {
		docs = append(docs, bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "time", Value: seq}, {Key: "src", Value: "bench/1"},
			{Key: "seq", Value: seq + 1}, {Key: "ts", Value: bson.Timestamp{}}, {Key: "data", Value: data}})
		if len(docs) == cap(docs) {
			if _, err := db.Collection("in").InsertMany(b.Context(), docs); err != nil {
				b.Fatal(err)
			}
			docs = docs[:0]
		}
	}
}

// measureStream reports the rate, and the CPU of this process per message.
func measureStream(b *testing.B, copy func()) {
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before) // it has no way to fail
	start := time.Now()
	copy()
	took := time.Since(start)
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(streamBenchMessages/took.Seconds(), "msg/s")
	b.ReportMetric(float64(cpu.Nanoseconds())/1000/streamBenchMessages, "µs-cpu/msg")
}

func naiveStream(b *testing.B, db *mongo.Database, name string) {
	if err := db.CreateCollection(b.Context(), name, options.CreateCollection().SetCapped(true).SetSizeInBytes(100_000_000)); err != nil {
		b.Fatal(err)
	}
	cur, err := db.Collection("in").Find(b.Context(), bson.D{}, options.Find().SetCursorType(options.TailableAwait))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = cur.Close(b.Context()) }()
	docs := make([]bson.Raw, 0, 1000)
	for n := 0; n < streamBenchMessages; {
		if !cur.Next(b.Context()) {
			b.Fatal(cur.Err())
		}
		if record.IsPrimer(cur.Current) {
			continue
		}
		docs = append(docs, append(bson.Raw(nil), cur.Current...))
		if n++; len(docs) == cap(docs) || cur.RemainingBatchLength() == 0 {
			if _, err := db.Collection(name).InsertMany(b.Context(), docs); err != nil {
				b.Fatal(err)
			}
			docs = docs[:0]
		}
	}
}

func routeStream(b *testing.B, d *mongotest.Deployment, db *mongo.Database, name string) {
	link, end, err := mongodb.OpenStreamRoute(d.Options(), d.Options(), record.Namespace{DB: db.Name(), Coll: "in"}, record.Namespace{DB: db.Name(), Coll: name},
		mongodb.StreamRouteConfig{Route: db.Name() + name, Link: replicator.StreamConfig{Until: replicator.UntilCopied}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = end(b.Context()) }()
	if err := link.Run(b.Context()); err != nil {
		b.Fatal(err)
	}
	if s := link.Status(); s.Totals.Applied != streamBenchMessages {
		b.Fatalf("%d messages were written", s.Totals.Applied)
	}
}
