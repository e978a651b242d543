package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// running runs a Supervisor until the test ends it with stop, which returns what Run returned.
func running(t *testing.T, cfg Config, routes ...Route) (s *Supervisor, stop func() error) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx, routes) }()
	synctest.Wait()
	return s, sync.OnceValue(func() error {
		cancel()
		return <-result
	})
}

func phase(s *Supervisor, name string) replicator.Phase {
	for _, r := range s.Routes() {
		if r.Route == name {
			return r.Phase
		}
	}
	return "no such route"
}

func TestTheZeroConfigIsUsable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, stop := running(t, Config{})
		if s.Line() != "no routes" || !s.Ready() || !s.Settled() {
			t.Errorf("got %q", s.Line())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := New(Config{DrainTimeout: -1}); err == nil {
		t.Error("a negative drain timeout is taken")
	}
}

// TestAFailedOrLostRouteStopsNoOther cites I6.
func TestAFailedOrLostRouteStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var good, failed, lost factory
		s, stop := running(t, Config{}, good.route("good", ""), failed.route("failed", ""), lost.route("lost", ""))
		failed.last(t).fail <- errors.New("mongodb://u:secret@h says no")
		lost.last(t).fail <- &replicator.LostError{Route: "lost", Err: errors.New("too old")}
		synctest.Wait()
		if phase(s, "good") != replicator.PhaseLive || phase(s, "failed") != replicator.PhaseFailed || phase(s, "lost") != replicator.PhaseLostHistory {
			t.Errorf("got %+v", s.Routes())
		}
		if s.Ready() || !s.Settled() {
			t.Error("ready with a failed route, or not settled")
		}
		if got := s.Line(); got != "1 live, 1 failed, 1 lost-history" {
			t.Errorf("got %q", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(good.all()) != 1 || len(lost.all()) != 1 || len(failed.all()) != 2 {
			t.Errorf("begun %d, %d and %d times; a lost route may not loop, a failed one is begun again", len(good.all()), len(lost.all()), len(failed.all()))
		}
		err := stop()
		var route *RouteError
		if !errors.As(err, &route) || route.Route != "lost" || !errors.As(err, new(*replicator.LostError)) {
			t.Errorf("got %v", err)
		}
	})
}

// TestARouteThatWaitsForAPersonIsNotWellAndCountsAtTheEnd: a Link with Config.Stay does not return when it is lost or failed.
func TestARouteThatWaitsForAPersonIsNotWellAndCountsAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, p := range []replicator.Phase{replicator.PhaseLostHistory, replicator.PhaseFailed} {
		synctest.Test(t, func(t *testing.T) {
			var f factory
			s, stop := running(t, Config{}, f.route("a", ""))
			f.last(t).set(func(s *replicator.Status) { s.Phase, s.Reason = p, "too old" })
			if s.Ready() || !s.Settled() || s.Routes()[0].Reason != "too old" {
				t.Errorf("got %+v", s.Routes())
			}
			err := stop()
			if !errors.As(err, new(*RouteError)) || errors.As(err, new(*replicator.LostError)) != (p == replicator.PhaseLostHistory) {
				t.Errorf("%s ends with %v", p, err)
			}
		})
	}
}

func TestWhatDoesNotPassByItselfIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		again bool
	}{
		{&replicator.LostError{}, false},
		{&replicator.MismatchError{}, false},
		{fmt.Errorf("save: %w", &record.FencedError{}), false},
		{fmt.Errorf("shop.orders: %w", replicator.ErrNotEmpty), false},
		{&replicator.FailedError{Err: replicator.ErrTooManyLetters}, false},
		{&replicator.FailedError{Err: errors.New("not authorized")}, true},
		{&replicator.BusyError{}, true},
		{errors.New("no server answers"), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			var f factory
			s, stop := running(t, Config{}, f.route("a", ""))
			f.last(t).fail <- c.err
			synctest.Wait()
			if got := s.Routes()[0]; got.Running || got.Again != c.again || got.Reason == "" {
				t.Errorf("%v: %+v", c.err, got)
			}
			time.Sleep(2 * FirstRestart)
			synctest.Wait()
			if got := len(f.all()) == 2; got != c.again {
				t.Errorf("%v: begun %d times", c.err, len(f.all()))
			}
			_ = stop()
		})
	}
}

func TestWaitsGrowAndProgressMakesThemShortAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f factory
		var restarted int
		s, stop := running(t, Config{RestartMax: time.Minute, Hooks: Hooks{OnRestart: func(string) { restarted++ }}}, f.route("a", ""))
		fail := func() time.Duration {
			n, began := len(f.all()), time.Now()
			f.last(t).fail <- errors.New("down")
			for len(f.all()) == n {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
			}
			return time.Since(began)
		}
		first := fail()
		for range 10 {
			fail()
		}
		if late := fail(); first > 2*time.Second || late < 20*time.Second || late > 61*time.Second {
			t.Errorf("the first wait was %v, the twelfth %v", first, late)
		}
		if got := s.Routes()[0].Failures; got != 12 || restarted != 12 {
			t.Errorf("%d failures said, %d counted", got, restarted)
		}
		f.last(t).begin.Hooks.OnSaved(record.Position{})
		if fail() < 20*time.Second {
			t.Error("what was stored before counts as progress")
		}
		f.last(t).begin.Hooks.OnSaved(record.Position{})
		f.last(t).begin.Hooks.OnSaved(record.Position{TS: record.Timestamp{T: 1}})
		if again := fail(); again > 2*time.Second {
			t.Errorf("after progress the wait is %v", again)
		}
		_ = stop()
	})
}

func TestAReloadTouchesOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var same, changed, removed, added factory
		var gone []string
		var mu sync.Mutex
		hooks := Hooks{OnGone: func(name string) {
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, name)
		}}
		changed.slow = 10 * time.Second
		s, stop := running(t, Config{Hooks: hooks}, same.route("same", "1"), changed.route("changed", "1"), removed.route("removed", "1"))
		got, err := s.Reload(t.Context(), []Route{same.route("same", "1"), changed.route("changed", "2"), added.route("added", "1")}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		want := Changes{Kept: []string{"same"}, Started: []string{"added"}, Restarted: []string{"changed"}, Stopped: []string{"removed"}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v", got)
		}
		synctest.Wait()
		if len(changed.all()) != 1 {
			t.Error("the changed route began before its former run had ended: they would fence each other off")
		}
		if phase(s, "changed") != replicator.PhaseStarting || phase(s, "removed") != "no such route" || phase(s, "added") != replicator.PhaseLive {
			t.Errorf("got %+v", s.Routes())
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if len(changed.all()) != 2 || len(same.all()) != 1 || phase(s, "changed") != replicator.PhaseLive {
			t.Errorf("changed was begun %d times, same %d times", len(changed.all()), len(same.all()))
		}
		mu.Lock()
		if len(gone) != 1 || gone[0] != "removed" {
			t.Errorf("gone: %v", gone)
		}
		mu.Unlock()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestAStopWaitsForTheDrainAndNoLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quick, slow := factory{slow: 5 * time.Second}, factory{slow: time.Minute}
		_, stop := running(t, Config{DrainTimeout: 10 * time.Second}, quick.route("quick", ""))
		began := time.Now()
		if err := stop(); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		_, stop = running(t, Config{DrainTimeout: 10 * time.Second}, quick.route("quick", ""), slow.route("slow", ""))
		began = time.Now()
		err := stop()
		var late *NotDrainedError
		if !errors.As(err, &late) || len(late.Routes) != 1 || late.Routes[0] != "slow" || time.Since(began) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(time.Minute)
	})
}

func TestControlVerbsReachTheRunningRouteOrBeginAnEndedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f factory
		s, stop := running(t, Config{}, f.route("a", ""))
		for verb, want := range map[Verb]replicator.Phase{Pause: replicator.PhasePaused, Resync: replicator.PhaseCopying, Retry: replicator.PhaseLive} {
			r, err := s.Control(t.Context(), "a", verb)
			if err != nil || r.Phase != want || verb == Retry && (r.Done != 3 || r.Left != 1) {
				t.Errorf("%s: %+v, %v", verb, r, err)
			}
		}
		if _, err := s.Control(t.Context(), "b", Pause); !errors.As(err, new(*UnknownRouteError)) {
			t.Errorf("an unknown route: %v", err)
		}
		f.last(t).fail <- &replicator.LostError{}
		synctest.Wait()
		var state *StateError
		if _, err := s.Control(t.Context(), "a", Resume); !errors.As(err, &state) || !strings.Contains(state.Hint, "resync") {
			t.Errorf("resume of a lost route: %v", err)
		}
		if _, err := s.Control(t.Context(), "a", Pause); !errors.As(err, &state) || !strings.Contains(state.Hint, "resume") {
			t.Errorf("pause of an ended route: %v", err)
		}
		if _, err := s.Control(t.Context(), "a", Resync); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if l := f.last(t); len(f.all()) != 2 || !l.begin.Resync || phase(s, "a") != replicator.PhaseLive {
			t.Errorf("resync of a lost route: %+v", l.begin)
		}
		f.last(t).fail <- errors.New("down")
		synctest.Wait()
		if _, err := s.Control(t.Context(), "a", Resume); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if l := f.last(t); len(f.all()) != 3 || l.begin.Resync {
			t.Errorf("resume of a failed route: begun %d times, %+v", len(f.all()), l.begin)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestARouteThatStartsPausedStaysSoUntilItHasStoredThat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f factory
		f.start = func(l *fakeLink) { l.status.Phase = replicator.PhaseStarting }
		s, stop := running(t, Config{Paused: true}, f.route("a", ""))
		if !f.last(t).begin.Paused || s.Settled() {
			t.Error("begun without being paused, or settled before it was connected")
		}
		f.last(t).fail <- errors.New("no server answers")
		time.Sleep(2 * FirstRestart)
		synctest.Wait()
		if len(f.all()) != 2 || !f.last(t).begin.Paused {
			t.Error("a failure before the first connection makes it start")
		}
		f.last(t).set(func(s *replicator.Status) { s.Phase = replicator.PhaseLive }) // somebody resumed it
		f.last(t).fail <- errors.New("down")
		time.Sleep(4 * FirstRestart)
		synctest.Wait()
		if len(f.all()) != 3 || f.last(t).begin.Paused {
			t.Error("a route that was resumed is paused again")
		}
		f.last(t).set(func(s *replicator.Status) { s.Phase = replicator.PhasePaused })
		f.last(t).fail <- errors.New("down")
		time.Sleep(10 * FirstRestart)
		synctest.Wait()
		if len(f.all()) != 4 || !f.last(t).begin.Paused {
			t.Error("a route that was paused goes on because it failed")
		}
		_ = stop()
	})
}

func TestWhatARouteTriesInVainIsShownAndSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f factory
		f.start = func(l *fakeLink) { l.status.Phase = replicator.PhaseStarting }
		s, stop := running(t, Config{}, f.route("a", ""))
		retry := f.last(t).begin.Hooks.OnRetry
		retry(errors.New("connection refused"))
		if got := s.Routes()[0].LastError; got != "connection refused" || s.Settled() {
			t.Errorf("got %q; settled by a single error: %t", got, s.Settled())
		}
		time.Sleep(time.Minute)
		if got := s.Routes()[0].LastError; got != "" {
			t.Errorf("a minute later: %q", got)
		}
		for range 4 {
			retry(errors.New("connection refused"))
			time.Sleep(2 * time.Second)
		}
		if !s.Settled() || s.Ready() {
			t.Error("a side that is away holds up the start for ever, or the route is well")
		}
		_ = stop()
	})
}

func TestSecretsOfServersErrorsAreHidden(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f factory
		redact := func(s string) string { return strings.ReplaceAll(s, "secret", "***") }
		s, stop := running(t, Config{Redact: redact}, f.route("a", ""))
		f.last(t).set(func(s *replicator.Status) { s.LastError, s.Notes = "secret", []string{"x", "secret"} })
		if got := s.Routes()[0]; got.LastError != "***" || got.Notes[1] != "***" {
			t.Errorf("got %+v", got)
		}
		f.last(t).fail <- errors.New("secret")
		synctest.Wait()
		if got := s.Routes()[0]; got.Reason != "***" {
			t.Errorf("got %+v", got)
		}
		_ = stop()
	})
}

// heard is a Manager that remembers.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) add(s string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, s)
	return nil
}

func (h *heard) count(s string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range h.all {
		if one == s {
			n++
		}
	}
	return n
}

func (h *heard) Ready() error          { return h.add("ready") }
func (h *heard) Status(l string) error { return h.add(l) }
func (h *heard) Watchdog() error       { return h.add("watchdog") }

func TestTheManagerHearsOfReadinessOnceAndOfLifeWhileTheLoopsLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a, b factory
		a.start = func(l *fakeLink) { l.status.Phase = replicator.PhaseStarting }
		s, stop := running(t, Config{}, a.route("a", ""), b.route("b", ""))
		var h heard
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Watch(ctx, &h, 9*time.Second, nil)
		}()
		beat := func(d time.Duration, alive ...*fakeLink) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				for _, l := range alive {
					l.set(func(s *replicator.Status) { s.Updated = time.Now() })
				}
			}
			synctest.Wait()
		}
		beat(20*time.Second, b.last(t))
		if h.count("ready") != 0 {
			t.Error("ready before every route was connected")
		}
		if h.count("watchdog") < 6 {
			t.Errorf("%d signs of life while a route starts", h.count("watchdog"))
		}
		a.last(t).set(func(s *replicator.Status) { s.Phase = replicator.PhaseCopying })
		beat(20*time.Second, a.last(t), b.last(t))
		if h.count("ready") != 1 || h.count("1 copying, 1 live") != 1 {
			t.Errorf("heard %q", h.all)
		}
		beat(20*time.Second, a.last(t)) // b's loop hangs
		n := h.count("watchdog")
		beat(20*time.Second, a.last(t))
		if h.count("watchdog") != n {
			t.Error("signs of life while a loop hangs")
		}
		b.last(t).set(func(s *replicator.Status) { s.Phase = replicator.PhasePaused })
		beat(20*time.Second, a.last(t))
		if h.count("watchdog") == n {
			t.Error("no sign of life because a route is paused")
		}
		cancel()
		<-done
		_ = stop()
	})
}

func TestARouteThatWasFinalizedBeforeIsWell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f factory
		s, stop := running(t, Config{}, f.route("done", ""))
		f.last(t).set(func(s *replicator.Status) { s.Phase, s.Reason = replicator.PhaseFailed, "the route is finalized" })
		f.last(t).fail <- fmt.Errorf("route: %w: give the new one another name", replicator.ErrFinalized)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := s.Routes()[0]; got.Phase != replicator.PhaseFinalized || got.Reason != "" || got.Again || !s.Ready() || !s.Settled() {
			t.Errorf("got %+v", got)
		}
		if len(f.all()) != 1 {
			t.Errorf("begun %d times", len(f.all()))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
