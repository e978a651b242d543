package replication

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The targets.
const (
	copyRateLimit   = 1.0
	copyCPULimit    = 0.8
	insertsLimit    = 2.0
	updatesLimit    = 1.0
	lagLimit        = 1.0 // seconds
	flatLimit       = 2.0 // the p99 of the last third by that of the first
	memoryLimit     = 200.0
	verifyRateLimit = 100_000.0
	verifyMemory    = 100.0
)

// Figure is one figure with its target.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Limit is the least value that is good, or with AtMost the highest.
	Limit  float64 `json:"limit"`
	AtMost bool    `json:"at_most"`
	// Unit is "×" for a ratio, "s", "MB" or "/s".
	Unit string `json:"unit"`
}

// Met reports whether the target was reached.
func (f Figure) Met() bool {
	if f.AtMost {
		return f.Value <= f.Limit
	}
	return f.Value >= f.Limit
}

func (f Figure) text(v float64) string {
	switch f.Unit {
	case "×":
		return fmt.Sprintf("%.2f ×", v)
	case "s":
		return fmt.Sprintf("%.3f s", v)
	case "/s":
		return fmt.Sprintf("%.0f/s", v)
	}
	return fmt.Sprintf("%.0f %s", v, f.Unit)
}

func (f Figure) target() string {
	if f.AtMost {
		return "≤ " + f.text(f.Limit)
	}
	return "≥ " + f.text(f.Limit)
}

// figures returns what the measurements amount to. Ratios are taken within each round, against the naive program that was best in it,
// and the median counts: another round may have found another machine.
func (r *FiguresRun) figures() []Figure {
	out := []Figure{}
	rate := func(row Row) float64 { return row.Rate }
	add := func(name, part string, limit float64, ratio func(own, best Row) float64, atMost bool) {
		if v := r.ratios(part, ratio); len(v) > 0 {
			out = append(out, Figure{name, median(v), limit, atMost, "×"})
		}
	}
	faster := func(own, best Row) float64 { return own.Rate / best.Rate }
	cheaper := func(own, best Row) float64 { return own.Client / best.Client }
	add("copy of small documents, by the best naive loop", PartCopySmall, copyRateLimit, faster, false)
	add("its own CPU per document, by that loop's", PartCopySmall, copyCPULimit, cheaper, true)
	add("copy of 1 KB documents, by the best naive loop", PartCopyLarge, copyRateLimit, faster, false)
	add("its own CPU per document, by that loop's ", PartCopyLarge, copyCPULimit, cheaper, true)
	add("live apply of mostly inserts, by the naive applier", PartInserts, insertsLimit, faster, false)
	add("live apply of updates, by the best naive applier", PartUpdates, updatesLimit, faster, false)
	out = append(out, r.lagFigures()...)
	var most float64
	for _, row := range r.Rows {
		if row.Variant == "capstan" && row.Part != PartVerify {
			most = max(most, row.Memory)
		}
	}
	if most > 0 {
		out = append(out, Figure{"most resident memory of capstan replicate", most, memoryLimit, true, "MB"})
	}
	if rows := r.rows(PartVerify, "capstan"); len(rows) > 0 {
		out = append(out, Figure{"verify, documents per side", median(of(rows, rate)), verifyRateLimit, false, "/s"},
			Figure{"most resident memory of capstan verify", slices.Max(of(rows, func(r Row) float64 { return r.Memory })), verifyMemory, true, "MB"})
	}
	return out
}

// ratios returns one ratio for each round that has capstan and a naive program.
func (r *FiguresRun) ratios(part string, ratio func(own, best Row) float64) []float64 {
	var out []float64
	for _, own := range r.rows(part, "capstan") {
		var best Row
		for _, row := range r.Rows {
			if row.Part == part && row.Round == own.Round && strings.HasPrefix(row.Variant, "naive") && row.Rate > best.Rate {
				best = row
			}
		}
		if best.Rate > 0 && best.Client > 0 {
			out = append(out, ratio(own, best))
		}
	}
	return out
}

// lagFigures are about whole windows, the last one excepted if it is short.
func (r *FiguresRun) lagFigures() []Figure {
	var p99 []float64
	for _, w := range r.Lag {
		if w.Seen > 0 {
			p99 = append(p99, w.P99.Seconds())
		}
	}
	if len(p99) == 0 {
		return nil
	}
	third := max(1, len(p99)/3)
	name := fmt.Sprintf("lag at %d writes a second, the highest p99 of %s", r.Settings.LagRate, lagWindow)
	return []Figure{
		{name, slices.Max(p99), lagLimit, true, "s"},
		{"its p99 in the last third, by the first third's", median(p99[len(p99)-third:]) / max(median(p99[:third]), time.Millisecond.Seconds()), flatLimit, true, "×"},
	}
}

// Met reports whether all targets were reached.
func (r *FiguresRun) Met() bool {
	return !slices.ContainsFunc(r.Figures, func(f Figure) bool { return !f.Met() })
}
