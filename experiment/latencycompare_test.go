package experiment

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func compared(t *testing.T, a, b *LatencyRun) string {
	t.Helper()
	var out bytes.Buffer
	if err := CompareLatency(&out, a, b); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestLatencyCompareOfARunWithItself(t *testing.T) {
	t.Parallel()
	text := compared(t, smallRun(), smallRun())
	if !strings.Contains(text, "| await-primed | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 |\n") || strings.Contains(text, "Careful") || strings.Contains(text, "Only in") {
		t.Error(text)
	}
}

func TestLatencyCompareShowsWhatChanged(t *testing.T) {
	t.Parallel()
	a, b := smallRun(), smallRun()
	b.Variants[1].P50 = a.Variants[1].P50 / 2
	b.Variants[1].P99 = a.Variants[1].P99 * 3
	b.Variants[1].StdDevP99 = 0
	b.Variants[1].Throughput *= 1.25
	a.Variants[1].ConsumerCPU = 0
	a.Variants[0].Name, b.Variants[2].Name = "mine", "yours"
	b.Figures[1].Value = 0.9
	b.Figures[2].Name = "something new"
	text := compared(t, a, b)
	for _, want := range []string{
		"| await-primed | 0.50 | 3.00 | – | 1.25 | – |\n",
		"Only in the first: mine, await-primed@1024.\n", "Only in the second: sleep-poll, yours.\n",
		"| p50 ÷ floor's | 1.23 | 1.23 | ≤ 1.3 |\n",
		"| throughput ÷ floor's | 0.7 (missed) | 0.9 | ≥ 0.8 |\n",
		"| longest ÷ floor's | 1,234 | – | none |\n", "| something new | – | 1,234 | none |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "Careful") {
		t.Errorf("nothing that matters differs:\n%s", text)
	}
}

func TestLatencyCompareWarnsOfWhatCannotBeCompared(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*LatencyRun){
		"number of messages differs: 300 and 10,000.":              func(r *LatencyRun) { r.Settings.Count = 10_000 },
		"rate differs: 3900 msg/s and 0.5 msg/s.":                  func(r *LatencyRun) { r.Settings.Rate = 0.5 },
		"payload differs: 128 bytes and 128 1024 bytes.":           func(r *LatencyRun) { r.Settings.Payload = []int{128, 1024} },
		"number of producers differs: 1 and 1 4.":                  func(r *LatencyRun) { r.Settings.Producers = []int{1, 4} },
		"mongod differs: 8.0.4 and unknown.":                       func(r *LatencyRun) { r.Machine.Mongod = "" },
		"number of cores differs: 2 and 16.":                       func(r *LatencyRun) { r.Machine.Cores = 16 },
		"processor differs: A CPU and B.":                          func(r *LatencyRun) { r.Machine.CPU = "B" },
		"server differs: one started for the run and a given one.": func(r *LatencyRun) { r.Settings.OwnServer = true },
	} {
		b := smallRun()
		change(b)
		if text := compared(t, smallRun(), b); strings.Count(text, "Careful: the ") != 1 || !strings.Contains(text, "Careful: the "+want+"\n") {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestLatencyCompareReportsThatItCannotWrite(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = r.Close(), w.Close()
	if err := CompareLatency(w, smallRun(), smallRun()); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

func TestLatencyReportThatIsMissingOrDamagedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := ReadLatencyRun(dir)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), filepath.Join(dir, "run.json")) || !strings.Contains(err.Error(), "--out") {
		t.Errorf("missing: %v", err)
	}
	for text, want := range map[string]string{"": "unexpected end", "{\"variants\": [": "unexpected end", "[]": "cannot unmarshal", "{}": "no variants", `{"variants":[{}]}`: "no name"} {
		if err := os.WriteFile(filepath.Join(dir, "run.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := ReadLatencyRun(dir)
		if !errors.Is(err, ErrLatencyRun) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "run.json") || !strings.Contains(err.Error(), "repeat the run") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
