package verify_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/scope"
	"github.com/seed-12ef14e5/capstan/verify"
)

// benchDocuments is how many documents of 200 bytes the benchmarks compare.
const benchDocuments = 300_000

// cpu is the processor time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkVerify compares two servers with equal small documents, with this package and with a plain loop of the driver over
// both in order of _id. It says documents per second and per side, and the client's microseconds of processor per document.
func BenchmarkVerify(b *testing.B) {
	s := sides{from: mongotest.Own(b, localcluster.Config{Members: 1}), to: mongotest.Own(b, localcluster.Config{Members: 1})}
	s.source, s.target = s.from.DB(b), s.to.DB(b)
	docs := make([]any, benchDocuments)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "n", Value: i}, {Key: "text", Value: fmt.Sprintf("%0150d", i)}}
	}
	insert(b, "a", docs, s.source, s.target)
	measure := func(name string, run func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			before, begin := cpu(b), time.Now()
			for range b.N {
				run(b)
			}
			n := float64(b.N * benchDocuments)
			b.ReportMetric(n/time.Since(begin).Seconds(), "docs/s/side")
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/n, "cpu-µs/doc")
			b.ReportMetric(0, "ns/op")
		})
	}
	cfg := verify.Config{Quiet: true, Scope: scope.Config{
		Include: []string{s.source.Name() + ".*"},
		Rename:  []scope.Rename{{From: s.source.Name() + ".*", To: s.target.Name() + ".*"}},
	}}
	measure("verify", func(b *testing.B) {
		if rep := s.run(b, cfg); !rep.Equal || rep.Documents != benchDocuments {
			b.Fatalf("got %+v", rep)
		}
	})
	measure("plain loop", func(b *testing.B) { plainLoop(b, s.source.Collection("a"), s.target.Collection("a")) })
}

// plainLoop is the obvious way: two cursors in order of _id, read at the same time, and a comparison of their documents.
func plainLoop(b *testing.B, source, target *mongo.Collection) {
	g, ctx := errgroup.WithContext(b.Context())
	queues := [2]chan bson.Raw{make(chan bson.Raw, 1000), make(chan bson.Raw, 1000)}
	for i, c := range []*mongo.Collection{source, target} {
		g.Go(func() error {
			defer close(queues[i])
			cur, err := c.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
			if err != nil {
				return err
			}
			for cur.Next(ctx) {
				queues[i] <- bytes.Clone(cur.Current)
			}
			return cur.Err()
		})
	}
	n := 0
	for doc := range queues[0] {
		if !bytes.Equal(doc, <-queues[1]) {
			b.Error("a document differs")
		}
		n++
	}
	if err := g.Wait(); err != nil || n != benchDocuments {
		b.Fatal(n, err)
	}
}
