package replication

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-12ef14e5/capstan/experiment/results"
	"github.com/seed-12ef14e5/capstan/internal/plot"
)

// The files of Figures.
const (
	runFile     = "run.json"
	rowsFile    = "measurements.csv"
	lagFile     = "lag.csv"
	lagPicture  = "lag.png"
	summaryFile = "summary.csv"
	tableFile   = "table.md"
)

// ErrRun says that a folder does not hold what Write wrote.
var ErrRun = errors.New("not the result of a replication run")

var rowColumns = []results.Column[Row]{
	results.Col("part", 0, func(r *Row) any { return &r.Part }),
	results.Col("variant", 0, func(r *Row) any { return &r.Variant }),
	results.Col("round", 0, func(r *Row) any { return &r.Round }),
	results.Col("count", 0, func(r *Row) any { return &r.Count }),
	results.Col("seconds", 3, func(r *Row) any { return &r.Seconds }),
	results.Col("per_second", 1, func(r *Row) any { return &r.Rate }),
	results.Col("client_us", 2, func(r *Row) any { return &r.Client }),
	results.Col("source_us", 2, func(r *Row) any { return &r.Source }),
	results.Col("target_us", 2, func(r *Row) any { return &r.Target }),
	results.Col("memory_mb", 1, func(r *Row) any { return &r.Memory }),
}

var lagColumns = []results.Column[LagWindow]{
	results.Col("from", 0, func(w *LagWindow) any { return &w.From }),
	results.Col("sent", 0, func(w *LagWindow) any { return &w.Sent }),
	results.Col("seen", 0, func(w *LagWindow) any { return &w.Seen }),
	results.Col("p50", 4, func(w *LagWindow) any { return &w.P50 }),
	results.Col("p99", 4, func(w *LagWindow) any { return &w.P99 }),
	results.Col("max", 4, func(w *LagWindow) any { return &w.Max }),
	results.Col("writer_behind", 4, func(w *LagWindow) any { return &w.Behind }),
}

// Summary is one variant of one part: medians over the rounds, and the most memory.
type Summary struct {
	Part, Variant                        string
	Rounds                               int
	Count                                int64
	Rate, Client, Source, Target, Memory float64
}

var summaryColumns = []results.Column[Summary]{
	results.Col("part", 0, func(s *Summary) any { return &s.Part }),
	results.Col("variant", 0, func(s *Summary) any { return &s.Variant }),
	results.Col("rounds", 0, func(s *Summary) any { return &s.Rounds }),
	results.Col("count", 0, func(s *Summary) any { return &s.Count }),
	results.Col("per_second", 1, func(s *Summary) any { return &s.Rate }),
	results.Col("client_us", 2, func(s *Summary) any { return &s.Client }),
	results.Col("source_us", 2, func(s *Summary) any { return &s.Source }),
	results.Col("target_us", 2, func(s *Summary) any { return &s.Target }),
	results.Col("memory_mb", 1, func(s *Summary) any { return &s.Memory }),
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if len(v) == 0 {
		return 0
	}
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func of(rows []Row, value func(Row) float64) []float64 {
	var all []float64
	for _, r := range rows {
		all = append(all, value(r))
	}
	return all
}

// Summaries returns a line per part and variant, in the order of the parts.
func (r *FiguresRun) Summaries() []Summary {
	var out []Summary
	for _, part := range Parts() {
		var names []string
		for _, row := range r.Rows {
			if row.Part == part && !slices.Contains(names, row.Variant) {
				names = append(names, row.Variant)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			rows := r.rows(part, name)
			out = append(out, Summary{part, name, len(rows), rows[0].Count, median(of(rows, func(r Row) float64 { return r.Rate })),
				median(of(rows, func(r Row) float64 { return r.Client })), median(of(rows, func(r Row) float64 { return r.Source })),
				median(of(rows, func(r Row) float64 { return r.Target })), slices.Max(of(rows, func(r Row) float64 { return r.Memory }))})
		}
	}
	return out
}

func (r *FiguresRun) rows(part, variant string) []Row {
	var out []Row
	for _, row := range r.Rows {
		if row.Part == part && row.Variant == variant {
			out = append(out, row)
		}
	}
	return out
}

// Write puts the run into a folder, which it makes: measurements.csv, a line per measurement; summary.csv, medians; lag.csv and
// lag.png; table.md, for people; run.json. Files of seeds are left alone.
func (r *FiguresRun) Write(dir string) error { return r.write(dir, 0, 0) }

// write is Write with a picture of another size: tests make a small one, which takes a part of the time.
func (r *FiguresRun) write(dir string, width, height int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make results folder: %w", err)
	}
	errs := []error{
		results.WriteFile(dir, runFile, func(w io.Writer) error { return results.PutJSON(w, r) }),
		results.WriteFile(dir, rowsFile, func(w io.Writer) error { return results.WriteCSV(w, rowColumns, r.Rows) }),
		results.WriteFile(dir, summaryFile, func(w io.Writer) error { return results.WriteCSV(w, summaryColumns, r.Summaries()) }),
		results.WriteFile(dir, tableFile, func(w io.Writer) error { return results.PutText(w, r.Table()) }),
	}
	if len(r.Lag) > 0 {
		errs = append(errs,
			results.WriteFile(dir, lagFile, func(w io.Writer) error { return results.WriteCSV(w, lagColumns, r.Lag) }),
			results.WriteFile(dir, lagPicture, r.picture(width, height).WritePNG))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write replication run: %w", err)
	}
	return nil
}

func (r *FiguresRun) picture(width, height int) plot.Scatter {
	series := func(name string, of func(LagWindow) time.Duration) plot.Line {
		l := plot.Line{Name: name}
		for _, w := range r.Lag {
			l.Points = append(l.Points, plot.Point{X: (w.From + lagWindow/2).Seconds(), Y: of(w).Seconds()})
		}
		return l
	}
	p50, p99 := series("p50", func(w LagWindow) time.Duration { return w.P50 }), series("p99", func(w LagWindow) time.Duration { return w.P99 })
	worst := series("slowest of 10 s", func(w LagWindow) time.Duration { return w.Max })
	p50.Color, p99.Color, worst.Color, worst.Dashed = plot.Blue, plot.Red, plot.Sky, true
	return plot.Scatter{
		Title:  fmt.Sprintf("Lag at %d writes a second, from sending to the destination's change stream", r.Settings.LagRate),
		XLabel: "seconds", YLabel: "lag", Lines: []plot.Line{worst, p99, p50},
		Note: r.Machine.String(), Width: width, Height: height,
	}
}

// ReadFigures reads back what FiguresRun.Write put into a folder. The error wraps fs.ErrNotExist if there is none, ErrRun if it is damaged.
func ReadFigures(dir string) (*FiguresRun, error) {
	b, err := os.ReadFile(filepath.Join(dir, runFile))
	if err != nil {
		return nil, fmt.Errorf("read replication run: %w", err)
	}
	r := &FiguresRun{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrRun, runFile, err)
	}
	if r.Rows, err = readCSV(dir, rowsFile, rowColumns); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, lagFile)); err == nil {
		if r.Lag, err = readCSV(dir, lagFile, lagColumns); err != nil {
			return nil, err
		}
	}
	r.Figures = r.figures()
	return r, nil
}

// ReadSeeds reads back what SeedsRun.Write put into a folder. Errors are those of ReadFigures.
func ReadSeeds(dir string) (*SeedsRun, error) {
	b, err := os.ReadFile(filepath.Join(dir, seedsRunFile))
	if err != nil {
		return nil, fmt.Errorf("read random runs: %w", err)
	}
	r := &SeedsRun{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrRun, seedsRunFile, err)
	}
	r.Seeds, err = readCSV(dir, seedsFile, seedColumns)
	return r, err
}

func readCSV[T any](dir, name string, columns []results.Column[T]) ([]T, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("read replication run: %w", err)
	}
	defer f.Close() // only read
	rows, err := results.ReadCSV(f, columns)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrRun, name, err)
	}
	return rows, nil
}

// Table returns the figures and the medians as markdown.
func (r *FiguresRun) Table() string {
	var b strings.Builder
	b.WriteString("| figure | measured | target | met |\n|---|--:|--:|---|\n")
	for _, f := range r.Figures {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, f.text(f.Value), f.target(), yes(f.Met()))
	}
	b.WriteString("\nMedians; µs are CPU time per document or change, of the program, of the source and of the destination:\n\n")
	b.WriteString("| part | program | rounds | count | per second | program µs | source µs | destination µs | memory MB |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, s := range r.Summaries() {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %.0f | %.1f | %.1f | %.1f | %.0f |\n", s.Part, s.Variant, s.Rounds, s.Count, s.Rate, s.Client, s.Source, s.Target, s.Memory)
	}
	m := r.Machine
	fmt.Fprintf(&b, "\nMade by `%s` at commit %s, %s.\n\n%s; seed %d.\n", m.Command, cmp.Or(m.Commit, "unknown"), m.Time, m, r.Settings.Seed)
	return b.String()
}

// Print writes the figures for people.
func (r *FiguresRun) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) // keeps its error for Flush
	fmt.Fprintln(tw, "part\tprogram\tper second\tprogram µs\tsource µs\tdestination µs\tmemory MB\t")
	for _, s := range r.Summaries() {
		fmt.Fprintf(tw, "%s\t%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t\n", s.Part, s.Variant, s.Rate, s.Client, s.Source, s.Target, s.Memory)
	}
	fmt.Fprintln(tw, "\nfigure\tmeasured\ttarget\tmet\t")
	for _, f := range r.Figures {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t\n", f.Name, f.text(f.Value), f.target(), yes(f.Met()))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print replication run: %w", err)
	}
	return nil
}

// SeedsTable returns what the random runs amount to, as markdown.
func (r *SeedsRun) SeedsTable() string {
	var kills, source, target, ops int
	var documents int64
	phases := map[string]int{}
	for _, s := range r.Seeds {
		kills, ops, documents = kills+s.Kills, ops+s.Done, documents+s.Documents
		for one := range strings.SplitSeq(s.Phases, ", ") {
			var n int
			var name string
			if _, err := fmt.Sscanf(one, "%s %d", &name, &n); err == nil {
				phases[name] += n
			}
		}
		source, target = source+faultCount(s.SourceFaults), target+faultCount(s.TargetFaults)
	}
	var b strings.Builder
	b.WriteString("| seeds | equal | operations | documents compared | `kill -9` of capstan | while copying / catching up / live | faults of the source | of the destination |\n|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	fmt.Fprintf(&b, "| %d | %d | %d | %d | %d | %d / %d / %d | %d | %d |\n", len(r.Seeds), len(r.Seeds)-len(r.Unequal), ops, documents, kills,
		phases["copying"]+phases["starting"], phases["catching-up"], phases["live"], source, target)
	m := r.Machine
	fmt.Fprintf(&b, "\nMade by `%s` at commit %s, %s", m.Command, cmp.Or(m.Commit, "unknown"), m.Time)
	if len(r.Earlier) > 0 {
		b.WriteString(", which went on where calls at these commits had ended:")
		for i, e := range r.Earlier {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " %s", cmp.Or(e.Commit, "unknown"))
		}
	}
	b.WriteString(".")
	if len(r.Again) > 0 {
		fmt.Fprintf(&b, " Seeds %s were not equal at first; they were made again.", strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Again), " ", ", "), "[]"))
	}
	fmt.Fprintf(&b, "\n\n%s.\n", m)
	return b.String()
}

func faultCount(text string) int {
	if text == "-" || text == "" {
		return 0
	}
	return strings.Count(text, ";") + 1
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}
