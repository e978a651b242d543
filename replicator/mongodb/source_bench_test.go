package mongodb_test

import (
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// BenchmarkRead compares what a document costs this process when it is read by windows, and by the driver's Find with a copy of
// each document: wall clock and CPU.
func BenchmarkRead(b *testing.B) {
	const n = 200_000
	d := mongotest.ReplicaSet(b)
	coll := d.DB(b).Collection("c")
	fill(b, coll, n, 150)
	s := newSource(b, d.Options(), mongodb.SourceConfig{})
	c := describe(b, s, coll)
	at := now(b, s)
	for _, mode := range []struct {
		name   string
		filter bson.Raw
	}{{"window", nil}, {"window-filtered-all", raw(b, bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: 0}}}})}, {"window-filtered-none", raw(b, bson.D{{Key: "k", Value: -1}})}} {
		b.Run(mode.name, func(b *testing.B) {
			measure(b, n, func() {
				docs := 0
				for r := (replicator.Range{}); !r.Done; {
					w, err := s.Window(b.Context(), c, r, 2000, mode.filter, at)
					must(b, err)
					r.At, r.Done = w.At, w.Done
					docs += int(w.Scanned)
				}
				if docs != n {
					b.Fatalf("%d documents", docs)
				}
			})
		})
	}
	b.Run("find", func(b *testing.B) {
		measure(b, n, func() {
			cur, err := coll.Find(b.Context(), bson.D{}, options.Find().SetBatchSize(2000))
			must(b, err)
			docs := make([]bson.Raw, 0, 2000)
			for cur.Next(b.Context()) {
				if len(docs) == cap(docs) {
					docs = docs[:0]
				}
				docs = append(docs, append(bson.Raw(nil), cur.Current...))
			}
			must(b, cur.Err())
		})
	})
}

// measure reports what one of the n documents that run reads costs.
func measure(b *testing.B, n int, run func()) {
	b.Helper()
	start, cpu := time.Now(), cpuTime(b)
	loops := 0
	for b.Loop() {
		run()
		loops++
	}
	per := float64(n * loops)
	b.ReportMetric(float64(time.Since(start).Nanoseconds())/per, "ns/doc")
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/per, "cpu-ns/doc")
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
