package failover

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
)

// behindProxy returns a stream whose writer reaches the package's standalone server through a proxy.
// Ten messages of src "a" are stored, so that an anchor is known and every attempt is an insert.
func behindProxy(t *testing.T, c Config) (*stream, *faultnet.Proxy) {
	t.Helper()
	d := mongotest.Standalone(t)
	s := newStream(t, d, Config{})
	p, err := faultnet.Listen(t.Context(), d.Cluster.Members()[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	s.use(options.Client().ApplyURI("mongodb://"+p.Addr()+"/?directConnection=true"), c)
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
		t.Fatal(err)
	}
	return s, p
}

// broken are the ways in which an insert of about a megabyte can fail on its way.
var broken = map[string]struct {
	begin   func(p *faultnet.Proxy)
	applied bool // the server gets the whole command
	silent  bool
}{
	"black hole before the insert":        {(*faultnet.Proxy).BlackHole, false, true},
	"black hole in the middle of it":      {func(p *faultnet.Proxy) { p.SilenceAfter(300_000) }, false, true},
	"black hole that swallows the answer": {(*faultnet.Proxy).SwallowReplies, true, true},
	"connections that are cut":            {(*faultnet.Proxy).Cut, false, false},
}

// large returns messages of together about a megabyte, numbered from 11.
func large() []bson.Raw { return sized(11, 100, 10<<10) }

func sized(first, n, payload int) []bson.Raw {
	docs := make([]bson.Raw, n)
	for i := range docs {
		docs[i] = message("a", int64(first+i), payload)
	}
	return docs
}

// I8, I1: where the network stays broken, the call returns by its deadline and says that the outcome
// is unknown if it may be; and the same messages sent again when it is back are stored once.
func TestACallOnABrokenNetworkReturnsByItsDeadlineAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	for name, fault := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit = 1200 * time.Millisecond
			s, p := behindProxy(t, Config{AttemptTimeout: 500 * time.Millisecond, Budget: limit})
			docs := large()
			fault.begin(p)
			var applied int
			var err error
			took, late := overrun(limit, func() { applied, err = s.w.WriteBatch(t.Context(), docs) })
			if took > limit+slack+2*late {
				t.Errorf("returned after %v, the budget is %v (a control timer was %v late)", took, limit, late)
			}
			unknown, isUnknown := errors.AsType[*record.UnknownOutcomeError](err)
			if applied != 0 || !errors.Is(err, errBudget) || fault.silent && (!isUnknown || len(unknown.IDs) != 100) {
				t.Errorf("applied %d, %v", applied, err)
			}
			p.Heal()
			repeat(t, s, docs)
			s.ok("a", 110)
		})
	}
}

// repeat writes docs with a budget of its own until it is done.
func repeat(t *testing.T, s *stream, docs []bson.Raw) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		applied, err := s.w.WriteBatch(t.Context(), docs)
		docs = docs[applied:]
		switch {
		case err == nil:
			return
		case time.Now().After(end):
			t.Fatal(err)
		}
	}
}

// I1, I4: where the network heals within the budget, the call succeeds, and every message is stored
// once, in order. What the server had taken is read back and not sent again.
func TestABrokenNetworkThatHealsLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			s, p := behindProxy(t, Config{AttemptTimeout: 500 * time.Millisecond, Hooks: Hooks{
				OnAttempt: func(a Attempt) { sent.Add(int64(a.Documents)) },
			}})
			sent.Store(0)
			fault.begin(p)
			time.AfterFunc(1200*time.Millisecond, p.Heal)
			applied, err := s.w.WriteBatch(t.Context(), large())
			if applied != 100 || err != nil {
				t.Fatalf("applied %d, %v", applied, err)
			}
			if n := sent.Load(); fault.applied && n != 100 {
				t.Errorf("%d messages were sent, although the first 100 had arrived", n)
			}
			s.ok("a", 110)
		})
	}
}

// I1, I4: a network that breaks at any place, again and again.
func TestAFlakyNetworkLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	s, p := behindProxy(t, Config{AttemptTimeout: 300 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer p.Heal()
		for ctx.Err() == nil {
			switch rnd.IntN(4) {
			case 0:
				p.SilenceAfter(rnd.Int64N(150_000))
			case 1:
				p.SwallowReplies()
			case 2:
				p.BlackHole()
			case 3:
				p.Cut()
			}
			time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
			p.Heal()
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
	}()
	next := 11
	for begun := time.Now(); next < 2000 && time.Since(begun) < 15*time.Second; {
		docs := sized(next, 50, 2<<10)
		if applied, err := s.w.WriteBatch(t.Context(), docs); applied != len(docs) || err != nil {
			t.Errorf("applied %d, %v", applied, err)
			break
		}
		next += len(docs)
	}
	cancel()
	<-done
	t.Logf("%d messages", next-1)
	s.ok("a", int64(next-1))
}
