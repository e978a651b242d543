package metrics

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("code %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func full() daemon.RouteStatus {
	lag, ops, left := 1.5, int64(7), 3600.0
	return daemon.RouteStatus{Status: replicator.Status{
		Route: "a", Phase: replicator.PhaseLive, LagSeconds: &lag, LagOperations: &ops, OplogLeftSeconds: &left,
		Applied: replicator.Point{Unix: 1000}, Head: replicator.Point{Unix: 1002}, Checkpoint: replicator.Point{Unix: uint32(time.Now().Unix() - 30)},
		Letters: 2, Totals: replicator.Totals{Scanned: 10, Matched: 4, CopiedBytes: 400, Conflicts: 1},
	}}
}

func TestAScrapeHoldsEveryMetricAndThePromlinterIsContent(t *testing.T) {
	t.Parallel()
	m := New(Build{"v1", "c", "go1", "d"})
	m.Watch(func() []daemon.RouteStatus { return []daemon.RouteStatus{full()} })
	h := m.Hooks().OfRoute("a")
	h.OnApplied(map[string]int{"insert": 3, "surprise from a server": 2}, 20*time.Millisecond)
	h.OnLetter(replicator.Letter{})
	h.OnRetry(errors.New("x"))
	h.OnPhase(replicator.PhaseLive)
	m.Hooks().OnFailed("a", &replicator.LostError{})
	m.Hooks().OnRestart("a")
	m.Loaded()
	m.Reloaded(errors.New("bad"))
	out := scrape(t, m)
	for _, want := range []string{
		`capstan_build_info{commit="c",driver="d",go_version="go1",version="v1"} 1`,
		"capstan_up 1",
		`capstan_route_phase{phase="live",route="a"} 1`,
		`capstan_route_phase{phase="lost-history",route="a"} 0`,
		`capstan_source_lag_seconds{route="a"} 1.5`,
		`capstan_lag_operations{route="a"} 7`,
		`capstan_source_position_timestamp_seconds{route="a"} 1000`,
		`capstan_source_head_timestamp_seconds{route="a"} 1002`,
		`capstan_oplog_left_seconds{route="a"} 3600`,
		`capstan_apply_ops_total{op="insert",route="a"} 3`,
		`capstan_apply_ops_total{op="other",route="a"} 2`,
		`capstan_apply_errors_total{class="dead_letter",route="a"} 1`,
		`capstan_apply_errors_total{class="lost_history",route="a"} 1`,
		`capstan_retries_total{route="a"} 1`,
		`capstan_route_phase_changes_total{phase="live",route="a"} 1`,
		`capstan_route_restarts_total{route="a"} 1`,
		`capstan_dead_letters{route="a"} 2`,
		`capstan_copy_documents_scanned_total{route="a"} 10`,
		`capstan_copy_documents_matched_total{route="a"} 4`,
		`capstan_copied_bytes_total{route="a"} 400`,
		`capstan_conflicts_total{route="a"} 1`,
		`capstan_config_reloads_total{result="error"} 1`,
		`capstan_apply_delay_seconds_count{route="a"} 1`,
	} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("%s is not there", want)
		}
	}
	for _, name := range []string{"capstan_checkpoint_age_seconds", "capstan_config_reload_success_timestamp_seconds", "process_resident_memory_bytes", "go_goroutines"} {
		if !strings.Contains(out, "\n"+name) {
			t.Errorf("%s is not there", name)
		}
	}
	problems, err := promlint.New(strings.NewReader(out)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if n, err := testutil.GatherAndCount(m.Gatherer()); err != nil || n == 0 {
		t.Errorf("%d metrics, %v", n, err)
	}
}

func TestWhatIsNotKnownIsNoSample(t *testing.T) {
	t.Parallel()
	m := New(Build{})
	m.Watch(func() []daemon.RouteStatus {
		return []daemon.RouteStatus{{Status: replicator.Status{Route: "a", Phase: replicator.PhaseStarting}}}
	})
	out := scrape(t, m)
	for _, name := range []string{"source_lag_seconds", "lag_operations", "source_position_timestamp_seconds", "checkpoint_age_seconds", "oplog_left_seconds"} {
		if strings.Contains(out, "\ncapstan_"+name+"{") {
			t.Errorf("%s has a value although nothing is known", name)
		}
	}
}

func TestARouteThatIsGoneLeavesNoSeries(t *testing.T) {
	t.Parallel()
	m := New(Build{})
	m.Hooks().OfRoute("a").OnApplied(map[string]int{"insert": 1}, 0)
	m.Hooks().OfRoute("b")
	m.Hooks().OnFailed("a", errors.New("x"))
	m.Hooks().OnGone("a")
	if out := scrape(t, m); strings.Contains(out, `route="a"`) || !strings.Contains(out, `route="b"`) {
		t.Errorf("got\n%s", out)
	}
}

func TestClassesAreFew(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"lost_history": &daemon.RouteError{Err: &replicator.LostError{}},
		"fenced":       fmt.Errorf("save: %w", &record.FencedError{}),
		"mismatch":     &replicator.MismatchError{},
		"busy":         &replicator.BusyError{},
		"dead_letters": &replicator.FailedError{Err: replicator.ErrTooManyLetters},
		"destination":  &replicator.FailedError{Err: replicator.ErrNotEmpty},
		"other":        errors.New("mongodb://u:p@h"),
	} {
		if got := Class(err); got != want {
			t.Errorf("%v: got %s, want %s", err, got, want)
		}
	}
}
