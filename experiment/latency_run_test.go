package experiment

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// deployments gives out the package's shared servers.
func deployments(t *testing.T) func(context.Context, bool) (LatencyServer, error) {
	return func(_ context.Context, set bool) (LatencyServer, error) {
		d := mongotest.Standalone(t)
		if set {
			d = mongotest.ReplicaSet(t)
		}
		s := LatencyServer{URI: d.URI, Stop: func(context.Context) error { return nil }}
		for _, m := range d.Cluster.Members() {
			s.PIDs = append(s.PIDs, m.PID)
		}
		return s, nil
	}
}

// TestEveryVariantDeliversAndLooksAsItMust runs the whole experiment in small. Its figures mean
// nothing; what is compared here differs by orders of magnitude.
func TestEveryVariantDeliversAndLooksAsItMust(t *testing.T) {
	t.Parallel()
	const count = 300
	run, err := RunLatency(t.Context(), LatencyConfig{Server: deployments(t), Worker: selfWorker, Count: count, Rate: 3000,
		Slices: 3, Payload: []int{100, 2000}, Producers: []int{1, 2}, StreamBytes: 1 << 20, Note: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range run.Variants {
		names = append(names, v.Name)
		if v.N != count || len(v.Samples) != count || v.Throughput <= 0 || v.ConsumerCPU <= 0 || v.ProducerCPU <= 0 || v.Inserts == 0 || v.Queries == 0 {
			t.Errorf("%s measured %+v", v.Name, v)
		}
		// Without the longest the deviation may grow, where the short ones are the outliers (a replay's are); the sum of its squares cannot.
		if !(v.P50 > 0 && v.P50 <= v.P99 && v.P99 <= v.P999 && v.P999 <= v.Max && v.StdDevP99 > 0 && v.StdDevP99 <= 1.01*v.StdDev) {
			t.Errorf("%s: p50 %g, p99 %g, p99.9 %g, longest %g, deviations %g and %g", v.Name, v.P50, v.P99, v.P999, v.Max, v.StdDevP99, v.StdDev)
		}
		if (v.Rate > 0) != (v.BehindMax > 0) {
			t.Errorf("%s: rate %g, at most %g s behind it", v.Name, v.Rate, v.BehindMax)
		}
	}
	want := append(Variants(), "await-primed@2000B", "floor@2000B", "await-primed-unpaced@2000B", "floor-unpaced@2000B", "await-primed@2p", "await-primed-unpaced@2p")
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	get := func(name string) *VariantResult {
		t.Helper()
		v := run.Variant(name)
		if v == nil {
			t.Fatalf("no variant %s", name)
		}
		return v
	}
	primed := get(awaitPrimed)
	if v := get("sleep-poll"); v.P50 < 10*primed.P50 && v.Max < 0.3 {
		t.Errorf("sleep-poll has a median of %g s, a tail that awaits %g s", v.P50, primed.P50)
	}
	if v := get("await-unprimed-spin"); v.Queries < 100 {
		t.Errorf("a tail on an empty stream was opened %d times in %s", v.Queries, unprimedLead)
	}
	if v := get("await-unprimed-sleep"); v.Queries > 10 || v.First < 10*primed.P50 {
		t.Errorf("opened each second: %d times, first message after %g s", v.Queries, v.First)
	}
	if v := get(tightPoll); v.GetMores <= primed.GetMores {
		t.Errorf("%d getMores without await, %d with", v.GetMores, primed.GetMores)
	}
	if s := get(replayCapstan).Samples; s[0].Took <= s[count-1].Took {
		t.Errorf("a replay's latencies must fall: %s at first, %s at last", s[0].Took, s[count-1].Took)
	}
	if v := get(naiveUnpaced); v.Inserts != count {
		t.Errorf("naive sent %d inserts", v.Inserts)
	}
	if v := get(primedAtNaive); v.Rate != get(naivePaced).Rate || math.Abs(v.Rate/get(naiveUnpaced).Throughput-0.5) > 0.01 {
		t.Errorf("rates %g and %g, half of naive's maximum is %g", v.Rate, get(naivePaced).Rate, get(naiveUnpaced).Throughput/2)
	}
	if len(run.Figures) != 10 || run.Machine.Mongod == "" || primed.WaitingCPU <= 0 {
		t.Errorf("figures %+v, machine %+v, waiting costs %g of a core", run.Figures, run.Machine, primed.WaitingCPU)
	}
}

func TestAVariantBringsWhatItNeedsAndAnotherServerSkipsWhatItCannot(t *testing.T) {
	t.Parallel()
	c := LatencyConfig{Server: deployments(t), Worker: selfWorker, Variants: []string{naivePaced, floorPaced, "majority"}, Count: 200, Rate: 2000,
		Slices: 2, StreamBytes: 1 << 20}
	c.Server = func(context.Context, bool) (LatencyServer, error) { return deployments(t)(t.Context(), true) } // a set, for all
	c.OwnServer = true
	run, err := RunLatency(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range run.Variants {
		names = append(names, v.Name)
	}
	if diff := cmp.Diff([]string{naiveUnpaced, naivePaced, "majority"}, names); diff != "" {
		t.Error(diff)
	}
	if why := run.Skipped[floorPaced]; !strings.Contains(why, "standalone") {
		t.Errorf("floor was skipped because %q", why)
	}
}

func TestALatencyConfigThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*LatencyConfig){
		"Count":     func(c *LatencyConfig) { c.Count = 5 },
		"Rate":      func(c *LatencyConfig) { c.Rate = math.NaN() },
		"Slices":    func(c *LatencyConfig) { c.Count, c.Slices = 100, 11 },
		"Payload":   func(c *LatencyConfig) { c.Payload = []int{0} },
		"Producers": func(c *LatencyConfig) { c.Producers = []int{2} },
		"variant":   func(c *LatencyConfig) { c.Variants = []string{"fast"} },
		"Server":    func(c *LatencyConfig) { c.Server = nil },
	} {
		c := LatencyConfig{Server: deployments(t), Worker: selfWorker}
		change(&c)
		if _, err := RunLatency(t.Context(), c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// scripted is a reader that delivers given numbers.
type scripted struct{ seqs []int64 }

func (s *scripted) read(_ context.Context, n int64, got func(arrival)) error {
	for _, seq := range s.seqs[:n] {
		got(arrival{time: time.Now().UnixMicro(), src: "a", seq: seq})
	}
	s.seqs = s.seqs[n:]
	return nil
}
func (s *scripted) idle(context.Context) error { return nil }
func (s *scripted) close(context.Context)      {}

func TestALostDoubledOrMovedMessageEndsTheExperiment(t *testing.T) {
	t.Parallel()
	for name, seqs := range map[string][]int64{"": {1, 2, 3, 4}, "lost": {1, 2, 4, 5}, "doubled": {1, 2, 2, 3}, "moved": {1, 3, 2, 4}} {
		r := &reading{reader: &scripted{slices.Clone(seqs)}, counts: &counts{}, last: map[string]int64{}}
		_, err := r.slice(t.Context(), 2)
		if err == nil {
			_, err = r.slice(t.Context(), 2)
		}
		if (err == nil) != (name == "") {
			t.Errorf("%v: error %v", seqs, err)
		}
	}
}

func TestDeviationsArePercentilesAndMeansOfKnownSamples(t *testing.T) {
	t.Parallel()
	var r VariantResult
	for i := range 1000 {
		r.Samples = append(r.Samples, sampleOf(i, time.Duration(i+1)*time.Millisecond))
	}
	r.Samples[999].Took = time.Hour // one outlier
	r.describe()
	near := func(got, want float64) bool { return math.Abs(got-want) < 1e-9 }
	if !near(r.P50, 0.5) || !near(r.P99, 0.99) || !near(r.P999, 0.999) || !near(r.Max, 3600) || !near(r.First, 0.001) || r.N != 1000 {
		t.Errorf("%+v", r)
	}
	// Of 1 … n the standard deviation is sqrt((n²-1)/12).
	if want := math.Sqrt((990*990-1)/12.0) / 1000; !near(r.StdDevP99, want) || r.StdDev < 100 {
		t.Errorf("deviation up to p99 %g, want %g; of all %g", r.StdDevP99, want, r.StdDev)
	}
}

func sampleOf(loc int, took time.Duration) latency.Sample {
	return latency.Sample{Loc: int64(loc), Took: took}
}
