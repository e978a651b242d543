package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/record"
)

func TestZeroConfigIsValid(t *testing.T) {
	t.Parallel()
	h := &handled{}
	c := newConsumer(t, fill(10, 1), h, checkpoint.NewMemory(), consumer.Config{})
	if err := c.Run(t.Context()); err != nil { // the zero Start is Latest: nothing to do
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); !errors.Is(err, consumer.ErrUsed) {
		t.Errorf("second Run: error %v, want %v", err, consumer.ErrUsed)
	}
}

func TestNewNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	h, store, open := &handled{}, checkpoint.NewMemory(), newLog().open
	for want, cfg := range map[string]consumer.Config{
		"Workers":           {Workers: -1},
		"MaxInFlight ":      {MaxInFlight: -1},
		"MaxInFlightBytes":  {MaxInFlightBytes: -1},
		"MaxMarks":          {MaxMarks: -1},
		"HangGrace":         {HangGrace: -1},
		"RetryMax":          {RetryInitial: time.Second, RetryMax: time.Millisecond},
		"CheckpointEvery":   {CheckpointEvery: -1},
		"CheckpointRecords": {CheckpointRecords: -1},
	} {
		if _, err := consumer.New("a", open, h, store, cfg); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%+v: error %v, want one that names %s", cfg, err, want)
		}
	}
	for want, f := range map[string]func() (*consumer.Consumer, error){
		"name":    func() (*consumer.Consumer, error) { return consumer.New("", open, h, store, consumer.Config{}) },
		"open":    func() (*consumer.Consumer, error) { return consumer.New("a", nil, h, store, consumer.Config{}) },
		"handler": func() (*consumer.Consumer, error) { return consumer.New("a", open, nil, store, consumer.Config{}) },
		"store":   func() (*consumer.Consumer, error) { return consumer.New("a", open, h, nil, consumer.Config{}) },
	} {
		if _, err := f(); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v, want one that names the %s", err, want)
		}
	}
}

func TestEveryRecordIsHandledOnceAndInOrderPerKey(t *testing.T) {
	t.Parallel()
	const count, srcs = 5000, 7
	for _, workers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			h := &handled{do: func(ctx context.Context, r record.Record, _ int) error {
				return wait(ctx, time.Duration(rand.IntN(1000))*time.Microsecond)
			}}
			store := checkpoint.NewMemory()
			cfg := consumer.Config{Workers: workers, MaxInFlight: 64, Start: earliest, Stream: "db.orders"}
			if err := newConsumer(t, fill(count, srcs), h, store, cfg).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := map[string]int64{}
			for _, r := range h.order {
				if next[r.Src]++; r.Seq != next[r.Src] {
					t.Fatalf("src %s: seq %d handled as number %d", r.Src, r.Seq, next[r.Src])
				}
			}
			cp := stored(t, store)
			if len(h.order) != count || cp.Position != positionOf(count) || cp.Fingerprint != "f00d" || cp.Stream != "db.orders" {
				t.Errorf("%d handled, checkpoint %+v, want %d", len(h.order), cp, count)
			}
			for src, seq := range next {
				if cp.Marks[src] != seq {
					t.Errorf("mark of %s is %d, want %d", src, cp.Marks[src], seq)
				}
			}
		})
	}
}

func TestKeysOfOneSrcAreHandledSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &handled{do: func(ctx context.Context, r record.Record, _ int) error { return wait(ctx, time.Second) }}
		cfg := consumer.Config{Workers: 50, Start: earliest, Key: func(r record.Record) string { return fmt.Sprint(r.Seq % 1000) }}
		begun := time.Now()
		if err := newConsumer(t, fill(100, 1), h, checkpoint.NewMemory(), cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("took %s of one second each, 100 records by 50 workers", took)
		}
	})
}

func TestASlowKeyHoldsTheCheckpointAndBoundsReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window = 32
		release := make(chan struct{})
		h := &handled{do: func(ctx context.Context, r record.Record, _ int) error {
			if r.Position == positionOf(5) {
				<-release
			}
			return nil
		}}
		store := checkpoint.NewMemory()
		cfg := consumer.Config{Workers: 4, MaxInFlight: window, Start: earliest, HandlerTimeout: -1,
			Key: func(r record.Record) string { return fmt.Sprint(r.Seq) }}
		c := newConsumer(t, fill(1000, 1), h, store, cfg)
		done := start(t.Context(), c)
		time.Sleep(time.Minute)
		if got := stored(t, store).Position; got != positionOf(4) { // I2
			t.Errorf("checkpoint at %s while record 5 is being handled, want %s", got, positionOf(4))
		}
		if st := c.Status(); st.Read != 4+window || st.Seen != positionOf(4+window) || st.Safe != positionOf(4) {
			t.Errorf("status %+v, want reading to stop %d records behind the safe position", st, window)
		}
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := stored(t, store).Position; got != positionOf(1000) || h.count() != 1000 {
			t.Errorf("checkpoint at %s, %d handled", got, h.count())
		}
	})
}

func TestInFlightBytesAreBoundedAndOneDocumentAlwaysPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		for n := 1; n <= 20; n++ {
			r := message(n, "p/1", int64(n))
			r.Raw = make([]byte, 1000)
			if n == 10 {
				r.Raw = make([]byte, 50_000)
			}
			l.append(r)
		}
		l.ended = true
		h := &handled{do: func(ctx context.Context, r record.Record, _ int) error { return wait(ctx, time.Second) }}
		c := newConsumer(t, l, h, checkpoint.NewMemory(), consumer.Config{MaxInFlightBytes: 3000, Start: earliest})
		done := start(t.Context(), c)
		time.Sleep(100 * time.Millisecond)
		if st := c.Status(); st.InFlight != 3 {
			t.Errorf("%d records of 1000 bytes in flight, the limit is 3000 bytes", st.InFlight)
		}
		if err := <-done; err != nil || h.count() != 20 {
			t.Errorf("%d handled, error %v", h.count(), err)
		}
	})
}

func TestAGapIsPassedOnlyAfterOnGapAcceptedIt(t *testing.T) {
	t.Parallel()
	gapAt := func(n int) record.Record {
		return record.Record{Kind: record.KindGap, Position: positionOf(n), Fingerprint: "f00d", Gap: &record.Gap{
			Cause: record.CauseRollover, Lost: []record.Loss{{Src: "p/1", From: 3, To: 8, Exact: true}}}}
	}
	l := newLog()
	l.append(message(1, "p/1", 1), message(2, "p/1", 2), gapAt(8), message(9, "p/1", 9))
	l.ended = true
	store := checkpoint.NewMemory()

	refused := errors.New("the pager is down")
	cfg := consumer.Config{Start: earliest, OnGap: func(record.Record) error { return refused }}
	h := &handled{}
	err := newConsumer(t, l, h, store, cfg).Run(t.Context())
	if e := wantError[*consumer.OnGapError](t, err); !errors.Is(err, refused) || e.Record.Gap.Exact() != 6 {
		t.Errorf("error %v", err)
	}
	if cp := stored(t, store); cp.Position != positionOf(2) || cp.Marks["p/1"] != 2 || h.count() != 2 { // I5
		t.Errorf("checkpoint %s, marks %v, %d handled, want it in front of the gap", cp.Position, cp.Marks, h.count())
	}

	var seen []record.Record
	cfg.OnGap = func(r record.Record) error { seen = append(seen, r); return nil }
	if err := newConsumer(t, l, h, store, cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if cp := stored(t, store); len(seen) != 1 || cp.Position != positionOf(9) || cp.Marks["p/1"] != 9 || h.count() != 3 {
		t.Errorf("%d gaps, checkpoint %s, marks %v, %d handled", len(seen), cp.Position, cp.Marks, h.count())
	}

	cfg.OnGap = func(record.Record) error { panic("out of order") }
	panicked := wantError[*consumer.PanicError](t, newConsumer(t, l, h, checkpoint.NewMemory(), cfg).Run(t.Context()))
	if !strings.Contains(string(panicked.Stack), "OnGap") && len(panicked.Stack) == 0 {
		t.Error("no stack")
	}
}

func TestProgressMovesTheCheckpointWhereNothingMatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		store := checkpoint.NewMemory()
		ctx, stop := context.WithCancel(t.Context())
		done := start(ctx, newConsumer(t, l, &handled{}, store, consumer.Config{}))
		synctest.Wait() // it reads from the latest on
		for n := 1; n <= 10; n++ {
			l.append(record.Record{Kind: record.KindProgress, Position: positionOf(100 * n), Progress: map[string]int64{"p/1": int64(100 * n)}})
			time.Sleep(2 * time.Second)
			if cp := stored(t, store); cp.Position != positionOf(100*n) || cp.Marks["p/1"] != int64(100*n) {
				t.Errorf("checkpoint %s, marks %v after progress to %s", cp.Position, cp.Marks, positionOf(100*n))
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestASourceFailureEndsRunAfterEverythingReadIsHandled(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"poison":      errors.New("malformed document"),
		"wrapped EOF": fmt.Errorf("read reply: %w", io.EOF), // a broken connection, not an end
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := fill(100, 3)
				l.failure = failure
				h := &handled{do: func(ctx context.Context, _ record.Record, _ int) error { return wait(ctx, 5*time.Second) }}
				store := checkpoint.NewMemory()
				err := newConsumer(t, l, h, store, consumer.Config{Start: earliest}).Run(t.Context())
				if !errors.Is(err, failure) {
					t.Errorf("error %v, want %v", err, failure)
				}
				if h.count() != 100 || stored(t, store).Position != positionOf(100) {
					t.Errorf("%d handled, checkpoint %s", h.count(), stored(t, store).Position)
				}
			})
		})
	}
	l := newLog()
	l.append(message(1, "p/1", 1), record.Record{Kind: 99, Position: positionOf(2)}, message(3, "p/1", 3))
	h := &handled{}
	if err := newConsumer(t, l, h, checkpoint.NewMemory(), consumer.Config{Start: earliest}).Run(t.Context()); err == nil || h.count() != 1 {
		t.Errorf("a record of an unknown kind: error %v, %d handled; want an error, never a skip", err, h.count())
	}
}

// slowClose is a source that takes its time to close.
type slowClose struct{ consumer.Source }

func (s slowClose) Close() error {
	time.Sleep(100 * time.Millisecond)
	return s.Source.Close()
}

// The workers end as soon as the reader failed; what the reader failed of comes later, and counts (I5).
func TestASourceFailureCountsAlsoWhenTheWorkersEndBeforeTheReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fill(3, 1)
		l.failure = errors.New("malformed document")
		open := func(ctx context.Context, s record.Start) (consumer.Source, error) {
			src, err := l.open(ctx, s)
			return slowClose{src}, err
		}
		h := &handled{}
		c, err := consumer.New("orders", open, h, checkpoint.NewMemory(), consumer.Config{Start: earliest})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Run(t.Context()); !errors.Is(err, l.failure) || h.count() != 3 {
			t.Errorf("error %v, want %v; %d handled", err, l.failure, h.count())
		}
	})
}

func TestHooksTellLagHandlingAndCheckpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var behind, records, checkpoints int
		var took time.Duration
		cfg := consumer.Config{Start: earliest, Hooks: consumer.Hooks{
			OnLag: func(s consumer.Status) {
				mu.Lock()
				defer mu.Unlock()
				behind = max(behind, int(s.SeenTime-s.SafeTime))
			},
			OnHandled: func(_ record.Record, _ int, d time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				records, took = records+1, d
			},
			OnCheckpoint: func(record.Checkpoint, error) {
				mu.Lock()
				defer mu.Unlock()
				checkpoints++
			},
		}}
		h := &handled{do: func(ctx context.Context, _ record.Record, _ int) error { return wait(ctx, time.Second) }}
		if err := newConsumer(t, fill(20, 1), h, checkpoint.NewMemory(), cfg).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if records != 20 || took != time.Second || behind < 10 || checkpoints < 10 {
			t.Errorf("%d records, the last took %s, up to %d behind, %d checkpoints", records, took, behind, checkpoints)
		}
	})
}
