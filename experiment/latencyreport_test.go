package experiment

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	diff "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-12ef14e5/capstan/experiment/results"
	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/plot"
)

// variantOf makes a result of latencies that took(i, now) gives in seconds, now being when message i
// was sent at rate.
func variantOf(name string, n int, rate float64, took func(i int, now float64) float64) VariantResult {
	v := VariantResult{Name: name, What: "made up at " + countText(rate) + " msg/s", Payload: 128, Producers: 1, Rate: rate, N: int64(n),
		Throughput: rate, ConsumerCPU: float64(n) * 9e-6, ProducerCPU: float64(n) * 12e-6, ServerCPU: 3.25,
		GetMores: int64(n) / 7, Queries: 1, Inserts: int64(n) / 5, InsertBatch: 5, ReadBatch: 6.5, BehindP50: 11e-6, BehindP99: 0.0004, BehindMax: 0.012, Load: "0.20"}
	for i := range n {
		now := float64(i) / rate
		t := seconds(max(took(i, now), 1e-6))
		v.Samples = append(v.Samples, latency.Sample{Loc: int64(i), Took: t, At: seconds(now)})
		v.Mean += t.Seconds() / float64(n)
	}
	sorted := slices.SortedFunc(slices.Values(v.Samples), func(a, b latency.Sample) int { return cmp.Compare(a.Took, b.Took) })
	at := func(q float64) float64 { return sorted[min(int(q*float64(n)), n-1)].Took.Seconds() }
	v.P50, v.P99, v.P999, v.Max, v.First = at(0.5), at(0.99), at(0.999), at(1), v.Samples[0].Took.Seconds()
	for i, s := range sorted {
		v.StdDev += math.Pow(s.Took.Seconds()-v.Mean, 2)
		if i <= n*99/100 {
			v.StdDevP99 = math.Sqrt(v.StdDev / float64(i+1))
		}
	}
	v.StdDev = math.Sqrt(v.StdDev / float64(n))
	return v
}

// smallRun is a run of few messages in two variants and a step of a sweep.
func smallRun() *LatencyRun {
	rng := rand.New(rand.NewPCG(1, 2))
	around := func(p50 float64) func(int, float64) float64 {
		return func(int, float64) float64 { return p50 * math.Exp(rng.NormFloat64()*0.3) }
	}
	r := &LatencyRun{
		Machine: Machine{Time: "2026-01-02T03:04:05Z", CPU: "A CPU", Cores: 2, Memory: "4 kB", Kernel: "Linux 6", Go: "go1.26", Driver: "v2", Mongod: "8.0.4", Load: "0.10",
			Commit: "abc1234", Command: "capstan bench latency --out a && true"},
		Settings: LatencySettings{Count: 300, Rate: 3900, Payload: []int{128}, Producers: []int{1}, Seed: 7},
		Took:     12.5,
		Variants: []VariantResult{
			variantOf("sleep-poll", 300, 100, func(_ int, now float64) float64 { return 1 - math.Mod(now, 1) }),
			variantOf("await-primed", 300, 3900, around(0.0003)),
			variantOf("await-primed@1024", 300, 3900, around(0.0004)),
		},
		Figures: []Figure{{Name: "p50 ÷ floor's", Value: 1.234, AtMost: 1.3}, {Name: "throughput ÷ floor's", Value: 0.7, AtLeast: 0.8}, {Name: "longest ÷ floor's", Value: 1234.5}},
		Skipped: map[string]string{"majority": "the server is no set."},
	}
	r.Variants[0].Deviation2011 = 0.29693
	r.Variants[2].Base, r.Variants[2].Payload = "await-primed", 1024
	return r
}

// smallPlots makes the tests fast: what they look for does not depend on the size of the pictures.
func smallPlots(compress bool) output { return output{compress: compress, width: 160, height: 120} }

func written(t *testing.T, r *LatencyRun, compress bool) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := r.write(dir, smallPlots(compress)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func fileIn(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLatencyReportReadsBackWhatItWrote(t *testing.T) {
	t.Parallel()
	r := smallRun()
	dir := written(t, r, true)
	got, err := ReadLatencyRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := diff.Diff(r, got, cmpopts.IgnoreFields(VariantResult{}, "Samples")); d != "" {
		t.Error(d)
	}
	text := fileIn(t, dir, "run.json")
	if !strings.HasSuffix(text, "}\n") || !strings.Contains(text, "\n  \"machine\": {") || !strings.Contains(text, "a && true") {
		t.Errorf("run.json is not made for people: %.300s", text)
	}
	if err := got.Write(dir, true); !errors.Is(err, ErrNoSamples) {
		t.Errorf("written again without samples: %v", err)
	}
}

func TestLatencyReportHasEverySample(t *testing.T) {
	t.Parallel()
	r := smallRun()
	dir := written(t, r, true)
	for _, v := range r.Variants {
		z, err := gzip.NewReader(strings.NewReader(fileIn(t, dir, LatencyFile(v.Name)+".csv.gz")))
		if err != nil {
			t.Fatal(err)
		}
		if z.Name != "" || !z.ModTime.IsZero() {
			t.Errorf("%s: the gzip header holds %q, %v", v.Name, z.Name, z.ModTime)
		}
		got, err := latency.Read(z)
		if err != nil {
			t.Fatal(err)
		}
		if d := diff.Diff(v.Samples, got, cmpopts.IgnoreFields(latency.Sample{}, "At")); d != "" {
			t.Errorf("%s: %s", v.Name, d)
		}
	}
}

func TestLatencyReportLeavesNoSamplesOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	r := smallRun()
	dir := written(t, r, true)
	if err := r.write(dir, smallPlots(false)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "sleep-poll.csv.gz")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the compressed samples are still there: %v", err)
	}
	if got, err := latency.Read(strings.NewReader(fileIn(t, dir, "sleep-poll.csv"))); err != nil || len(got) != 300 {
		t.Errorf("%d samples, %v", len(got), err)
	}
}

func TestLatencyReportHasTheHistogramsThatItSummarises(t *testing.T) {
	t.Parallel()
	r := smallRun()
	dir := written(t, r, false)
	for _, v := range r.Variants {
		h, err := hdrhistogram.NewHistogramLogReader(strings.NewReader(fileIn(t, dir, LatencyFile(v.Name)+".hlog"))).NextIntervalHistogram()
		if err != nil || h == nil {
			t.Fatal(h, err)
		}
		// The middle of an even number of samples is one of two: take the next three for as good.
		i := slices.IndexFunc(sortedSeconds(v), func(s float64) bool { return s == v.P50 })
		got := float64(h.ValueAtQuantile(50)) / 1e9
		if s := sortedSeconds(v); got < s[i-1]*0.999 || got > s[i+1]*1.001 {
			t.Errorf("%s: p50 %v, want %v", v.Name, got, v.P50)
		}
		last := v.Samples[len(v.Samples)-1]
		if h.TotalCount() != v.N || h.EndTimeMs() < (last.At).Milliseconds() {
			t.Errorf("%s: %d samples until %d ms", v.Name, h.TotalCount(), h.EndTimeMs())
		}
	}
}

func sortedSeconds(v VariantResult) []float64 {
	var out []float64
	for _, s := range v.Samples {
		out = append(out, s.Took.Seconds())
	}
	slices.Sort(out)
	return out
}

// The order is part of the format: others read the file by position.
func TestLatencyReportSummaryHasTheColumnsThatWerePromised(t *testing.T) {
	t.Parallel()
	r := smallRun()
	rows, err := csv.NewReader(strings.NewReader(fileIn(t, written(t, r, true), "summary.csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const want = "variant,n,mean,stddev,stddev_p99,p50,p99,p999,max,first_message,msgs_per_s,consumer_cpu_s,getmores,queries," +
		"rate,payload_bytes,producers,producer_cpu_s,server_cpu_s,inserts,insert_batch_mean,read_batch_mean,behind_p50,behind_p99,behind_max,waiting_cpu,stddev_2011"
	if got := strings.Join(rows[0], ","); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(rows) != 4 || rows[1][0] != "sleep-poll" || rows[1][1] != "300" || rows[1][26] != "0.296930000" {
		t.Errorf("%v", rows[1:])
	}
	for _, cell := range rows[2][2:10] {
		if _, frac, ok := strings.Cut(cell, "."); !ok || len(frac) != 9 {
			t.Errorf("%q is not a plain number of seconds with nanoseconds", cell)
		}
	}
	if p50, _ := strconv.ParseFloat(rows[2][5], 64); math.Abs(p50-r.Variants[1].P50) > 1e-9 {
		t.Errorf("p50 %v, want %v", p50, r.Variants[1].P50)
	}
}

func TestLatencyReportTableComesFromTheSummary(t *testing.T) {
	t.Parallel()
	r := smallRun()
	r.Variants[1].P99 = 0.001237
	dir := written(t, r, true)
	summary := fileIn(t, dir, "summary.csv")
	back, err := ReadLatencyRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	table, err := LatencyTable(strings.NewReader(summary), back)
	if err != nil || table != fileIn(t, dir, "table.md") {
		t.Errorf("%v: table.md is not what the summary makes:\n%s", err, table)
	}
	for _, want := range []string{"| `sleep-poll` | 297 ms |", "| `await-primed` | – |", "| 1.2 ms |", "| 3,900 |", "| sweep |", "| `await-primed@1024` | 1,024 | 1 |",
		"Not run: `majority`, the server is no set.\n", r.Machine.String() + "; seed 7", "`capstan bench latency --out a && true` at commit abc1234"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	changed, err := LatencyTable(strings.NewReader(strings.Replace(summary, "0.001237000", "0.004237000", 1)), back)
	if err != nil || !strings.Contains(changed, "| 4.2 ms |") {
		t.Errorf("%v: a number changed in the summary is not in\n%s", err, changed)
	}
	alone, err := LatencyTable(strings.NewReader(summary), nil)
	if err != nil || strings.Contains(alone, "Made by") || strings.Count(alone, "\n") != 5 {
		t.Errorf("%v: without the run\n%s", err, alone)
	}
	var printed bytes.Buffer
	if err := r.Print(&printed); err != nil || !strings.HasPrefix(printed.String(), table+"\n| figure |") {
		t.Errorf("%v: printed\n%s", err, printed.String())
	}
}

func TestLatencyReportFiguresHaveTheirTargets(t *testing.T) {
	t.Parallel()
	const want = "| figure | value | target | met |\n|---|--:|--:|---|\n" +
		"| p50 ÷ floor's | 1.23 | ≤ 1.3 | yes |\n| throughput ÷ floor's | 0.7 | ≥ 0.8 | NO |\n| longest ÷ floor's | 1,234 | none |  |\n"
	if got := fileIn(t, written(t, smallRun(), true), "figures.md"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestLatencyReportOfTheSameRunIsTheSame(t *testing.T) {
	t.Parallel()
	one, two := written(t, smallRun(), true), written(t, smallRun(), true)
	names, err := filepath.Glob(filepath.Join(one, "*"))
	if err != nil || len(names) != 6+3*3-1 {
		t.Fatalf("%v: %v", err, names)
	}
	for _, path := range names {
		if name := filepath.Base(path); fileIn(t, one, name) != fileIn(t, two, name) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestLatencyReportRefusesNamesThatWouldReplaceEachOther(t *testing.T) {
	t.Parallel()
	for bad, want := range map[string]string{"summary": "summary.csv", "..": "no file name", "": "no file name", "sleep/poll@1": "sleep_poll_1", "Sleep-Poll": "sleep-poll"} {
		r := smallRun()
		r.Variants[1].Name = bad
		r.Variants[2].Name = "sleep_poll_1"
		dir := filepath.Join(t.TempDir(), "out")
		if err := r.write(dir, smallPlots(false)); err == nil || !strings.Contains(err.Error(), want) && !strings.Contains(err.Error(), "sleep/poll@1") {
			t.Errorf("%q: %v", bad, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%q: the folder was made", bad)
		}
	}
	if got := LatencyFile("await primed@64/k.b"); got != "await_primed_64_k.b" {
		t.Error(got)
	}
}

// A run takes minutes: what can be kept of it is kept.
func TestLatencyReportWritesTheRestWhenOnePartFails(t *testing.T) {
	t.Parallel()
	r := smallRun()
	r.Variants[1].Samples = nil
	r.Figures[0].Value = math.NaN() // JSON has none
	dir := t.TempDir()
	err := r.write(dir, smallPlots(false))
	if !errors.Is(err, ErrNoSamples) || !strings.Contains(err.Error(), "await-primed") || !strings.Contains(err.Error(), "run.json") {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"summary.csv", "table.md", "figures.md", "overview.png", "sleep-poll.csv", "sleep-poll.hlog", "sleep-poll.png"} {
		if fileIn(t, dir, name) == "" {
			t.Errorf("%s is empty", name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.write(filepath.Join(dir, "file"), smallPlots(false)); err == nil || !strings.Contains(err.Error(), "make results folder") {
		t.Errorf("a file in the way of the folder: %v", err)
	}
}

func TestLatencyTableNamesWhatIsWrongWithASummary(t *testing.T) {
	t.Parallel()
	var good bytes.Buffer
	if err := results.WriteCSV(&good, summaryColumns, smallRun().Variants); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                  "line 1",
		"variant,n\nx,1":    "no column mean",
		good.String() + "x": "line 5",
		strings.Replace(good.String(), ",300,", ",many,", 1): "line 2: column n",
	} {
		if _, err := LatencyTable(strings.NewReader(text), nil); !errors.Is(err, ErrLatencySummary) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	if _, err := LatencyTable(io.MultiReader(), nil); !errors.Is(err, ErrLatencySummary) {
		t.Error(err)
	}
}

func TestLatencyPlotsDrawKnownShapesOnALinearAxis(t *testing.T) {
	t.Parallel()
	r := smallRun()
	lines := map[string]int{"sleep-poll": 2, "tight-poll": 2, "await-primed": 2} // a line needs no line
	for name, linear := range map[string]bool{"sleep-poll": true, "replay": true, "floor-replay": true, "tight-poll": false, "await-primed": false} {
		v := variantOf(name, 50, 100, func(int, float64) float64 { return 0.001 })
		if s := r.scatter(&v, output{}); s.LinearY != linear || s.Note != r.Machine.String() || len(s.Lines) != lines[name] || s.Title != name+": made up at 100 msg/s" {
			t.Errorf("%s: %+v", name, s.Title)
		}
	}
	if got := (&VariantResult{Name: "x@1", Base: "replay"}).shape(); got != straight {
		t.Errorf("a step of a sweep is drawn as %v", got)
	}
}

func TestLatencyPlotsShowAtMostThirteenCurves(t *testing.T) {
	t.Parallel()
	r := smallRun()
	for i := range 11 {
		r.Variants = append(r.Variants, variantOf(fmt.Sprintf("v%d", i), 10, 100, func(int, float64) float64 { return 0.001 }))
	}
	r.Variants[4].Name = "replay"
	if p := r.overview(output{}); len(p.Curves) != 13 || strings.Contains(p.Note, "Not shown") || slices.ContainsFunc(p.Curves, func(c plot.Curve) bool { return strings.Contains(c.Name, "@") }) {
		t.Errorf("%d curves, %s", len(p.Curves), p.Note)
	}
	r.Variants = append(r.Variants, variantOf("v11", 10, 100, func(int, float64) float64 { return 0.001 }))
	if p := r.overview(output{}); len(p.Curves) != 13 || !strings.HasPrefix(p.Note, "Not shown: replay. ") {
		t.Errorf("%d curves, %s", len(p.Curves), p.Note)
	}
	r.Variants = append(r.Variants, variantOf("v12", 10, 100, func(int, float64) float64 { return 0.001 }))
	if p := r.overview(output{}); len(p.Curves) != 13 || !strings.HasPrefix(p.Note, "Not shown: replay, v12. ") {
		t.Errorf("%d curves, %s", len(p.Curves), p.Note)
	}
}

// TestLatencyPlotsOfAFullRun makes the pictures of a run as it is expected. They are there to be looked
// at: set CAPSTAN_KEEP_PLOTS to a folder.
func TestLatencyPlotsOfAFullRun(t *testing.T) {
	keep := os.Getenv("CAPSTAN_KEEP_PLOTS")
	if keep == "" {
		t.Skip("CAPSTAN_KEEP_PLOTS names no folder")
	}
	if err := expectedRun().Write(keep, true); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(keep, "overview.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}
}

// expectedRun has every variant of the experiment with 100,000 messages, as they are expected.
func expectedRun() *LatencyRun {
	const n, rate = 100_000, 3900
	rng := rand.New(rand.NewPCG(3, 4))
	tail := func(p50, sigma float64) func(int, float64) float64 {
		return func(i int, _ float64) float64 {
			t := p50 * math.Exp(rng.NormFloat64()*sigma)
			if rng.IntN(300) == 0 {
				t += p50 * 20 * rng.ExpFloat64()
			}
			return t
		}
	}
	r := smallRun()
	r.Settings.Count = n
	r.Machine = Machine{CPU: "Intel(R) Xeon(R) Processor @ 2.60GHz", Cores: 2, Memory: "8123456 kB", Kernel: "Linux 6.8.0-1021-aws", Go: "go1.26.0", Driver: "v2.3.0", Mongod: "8.0.12", Load: "0.21", Commit: "abc", Command: "capstan bench latency"}
	first := func(at float64, f func(int, float64) float64) func(int, float64) float64 {
		return func(i int, now float64) float64 { return max(at-now, 0) + f(i, now) }
	}
	r.Variants = []VariantResult{
		variantOf("sleep-poll", n, rate, func(i int, now float64) float64 { return 1.001 - math.Mod(now, 1) + 0.003*rng.Float64() }),
		variantOf("tight-poll", n, rate, tail(0.0004, 0.3)),
		variantOf("await-unprimed-spin", n, rate, first(0.002, tail(0.00036, 0.3))),
		variantOf("await-unprimed-sleep", n, rate, first(0.9, tail(0.00035, 0.3))),
		variantOf("await-primed", n, rate, tail(0.0003, 0.25)),
		variantOf("await-primed-unpaced", n, 60_000, tail(0.004, 0.2)),
		variantOf("replay", n, rate, func(_ int, now float64) float64 { return 26 - now*0.97 + 0.001*rng.Float64() }),
		variantOf("floor-replay", n, rate, func(_ int, now float64) float64 { return 25.8 - now*0.99 + 0.001*rng.Float64() }),
		variantOf("naive", n, 1500, tail(0.0006, 0.2)),
		variantOf("naive-unpaced", n, 3000, tail(0.0005, 0.2)),
		variantOf("await-primed-at-naive", n, 1500, tail(0.00033, 0.22)),
		variantOf("majority", n, rate, tail(0.0021, 0.3)),
		variantOf("local", n, rate, tail(0.0009, 0.35)),
		variantOf("floor", n, rate, tail(0.00026, 0.2)),
		variantOf("floor-unpaced", n, 70_000, tail(0.0033, 0.2)),
	}
	r.Variants[2].What = "await on an empty stream, opened again at once until the first message"
	r.Variants[4].What = "capstan's producer and tailer at 3,900 msg/s"
	return r
}
