package replicator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

func change(op string, size int) record.Record {
	return record.Record{Kind: record.KindChange, Change: &record.Change{Op: op}, Raw: make(bson.Raw, size)}
}

func TestAFullQueueHoldsItsReaderBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		limit, size int
		fit         int
	}{
		{"by count", 3, 10, 3},
		{"by bytes", 1000, maxQueued / 2, 2},
		{"one that is larger than all", 1000, maxQueued * 2, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(c.limit)
			put := 0
			go func() {
				for range c.fit + 2 {
					if q.put(t.Context(), change("insert", c.size)) != nil {
						return
					}
					put++
				}
			}()
			synctest.Wait()
			if put != c.fit {
				t.Fatalf("%s: %d records went in, want %d", c.name, put, c.fit)
			}
			got := 0
			for got < c.fit+2 {
				batch, err := q.take(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got += len(batch)
				synctest.Wait()
			}
			if got != c.fit+2 {
				t.Errorf("%s: %d records came out, want %d", c.name, got, c.fit+2)
			}
		})
	}
}

func TestWhatWasReadBeforeTheEndIsAppliedBeforeIt(t *testing.T) {
	t.Parallel()
	q, end := newQueue(10), errors.New("the end")
	if err := q.put(t.Context(), change("insert", 1)); err != nil {
		t.Fatal(err)
	}
	q.end(end)
	if batch, err := q.take(t.Context()); err != nil || len(batch) != 1 {
		t.Fatalf("got %d records, %v", len(batch), err)
	}
	if _, err := q.take(t.Context()); !errors.Is(err, end) {
		t.Errorf("got %v", err)
	}
}

func TestProgressThatWaitsIsReplacedByWhatFollows(t *testing.T) {
	t.Parallel()
	q := newQueue(10)
	for i, kind := range []record.Kind{record.KindProgress, record.KindProgress, record.KindChange, record.KindProgress} {
		r := change("insert", 1)
		r.Kind, r.Position.TS.T = kind, uint32(i+1)
		if err := q.put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := q.take(t.Context())
	if err != nil || len(batch) != 2 || batch[0].Position.TS.T != 3 || batch[1].Position.TS.T != 4 {
		t.Errorf("got %v, %v", batch, err)
	}
}

func TestAWaitForRoomOrForRecordsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		q := newQueue(1)
		ended := make(chan error, 2)
		go func() { _, err := newQueue(1).take(ctx); ended <- err }()
		go func() {
			_ = q.put(ctx, change("insert", 1)) // there is room
			ended <- q.put(ctx, change("insert", 1))
		}()
		synctest.Wait()
		cancel(stop)
		for range 2 {
			if err := <-ended; !errors.Is(err, stop) {
				t.Errorf("got %v", err)
			}
		}
	})
}

func TestAChangeOfACollectionStandsAlone(t *testing.T) {
	t.Parallel()
	records := []record.Record{change("insert", 1), change("update", 1), change("drop", 1), change("create", 1), change("delete", 1), change("delete", 1)}
	var got []int
	for rest := records; len(rest) > 0; {
		n := segment(rest, 100)
		got = append(got, n)
		rest = rest[n:]
	}
	if want := []int{2, 1, 1, 2}; len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := segment(records[4:], 1); n != 1 {
		t.Errorf("a batch of at most 1 has %d", n)
	}
}

func TestUpdatesOfLargeDocumentsAreReadInPieces(t *testing.T) {
	t.Parallel()
	s := sizes{most: make(map[string]int)}
	c := CollectionState{UUID: "a"}
	list := make([]pending, 5000)
	for i := range list {
		list[i].read = i%2 == 0
	}
	if n := s.fit(c, list); n != 2*readFirst {
		t.Errorf("while nothing is known %d changes are applied together, want %d", n, 2*readFirst)
	}
	s.saw(c, []bson.Raw{make(bson.Raw, 100)})
	if n := s.fit(c, list); n != 2*readMost {
		t.Errorf("of small documents %d, want %d", n, 2*readMost)
	}
	s.saw(c, []bson.Raw{make(bson.Raw, 8<<20), make(bson.Raw, 10)})
	if n := s.fit(c, list); n != 2*readBytes/(8<<20) {
		t.Errorf("of documents of 8 MiB %d, want %d", n, 2*readBytes/(8<<20))
	}
	if n := s.fit(c, list[:1]); n != 1 {
		t.Errorf("of one %d", n)
	}
}
