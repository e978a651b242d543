package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/experiment/results"
	"github.com/seed-12ef14e5/capstan/internal/latency"
)

// ErrLatencySummary says that a file is not the summary of a latency run.
var ErrLatencySummary = errors.New("not the summary of a latency run")

// The digits behind the point in a summary: times have nanoseconds.
const (
	timeDigits  = 9
	ratioDigits = 6
	rateDigits  = 3
)

// summaryColumns are in the order of the file. Others read it: new columns come at the end.
var summaryColumns = []results.Column[VariantResult]{
	results.Col("variant", 0, func(v *VariantResult) any { return &v.Name }),
	results.Col("n", 0, func(v *VariantResult) any { return &v.N }),
	results.Col("mean", timeDigits, func(v *VariantResult) any { return &v.Mean }),
	results.Col("stddev", timeDigits, func(v *VariantResult) any { return &v.StdDev }),
	results.Col("stddev_p99", timeDigits, func(v *VariantResult) any { return &v.StdDevP99 }),
	results.Col("p50", timeDigits, func(v *VariantResult) any { return &v.P50 }),
	results.Col("p99", timeDigits, func(v *VariantResult) any { return &v.P99 }),
	results.Col("p999", timeDigits, func(v *VariantResult) any { return &v.P999 }),
	results.Col("max", timeDigits, func(v *VariantResult) any { return &v.Max }),
	results.Col("first_message", timeDigits, func(v *VariantResult) any { return &v.First }),
	results.Col("msgs_per_s", rateDigits, func(v *VariantResult) any { return &v.Throughput }),
	results.Col("consumer_cpu_s", timeDigits, func(v *VariantResult) any { return &v.ConsumerCPU }),
	results.Col("getmores", 0, func(v *VariantResult) any { return &v.GetMores }),
	results.Col("queries", 0, func(v *VariantResult) any { return &v.Queries }),
	results.Col("rate", rateDigits, func(v *VariantResult) any { return &v.Rate }),
	results.Col("payload_bytes", 0, func(v *VariantResult) any { return &v.Payload }),
	results.Col("producers", 0, func(v *VariantResult) any { return &v.Producers }),
	results.Col("producer_cpu_s", timeDigits, func(v *VariantResult) any { return &v.ProducerCPU }),
	results.Col("server_cpu_s", timeDigits, func(v *VariantResult) any { return &v.ServerCPU }),
	results.Col("inserts", 0, func(v *VariantResult) any { return &v.Inserts }),
	results.Col("insert_batch_mean", rateDigits, func(v *VariantResult) any { return &v.InsertBatch }),
	results.Col("read_batch_mean", rateDigits, func(v *VariantResult) any { return &v.ReadBatch }),
	results.Col("behind_p50", timeDigits, func(v *VariantResult) any { return &v.BehindP50 }),
	results.Col("behind_p99", timeDigits, func(v *VariantResult) any { return &v.BehindP99 }),
	results.Col("behind_max", timeDigits, func(v *VariantResult) any { return &v.BehindMax }),
	results.Col("waiting_cpu", ratioDigits, func(v *VariantResult) any { return &v.WaitingCPU }),
	results.Col("stddev_2011", timeDigits, func(v *VariantResult) any { return &v.Deviation2011 }),
}

// readSummary reads what Write wrote.
func readSummary(r io.Reader) ([]VariantResult, error) {
	variants, err := results.ReadCSV(r, summaryColumns)
	if err != nil {
		return nil, fmt.Errorf("read summary: %w: %w", ErrLatencySummary, err)
	}
	return variants, nil
}

// LatencyTable returns the table of a run as markdown. Its numbers are those of summary.csv; run, which
// may be nil, says which variants are the steps of a sweep (they get a table of their own), what was
// not run, and where. Errors of what it reads wrap ErrLatencySummary.
func LatencyTable(summary io.Reader, run *LatencyRun) (string, error) {
	variants, err := readSummary(summary)
	if err != nil {
		return "", err
	}
	var main, sweeps []VariantResult
	for _, v := range variants {
		if run != nil && run.Variant(v.Name) != nil && run.Variant(v.Name).Base != "" {
			sweeps = append(sweeps, v)
		} else {
			main = append(main, v)
		}
	}
	var b strings.Builder
	variantTable(&b, main)
	if len(sweeps) > 0 {
		b.WriteString("\n")
		sweepTable(&b, sweeps)
	}
	if run != nil {
		b.WriteString("\n")
		run.origin(&b)
	}
	return b.String(), nil
}

func variantTable(w io.Writer, variants []VariantResult) {
	fmt.Fprint(w, "| variant | stddev 2011 | stddev | stddev up to p99 | p50 | p99 | p99.9 | longest | first message | msg/s | messages per insert | per read | consumer CPU | getMores | queries |\n",
		"|---|"+strings.Repeat("--:|", 14)+"\n")
	for _, v := range variants {
		then := "–"
		if v.Deviation2011 > 0 {
			then = timeText(v.Deviation2011)
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", v.Name, then,
			timeText(v.StdDev), timeText(v.StdDevP99), timeText(v.P50), timeText(v.P99), timeText(v.P999), timeText(v.Max), timeText(v.First),
			countText(v.Throughput), meanText(v.InsertBatch), meanText(v.ReadBatch), cpuText(v.ConsumerCPU), countText(float64(v.GetMores)), countText(float64(v.Queries)))
	}
}

// sweepTable has the columns that a sweep is made for.
func sweepTable(w io.Writer, variants []VariantResult) {
	fmt.Fprint(w, "| sweep | bytes | producers | stddev up to p99 | p50 | p99 | p99.9 | longest | msg/s | messages per insert | per read | consumer CPU |\n",
		"|---|"+strings.Repeat("--:|", 11)+"\n")
	for _, v := range variants {
		fmt.Fprintf(w, "| `%s` | %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", v.Name, countText(float64(v.Payload)), v.Producers,
			timeText(v.StdDevP99), timeText(v.P50), timeText(v.P99), timeText(v.P999), timeText(v.Max),
			countText(v.Throughput), meanText(v.InsertBatch), meanText(v.ReadBatch), cpuText(v.ConsumerCPU))
	}
}

// origin says what was not run, and where the numbers come from.
func (r *LatencyRun) origin(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(r.Skipped)) {
		fmt.Fprintf(w, "Not run: `%s`, %s.\n\n", name, strings.TrimSuffix(r.Skipped[name], "."))
	}
	m := r.Machine
	fmt.Fprintf(w, "Made by `%s` at commit %s, %s.\n\n", m.Command, cmp.Or(m.Commit, "unknown"), m.Time)
	server := ""
	if r.Settings.OwnServer {
		server = "; the server was given, so it may have had other work"
	}
	fmt.Fprintf(w, "%s; seed %d%s.\n", m, r.Settings.Seed, server)
}

// LatencyFigures returns the figures with their targets as a markdown table.
func LatencyFigures(figures []Figure) string {
	var b strings.Builder
	b.WriteString("| figure | value | target | met |\n|---|--:|--:|---|\n")
	for _, f := range figures {
		target, met := f.target()
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, valueText(f.Value), target, met)
	}
	return b.String()
}

// target returns the target and whether it is reached, as texts.
func (f Figure) target() (target, met string) {
	switch {
	case f.AtLeast > 0:
		return "≥ " + valueText(f.AtLeast), yes(f.Met())
	case f.AtMost > 0:
		return "≤ " + valueText(f.AtMost), yes(f.Met())
	}
	return "none", ""
}

// seconds returns a number of seconds as a duration, to the nanosecond.
func seconds(secs float64) time.Duration { return time.Duration(math.Round(secs * 1e9)) }

func timeText(secs float64) string { return latency.Text(seconds(secs)) }

func cpuText(secs float64) string { return strconv.FormatFloat(secs, 'f', 2, 64) + " s" }

// meanText writes a mean of a number of messages, which is 0 where it is not known.
func meanText(x float64) string {
	if x == 0 {
		return "–"
	}
	return strconv.FormatFloat(x, 'f', 1, 64)
}

// valueText writes a ratio with three significant digits, a greater number whole.
func valueText(x float64) string {
	if math.Abs(x) >= 100 {
		return countText(x)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// countText writes a number whole, with a comma between groups of three digits.
func countText(x float64) string {
	digits := strconv.FormatFloat(math.Abs(x), 'f', 0, 64)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	if x < 0 {
		return "-" + digits
	}
	return digits
}
