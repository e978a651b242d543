package tailer

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const benchBytes = 100_000_000

// full is a stream that has rolled over once, of about 100 MB; the benchmarks of one run share it.
var full struct {
	once sync.Once
	ok   bool
	mid  record.Record // in the middle of it
}

func fullStream(b *testing.B, d *mongotest.Deployment) *mongo.Collection {
	coll := d.DB(b).Client().Database("tailer_bench").Collection("s")
	full.once.Do(func() {
		makeStream(b, coll, benchBytes, 0)
		w := &writer{coll: coll, src: "a/1", pad: 100}
		for range 600 {
			w.send(b, 1000)
		}
		n, err := coll.EstimatedDocumentCount(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		raw, err := coll.FindOne(b.Context(), bson.D{{Key: "seq", Value: w.seq - n/2}}).Raw()
		if err != nil {
			b.Fatal(err)
		}
		full.mid, err = record.Decode(raw, make(record.Interner))
		if err != nil {
			b.Fatal(err)
		}
		full.ok = true
	})
	if !full.ok {
		b.Fatal("the stream could not be filled")
	}
	return coll
}

// BenchmarkRawFind is the floor of BenchmarkCatchUp: the driver's find, nothing done with the documents.
func BenchmarkRawFind(b *testing.B) {
	d := mongotest.Standalone(b)
	coll := fullStream(b, d)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		n := rawFind(b, coll, bson.D{}, 0)
		b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	}
}

func rawFind(b testing.TB, coll *mongo.Collection, filter bson.D, limit int) int {
	cur, err := coll.Find(b.Context(), filter, options.Find().SetHint(bson.D{{Key: "$natural", Value: 1}}))
	if err != nil {
		b.Fatal(err)
	}
	defer cur.Close(b.Context())
	n := 0
	for cur.Next(b.Context()) {
		if n++; n == limit {
			break
		}
	}
	return n
}

// BenchmarkCatchUp reads a full 100 MB stream from its oldest message: at least 0.4 of BenchmarkRawFind, and
// one allocation per message.
func BenchmarkCatchUp(b *testing.B) {
	d := mongotest.Standalone(b)
	coll := fullStream(b, d)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		n := catchUp(b, d, coll, Config{Start: record.Start{Where: record.Earliest}, UntilEnd: true})
		b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	}
}

func catchUp(b testing.TB, d *mongotest.Deployment, coll *mongo.Collection, cfg Config) int {
	s, err := New(d.Options(), coll.Database().Name(), coll.Name(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	n := 0
	for _, err := range s.All(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
	return n
}

// BenchmarkRawFilteredFind is the floor of BenchmarkResume: the first message of a find behind the middle.
func BenchmarkRawFilteredFind(b *testing.B) {
	d := mongotest.Standalone(b)
	coll := fullStream(b, d)
	b.ResetTimer()
	for range b.N {
		if rawFind(b, coll, bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: bson.Timestamp(full.mid.Position.TS)}}}}, 1) != 1 {
			b.Fatal("nothing")
		}
	}
}

// BenchmarkResume takes the first message behind the middle of a full 100 MB stream, the connection
// included: within 1.5 of BenchmarkRawFilteredFind.
func BenchmarkResume(b *testing.B) {
	d := mongotest.Standalone(b)
	coll := fullStream(b, d)
	for _, marks := range []map[string]int64{{full.mid.Src: full.mid.Seq}, nil} {
		b.Run(fmt.Sprintf("marks=%d", len(marks)), func(b *testing.B) {
			for range b.N {
				s, err := New(d.Options(), coll.Database().Name(), coll.Name(), Config{Start: record.Start{Where: record.After, Position: full.mid.Position, Marks: marks}})
				if err != nil {
					b.Fatal(err)
				}
				r, err := s.Next(b.Context())
				if err != nil || r.Seq != full.mid.Seq+1 {
					b.Fatalf("got %v %d, want %d", err, r.Seq, full.mid.Seq+1)
				}
				b.StopTimer()
				_ = s.Close()
				b.StartTimer()
			}
		})
	}
}

// The ratios of the two pairs, with room for a loaded machine: the best of several runs each.
func TestCatchUpAndResumeAreNearTheRawFind(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a stream")
	}
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 20<<20, 0)
	w := &writer{coll: coll, src: "a/1", pad: 100}
	for range 120 {
		w.send(t, 1000)
	}
	best := func(f func()) time.Duration {
		least := time.Hour
		for range 5 {
			start := time.Now()
			f()
			least = min(least, time.Since(start))
		}
		return least
	}
	var n int
	raw := best(func() { rawFind(t, coll, bson.D{}, 0) })
	tail := best(func() { n = catchUp(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, UntilEnd: true}) })
	t.Logf("%d messages: raw find %s, tail %s: %.2f", n, raw, tail, raw.Seconds()/tail.Seconds())
	if raw.Seconds()/tail.Seconds() < 0.1 { // the benchmarks hold the figure; this finds a disaster on a loaded machine
		t.Errorf("catch-up is slow: %s against %s", tail, raw)
	}

	doc, err := coll.FindOne(t.Context(), bson.D{{Key: "seq", Value: w.seq - 20_000}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	mid, err := record.Decode(doc, make(record.Interner))
	if err != nil {
		t.Fatal(err)
	}
	raw = best(func() {
		rawFind(t, coll, bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: bson.Timestamp(mid.Position.TS)}}}}, 1)
	})
	p := &plan{anchor: mid.Position.ID, src: mid.Src, seq: mid.Seq, bound: before(mid.Position.TS, 30)}
	same := best(func() { rawFind(t, coll, p.filter(newMarks(1, map[string]int64{mid.Src: mid.Seq})), 2) })
	resume := best(func() {
		s := unopened(t, d, coll, Config{Start: record.Start{Where: record.After, Position: mid.Position, Marks: map[string]int64{mid.Src: mid.Seq}}})
		if r, err := s.Next(t.Context()); err != nil || r.Seq != mid.Seq+1 {
			t.Fatalf("got %v %d", err, r.Seq)
		}
		_ = s.Close()
	})
	t.Logf("first message behind the middle: raw find by ts %s, raw find with the resume's filter %s, resume with a new client %s", raw, same, resume)
}
