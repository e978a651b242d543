package daemon

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-12ef14e5/capstan/replicator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeLink is a Link that does what a test says.
type fakeLink struct {
	begin Begin
	fail  chan error    // Run returns what comes
	slow  time.Duration // how long Run takes to stop

	mu     sync.Mutex
	status replicator.Status
	calls  []Verb
	ended  bool
}

func newFakeLink(b Begin) *fakeLink {
	phase := replicator.PhaseLive
	if b.Paused {
		phase = replicator.PhasePaused
	}
	return &fakeLink{begin: b, fail: make(chan error, 1), status: replicator.Status{Phase: phase, Updated: time.Now()}}
}

func (l *fakeLink) Run(ctx context.Context) error {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = true
	}()
	select {
	case err := <-l.fail:
		return err
	case <-ctx.Done():
	}
	if l.slow > 0 {
		time.Sleep(l.slow)
	}
	return nil
}

func (l *fakeLink) Status() replicator.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

func (l *fakeLink) set(change func(*replicator.Status)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.status)
}

func (l *fakeLink) call(v Verb, phase replicator.Phase) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return replicator.ErrNotRunning
	}
	l.calls = append(l.calls, v)
	l.status.Phase = phase
	return nil
}

func (l *fakeLink) Pause(context.Context) error  { return l.call(Pause, replicator.PhasePaused) }
func (l *fakeLink) Resume(context.Context) error { return l.call(Resume, replicator.PhaseLive) }
func (l *fakeLink) Resync(context.Context) error { return l.call(Resync, replicator.PhaseCopying) }
func (l *fakeLink) Finalize(context.Context) error {
	return l.call(Finalize, replicator.PhaseFinalized)
}
func (l *fakeLink) Retry(context.Context) (int64, int64, error) {
	return 3, 1, l.call(Retry, replicator.PhaseLive)
}

// factory makes the links of one route and remembers them.
type factory struct {
	mu    sync.Mutex
	links []*fakeLink
	slow  time.Duration
	err   error // of Build
	start func(*fakeLink)
}

func (f *factory) route(name, fingerprint string) Route {
	return Route{Name: name, Fingerprint: fingerprint, Build: func(b Begin) (Link, func(context.Context), error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.err != nil {
			return nil, nil, f.err
		}
		l := newFakeLink(b)
		l.slow = f.slow
		if f.start != nil {
			f.start(l)
		}
		f.links = append(f.links, l)
		return l, nil, nil
	}}
}

func (f *factory) all() []*fakeLink {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*fakeLink(nil), f.links...)
}

func (f *factory) last(t *testing.T) *fakeLink {
	t.Helper()
	all := f.all()
	if len(all) == 0 {
		t.Fatal("no link was built")
	}
	return all[len(all)-1]
}
