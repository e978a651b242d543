package tailer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/event"
)

type commandCounter struct {
	mu    sync.Mutex
	count int
}

func counter() *commandCounter { return &commandCounter{} }

func (c *commandCounter) started(context.Context, *event.CommandStartedEvent) {
	c.mu.Lock()
	c.count++
	c.mu.Unlock()
}

func (c *commandCounter) n() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// isolated sends n messages, each alone, and returns the median time from its insert to its delivery.
func isolated(t testing.TB, d *mongotest.Deployment, v Visibility, n int) time.Duration {
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	s := open(t, d, coll, Config{Visibility: v})
	w := &writer{coll: coll, src: "a/1"}
	var took []time.Duration
	for range n {
		time.Sleep(200 * time.Millisecond)
		start := time.Now()
		sent := make(chan struct{})
		go func() { defer close(sent); w.send(t, 1) }()
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(start))
		<-sent
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// A tailable cursor with read concern majority would take half the await or more.
func TestAnIsolatedMessageDoesNotWaitForTheAwait(t *testing.T) {
	d := mongotest.ReplicaSet(t)
	for _, v := range []Visibility{Local, Majority} {
		p50 := isolated(t, d, v, 15)
		t.Logf("%s: p50 %s", v, p50)
		if p50 > DefaultAwait/4 {
			t.Errorf("%s: p50 %s: it waits for the end of the await", v, p50)
		}
	}
}

func TestTheStreamOwnsTheMemoryOfItsRecords(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1", pad: 100}
	w.sendSubject(t, 1000, "x.y")
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, BatchSize: 10})
	a := newTally()
	a.until(t, s, "a/1", 1000)
	for i, r := range a.records {
		if r.Raw.Lookup("seq").AsInt64() != int64(i+1) || r.Subject != "x.y" || cap(r.Raw) > 2*len(r.Raw) {
			t.Fatalf("record %d: %v, subject %q, %d bytes held for %d", i, r.Raw, r.Subject, cap(r.Raw), len(r.Raw))
		}
	}
}
