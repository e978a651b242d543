package experiment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// TestEverySideDoesItsJobAndIsMeasured runs the whole experiment in small: what it measures there
// means nothing, that it measures is the point.
func TestEverySideDoesItsJobAndIsMeasured(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	report, err := RunCore(t.Context(), CoreConfig{
		URI: d.URI, ServerPID: d.Cluster.Members()[0].PID, Worker: selfWorker,
		Rounds: 1, Messages: 2000, StreamBytes: 1 << 20, Idle: time.Second, Note: func(s string) { t.Log(s) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range report.Comparisons {
		names = append(names, c.Name)
		for _, r := range c.Rounds {
			for _, s := range r {
				if s.Value <= 0 || len(s.Workers) == 0 {
					t.Errorf("%s: %s measured %v", c.Name, s.Who, s)
				}
				for _, o := range s.Workers {
					if o.Messages == 0 || o.PeakRSS == 0 || o.CPU == 0 {
						t.Errorf("%s: a worker of %s says %+v", c.Name, s.Who, o)
					}
				}
			}
		}
	}
	want := []string{"producer flat out, a tail attached", "catch-up from the oldest message", "first message after a resume in the middle"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if len(report.Limits) != 8 {
		t.Errorf("%d limits: %+v", len(report.Limits), report.Limits)
	}
	if report.Machine.Mongod == "" || report.Machine.Cores == 0 || report.Config.Seed == 0 {
		t.Errorf("a result must say where it comes from: %+v %+v", report.Machine, report.Config)
	}
}

func TestAConfigThatCannotWorkIsRefusedBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	good := CoreConfig{URI: "mongodb://127.0.0.1:1", Worker: selfWorker}
	for name, change := range map[string]func(*CoreConfig){
		"URI":      func(c *CoreConfig) { c.URI = "" },
		"Worker":   func(c *CoreConfig) { c.Worker = nil },
		"Rounds":   func(c *CoreConfig) { c.Rounds = -1 },
		"Messages": func(c *CoreConfig) { c.Messages = -1 },
		"part":     func(c *CoreConfig) { c.Only = []string{"everything"} },
		"hosts":    func(c *CoreConfig) { c.URI = "mongodb://a,b/" },
	} {
		cfg := good
		change(&cfg)
		if _, err := RunCore(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAWorkerThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	_, err := startWorker(t.Context(), selfWorker, Job{Who: "nobody", What: "sleeps"})
	if err == nil || !strings.Contains(err.Error(), `nobody named "nobody" does "sleeps"`) {
		t.Errorf("error is %v", err)
	}
}

func TestSidesTakeTurns(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]string{"b", "c", "a"}, turns(4, "a", "b", "c")); diff != "" {
		t.Error(diff)
	}
}

// comparison has ratios of 0.5, 0.8 and 2 against raw.
func comparison(unit string, target float64) Comparison {
	side := func(who string, v float64) Side { return Side{Who: who, Value: v} }
	return Comparison{Name: "x", Unit: unit, Target: target, Rounds: []Round{
		{side(Capstan, 50), side(Raw, 100)}, {side(Raw, 100), side(Capstan, 80)}, {side(Capstan, 200), side(Raw, 100)},
	}}
}

func TestATargetIsJudgedByTheMedianRatio(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]float64{0.5, 0.8, 2}, comparison("msg/s", 0).Ratios(Raw)); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		unit   string
		target float64
		met    bool
	}{{"msg/s", 0.8, true}, {"msg/s", 0.81, false}, {"s", 0.8, true}, {"s", 0.79, false}} {
		if got := comparison(c.unit, c.target).Met(); got != c.met {
			t.Errorf("%+v: met is %v", c, got)
		}
	}
	r := CoreReport{Comparisons: []Comparison{comparison("msg/s", 0.5)}, Limits: []Limit{{Value: 5, Limit: 0}, {Value: 2, Limit: 2}}}
	if !r.Met() {
		t.Error("all is met, and a limit of 0 is none")
	}
	r.Limits = append(r.Limits, Limit{Value: 3, Limit: 2})
	if r.Met() {
		t.Error("one limit is exceeded")
	}
}

func TestAReportKeepsEveryNumberBesideItsTable(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "results", "core")
	r := &CoreReport{Machine: Machine{Mongod: "6.0.5", Commit: "abc", Command: "capstan bench core"},
		Comparisons: []Comparison{comparison("s", 1.5)}, Limits: []Limit{{Name: "memory", Unit: "MB", Value: 12.5, Limit: 50}}}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	var back CoreReport
	b, err := os.ReadFile(filepath.Join(dir, "core.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &back); diff != "" {
		t.Error(diff)
	}
	md, err := os.ReadFile(filepath.Join(dir, "core.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"commit abc", "mongod 6.0.5", "| x | s | 80.000 | 100.000 | – | 0.80 (0.50 to 2.00) | ≤ 1.5 | yes |", "| memory | 12.5 MB | ≤ 50 MB | yes |"} {
		if !strings.Contains(string(md), want) {
			t.Errorf("core.md lacks %q:\n%s", want, md)
		}
	}
}
