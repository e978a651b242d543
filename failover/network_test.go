package failover

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// behindProxy returns a stream whose writer reaches d, a standalone server, through a proxy.
func behindProxy(t *testing.T, d *mongotest.Deployment, c Config) (*stream, *faultnet.Proxy) {
	t.Helper()
	s := newStream(t, d, Config{})
	b := s.plug(d, c)
	return s, b.To(d.Cluster.Members()[0].Addr)
}

// plug lets the writer reach every server of d through a proxy of its own. Ten messages of src "a" are
// written, so that an anchor is known and every further attempt is an insert.
func (s *stream) plug(d *mongotest.Deployment, c Config) *faultnet.Switchboard {
	s.t.Helper()
	var addrs []string
	for _, m := range d.Cluster.Members() {
		addrs = append(addrs, m.Addr)
	}
	b, err := faultnet.Connect(s.t.Context(), addrs...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = b.Close() })
	s.use(d.Options().SetDialer(b), c)
	if _, err := s.w.WriteBatch(s.t.Context(), messages("a", 1, 10)); err != nil {
		s.t.Fatal(err)
	}
	return b
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
			s, p := behindProxy(t, mongotest.Standalone(t), Config{AttemptTimeout: 500 * time.Millisecond, Budget: limit})
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
			s, p := behindProxy(t, mongotest.Standalone(t), Config{AttemptTimeout: 500 * time.Millisecond, Hooks: Hooks{
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

// I1, I4: a network that breaks at any place, again and again. With credentials and TLS it breaks in
// the middle of handshakes, too, which is no refusal.
func TestAFlakyNetworkLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		flakyNetwork(t, mongotest.Standalone(t))
	})
	t.Run("credentials and TLS", func(t *testing.T) {
		t.Parallel()
		flakyNetwork(t, mongotest.Own(t, localcluster.Config{Auth: true, TLS: true}))
	})
}

func flakyNetwork(t *testing.T, d *mongotest.Deployment) {
	t.Helper()
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	s, p := behindProxy(t, d, Config{AttemptTimeout: 300 * time.Millisecond})
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

// A writer that alone cannot reach the primary of a healthy set goes on with the next primary, and what
// the first one took meanwhile is stored once (I1, I4).
func TestAWriterThatIsCutOffFromThePrimaryGoesOnWithTheNextOne(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	// Two, since a member that stepped down cannot be elected for ten seconds.
	for _, name := range []string{"black hole in the middle of it", "black hole that swallows the answer"} {
		fault := broken[name]
		t.Run(name, func(t *testing.T) {
			s := newStream(t, d, Config{})
			retries := make(chan Retry, 1000)
			b := s.plug(d, Config{AttemptTimeout: 500 * time.Millisecond, Hooks: Hooks{OnRetry: func(r Retry) { retries <- r }}})
			var old string
			for _, m := range d.Cluster.Status(t.Context()) {
				if m.Role == localcluster.RolePrimary {
					old = m.Addr
				}
			}
			fault.begin(b.To(old))
			done := make(chan error, 1)
			go func() {
				_, err := s.w.WriteBatch(t.Context(), large())
				done <- err
			}()
			<-retries
			if _, err := d.Cluster.StepDown(t.Context(), "primary"); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			s.ok("a", 110)
			b.Heal()
			s.elected()
		})
	}
}
