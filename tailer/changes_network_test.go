package tailer

import (
	"context"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// primaryBehindProxy returns the primary of the package's set as it is seen through a proxy of the test's own.
func primaryBehindProxy(t *testing.T) (*faultnet.Proxy, *mongotest.Deployment, *mongo.Collection) {
	t.Helper()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	var hello struct{ Primary string }
	if err := coll.Database().RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	p, err := faultnet.Listen(t.Context(), hello.Primary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, &mongotest.Deployment{URI: "mongodb://" + p.Addr() + "/?directConnection=true"}, coll
}

// A network that goes silent while a getMore waits is noticed by the watchdog, one that is cut at once, and
// what was written meanwhile comes once, in order, when it is back.
func TestABrokenNetworkCostsAChangeStreamNothing(t *testing.T) {
	t.Parallel()
	p, d, coll := primaryBehindProxy(t)
	var why reasons
	cfg := ChangesConfig{Await: 300 * time.Millisecond, AttemptTimeout: 700 * time.Millisecond, Hooks: Hooks{OnReopen: why.add}}
	c := watchOpen(t, d, coll.Database().Name(), "s", cfg)
	next, sent := 0, 0
	send := func() {
		t.Helper()
		for range 5 {
			insertDoc(t, coll, sent)
			sent++
		}
	}
	for name, fault := range map[string]struct {
		begin  func()
		reason string // "": any
	}{
		"black hole": {p.BlackHole, errWatchdog.Error()}, "no replies": {p.SwallowReplies, errWatchdog.Error()}, "cut": {p.Cut, ""},
	} {
		for range 2 {
			send()
			for _, r := range events(t, c, sent-next) {
				if key(r) != next {
					t.Fatalf("%s: got %d, want %d", name, key(r), next)
				}
				next++
			}
			n := len(why.all())
			inTime(t, name+": notice it", cfg.Await+cfg.AttemptTimeout+closeTimeout, func() {
				fault.begin()
				why.wait(t, n+1)
			})
			if got := why.all()[n]; fault.reason != "" && got != fault.reason {
				t.Errorf("%s: the cursor ended because %q, want %q", name, got, fault.reason)
			}
			send() // past the proxy
			p.Heal()
		}
	}
	for _, r := range events(t, c, sent-next) {
		if key(r) != next {
			t.Fatalf("at the end: got %d, want %d", key(r), next)
		}
		next++
	}
	noChange(t, c)
}

// A change stream that is broken off in the middle of a batch goes on behind what it delivered.
func TestACutInTheMiddleOfABatchCostsAChangeStreamNothing(t *testing.T) {
	t.Parallel()
	p, d, coll := primaryBehindProxy(t)
	insertDoc(t, coll, 0)
	first := watchOpen(t, mongotest.ReplicaSet(t), coll.Database().Name(), "s", ChangesConfig{})
	const count = 3000
	docs := make([]any, count)
	for i := range docs {
		docs[i] = doc(1+i, bson.E{Key: "pad", Value: make([]byte, 1000)})
	}
	if _, err := coll.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	breaks := 0
	c := watchUnopened(t, d, coll.Database().Name(), "s", ChangesConfig{Start: after(first.Start()), BatchSize: 300, Await: 300 * time.Millisecond,
		AttemptTimeout: 700 * time.Millisecond, Hooks: Hooks{OnBatch: func(int, int) {
			if breaks++; breaks%3 == 0 && breaks < 12 {
				p.Cut()
				time.AfterFunc(50*time.Millisecond, p.Heal)
			}
		}}})
	for i, r := range events(t, c, count) {
		if key(r) != 1+i {
			t.Fatalf("got %d, want %d", key(r), 1+i)
		}
	}
	noChange(t, c)
}

// Next's context is the caller's alone: one that ends in the middle of a wait costs no event.
func TestACallerThatGivesUpLosesNothing(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	coll := d.DB(t).Collection("s")
	c := watchOpen(t, d, coll.Database().Name(), "s", ChangesConfig{})
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if r, err := c.Next(ctx); err == nil {
			t.Fatalf("got %v before it was written", r)
		}
		cancel()
		insertDoc(t, coll, i)
		if rs := events(t, c, 1); key(rs[0]) != i {
			t.Fatalf("got %d, want %d", key(rs[0]), i)
		}
	}
}
