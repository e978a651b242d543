package failover

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
)

// slack is what I8 allows beyond a deadline.
const slack = 250 * time.Millisecond

// overrun returns by how much a timer that runs beside f overran its time: the machine's share of
// any delay that a test sees.
func overrun(limit time.Duration, f func()) (took, late time.Duration) {
	start := time.Now()
	fired := make(chan time.Duration, 1)
	time.AfterFunc(limit, func() { fired <- time.Since(start) - limit })
	f()
	return time.Since(start), <-fired
}

// I8: whatever the server does, a call returns by its deadline.
func TestEveryCallReturnsByItsDeadline(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 1})
	const limit = 1500 * time.Millisecond
	s := newStream(t, d, Config{AttemptTimeout: 400 * time.Millisecond, Budget: limit})
	cold := newStream(t, d, Config{AttemptTimeout: 400 * time.Millisecond, Budget: limit})
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Cluster.Freeze(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		w     *StreamWriter
		limit time.Duration
		docs  []bson.Raw
	}{
		"budget":                    {s.w, limit, messages("a", 11, 10)},
		"context's deadline":        {s.w, limit / 3, messages("a", 11, 10)},
		"more than the socket eats": {s.w, limit, messages("a", 11, 20000)},
		"never connected":           {cold.w, limit, messages("a", 11, 10)},
	} {
		var err error
		took, late := overrun(tt.limit, func() {
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			_, err = tt.w.WriteBatch(ctx, tt.docs)
		})
		if took > tt.limit+slack+2*late {
			t.Errorf("%s: returned after %v, the deadline was %v (a control timer was %v late)", name, took, tt.limit, late)
		}
		if err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errBudget) {
			t.Errorf("%s: %v", name, err)
		}
	}
	took, late := overrun(400*time.Millisecond, func() { _ = s.l.Close(t.Context()) })
	if took > 400*time.Millisecond+slack+2*late {
		t.Errorf("Close took %v", took)
	}
	if _, err := d.Cluster.Thaw(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
}

// A context that ends in the middle leaves the outcome open, and the error says so and why.
func TestACancelledWriteIsUnknownAndNamesTheCause(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 1})
	s := newStream(t, d, Config{AttemptTimeout: 20 * time.Second})
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 10)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Cluster.Freeze(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("the user has had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	const limit = 300 * time.Millisecond
	time.AfterFunc(limit, func() { cancel(cause) })
	var err error
	took, late := overrun(limit, func() { _, err = s.w.WriteBatch(ctx, messages("a", 11, 10)) })
	if took > limit+slack+2*late {
		t.Errorf("returned after %v", took)
	}
	var unknown *record.UnknownOutcomeError
	if !errors.As(err, &unknown) || len(unknown.IDs) != 10 || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if _, err := d.Cluster.Thaw(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
}

func TestACancelledContextSendsNothing(t *testing.T) {
	t.Parallel()
	s := &sim{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, err := New(nil, Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := newStreamWriter(l, s, "db", "s", StreamConfig{UUID: simUUID})
	applied, err := w.WriteBatch(ctx, messages("a", 1, 3))
	if applied != 0 || !errors.Is(err, context.Canceled) || s.inserts != 0 {
		t.Errorf("applied %d, %v, %d inserts", applied, err, s.inserts)
	}
	if _, unknown := errors.AsType[*record.UnknownOutcomeError](err); unknown {
		t.Error("nothing was sent, yet the outcome is said to be unknown")
	}
}

// Without a server the call ends with its budget, says that nothing was written, and why.
func TestWithoutAServerNothingIsWrittenAndTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var outages []Outage
		l, err := New(nil, Config{Hooks: Hooks{OnOutage: func(o Outage) { outages = append(outages, o) }}})
		if err != nil {
			t.Fatal(err)
		}
		w := newStreamWriter(l, &sim{down: true}, "db", "s", StreamConfig{UUID: simUUID})
		start := time.Now()
		applied, err := w.WriteBatch(t.Context(), messages("a", 1, 3))
		if took := time.Since(start); took != DefaultBudget {
			t.Errorf("returned after %v, want %v", took, DefaultBudget)
		}
		if _, unknown := errors.AsType[*record.UnknownOutcomeError](err); applied != 0 || unknown || !mongoerr.CannotConnect(err) || !errors.Is(err, errBudget) {
			t.Errorf("applied %d, %v", applied, err)
		}
		if len(outages) != 1 || outages[0].Took != DefaultBudget || outages[0].Err == nil {
			t.Errorf("outages: %+v", outages)
		}
	})
}

// The waits between attempts grow to a second and no more, and start anew after progress.
func TestRetriesBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var starts []time.Time
		s := &sim{}
		l, err := New(nil, Config{Hooks: Hooks{OnAttempt: func(a Attempt) { starts = append(starts, a.Start) }}})
		if err != nil {
			t.Fatal(err)
		}
		w := newStreamWriter(l, s, "db", "s", StreamConfig{UUID: simUUID})
		for range 2 {
			for range 20 {
				s.script = append(s.script, tick{fault: notSent})
			}
			starts = nil
			if _, err := w.WriteBatch(t.Context(), messages("a", 1, 1)); err != nil {
				t.Fatal(err)
			}
			if first := starts[1].Sub(starts[0]); first > 100*time.Millisecond {
				t.Errorf("the first wait took %v", first)
			}
			for i := range starts[1:] {
				if wait := starts[i+1].Sub(starts[i]); wait > time.Second+10*time.Millisecond {
					t.Errorf("wait %d took %v", i, wait)
				}
			}
		}
	})
}

// elect makes l see addr as the primary.
func elect(l *Layer, addr string) {
	kind := "RSPrimary"
	if addr == "" {
		addr, kind = "x:1", "Unknown"
	}
	l.opts.ServerMonitor.TopologyDescriptionChanged(&event.TopologyDescriptionChangedEvent{
		NewDescription: event.TopologyDescription{Servers: []event.ServerDescription{{Addr: address.Address(addr), Kind: kind}}}})
}

// An attempt that waits for a primary that is gone ends when another one is known, long before its
// deadline; the first primary ever seen, and none, end nothing.
func TestANewPrimaryCutsTheAttemptInFlight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		before string
		seen   []string
		cut    bool
	}{
		{"another", "a:1", []string{"b:1"}, true},
		{"another, after none", "a:1", []string{"", "b:1"}, true},
		{"none", "a:1", []string{""}, false},
		{"the same again", "a:1", []string{"", "a:1"}, false},
		{"the first one", "", []string{"a:1"}, false},
		{"the first, then another", "", []string{"a:1", "b:1"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := New(nil, Config{})
				if err != nil {
					t.Fatal(err)
				}
				elect(l, tt.before)
				go func() {
					for _, addr := range tt.seen {
						time.Sleep(100 * time.Millisecond)
						elect(l, addr)
					}
				}()
				start := time.Now()
				err = l.attempt(t.Context(), Attempt{}, true, func(ctx context.Context) error {
					<-ctx.Done()
					return context.Cause(ctx)
				})
				want := DefaultAttemptTimeout
				if tt.cut {
					want = time.Duration(len(tt.seen)) * 100 * time.Millisecond
				}
				if took := time.Since(start); took != want || errors.Is(err, errNewPrimary) != tt.cut {
					t.Errorf("ended after %v with %v; want %v", took, err, want)
				}
			})
		})
	}
}

func TestANewPrimaryEndsTheWaitBetweenAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sim{lostUntil: time.Now().Add(5 * time.Second)} // by then the waits are at their longest
		l, err := New(nil, Config{})
		if err != nil {
			t.Fatal(err)
		}
		w := newStreamWriter(l, s, "db", "s", StreamConfig{UUID: simUUID})
		go func() {
			time.Sleep(5 * time.Second)
			elect(l, "a:1")
		}()
		start := time.Now()
		if _, err := w.WriteBatch(t.Context(), messages("a", 1, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 5*time.Second+10*time.Millisecond {
			t.Errorf("written after %v although a primary was there after 5 s", took)
		}
	})
}

func TestWrongConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		opts *options.ClientOptions
		c    Config
		want string // "": valid
	}{
		{nil, Config{}, ""},
		{nil, Config{AttemptTimeout: time.Millisecond}, "AttemptTimeout"},
		{nil, Config{AttemptTimeout: time.Second, Budget: time.Millisecond}, "Budget"},
		{nil, Config{WriteConcern: 9}, "WriteConcern"},
		{options.Client().ApplyURI("http://x"), Config{}, "scheme"},
	} {
		_, err := New(tt.opts, tt.c)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.c, err, tt.want)
		}
	}
}

func TestTheCallersOptionsAreNotChanged(t *testing.T) {
	t.Parallel()
	base := options.Client().ApplyURI("mongodb://h/")
	if _, err := New(base, Config{}); err != nil {
		t.Fatal(err)
	}
	if base.RetryWrites != nil || base.HeartbeatInterval != nil || base.ServerMonitor != nil || base.ConnectTimeout != nil {
		t.Errorf("changed: %+v", base)
	}
}

func TestAClosedLayerWritesNothing(t *testing.T) {
	t.Parallel()
	s := newStream(t, mongotest.Standalone(t), Config{})
	if _, err := s.w.WriteBatch(t.Context(), messages("a", 1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := s.l.Collection("db", "c", CollectionConfig{})
	for what, err := range map[string]error{
		"a stream":     func() error { _, err := s.w.WriteBatch(t.Context(), messages("a", 2, 1)); return err }(),
		"a collection": c.InsertOne(t.Context(), item(1)),
		"a read":       func() error { _, err := s.l.Find(t.Context(), "db", "c", ReadConfig{}, bson.D{}); return err }(),
	} {
		if _, unknown := errors.AsType[*record.UnknownOutcomeError](err); unknown || !errors.Is(err, record.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	if err := s.l.Close(t.Context()); !errors.Is(err, record.ErrClosed) {
		t.Errorf("close after close: %v", err)
	}
}

func TestAWriterWithoutAUUIDIsRefused(t *testing.T) {
	t.Parallel()
	l, err := New(nil, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Stream("db", "s", StreamConfig{}).WriteBatch(t.Context(), messages("a", 1, 1)); !errors.Is(err, errNoUUID) {
		t.Error(err)
	}
}
