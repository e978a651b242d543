package consumer_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

// endless yields n records and allocates nothing.
type endless struct {
	n    int
	recs []record.Record
}

func (e *endless) Next(context.Context) (record.Record, error) {
	if e.n == 0 {
		return record.Record{}, io.EOF
	}
	e.n--
	r := e.recs[e.n%len(e.recs)]
	r.Seq = int64(1<<40 - e.n)
	return r, nil
}

func (e *endless) Close() error { return nil }

func BenchmarkConsumer(b *testing.B) {
	for _, workers := range []int{1, 2, 8} {
		for _, timeout := range []string{"timeout", "none"} {
			b.Run(fmt.Sprintf("workers=%d/%s", workers, timeout), func(b *testing.B) {
				src := &endless{n: b.N}
				for i := range 64 {
					src.recs = append(src.recs, message(i+1, fmt.Sprintf("p%d/run", i%workers), 1))
				}
				cfg := consumer.Config{Workers: workers}
				if timeout == "none" {
					cfg.HandlerTimeout = -1
				}
				c, err := consumer.New("bench",
					func(context.Context, record.Start) (consumer.Source, error) { return src, nil },
					consumer.HandlerFunc(func(context.Context, record.Record) error { return nil }),
					checkpoint.NewMemory(), cfg)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.ResetTimer()
				if err := c.Run(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
				runtime.KeepAlive(src)
			})
		}
	}
}
