package experiment

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// BenchmarkTail reads a full stream again and again; one operation is one message. The metric
// "mallocs/msg" is what the tail costs per message, openings included. (allocs/op is cut to a whole
// number, and misses what the tail's goroutine does while the timer stands still.)
func BenchmarkTail(b *testing.B) {
	d := mongotest.Standalone(b)
	fillFor(b, d)
	open := func() *tailer.Stream {
		s, err := tailer.New(d.Options(), "capstan_bench_tail", benchStream, tailer.Config{Start: record.Start{Where: record.Earliest}, UntilEnd: true})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Next(b.Context()); err != nil { // connects and opens
			b.Fatal(err)
		}
		return s
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := open()
	var bytes int64
	b.ReportAllocs()
	for b.Loop() {
		r, err := s.Next(b.Context())
		if errors.Is(err, io.EOF) {
			b.StopTimer()
			_ = s.Close()
			s = open()
			b.StartTimer()
			continue
		}
		if err != nil {
			b.Fatal(err)
		}
		bytes += int64(len(r.Raw))
	}
	_ = s.Close()
	runtime.ReadMemStats(&after)
	b.SetBytes(bytes / int64(b.N))
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N), "mallocs/msg")
}

// fillFor leaves a full stream in database capstan_bench_tail until the benchmark ends.
func fillFor(b *testing.B, d *mongotest.Deployment) {
	b.Helper()
	conn, err := dialRaw(b.Context(), d.URI)
	if err != nil {
		b.Fatal(err)
	}
	client, err := mongo.Connect(d.Options())
	if err != nil {
		b.Fatal(err)
	}
	c := &core{cfg: CoreConfig{URI: d.URI, StreamBytes: 20 << 20}.withDefaults(), conn: conn, client: client}
	b.Cleanup(func() {
		_ = conn.DropDatabase("capstan_bench_tail")
		_ = conn.Close()
		_ = client.Disconnect(context.Background())
	})
	if _, _, err := c.fill(b.Context(), "capstan_bench_tail", DefaultPayload); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkProducer sends flat out without a tail; one operation is one message. The metric
// "ratio-to-raw" is its rate divided by that of the ideal client, measured right before it for as
// many messages.
func BenchmarkProducer(b *testing.B) {
	d := mongotest.Standalone(b)
	const db = "capstan_bench_producer"
	client, err := mongo.Connect(d.Options())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	conn, err := dialRaw(b.Context(), d.URI)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	defer func() { _ = conn.DropDatabase(db) }()
	info, err := stream.Ensure(b.Context(), client.Database(db), benchStream, stream.Config{})
	if err != nil {
		b.Fatal(err)
	}
	layer, err := failover.New(options.Client().ApplyURI(d.URI), failover.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = layer.Close(context.Background()) }()
	p, err := producer.New(layer.Stream(db, benchStream, failover.StreamConfig{UUID: info.UUID, Size: info.Size}), producer.Config{})
	if err != nil {
		b.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- p.Run(context.Background()) }()
	data := bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, payloads(1, DefaultPayload, 1)[0])}
	if _, err := p.SendSync(b.Context(), producer.Message{Data: data}); err != nil { // connects
		b.Fatal(err)
	}
	blk := newBlock("raw/1", payloads(DefaultBatch, DefaultPayload, 1))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Send(b.Context(), producer.Message{Data: data}, nil); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	ours := b.Elapsed()
	start := time.Now()
	for n := 0; n < b.N; n += DefaultBatch {
		blk.stamp(time.Now())
		if _, err := conn.Insert(db, benchStream, blk.docs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(start))/float64(ours), "ratio-to-raw")
	if err := errors.Join(p.Close(), <-ran); err != nil {
		b.Fatal(err)
	}
}
