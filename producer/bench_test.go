package producer

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// sink is a Writer that takes everything at once: what remains is the producer's own cost.
type sink struct{}

func (sink) WriteBatch(_ context.Context, docs []bson.Raw) (int, error) { return len(docs), nil }

// BenchmarkSend is the producer's cost per message: encoding, buffer, batch, number and callback.
func BenchmarkSend(b *testing.B) {
	for name, size := range map[string]int{"100B": 100, "1KB": 1000} {
		b.Run(name, func(b *testing.B) {
			p, err := New(sink{}, Config{})
			if err != nil {
				b.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- p.Run(context.Background()) }()
			failed := 0
			done := func(r Result) {
				if r.Err != nil {
					failed++
				}
			}
			m := Message{Subject: "bench.lines", Data: value(b, strings.Repeat("x", size))}
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Send(b.Context(), m, done); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.Flush(b.Context()); err != nil || failed > 0 {
				b.Fatal(failed, err)
			}
			b.StopTimer()
			if err := p.Close(); err != nil {
				b.Fatal(err)
			}
			<-ended
		})
	}
}

// BenchmarkEncode is the part of it that is the layout alone.
func BenchmarkEncode(b *testing.B) {
	l := newLayout("bench/0123456789abc", DefaultMaxMessageBytes)
	m := Message{Subject: "bench.lines", Data: value(b, strings.Repeat("x", 100))}
	buf := make([]byte, 1000)
	b.ReportAllocs()
	for b.Loop() {
		d := draft{Message: m}
		if err := l.prepare(&d); err != nil {
			b.Fatal(err)
		}
		l.encode(buf[:d.size], &d)
	}
}
