package tailer

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestEarliestDeliversEverythingInOrder(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		w := &writer{coll: coll, src: "a/1", pad: 50}
		w.send(t, 1000)
		s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}})
		a := newTally()
		a.until(t, s, "a/1", 1000)
		w.send(t, 10)
		a.until(t, s, "a/1", 1010)
		silent(t, s)
		if a.delivered["a/1"] != 1010 {
			t.Fatalf("got %v", a.delivered)
		}
	})
}

func TestLatestDeliversExactlyWhatComesAfterTheOpening(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		w, other := &writer{coll: coll, src: "a/1"}, &writer{coll: coll, src: "b/1"}
		other.send(t, 5)
		w.send(t, 100)
		s := open(t, d, coll, Config{})
		silent(t, s)
		w.send(t, 10)
		other.send(t, 1)
		a := newTally()
		a.until(t, s, "a/1", 110)
		a.until(t, s, "b/1", 6)
		if a.delivered["a/1"] != 10 || a.delivered["b/1"] != 1 || len(a.gaps) != 0 {
			t.Fatalf("got %v %v", a.delivered, a.gaps)
		}
	})
}

func TestACancelledNextLeavesTheStreamUsable(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		w := &writer{coll: coll, src: "a/1"}
		var reopened int
		s := open(t, d, coll, Config{Hooks: Hooks{OnReopen: func(string) { reopened++ }}})
		a := newTally()
		for i := range int64(5) {
			silent(t, s)
			w.send(t, 1)
			a.until(t, s, "a/1", i+1)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		if err := s.Close(); err != nil || reopened != 0 {
			t.Fatalf("got %v, %d reopened", err, reopened)
		}
	})
}

func TestCloseUnblocksNextAndIsIdempotent(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	s := open(t, d, coll, Config{Await: MaxAwait})
	done := make(chan error, 1)
	go func() {
		_, err := s.Next(t.Context())
		done <- err
	}()
	time.Sleep(50 * time.Millisecond)
	for range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-done:
		if !errors.Is(err, record.ErrClosed) {
			t.Fatalf("got %v", err)
		}
	case <-time.After(testPatience):
		t.Fatal("Next still waits")
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, record.ErrClosed) {
		t.Fatalf("got %v", err)
	}
	if err := s.Open(t.Context()); !errors.Is(err, record.ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

func TestAStreamThatWasNeverOpenedCloses(t *testing.T) {
	d := mongotest.Standalone(t)
	s, err := New(d.Options(), "db", "c", Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, record.ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

func TestUntilEndEndsAtTheEnd(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		w := &writer{coll: coll, src: "a/1"}
		w.send(t, 500)
		s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, UntilEnd: true})
		a := newTally()
		for r, err := range s.All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			a.add(t, r)
		}
		if a.delivered["a/1"] != 500 {
			t.Fatalf("got %v", a.delivered)
		}
		for range 2 {
			if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
				t.Fatalf("got %v", err)
			}
		}
		last := a.records[len(a.records)-1].Position
		for _, start := range []record.Start{
			{Where: record.After, Position: last},
			{Where: record.After, Position: last, Marks: a.last},
			{Where: record.Latest},
		} {
			s := unopened(t, d, coll, Config{Start: start, UntilEnd: true})
			if r, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
				t.Fatalf("%v: got %v %v", start, r, err)
			}
		}
	})
}
