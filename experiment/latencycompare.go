package experiment

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/seed-12ef14e5/capstan/experiment/results"
)

// ErrLatencyRun says that a run.json is not what Write wrote.
var ErrLatencyRun = errors.New("not the result of a latency run")

// ReadLatencyRun reads back what Write put into a folder, without the samples. The error names the
// file and what to do; it wraps fs.ErrNotExist if there is no run, ErrLatencyRun if it is damaged.
func ReadLatencyRun(dir string) (*LatencyRun, error) {
	path := filepath.Join(dir, runFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read latency run: %w (give a folder that capstan bench latency --out wrote)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read latency run: %w", err)
	}
	const again = "restore it, or repeat the run"
	var r LatencyRun
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("read latency run: %s: %w: %w (%s)", path, ErrLatencyRun, err, again)
	}
	if len(r.Variants) == 0 {
		return nil, fmt.Errorf("read latency run: %s: %w: it has no variants (%s)", path, ErrLatencyRun, again)
	}
	for _, v := range r.Variants {
		if v.Name == "" {
			return nil, fmt.Errorf("read latency run: %s: %w: a variant has no name (%s)", path, ErrLatencyRun, again)
		}
	}
	return &r, nil
}

// CompareLatency writes the ratios of two runs, b divided by a, for people: of each variant that both
// have, then the figures of each. It warns of what makes the two hard to compare.
func CompareLatency(w io.Writer, a, b *LatencyRun) error {
	var out bytes.Buffer
	for _, side := range []struct {
		name string
		run  *LatencyRun
	}{{"first", a}, {"second", b}} {
		m := side.run.Machine
		fmt.Fprintf(&out, "%-7s commit %s, %s\n        %s\n", side.name+":", cmp.Or(m.Commit, "unknown"), m.Time, m)
	}
	out.WriteString("\n")
	warnings := differences(a, b)
	for _, s := range warnings {
		fmt.Fprintf(&out, "Careful: the %s\n", s)
	}
	if len(warnings) > 0 {
		out.WriteString("\n")
	}
	ratioTable(&out, a, b)
	figureTable(&out, a, b)
	if err := results.PutText(w, out.String()); err != nil {
		return fmt.Errorf("write comparison: %w", err)
	}
	return nil
}

// differences returns what both runs should have in common and have not.
func differences(a, b *LatencyRun) []string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	var out []string
	for _, c := range []struct{ what, a, b string }{
		{"number of messages", countText(float64(a.Settings.Count)), countText(float64(b.Settings.Count))},
		{"rate", number(a.Settings.Rate) + " msg/s", number(b.Settings.Rate) + " msg/s"},
		{"payload", numbersText(a.Settings.Payload) + " bytes", numbersText(b.Settings.Payload) + " bytes"},
		{"number of producers", numbersText(a.Settings.Producers), numbersText(b.Settings.Producers)},
		{"mongod", a.Machine.Mongod, b.Machine.Mongod},
		{"processor", a.Machine.CPU, b.Machine.CPU},
		{"number of cores", strconv.Itoa(a.Machine.Cores), strconv.Itoa(b.Machine.Cores)},
		{"server", whoseServer(a), whoseServer(b)},
	} {
		if c.a != c.b {
			out = append(out, fmt.Sprintf("%s differs: %s and %s.", c.what, cmp.Or(c.a, "unknown"), cmp.Or(c.b, "unknown")))
		}
	}
	return out
}

func numbersText(v []int) string { return strings.Trim(fmt.Sprint(v), "[]") }

func whoseServer(r *LatencyRun) string {
	if r.Settings.OwnServer {
		return "a given one"
	}
	return "one started for the run"
}

func ratioTable(w io.Writer, a, b *LatencyRun) {
	var onlyA, onlyB []string
	fmt.Fprint(w, "| second ÷ first | p50 | p99 | stddev up to p99 | msg/s | consumer CPU |\n|---|--:|--:|--:|--:|--:|\n")
	for i := range a.Variants {
		x := &a.Variants[i]
		y := b.Variant(x.Name)
		if y == nil {
			onlyA = append(onlyA, x.Name)
			continue
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", x.Name, ratioText(x.P50, y.P50), ratioText(x.P99, y.P99),
			ratioText(x.StdDevP99, y.StdDevP99), ratioText(x.Throughput, y.Throughput), ratioText(x.ConsumerCPU, y.ConsumerCPU))
	}
	for _, v := range b.Variants {
		if a.Variant(v.Name) == nil {
			onlyB = append(onlyB, v.Name)
		}
	}
	if len(onlyA)+len(onlyB) > 0 {
		fmt.Fprintln(w)
	}
	if len(onlyA) > 0 {
		fmt.Fprintf(w, "Only in the first: %s.\n", strings.Join(onlyA, ", "))
	}
	if len(onlyB) > 0 {
		fmt.Fprintf(w, "Only in the second: %s.\n", strings.Join(onlyB, ", "))
	}
}

// ratioText writes b ÷ a. A value of 0 was not measured, so it has no ratio.
func ratioText(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return strconv.FormatFloat(b/a, 'f', 2, 64)
}

// figureTable writes the figures of both runs side by side: as ratios within a run they can be compared
// across machines.
func figureTable(w io.Writer, a, b *LatencyRun) {
	figures := append([]Figure(nil), a.Figures...)
	for _, f := range b.Figures {
		if figureOf(a, f.Name) == nil {
			figures = append(figures, f)
		}
	}
	if len(figures) == 0 {
		return
	}
	fmt.Fprint(w, "\n| figure | first | second | target |\n|---|--:|--:|--:|\n")
	for _, f := range figures {
		target, _ := f.target()
		if g := figureOf(b, f.Name); g != nil {
			target, _ = g.target() // the newer one counts
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", f.Name, judged(figureOf(a, f.Name)), judged(figureOf(b, f.Name)), target)
	}
}

func figureOf(r *LatencyRun, name string) *Figure {
	for i := range r.Figures {
		if r.Figures[i].Name == name {
			return &r.Figures[i]
		}
	}
	return nil
}

// judged writes a figure's value, with a word if it misses its target.
func judged(f *Figure) string {
	if f == nil {
		return "–"
	}
	if _, met := f.target(); met == yes(false) {
		return valueText(f.Value) + " (missed)"
	}
	return valueText(f.Value)
}
