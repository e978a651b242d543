package memory

import (
	"context"
	"testing"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer/sourcetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is a stream whose readers may be broken on purpose.
type harness struct {
	*Stream
	broken func(*Reader) sourcetest.Source
}

func (h harness) Open(_ sourcetest.T, o sourcetest.Options) sourcetest.Source {
	r := h.Stream.Open(Config{Start: o.Start, UntilEnd: o.UntilEnd})
	if h.broken != nil {
		return h.broken(r)
	}
	return r
}

func (h harness) Send(t sourcetest.T, src, subject string, n int) {
	for range n {
		if _, err := h.Stream.Send(src, subject, "x"); err != nil {
			t.Errorf("send: %v", err)
		}
	}
}

func (h harness) Overrun(t sourcetest.T, src string) int {
	h.Send(t, src, "", h.capacity)
	return h.capacity
}

var features = sourcetest.Features{Overwrites: true}

func TestTheStreamInMemoryConforms(t *testing.T) {
	sourcetest.Run(t, features, func(testing.TB) sourcetest.Harness { return harness{Stream: New(1000)} })
}

// broken is a source with one defect.
type broken struct {
	*Reader
	n    int
	next func(b *broken, r record.Record, err error) (record.Record, error)
}

func (b *broken) Next(ctx context.Context) (record.Record, error) {
	r, err := b.Reader.Next(ctx)
	b.n++
	return b.next(b, r, err)
}

func TestABrokenSourceFailsTheSuite(t *testing.T) {
	var last record.Record
	for name, next := range map[string]func(b *broken, r record.Record, err error) (record.Record, error){
		"repeats": func(b *broken, r record.Record, err error) (record.Record, error) {
			if b.n == 4 {
				return last, err
			}
			last = r
			return r, err
		},
		"loses": func(b *broken, r record.Record, err error) (record.Record, error) {
			if b.n == 3 && err == nil {
				return b.Reader.Next(context.Background())
			}
			return r, err
		},
		"hides gaps": func(b *broken, r record.Record, err error) (record.Record, error) {
			if r.Kind == record.KindGap {
				return b.Reader.Next(context.Background())
			}
			return r, err
		},
		"swallows the cancel": func(b *broken, r record.Record, err error) (record.Record, error) {
			if err != nil && b.n > 1 {
				return last, nil
			}
			last = r
			return r, err
		},
		"shares memory": func(b *broken, r record.Record, err error) (record.Record, error) {
			if len(last.Raw) > 30 {
				last.Raw[len(last.Raw)-3] ^= 1
			}
			last = r
			return r, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			last = record.Record{}
			failed := sourcetest.Failures(t, features, func(testing.TB) sourcetest.Harness {
				return harness{Stream: New(1000), broken: func(r *Reader) sourcetest.Source { return &broken{Reader: r, next: next} }}
			})
			if len(failed) == 0 {
				t.Fatal("the suite found nothing")
			}
			t.Log(failed)
		})
	}
	if failed := sourcetest.Failures(t, features, func(testing.TB) sourcetest.Harness { return harness{Stream: New(1000)} }); len(failed) != 0 {
		t.Fatalf("the source that is right fails %v", failed)
	}
}
