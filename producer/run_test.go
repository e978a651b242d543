package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// slow makes every insert of m take d, and end early with an error when its context does.
func slow(d time.Duration) func(context.Context, []bson.Raw) (int, error) {
	return func(ctx context.Context, docs []bson.Raw) (int, error) {
		select {
		case <-time.After(d):
			return len(docs), nil
		case <-ctx.Done():
			return 0, &record.UnknownOutcomeError{IDs: allIDs(docs), Attempts: 1, Err: ctx.Err()}
		}
	}
}

func allIDs(docs []bson.Raw) []record.ID {
	var ids []record.ID
	for i := range docs {
		ids = append(ids, idAtIndex(docs, i))
	}
	return ids
}

// running is a producer whose Run goes on in the background.
type running struct {
	*Producer
	cancel context.CancelFunc
	ended  chan error
}

func run(t *testing.T, w Writer, cfg Config) running {
	t.Helper()
	p, err := New(w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := running{Producer: p, cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- p.Run(ctx) }()
	synctest.Wait() // else Close could come before Run
	return r
}

// stop cancels Run and returns what it returned.
func (r running) stop() error {
	r.cancel()
	return <-r.ended
}

func mustSend(t *testing.T, p *Producer, n int, done func(Result)) {
	t.Helper()
	for range n {
		if err := p.Send(t.Context(), Message{}, done); err != nil {
			t.Fatal(err)
		}
	}
}

// I7: a producer that is told to stop sends what it accepted.
func TestCancellingRunSendsWhatWasAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &memory{before: slow(time.Second)}
		p := run(t, w, Config{})
		results := 0
		mustSend(t, p.Producer, 2500, func(r Result) {
			if results++; r.Err != nil || r.Seq != int64(results) {
				t.Errorf("result %d: %+v", results, r)
			}
		})
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		if results != 2500 || len(w.all()) != 2500 {
			t.Errorf("%d results, %d stored", results, len(w.all()))
		}
		if err := p.Send(t.Context(), Message{}, nil); !errors.Is(err, record.ErrClosed) {
			t.Errorf("Send after the end: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Run(t.Context()); !errors.Is(err, record.ErrClosed) {
			t.Errorf("Run after Close: %v", err)
		}
	})
}

// I8: every goroutine ends within the drain time.
func TestADrainThatTakesTooLongIsCutAndEveryMessageHasAResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &memory{before: slow(time.Hour)}
		p := run(t, w, Config{DrainTimeout: 3 * time.Second, MaxBatch: 10})
		var unknown, notSent int
		mustSend(t, p.Producer, 100, func(r Result) {
			var u *record.UnknownOutcomeError
			var n *NotSentError
			switch {
			case errors.As(r.Err, &n):
				notSent++
			case errors.As(r.Err, &u) && r.Seq > 0:
				unknown++
			default:
				t.Errorf("result %+v", r)
			}
		})
		synctest.Wait()
		start := time.Now()
		err := p.stop()
		if !errors.Is(err, ErrDrainTimeout) || time.Since(start) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		// The first batch has what was there when Run first looked.
		if unknown < 1 || unknown > 10 || notSent != 100-unknown {
			t.Errorf("%d unknown, %d not sent", unknown, notSent)
		}
	})
}

func TestNothingIsSentAfterTheDrainTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &memory{before: func(_ context.Context, docs []bson.Raw) (int, error) {
			time.Sleep(time.Second) // whatever its context says
			return len(docs), nil
		}}
		p := run(t, w, Config{DrainTimeout: 2500 * time.Millisecond, MaxBatch: 10})
		mustSend(t, p.Producer, 1, nil)
		synctest.Wait()
		notSent := 0
		mustSend(t, p.Producer, 100, func(r Result) {
			var n *NotSentError
			if errors.As(r.Err, &n) && errors.Is(r.Err, ErrDrainTimeout) {
				notSent++
			}
		})
		if err := p.stop(); !errors.Is(err, ErrDrainTimeout) {
			t.Error(err)
		}
		if n := len(w.all()); n != 21 || notSent != 80 { // batches end after 1, 2 and 3 s
			t.Errorf("%d stored, %d not sent", n, notSent)
		}
	})
}

func TestAbortSkipsTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := run(t, &memory{before: slow(time.Hour)}, Config{})
		results := 0
		mustSend(t, p.Producer, 5, func(Result) { results++ })
		synctest.Wait()
		start := time.Now()
		p.cancel()
		synctest.Wait()
		p.Abort()
		p.Abort()
		if err := <-p.ended; !errors.Is(err, ErrAborted) || time.Since(start) != 0 || results != 5 {
			t.Errorf("after %v with %d results: %v", time.Since(start), results, err)
		}
	})
}

func TestCloseWaitsUntilEverythingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &memory{before: slow(time.Second)}
		p := run(t, w, Config{})
		mustSend(t, p.Producer, 100, nil)
		if err := p.Close(); err != nil || len(w.all()) != 100 {
			t.Errorf("%d stored, %v", len(w.all()), err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if err := <-p.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestCloseWithoutRunReportsWhatWasNeverSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(&memory{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		results := 0
		mustSend(t, p, 5000, func(r Result) {
			var n *NotSentError
			if results++; !errors.As(r.Err, &n) || !errors.Is(r.Err, record.ErrClosed) {
				t.Errorf("result %+v", r)
			}
		})
		if err := p.Close(); err != nil || results != 5000 {
			t.Errorf("%d results, %v", results, err)
		}
		if err := p.Run(t.Context()); !errors.Is(err, record.ErrClosed) {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestAProducerRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := run(t, &memory{}, Config{})
		synctest.Wait()
		if err := p.Run(t.Context()); !errors.Is(err, ErrStarted) {
			t.Errorf("second Run: %v", err)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestALoneMessageLeavesAtOnceAndWhatArrivesMeanwhileIsTheNextBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &memory{before: slow(time.Second)}
		p := run(t, w, Config{})
		start := time.Now()
		if r, err := p.SendSync(t.Context(), Message{}); err != nil || r.Seq != 1 || time.Since(start) != time.Second {
			t.Errorf("%+v %v after %v", r, err, time.Since(start))
		}
		mustSend(t, p.Producer, 1, nil)
		synctest.Wait()
		mustSend(t, p.Producer, 700, nil)
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if !slices.Equal(w.batches, []int{1, 1, 700}) {
			t.Errorf("batches %v", w.batches)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestSendBlocksWhenFullAndTrySendFails(t *testing.T) {
	for name, cfg := range map[string]Config{"messages": {MaxBuffered: 10}, "bytes": {MaxBufferedBytes: 1050}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &memory{before: slow(time.Second)}
				cfg.Name = strings.Repeat("n", 15)
				p := run(t, w, cfg)
				accepted := 0
				for p.TrySend(Message{}, nil) == nil {
					accepted++
				}
				if err := p.TrySend(Message{}, nil); !errors.Is(err, ErrFull) || accepted != 10 {
					t.Fatalf("%d accepted, then %v", accepted, err)
				}
				synctest.Wait()
				start := time.Now()
				mustSend(t, p.Producer, 1, nil)
				if time.Since(start) != time.Second {
					t.Errorf("Send blocked for %v", time.Since(start))
				}
				if err := p.stop(); err != nil || len(w.all()) != 11 {
					t.Errorf("%d stored, %v", len(w.all()), err)
				}
			})
		})
	}
}

func TestABlockedSendEndsWithItsContextAndLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &memory{before: slow(time.Minute)}
		p := run(t, w, Config{MaxBuffered: 1})
		mustSend(t, p.Producer, 1, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Send(ctx, Message{}, func(Result) { t.Error("callback of a message that was not accepted") })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := p.SendSync(ctx, Message{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if n, _ := p.Buffered(); n != 1 {
			t.Errorf("%d buffered", n)
		}
		// Others still get the room.
		if r, err := p.SendSync(t.Context(), Message{}); err != nil || r.Seq != 2 {
			t.Errorf("%+v %v", r, err)
		}
		if err := p.stop(); err != nil || len(w.all()) != 2 {
			t.Errorf("%d stored, %v", len(w.all()), err)
		}
	})
}

func TestBlockedSendsEndWhenTheProducerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := run(t, &memory{before: slow(time.Second)}, Config{MaxBuffered: 1})
		mustSend(t, p.Producer, 1, nil)
		errs := make(chan error, 10)
		for range 10 {
			go func() { errs <- p.Send(context.Background(), Message{}, nil) }()
		}
		synctest.Wait()
		start := time.Now()
		p.cancel()
		for range 10 {
			if err := <-errs; !errors.Is(err, record.ErrClosed) || time.Since(start) != 0 {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
	})
}

func TestALargeMessageIsNotStarvedBySmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := run(t, &memory{before: slow(time.Second)}, Config{MaxBufferedBytes: 10_000, MaxBatch: 10})
		small := make(chan struct{})
		go func() { // takes every bit of room at once
			defer close(small)
			for {
				if err := p.TrySend(Message{}, nil); errors.Is(err, ErrFull) {
					time.Sleep(10 * time.Millisecond)
				} else if err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		start := time.Now()
		big := Message{Data: value(t, strings.Repeat("x", 20_000))} // larger than the whole buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := p.Send(ctx, big, nil); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 15*time.Second {
			t.Errorf("the large message waited for %v", d)
		}
		p.cancel()
		<-small
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
	})
}

func TestASendThatGivesUpLetsThoseBehindItPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := run(t, &memory{before: slow(time.Hour)}, Config{MaxBufferedBytes: 10_000, DrainTimeout: 5 * time.Hour})
		mustSend(t, p.Producer, 1, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		big := make(chan error)
		go func() { big <- p.Send(ctx, Message{Data: value(t, strings.Repeat("x", 20_000))}, nil) }()
		synctest.Wait()
		start := time.Now()
		mustSend(t, p.Producer, 1, nil) // fits, and waits for the large one's turn
		if d := time.Since(start); d != time.Second {
			t.Errorf("waited for %v", d)
		}
		if err := <-big; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestFlushWaitsForTheCallbacksOfWhatWasAcceptedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := run(t, &memory{before: slow(time.Second)}, Config{})
		if err := p.Flush(t.Context()); err != nil {
			t.Errorf("Flush of nothing: %v", err)
		}
		results := 0
		mustSend(t, p.Producer, 300, func(Result) { results++ })
		if err := p.Flush(t.Context()); err != nil || results != 300 {
			t.Errorf("%d results, %v", results, err)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestFlushWaitsForCallbacksThatLagBehindTheInserts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := run(t, &memory{before: slow(time.Second)}, Config{})
		called := 0
		lag := func(Result) { time.Sleep(5 * time.Second); called++ }
		mustSend(t, p.Producer, 1, lag)
		synctest.Wait()
		mustSend(t, p.Producer, 1, lag) // stored after 2 s, its callback ends after 11 s
		if err := p.Flush(t.Context()); err != nil || called != 2 {
			t.Errorf("%d callbacks returned, %v", called, err)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

// An unknown outcome ends the producer: later messages cannot be numbered without a possible hole.
func TestAnUnknownOutcomeFailsTheProducerAndSaysWhatWasNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &memory{}
		w.before = func(_ context.Context, docs []bson.Raw) (int, error) {
			return 3, &record.UnknownOutcomeError{IDs: allIDs(docs)[3:5], Attempts: 7, Err: errServer}
		}
		p, err := New(w, Config{MaxBatch: 10})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		mustSend(t, p, 12, func(r Result) {
			var unknown *record.UnknownOutcomeError
			var notSent *NotSentError
			switch {
			case r.Err == nil:
				got = append(got, fmt.Sprintf("ok%d", r.Seq))
			case errors.As(r.Err, &notSent) && r.Seq == 0:
				got = append(got, "no")
			case errors.As(r.Err, &unknown):
				got = append(got, fmt.Sprintf("?%d", r.Seq))
			}
		})
		err = p.Run(t.Context())
		var unknown *record.UnknownOutcomeError
		if !errors.As(err, &unknown) || len(unknown.IDs) != 2 {
			t.Errorf("Run: %v", err)
		}
		if s := strings.Join(got, " "); s != "ok1 ok2 ok3 ?4 ?5 no no no no no no no" {
			t.Errorf("results %s", s)
		}
		var notSent *NotSentError
		if err := p.Send(t.Context(), Message{}, nil); !errors.As(err, &notSent) || !errors.Is(err, errServer) {
			t.Errorf("Send after the failure: %v", err)
		}
		if err := p.Flush(t.Context()); !errors.Is(err, errServer) {
			t.Errorf("Flush after the failure: %v", err)
		}
		if err := p.Close(); !errors.Is(err, errServer) {
			t.Errorf("Close after the failure: %v", err)
		}
	})
}

func TestAWriterThatContradictsItselfLeavesOutcomesUnknown(t *testing.T) {
	for name, answer := range map[string]func([]bson.Raw) (int, error){
		"nil with too few":   func([]bson.Raw) (int, error) { return 1, nil },
		"index out of range": func([]bson.Raw) (int, error) { return 1, &record.RejectedError{Index: 99, Err: errServer} },
		"negative index":     func([]bson.Raw) (int, error) { return 1, &record.RejectedError{Index: -1, Err: errServer} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &memory{before: func(_ context.Context, docs []bson.Raw) (int, error) { return answer(docs) }}
				p, err := New(w, Config{})
				if err != nil {
					t.Fatal(err)
				}
				unknowns := 0
				mustSend(t, p, 3, func(r Result) {
					var u *record.UnknownOutcomeError
					if errors.As(r.Err, &u) {
						unknowns++
					}
				})
				if err := p.Run(t.Context()); err == nil || unknowns != 2 {
					t.Errorf("%d unknown, %v", unknowns, err)
				}
			})
		})
	}
}

func TestWhatExistsCountsAsSuccessWhereTheCallerSaysSo(t *testing.T) {
	for _, accept := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := &memory{}
			p := run(t, w, Config{AcceptExisting: accept})
			id := record.NewID()
			if r, err := p.SendSync(t.Context(), Message{ID: id}); err != nil || r.Seq != 1 || r.Existed {
				t.Errorf("first: %+v %v", r, err)
			}
			r, err := p.SendSync(t.Context(), Message{ID: id})
			if accept && (err != nil || !r.Existed || r.Seq != 0) {
				t.Errorf("again: %+v %v", r, err)
			}
			var rejected *record.RejectedError
			if !accept && (!errors.As(err, &rejected) || r.Existed) {
				t.Errorf("again: %+v %v", r, err)
			}
			if r, err := p.SendSync(t.Context(), Message{}); err != nil || r.Seq != 2 {
				t.Errorf("the number was not handed on: %+v %v", r, err)
			}
			if err := p.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
