package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/plot"
)

// demoResult is what one load of the demo came to.
type demoResult struct {
	name    string // of the files
	title   string
	column  string // the heading in the table
	load    *demoLoad
	verdict history.Verdict
	failed  error       // what went wrong on the way, if anything did
	faults  []demoFault // that were made, in their order
	skipped string      // why a fault was not made, "" if none is missing
	csv     string
	png     string
}

// demoPhase is a part of a load that is reported apart.
type demoPhase struct {
	name    string
	color   color.RGBA
	outage  bool
	samples []latency.Sample
}

// The names and colours of what is between the faults, and the colours of the faults.
var (
	demoCalm  = []demoPhase{{name: "before", color: plot.Blue}, {name: "between", color: plot.Green}, {name: "after", color: plot.Sky}}
	demoAlarm = []color.RGBA{plot.Red, plot.Purple}
)

// phases returns the parts of the load that are reported apart.
func (r *demoResult) phases() []demoPhase {
	if len(r.faults) == 0 {
		return []demoPhase{{name: r.column, color: plot.Blue, samples: r.load.samples}}
	}
	outages := make([]latency.Outage, len(r.faults))
	for i, f := range r.faults {
		outages[i] = f.outage
	}
	split := latency.Split(r.load.samples, outages)
	var all []demoPhase
	for i, samples := range split.Calm {
		calm := demoCalm[i]
		if i == len(split.Calm)-1 {
			calm = demoCalm[len(demoCalm)-1]
		}
		calm.samples = samples
		all = append(all, calm)
		if i < len(r.faults) {
			all = append(all, demoPhase{name: r.faults[i].name(), color: demoAlarm[i], outage: true, samples: split.During[i]})
		}
	}
	return all
}

// demoTable returns the counts of all results side by side, aligned, for people.
func demoTable(results []*demoResult) string {
	var b strings.Builder
	line := func(name, why string, cell func(*demoResult) string) {
		fmt.Fprintf(&b, "  %-18s", name)
		for _, r := range results {
			fmt.Fprintf(&b, " %14s", cell(r))
		}
		if why != "" {
			fmt.Fprintf(&b, "   %s", why)
		}
		b.WriteByte('\n')
	}
	count := func(name, why string, n func(*demoResult) int) {
		line(name, why, func(r *demoResult) string { return humanize.Comma(int64(n(r))) })
	}
	consumer := func(r *demoResult) history.ReaderCounts { return r.verdict.Reader(demoConsumer) }
	line("", "", func(r *demoResult) string { return r.column })
	count("sent", "paced: each when it was due, whatever the servers did", func(r *demoResult) int { return r.verdict.Sent })
	count("acknowledged", "", func(r *demoResult) int { return r.verdict.Acknowledged })
	count("delivered", "to a consumer; on the set, once a majority had it", func(r *demoResult) int { return consumer(r).Delivered })
	count("lost", "", func(r *demoResult) int { c := consumer(r); return c.Lost + c.Reported + c.ReportedAtMost })
	count("duplicated", "", func(r *demoResult) int { return consumer(r).Duplicated })
	count("redeliveries", "again after a restart, as at-least-once allows", func(r *demoResult) int { return consumer(r).Redelivered })
	count("no outcome", "rejected, or never known to be stored", func(r *demoResult) int { return r.verdict.Rejected + r.verdict.Unknown + r.verdict.Unsettled })
	count("in the stream", "found by a plain majority read, and compared", func(r *demoResult) int { return r.verdict.Reader(demoReadBack).Delivered })
	for _, r := range results {
		for _, f := range r.faults {
			b.WriteByte('\n')
			only := func(text string) func(*demoResult) string {
				return func(of *demoResult) string {
					if of != r {
						return "-"
					}
					return text
				}
			}
			line(f.name()+": outage", "from "+f.how+" to the next acknowledgement"+f.undone, only(f.length()))
			line("  longest silence", "between two acknowledgements", only(latency.Text(f.longest)))
			line("  caught up after", "until what had piled up was delivered", only(f.caughtUp()))
		}
	}
	return b.String()
}

// latencyTable returns the percentiles of all phases of all results, aligned, and as a control how late
// the demo itself was, which is part of them.
func latencyTable(results []*demoResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-20s %12s %9s %9s %9s %9s %9s\n", "latency", "messages", "p50", "p90", "p99", "p99.9", "longest")
	row := func(name string, s latency.Summary) {
		if s.Count > 0 {
			fmt.Fprintf(&b, "  %-20s %12s %9s %9s %9s %9s %9s\n", "  "+name, humanize.Comma(s.Count),
				latency.Text(s.P50), latency.Text(s.P90), latency.Text(s.P99), latency.Text(s.P999), latency.Text(s.Max))
		}
	}
	late := latency.NewHistogram()
	for _, r := range results {
		for _, p := range r.phases() {
			row(p.name, latency.Of(p.samples).Summary())
		}
		late.Merge(r.load.late)
	}
	row("sent late by", late.Summary())
	return b.String()
}

// demoBusy is the median above which a latency is that of a queue: some ten times what an idle machine
// of two cores shows with three members.
const demoBusy = 100 * time.Millisecond

// busyNote says so if the machine could not carry a rate, and returns "" otherwise.
func busyNote(results []*demoResult) string {
	for _, r := range results {
		p50 := latency.Of(r.phases()[0].samples).Quantile(50)
		if p50 > demoBusy {
			return fmt.Sprintf("This machine was too busy for %s messages a second (%s: p50 %s): the latencies are those of a queue.\n"+
				"The counts hold all the same. Try it idle, or with a lower --rate.\n", humanize.Comma(int64(r.load.rate)), r.column, latency.Text(p50))
		}
	}
	return ""
}

// save writes the CSV and the picture into dir.
func (r *demoResult) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	r.csv, r.png = filepath.Join(dir, r.name+".csv"), filepath.Join(dir, r.name+".png")
	if err := writeFile(r.csv, func(f *os.File) error { return latency.Write(f, r.load.samples) }); err != nil {
		return err
	}
	if len(r.load.samples) == 0 {
		return nil
	}
	return writeFile(r.png, func(f *os.File) error { return r.picture().WritePNG(f) })
}

func writeFile(path string, write func(*os.File) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if err := write(f); err != nil {
		_ = f.Close() // the first error is the one to tell
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

func (r *demoResult) picture() plot.Scatter {
	s := plot.Scatter{
		Title:  fmt.Sprintf("%s: latency of %s messages", r.title, humanize.Comma(int64(len(r.load.samples)))),
		XLabel: "message", YLabel: "from the moment it was due to its delivery (logarithmic)",
	}
	for i, p := range r.phases() {
		points := make([]plot.Point, len(p.samples))
		for i, x := range p.samples {
			points[i] = plot.Point{X: float64(x.Loc), Y: x.Took.Seconds()}
		}
		s.Series = append(s.Series, plot.Series{Name: p.name, Color: p.color, Points: points})
		if p.outage {
			continue // a median of an outage says nothing
		}
		median := plot.Line{Color: plot.Ink, Points: plot.Moving(points, 100, 0.5)}
		high := plot.Line{Color: plot.Ink, Dashed: true, Points: plot.Moving(points, 100, 0.99)}
		if i == 0 { // one entry in the legend is enough
			median.Name, high.Name = "median", "99 %"
		}
		s.Lines = append(s.Lines, median, high)
	}
	number := func(at time.Duration) float64 { return at.Seconds() * r.load.rate }
	for _, f := range r.faults {
		s.Bands = append(s.Bands, plot.Band{From: number(f.outage.Fault), To: number(f.outage.Back),
			Label: fmt.Sprintf("primary %s,\nno writes for %s", f.verb, f.length())})
	}
	return s
}
