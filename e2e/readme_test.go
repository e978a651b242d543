package e2e

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-12ef14e5/capstan/experiment"
	"github.com/seed-12ef14e5/capstan/experiment/outage"
	"github.com/seed-12ef14e5/capstan/experiment/replication"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

var update = flag.Bool("update", false, "write what the README quotes into it")

func TestTheReadmesExampleRuns(t *testing.T) {
	t.Parallel()
	if err := sendAndHandle(t.Context(), mongotest.Standalone(t).URI, 3); err != nil {
		t.Fatal(err)
	}
}

// Nothing that the README quotes is typed by hand: the example is code that a test runs, and the
// figures are what commands of ours wrote into results/.
func TestTheReadmeQuotesWhatItSaysItQuotes(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "README.md")
	text := readFile(t, path)
	want := text
	quotes := map[string]string{
		"latency": latencies(t, filepath.Join("..", "results", "latency")),
		"example": "```go" + between(t, readFile(t, "example_test.go"), "// begin\n", "\n// end") + "```\n",
		"figures": tables(readFile(t, filepath.Join("..", "results", "core", "core.md"))),
		"e2e":     endToEnd(readFile(t, filepath.Join("..", "results", "e2e", "run.txt"))),
		"demo":    "```\n" + strings.Trim(readFile(t, filepath.Join("..", "results", "demo", "report.txt")), "\n") + "\n```\n\n![latency of every message](results/demo/replica-set.png)\n",
	}
	if dir := filepath.Join("..", "results", "failover"); exists(dir) {
		quotes["failover"] = outages(t, dir)
	}
	if dir := filepath.Join("..", "results", "replicate"); exists(dir) {
		quotes["replicate"] = replicas(t, dir)
	}
	for name, quote := range quotes {
		begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		want = strings.Replace(want, begin+between(t, want, begin, end)+end, begin+quote+end, 1)
	}
	if want == text {
		return
	}
	if !*update {
		t.Fatal("README.md does not quote the example and the results as they are; go test ./e2e -run Readme -update mends it")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tables returns the body of a report, without its title.
func tables(report string) string {
	_, body, _ := strings.Cut(report, "\n\n")
	return strings.Trim(body, "\n") + "\n"
}

// latencies returns the table that summary.csv makes, the picture of all variants and the figures.
func latencies(t *testing.T, dir string) string {
	t.Helper()
	run, err := experiment.ReadLatencyRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	table, err := experiment.LatencyTable(strings.NewReader(readFile(t, filepath.Join(dir, "summary.csv"))), run)
	if err != nil {
		t.Fatal(err)
	}
	return "![percentiles of the latency in each variant](results/latency/overview.png)\n\n" + table + "\n" + experiment.LatencyFigures(run.Figures)
}

// outages returns the picture of a black hole, or of whatever was tried first, and the tables that
// summary.csv and trials.csv make.
func outages(t *testing.T, dir string) string {
	t.Helper()
	_, table, err := outage.ReadRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"timeline-blackhole*.png", "timeline-*.png"} {
		pictures, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		if len(pictures) > 0 {
			return "![what happened in one trial](results/failover/" + filepath.Base(pictures[0]) + ")\n\n" + table
		}
	}
	return table
}

// replicas returns the figures of replication and what its random runs amount to, as far as they have been made.
func replicas(t *testing.T, dir string) string {
	t.Helper()
	var parts []string
	if run, err := replication.ReadFigures(dir); err == nil {
		parts = append(parts, run.Table(), "![lag of every ten seconds](results/replicate/lag.png)\n")
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if run, err := replication.ReadSeeds(dir); err == nil {
		parts = append(parts, "Random runs under faults:\n\n"+run.SeedsTable())
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Join(parts, "\n")
}

func exists(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// endToEnd returns the figures that the end-to-end tests printed, as a list, with what they ran on.
func endToEnd(report string) string {
	head, body, _ := strings.Cut(report, "\n\n")
	var list strings.Builder
	for line := range strings.Lines(body) {
		_, said, ok := strings.Cut(strings.TrimSpace(line), ".go:")
		_, said, _ = strings.Cut(said, ": ")
		if ok && (strings.Contains(said, "p50 of") || strings.Contains(said, "frozen:") || strings.Contains(said, "with kill -9 of")) {
			list.WriteString("- " + said + "\n")
		}
	}
	return list.String() + "\n(" + strings.ReplaceAll(head, "\n", " ") + ")\n"
}

func between(t *testing.T, text, begin, end string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, begin)
	quote, _, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("no text between %q and %q", begin, end)
	}
	return quote
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
