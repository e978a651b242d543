package outage

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-12ef14e5/capstan/experiment/results"
	"github.com/seed-12ef14e5/capstan/internal/latency"
)

// Table returns the tables of a run as markdown. The numbers of capstan's trials are those of
// summary.csv; run, which may be nil, adds the controls, what was not tried, and where it ran. Errors
// of what it reads wrap ErrSummary.
func Table(summary io.Reader, run *Run) (string, error) {
	all, err := results.ReadCSV(summary, summaryColumns)
	if err != nil {
		return "", fmt.Errorf("read summary: %w: %w", ErrSummary, err)
	}
	var b strings.Builder
	outageTable(&b, all)
	b.WriteString("\nWhere the time goes, medians of each part:\n\n")
	partsTable(&b, all)
	if run != nil {
		run.controlTable(&b)
		run.origin(&b)
	}
	return b.String(), nil
}

// text rounds as the files do, so that a time reads the same on the screen and in the README.
func text(d time.Duration) string { return latency.Text(d.Round(time.Millisecond)) }

func pair(p50, most time.Duration) string { return text(p50) + " / " + text(most) }

func outageTable(w io.Writer, all []Summary) {
	fmt.Fprint(w, "| fault | profile | trials | outage p50 / max | cluster's own | capstan's share | longest call | plain `InsertOne` | reads out | lost | duplicated |\n",
		"|---|---|"+strings.Repeat("--:|", 9)+"\n")
	for _, s := range all {
		fmt.Fprintf(w, "| %s | %s | %d | %s | %s | %s | %s | %s | %s | %d | %d |\n", s.Fault, s.Profile, s.Trials,
			pair(s.OutageP50, s.OutageMax), pair(s.ClusterP50, s.ClusterMax), pair(s.ExcessP50, s.ExcessMax),
			text(s.MaxCall), hungText(s.PlainMax, s.PlainHung > 0), text(s.ReadOutage), s.Lost, s.Doubled)
	}
}

func partsTable(w io.Writer, all []Summary) {
	fmt.Fprint(w, "| fault | profile | detection | election | transition | sync source | client |\n|---|---|"+strings.Repeat("--:|", 5)+"\n")
	for _, s := range all {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s |\n", s.Fault, s.Profile, text(s.Detection),
			text(s.Elected), text(s.Transit), text(s.SyncSource), text(s.Client))
	}
}

func (r *Run) controlTable(w io.Writer) {
	controls := r.controls()
	if len(controls) == 0 {
		return
	}
	fmt.Fprint(w, "\nControls, clients that are known to be wrong, to show that the checks find it:\n\n",
		"| control | fault | profile | trial | predicted | happened | failed as predicted |\n|---|---|---|--:|---|---|---|\n")
	for _, t := range controls {
		predicted, happened, ok := prediction(t)
		fmt.Fprintf(w, "| %s | %s | %s | %d | %s | %s | %s |\n", t.Control, t.Fault, t.Profile, t.Number, predicted, happened, yes(ok))
	}
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "NO"
}

// origin says what was not tried, and where the numbers come from.
func (r *Run) origin(w io.Writer) {
	fmt.Fprintln(w)
	for _, name := range slices.Sorted(maps.Keys(r.Skipped)) {
		fmt.Fprintf(w, "Not tried: %s, %s.\n\n", name, strings.TrimSuffix(r.Skipped[name], "."))
	}
	m := r.Machine
	fmt.Fprintf(w, "Made by `%s` at commit %s, %s.\n\n%s; seed %d, sets side by side: %d.\n", m.Command, cmp.Or(m.Commit, "unknown"), m.Time, m,
		r.Settings.Seed, max(1, r.Settings.Lanes))
}

// Print writes a line for each fault and profile, the controls and the promises, for people.
func (r *Run) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) // keeps its error for Flush
	fmt.Fprintln(tw, "fault\tprofile\ttrials\toutage p50 / max\tcluster p50 / max\texcess max\tlongest call\tplain\tlost\tduplicated\t")
	for _, s := range r.Summaries() {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t\n", s.Fault, s.Profile, s.Trials, pair(s.OutageP50, s.OutageMax), pair(s.ClusterP50, s.ClusterMax),
			text(s.ExcessMax), text(s.MaxCall), hungText(s.PlainMax, s.PlainHung > 0), s.Lost, s.Doubled)
	}
	if controls := r.controls(); len(controls) > 0 {
		fmt.Fprintln(tw, "\ncontrol\tfault\tprofile\ttrial\thappened\tfailed as predicted\t")
		for _, t := range controls {
			_, happened, ok := prediction(t)
			fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\t\n", t.Control, t.Fault, t.Profile, t.Number, happened, yes(ok))
		}
	}
	fmt.Fprintln(tw, "\npromise\ttrials\tworst\tlimit\tkept\t")
	for _, b := range r.Bounds() {
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t\n", b.Name, b.Trials, b.text(b.Value), b.text(b.Limit), yes(b.Met()))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Skipped)) {
		fmt.Fprintf(tw, "\nnot tried: %s, %s\n", name, strings.TrimSuffix(r.Skipped[name], "."))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print failover run: %w", err)
	}
	return nil
}

// PrintTrial writes one line about a trial that has ended; of is how many there are of its kind, 0 if
// that is not known.
func PrintTrial(w io.Writer, t *Trial, of int) error {
	which := fmt.Sprint(t.Number)
	if of > 0 {
		which += fmt.Sprintf("/%d", of)
	}
	r, v := &t.Row, &t.Verdict
	head := fmt.Sprintf("%s %s %s  ", t.Fault, t.Profile, which)
	if t.Control != "" {
		what, ok := Predicted(t)
		_, err := fmt.Fprintf(w, "%scontrol %s: %s; as predicted: %s\n", head, t.Control, what, yes(ok))
		return err
	}
	members := "members equal"
	if v.Unequal > 0 {
		members = fmt.Sprintf("MEMBERS UNEQUAL: %d", v.Unequal)
	}
	if !v.OK() {
		members += "  NOT OK"
		if len(v.Notes) > 0 {
			members += ": " + v.Notes[0]
		}
	}
	_, err := fmt.Fprintf(w, "%soutage %s (cluster %s, excess %s)  longest call %s  plain %s  lost %d  duplicated %d  %s\n", head,
		text(r.Outage), text(r.ClusterOutage), text(r.Excess), text(r.MaxCall), r.plainText(), v.Lost, v.Doubled, members)
	return err
}
