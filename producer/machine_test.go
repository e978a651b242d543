package producer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

// machine drives a producer and a Writer with faults at random and keeps what was promised.
type machine struct {
	p       *Producer
	w       *memory
	sent    []record.ID
	results []Result

	mu sync.Mutex
	// fault is what the Writer answers next: how many to store, and which error; nil: all.
	fault func(docs []bson.Raw) (int, error)
	// failed is the answer that ends the producer.
	failed error
}

func (m *machine) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}

func (m *machine) answer(ctx context.Context, docs []bson.Raw) (int, error) {
	select { // an insert takes time, so that batches form
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.fault; f != nil {
		m.fault = nil
		return f(docs)
	}
	return len(docs), nil
}

// check compares what is stored and what was reported with what was sent. Everything has its result.
func (m *machine) check(t *rapid.T) {
	stored := m.w.all()
	if len(m.results) != len(m.sent) {
		t.Fatalf("%d accepted, %d results", len(m.sent), len(m.results))
	}
	next := 0 // in stored
	for i, r := range m.results {
		if r.ID != m.sent[i] { // I4: results come in the order of acceptance
			t.Fatalf("result %d is of %s, want %s", i, r.ID, m.sent[i])
		}
		here := next < len(stored) && stored[next].Position.ID == r.ID
		var unknown *record.UnknownOutcomeError
		var notSent *NotSentError
		switch {
		case r.Err == nil && !r.Existed:
			if !here || stored[next].Seq != r.Seq || stored[next].Src != r.Src {
				t.Fatalf("acknowledged %+v is not stored in its place", r)
			}
		case errors.As(r.Err, &notSent):
			if here {
				t.Fatalf("%+v was stored", r)
			}
		case errors.As(r.Err, &unknown):
			if here && stored[next].Seq != r.Seq {
				t.Fatalf("unknown %+v was stored as %d", r, stored[next].Seq)
			}
		default: // rejected, or it existed
			if here || r.Seq != 0 {
				t.Fatalf("rejected %+v: stored %v", r, here)
			}
		}
		if here {
			next++
		}
	}
	if next != len(stored) {
		t.Fatalf("stored order is not send order: %d of %d matched", next, len(stored))
	}
	for i, r := range stored { // no holes, false or true: the writer's refusals are not to be seen
		if r.Seq != int64(i+1) {
			t.Fatalf("stored message %d has seq %d", i, r.Seq)
		}
	}
}

func (m *machine) faults(t *rapid.T) func([]bson.Raw) (int, error) {
	kind := rapid.SampledFrom([]string{"reject", "exists", "unknown", "fatal"}).Draw(t, "fault")
	at := rapid.IntRange(0, 50).Draw(t, "at")
	also := rapid.IntRange(0, 50).Draw(t, "also")
	return func(docs []bson.Raw) (int, error) {
		i := at % len(docs)
		switch kind {
		case "reject":
			return i, &record.RejectedError{Index: i, ID: idAtIndex(docs, i), Err: errServer}
		case "exists":
			return i, &record.RejectedError{Index: i, ID: idAtIndex(docs, i), Err: record.ErrExists}
		case "unknown": // some of those in doubt are stored
			j := i + also%(len(docs)-i)
			m.failed = &record.UnknownOutcomeError{IDs: allIDs(docs)[i:], Attempts: 3, Err: errServer}
			return j, m.failed
		default:
			m.failed = errServer
			return i, errServer
		}
	}
}

// TestEveryMessageIsNumberedWithoutHolesAndHasOneResult drives random histories: sends, refusals,
// failures and stops, and checks numbers, order and results at the end.
func TestEveryMessageIsNumberedWithoutHolesAndHasOneResult(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := Config{
			MaxBatch:       rapid.IntRange(1, 40).Draw(rt, "MaxBatch"),
			MaxBuffered:    rapid.IntRange(1, 60).Draw(rt, "MaxBuffered"),
			MaxBatchBytes:  rapid.IntRange(1, 4000).Draw(rt, "MaxBatchBytes"),
			AcceptExisting: rapid.Bool().Draw(rt, "AcceptExisting"),
		}
		steps := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(*testing.T) {
			m := &machine{}
			m.w = &memory{before: m.answer}
			m.p, _ = New(m.w, cfg)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- m.p.Run(ctx) }()
			for _, step := range steps {
				m.step(rt, step)
			}
			if err := m.p.Flush(ctx); m.failure() == nil && err != nil {
				rt.Fatal(err)
			}
			cancel()
			err := <-ended
			if (err != nil) != (m.failed != nil) || !errors.Is(err, m.failed) {
				rt.Fatalf("Run returned %v, want %v", err, m.failed)
			}
			m.check(rt)
			if n, b := m.p.Buffered(); n != 0 || b != 0 {
				rt.Fatalf("%d messages of %d bytes are still buffered", n, b)
			}
		})
	})
}

func (m *machine) step(t *rapid.T, step int) {
	send := func(wait bool, size int) {
		msg := Message{ID: record.NewID(), Data: bson.RawValue{Type: bson.TypeBinary, Value: append([]byte{byte(size), byte(size >> 8), 0, 0, 0}, make([]byte, size)...)}}
		done := func(r Result) { m.results = append(m.results, r) }
		// The order of acceptance is known because only this goroutine sends.
		m.sent = append(m.sent, msg.ID)
		err := m.p.TrySend(msg, done)
		if errors.Is(err, ErrFull) && wait {
			err = m.p.Send(context.Background(), msg, done)
		}
		if err == nil {
			return
		}
		m.sent = m.sent[:len(m.sent)-1]
		var notSent *NotSentError
		if !errors.Is(err, ErrFull) && !errors.As(err, &notSent) {
			t.Fatalf("Send: %v", err)
		}
	}
	switch {
	case step < 3:
		for range rapid.IntRange(1, 50).Draw(t, "burst") {
			send(true, rapid.IntRange(0, 300).Draw(t, "size"))
		}
	case step < 5:
		send(false, 10)
	case step == 5:
		send(true, 5000) // larger than a batch
	case step == 6:
		synctest.Wait() // an insert is in flight
	case step == 7:
		time.Sleep(25 * time.Millisecond)
	case step == 8 && m.failure() == nil:
		fault := m.faults(t)
		m.mu.Lock()
		m.fault = fault
		m.mu.Unlock()
	case step == 9:
		_ = m.p.Flush(context.Background()) // the failure, if there is one, is judged at the end
	}
}
