package experiment

import (
	"context"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// stageGap is the pause between two messages: each one finds everybody waiting.
const stageGap = 2 * time.Millisecond

// medians reports the medians of named samples in microseconds.
func medians(b *testing.B, names []string, samples [][]time.Duration) {
	for i, name := range names {
		slices.Sort(samples[i])
		b.ReportMetric(float64(samples[i][len(samples[i])/2].Nanoseconds())/1e3, name)
	}
}

// BenchmarkStages says where the time of a lone message goes, all in one process: from Send until the
// insert is sent (encode, hand-over to the sending goroutine), from there until the tail has the message
// decoded (server, wake-up, reply, decode) and until the producer has its reply, and from the tail's
// goroutine to Next.
func BenchmarkStages(b *testing.B) {
	d := mongotest.Standalone(b)
	db := d.DB(b)
	info, err := stream.Ensure(b.Context(), db, benchStream, stream.Config{Size: DefaultLatencyStream})
	if err != nil {
		b.Fatal(err)
	}
	var insertSent, acked, arrived atomic.Int64
	begun := time.Now()
	layer, err := failover.New(d.Options(), failover.Config{WriteConcern: failover.One, Hooks: failover.Hooks{OnAttempt: func(a failover.Attempt) {
		insertSent.Store(int64(a.Start.Sub(begun)))
		acked.Store(int64(a.Start.Add(a.Took).Sub(begun)))
	}}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = layer.Close(context.WithoutCancel(b.Context())) }()
	p, err := producer.New(layer.Stream(db.Name(), benchStream, failover.StreamConfig{UUID: info.UUID, Size: info.Size}), producer.Config{Name: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	go func() { _ = p.Run(b.Context()) }()
	s, err := tailer.New(options.Client().ApplyURI(d.URI), db.Name(), benchStream, tailer.Config{Start: record.Start{Where: record.Earliest},
		Hooks: tailer.Hooks{OnBatch: func(int, int) { arrived.Store(int64(time.Since(begun))) }}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Open(b.Context()); err != nil {
		b.Fatal(err)
	}
	names := []string{"send-to-insert-µs", "insert-to-tail-µs", "tail-to-next-µs", "in-all-µs", "insert-to-reply-µs"}
	samples := make([][]time.Duration, len(names))
	data := bson.RawValue{Type: bson.TypeString, Value: append(binary.LittleEndian.AppendUint32(nil, 101), append([]byte(payloads(1, 100, 1)[0]), 0)...)}
	next := make(chan time.Duration, 1)
	for b.Loop() {
		time.Sleep(stageGap)
		go func() {
			if _, err := s.Next(b.Context()); err == nil {
				next <- time.Since(begun)
			}
		}()
		time.Sleep(stageGap)
		sent := time.Since(begun)
		if _, err := p.SendSync(b.Context(), producer.Message{Data: data}); err != nil {
			b.Fatal(err)
		}
		got := <-next
		at := []time.Duration{sent, time.Duration(insertSent.Load()), time.Duration(arrived.Load()), got}
		for i := range 3 {
			samples[i] = append(samples[i], at[i+1]-at[i])
		}
		samples[3] = append(samples[3], got-sent)
		samples[4] = append(samples[4], time.Duration(acked.Load())-at[1])
	}
	medians(b, names, samples)
}

// BenchmarkStagesOfTheIdealClient is the same with the ideal client: an insert, its reply, and when the
// tail has it; and what a command costs that does nothing.
func BenchmarkStagesOfTheIdealClient(b *testing.B) {
	d := mongotest.Standalone(b)
	db := d.DB(b)
	if _, err := stream.Ensure(b.Context(), db, benchStream, stream.Config{Size: DefaultLatencyStream}); err != nil {
		b.Fatal(err)
	}
	job := Job{URI: d.URI, Database: db.Name(), Stream: benchStream, Latency: &LatencyJob{}}
	r, err := newRawReader(b.Context(), job, &counts{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.close(b.Context())
	conn, err := dialRaw(b.Context(), d.URI)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	wait, err := pace.New()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = wait.Close() }()
	block := newBlock("raw/stages", payloads(1, 100, 1))
	names := []string{"insert-to-tail-µs", "insert-to-reply-µs", "ping-µs"}
	samples := make([][]time.Duration, len(names))
	arrived := make(chan time.Time, 1)
	for b.Loop() {
		go func() {
			if err := r.read(b.Context(), 1, func(arrival) { arrived <- time.Now() }); err != nil {
				close(arrived)
			}
		}()
		if err := wait.Until(b.Context(), time.Now().Add(stageGap)); err != nil {
			b.Fatal(err)
		}
		block.stamp(time.Now())
		sent := time.Now()
		if _, err := conn.Insert(db.Name(), benchStream, block.docs); err != nil {
			b.Fatal(err)
		}
		samples[1] = append(samples[1], time.Since(sent))
		samples[0] = append(samples[0], (<-arrived).Sub(sent))
		if err := wait.Until(b.Context(), time.Now().Add(stageGap)); err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		if _, err := conn.Run("ping", "admin", []byte("\x10ping\x00\x01\x00\x00\x00"), nil); err != nil {
			b.Fatal(err)
		}
		samples[2] = append(samples[2], time.Since(begin))
	}
	medians(b, names, samples)
}
