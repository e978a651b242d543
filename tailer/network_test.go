package tailer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/faultnet"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// slack is what I8 allows beyond a deadline.
const slack = 250 * time.Millisecond

// faulty is how the tails of these tests are set: the watchdog fires long before the driver's own
// monitor notices that a server is gone (heartbeatInterval + memberConnectTimeout).
func faulty(hooks Hooks) Config {
	return Config{
		Start: record.Start{Where: record.Earliest}, Await: 300 * time.Millisecond, AttemptTimeout: 700 * time.Millisecond, Hooks: hooks,
	}
}

// behindProxy returns the package's standalone server as it is seen through a proxy of the test's own.
func behindProxy(t *testing.T) (*faultnet.Proxy, *mongotest.Deployment, *mongo.Collection) {
	t.Helper()
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	p, err := faultnet.Listen(t.Context(), d.Cluster.Members()[0].Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, &mongotest.Deployment{URI: "mongodb://" + p.Addr() + "/?directConnection=true"}, coll
}

// inTime runs f and checks that it returns within limit and the slack of I8. Control timers of this
// process say how late it is, so that a loaded machine does not count: f passes through several
// goroutines that may each be late by that.
func inTime(t *testing.T, what string, limit time.Duration, f func()) {
	t.Helper()
	const step = 20 * time.Millisecond
	stop, worst := make(chan struct{}), make(chan time.Duration)
	go func() {
		var late time.Duration
		for {
			begun := time.Now()
			select {
			case <-time.After(step):
				late = max(late, time.Since(begun)-step)
			case <-stop:
				worst <- max(late, time.Since(begun)-step)
				return
			}
		}
	}()
	begun := time.Now()
	f()
	took := time.Since(begun)
	close(stop)
	late := <-worst
	t.Logf("%s took %s (limit %s, a timer was %s late)", what, took, limit, late)
	if took > limit+slack+4*late {
		t.Errorf("%s took %s, its limit is %s (a timer was %s late)", what, took, limit, late)
	}
}

// Section 4.1: a network that goes silent while a getMore waits is noticed by the watchdog, one that
// is cut at once; and what was written meanwhile comes once, in order, when it is back (I4, I8).
func TestABrokenNetworkIsNoticedInTimeAndCostsNothing(t *testing.T) {
	t.Parallel()
	p, d, coll := behindProxy(t)
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1"}
	var why reasons
	cfg := faulty(Hooks{OnReopen: why.add})
	s := open(t, d, coll, cfg)
	a := newTally()
	for name, fault := range map[string]struct {
		begin  func()
		reason string // "": any
		limit  time.Duration
	}{
		// What ends a session closes its cursor, too, before it says so.
		"black hole": {p.BlackHole, errWatchdog.Error(), cfg.Await + cfg.AttemptTimeout + closeTimeout},
		"no replies": {p.SwallowReplies, errWatchdog.Error(), cfg.Await + cfg.AttemptTimeout + closeTimeout},
		"cut":        {p.Cut, "", closeTimeout},
	} {
		for range 3 {
			w.send(t, 10)
			a.until(t, s, w.src, w.seq)
			n := len(why.all())
			inTime(t, name+": notice it", fault.limit, func() {
				fault.begin()
				why.wait(t, n+1)
			})
			if got := why.all()[n]; fault.reason != "" && got != fault.reason {
				t.Errorf("%s: the tail ended because %q, want %q", name, got, fault.reason)
			}
			w.send(t, 10) // past the proxy: the server lives
			why.wait(t, n+2)
			p.Heal()
			a.until(t, s, w.src, w.seq)
		}
	}
	silent(t, s)
	if a.delivered[w.src] != w.seq || len(a.gaps) != 0 {
		t.Fatalf("delivered %v of %d, gaps %v", a.delivered, w.seq, a.gaps)
	}
}

// A tail that is broken off in the middle of a batch goes on behind what it delivered.
func TestANetworkThatBreaksInTheMiddleOfABatchCostsNothing(t *testing.T) {
	t.Parallel()
	p, d, coll := behindProxy(t)
	makeStream(t, coll, 16<<20, 0)
	w := &writer{coll: coll, src: "a/1", pad: 1000}
	w.send(t, 5000)
	var breaks int
	cfg := faulty(Hooks{})
	cfg.BatchSize = 500
	cfg.Hooks.OnBatch = func(int, int) {
		if breaks++; breaks%3 == 0 && breaks < 12 {
			p.Cut()
			time.AfterFunc(50*time.Millisecond, p.Heal)
		}
	}
	s := open(t, d, coll, cfg)
	a := newTally()
	a.until(t, s, w.src, w.seq)
	silent(t, s)
	if a.delivered[w.src] != w.seq || len(a.gaps) != 0 {
		t.Fatalf("delivered %v of %d, gaps %v", a.delivered, w.seq, a.gaps)
	}
}

// I8: a Next that is cancelled returns at once, whatever the server does, and costs nothing.
func TestACancelledNextReturnsAtOnceWhereNothingAnswers(t *testing.T) {
	t.Parallel()
	p, d, coll := behindProxy(t)
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1"}
	var why reasons
	s := open(t, d, coll, faulty(Hooks{OnReopen: why.add}))
	a := newTally()
	w.send(t, 5)
	a.until(t, s, w.src, w.seq)
	p.BlackHole()
	const wait = 100 * time.Millisecond
	for range 20 { // in the getMore, in its clean-up, in the openings and the waits between them
		inTime(t, "Next", wait, func() {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			if _, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
	}
	w.send(t, 5)
	p.Heal()
	a.until(t, s, w.src, w.seq)
	silent(t, s)
	if a.delivered[w.src] != 10 || len(a.gaps) != 0 {
		t.Fatalf("got %v, gaps %v", a.delivered, a.gaps)
	}
}

// I8: Close takes a second at most, also where nothing answers, whatever the tail is doing.
func TestCloseReturnsInTimeWhereNothingAnswers(t *testing.T) {
	t.Parallel()
	for name, until := range map[string]func(p *faultnet.Proxy, why *reasons, s *Stream){
		"in a getMore": func(*faultnet.Proxy, *reasons, *Stream) {},
		"while it opens again": func(_ *faultnet.Proxy, why *reasons, _ *Stream) {
			why.wait(t, 1)
		},
		"after a long outage": func(_ *faultnet.Proxy, why *reasons, _ *Stream) {
			why.wait(t, 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d, coll := behindProxy(t)
			makeStream(t, coll, 1<<20, 0)
			var why reasons
			s := open(t, d, coll, faulty(Hooks{OnReopen: why.add}))
			p.BlackHole()
			until(p, &why, s)
			inTime(t, "Close", time.Second, func() { _ = s.Close() })
			if _, err := s.Next(t.Context()); !errors.Is(err, record.ErrClosed) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("never connected", func(t *testing.T) {
		t.Parallel()
		p, d, coll := behindProxy(t)
		p.BlackHole()
		s := unopened(t, d, coll, faulty(Hooks{}))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		inTime(t, "Open", 100*time.Millisecond, func() {
			if err := s.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
		inTime(t, "Close", time.Second, func() { _ = s.Close() })
	})
}

// MaxOutage: a tail does not wait for ever if it must not, and the error says for how long it did.
func TestAnOutageThatIsTooLongEndsTheStreamAndNamesItsTime(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*faultnet.Proxy){"black hole": (*faultnet.Proxy).BlackHole, "cut": (*faultnet.Proxy).Cut} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, d, coll := behindProxy(t)
			makeStream(t, coll, 1<<20, 0)
			cfg := faulty(Hooks{})
			cfg.MaxOutage = 2 * time.Second
			s := open(t, d, coll, cfg)
			fault(p)
			// The watchdog, the outage, and the attempt that was under way when it became too long.
			limit := cfg.Await + cfg.AttemptTimeout + closeTimeout + cfg.MaxOutage + 2*cfg.AttemptTimeout
			var err error
			inTime(t, "the end", limit, func() { _, err = s.Next(t.Context()) })
			outage, ok := errors.AsType[*OutageError](err)
			if !ok || outage.For < cfg.MaxOutage || outage.Attempts < 2 || outage.Err == nil {
				t.Fatalf("got %v", err)
			}
			if _, again := s.Next(t.Context()); !errors.Is(again, err) {
				t.Errorf("then %v", again)
			}
			t.Log(err)
		})
	}
}

// plug returns a dialer that reaches every server of d through a proxy of the test's own.
func plug(t *testing.T, d *mongotest.Deployment) *faultnet.Switchboard {
	t.Helper()
	b, err := faultnet.Connect(t.Context(), addrs(d)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func addrs(d *mongotest.Deployment) []string {
	var list []string
	for _, m := range d.Cluster.Members() {
		list = append(list, m.Addr)
	}
	return list
}

// through is unopened on the far side of a switchboard.
func through(t *testing.T, b *faultnet.Switchboard, d *mongotest.Deployment, coll *mongo.Collection, cfg Config) *Stream {
	t.Helper()
	s, err := New(d.Options().SetDialer(b), coll.Database().Name(), coll.Name(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A reader that alone cannot reach the primary of a healthy set waits for it, and moves as soon as
// another member is primary (I4, I8).
func TestAReaderThatIsCutOffFromThePrimaryMovesWithIt(t *testing.T) {
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("s", mongoCollectionMajority())
	makeStream(t, coll, 1<<20, 0)
	b := plug(t, d)
	w := &writer{coll: coll, src: "a/1"}
	for _, v := range []Visibility{Local, Majority} {
		t.Run(v.String(), func(t *testing.T) {
			b.Heal()
			s := through(t, b, d, coll, Config{Start: record.Start{Where: record.Earliest}, Visibility: v})
			a := newTally()
			w.send(t, 10)
			a.until(t, s, w.src, w.seq)
			old := primaryOf(t, d)
			b.To(old).BlackHole()
			w.send(t, 10)
			silent(t, s)
			if _, err := d.Cluster.StepDown(t.Context(), "primary"); err != nil {
				t.Fatal(err)
			}
			w.send(t, 10) // there is a new primary
			// Not the watchdog's time: the other members told of it.
			inTime(t, "move", DefaultAttemptTimeout, func() { a.until(t, s, w.src, w.seq) })
			if a.delivered[w.src] != w.seq || len(a.gaps) != 0 {
				t.Errorf("delivered %v of %d, gaps %v", a.delivered, w.seq, a.gaps)
			}
		})
	}
}

func primaryOf(t *testing.T, d *mongotest.Deployment) (addr string) {
	t.Helper()
	eventually(t, func() bool {
		for _, m := range d.Cluster.Status(t.Context()) {
			if m.Role == localcluster.RolePrimary {
				addr = m.Addr
			}
		}
		return addr != ""
	})
	return addr
}

// I4, I5: a network that breaks anywhere, again and again, between a reader and healthy servers. With
// credentials and TLS it breaks in the middle of handshakes, too, which is no refusal.
func TestAFlakyNetworkLosesAndDoublesNothing(t *testing.T) {
	t.Run("replica set", func(t *testing.T) {
		t.Parallel()
		flakyNetwork(t, mongotest.ReplicaSet(t), 16<<20)
	})
	t.Run("credentials and TLS", func(t *testing.T) {
		t.Parallel()
		flakyNetwork(t, mongotest.Own(t, localcluster.Config{Auth: true, TLS: true}), 16<<20)
	})
}

// I5: the same where the stream rolls over while the network is silent: what was lost is counted, and
// delivered and lost together are what was sent.
func TestAFlakyNetworkLosesNothingUncounted(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, _ *mongo.Collection) {
		flakyNetwork(t, d, 64<<10)
	})
}

// flakyNetwork reads a stream of the given size while two writers send some 3,000 messages of about 300
// bytes each, past the network.
func flakyNetwork(t *testing.T, d *mongotest.Deployment, size int64) {
	t.Helper()
	coll := d.DB(t).Collection("s", mongoCollectionOne())
	makeStream(t, coll, size, 0)
	b := plug(t, d)
	cfg := faulty(Hooks{})
	streams := map[string]*Stream{"majority": through(t, b, d, coll, cfg)}
	cfg.Visibility = Local
	streams["local"] = through(t, b, d, coll, cfg)
	tallies := map[string]*tally{}
	var reading, running sync.WaitGroup
	for name, s := range streams {
		if err := s.Open(t.Context()); err != nil { // a first connection that fails is an error
			t.Fatal(err)
		}
		a := newTally()
		tallies[name] = a
		reading.Go(func() { a.until(t, s, "end/1", 1) })
	}

	ctx, stop := context.WithTimeout(t.Context(), 12*time.Second)
	defer stop()
	ws := []*writer{{coll: coll, src: "a/1", pad: 200}, {coll: coll, src: "b/1", pad: 200}}
	for _, w := range ws {
		running.Go(func() {
			for ctx.Err() == nil {
				w.send(t, 1+int(w.seq)%7)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i, addr := range addrs(d) {
		p := b.To(addr)
		running.Go(func() {
			defer p.Heal()
			flaky(ctx, p, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
	running.Wait()
	(&writer{coll: coll, src: "end/1"}).send(t, 1) // behind all others on the primary
	reading.Wait()
	for name, a := range tallies {
		silent(t, streams[name])
		t.Logf("%s: delivered %v, lost %v in %d gaps", name, a.delivered, a.lost, len(a.gaps))
		for _, w := range ws {
			if a.total(w.src) != w.seq || a.atMost[w.src] != 0 {
				t.Errorf("%s: %s sent %d; delivered %v, lost %v, at most %v", name, w.src, w.seq, a.delivered, a.lost, a.atMost)
			}
		}
		if size >= 16<<20 && len(a.gaps) != 0 {
			t.Errorf("%s: gaps %v", name, a.gaps)
		}
	}
}

// flaky breaks p and heals it until ctx ends.
func flaky(ctx context.Context, p *faultnet.Proxy, rnd *rand.Rand) {
	for ctx.Err() == nil {
		switch rnd.IntN(4) {
		case 0:
			p.SilenceAfter(rnd.Int64N(2000))
		case 1:
			p.SwallowReplies()
		case 2:
			p.BlackHole()
		case 3:
			p.Cut()
		}
		time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
		p.Heal()
		// The driver looks for a primary twice a second at most.
		time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
	}
}
