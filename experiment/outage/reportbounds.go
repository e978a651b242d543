package outage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/latency"
)

const (
	// backOffCap is the longest that the layer waits between two attempts (retry.DefaultMax).
	backOffCap = time.Second
	// freshConns is how many connections beyond the size of its pool a client with one call in flight may
	// open in an outage.
	freshConns = 2
	// costLimit is how much of the driver's time the layer may take when nothing fails.
	costLimit = 1.05
	// times is the unit of a ratio.
	times = "×"
)

// Bound is a promise of capstan's with what a run has seen of it.
type Bound struct {
	Name string `json:"name"`
	// Value must not be above Limit. Unit is "s", "×" for a ratio, or "" for a number.
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	Unit  string  `json:"unit,omitempty"`
	// Trials is how many trials Value is of.
	Trials int `json:"trials"`
}

// Met reports whether the promise was kept.
func (b Bound) Met() bool { return b.Value <= b.Limit }

func (b Bound) text(value float64) string {
	switch b.Unit {
	case "s":
		return latency.Text(time.Duration(value * float64(time.Second)))
	case times:
		return fmt.Sprintf("%.2f ×", value)
	}
	return fmt.Sprintf("%g", value)
}

// Bounds returns what capstan promises for every fault, with the worst that the run saw. They go by
// milliseconds, as the files do.
func (r *Run) Bounds() []Bound {
	var out []Bound
	all := r.Summaries()
	trials := 0
	for _, s := range all {
		trials += s.Trials
	}
	count := func(name string, of func(Summary) int) {
		sum := 0
		for _, s := range all {
			sum += of(s)
		}
		out = append(out, Bound{Name: name, Value: float64(sum), Trials: trials})
	}
	if trials > 0 {
		count("acknowledged and missing", func(s Summary) int { return s.Lost })
		count("there more than once (by writer and number)", func(s Summary) int { return s.Doubled })
		count("reported as not written, and there", func(s Summary) int { return s.Resurrected })
		count("acknowledged, and in a rollback file", func(s Summary) int { return s.RolledBack })
		count("members whose data differ afterwards", func(s Summary) int { return s.Unequal })
		count("messages that tails missed", func(s Summary) int { return s.TailMissed })
		count("messages that tails doubled, moved or reported as a gap", func(s Summary) int { return s.TailFaults })
		count("messages that consumers missed or skipped", func(s Summary) int { return s.ConsumeFault })
		count("trials with anything wrong, the set model's verdict included", func(s Summary) int { return s.Trials - s.OK })
	}
	out = append(out, r.excesses(all)...)
	var over time.Duration
	var conns int64
	for _, s := range all {
		over, conns = max(over, s.MaxOver), max(conns, s.Conns)
	}
	if trials > 0 {
		out = append(out, Bound{"longest that a call, reads included, passed its deadline", secondsOf(over), callSlack.Seconds(), "s", trials})
		if r.Settings.Pool > 0 {
			out = append(out, Bound{"connections that a client with one call in flight opened in a fault", float64(conns), float64(r.Settings.Pool + freshConns), "", trials})
		}
	}
	if c := r.Cost; c != nil {
		out = append(out, Bound{"an insert of one document when nothing fails, as a multiple of the driver's", c.One(), costLimit, times, c.Rounds},
			Bound{fmt.Sprintf("an insert of %d documents, likewise", ManyDocuments), c.Many(), costLimit, times, c.Rounds})
	}
	if controls := r.controls(); len(controls) > 0 {
		unmet := 0
		for _, t := range controls {
			if _, ok := Predicted(t); !ok {
				unmet++
			}
		}
		out = append(out, Bound{"controls that did not fail as predicted", float64(unmet), 0, "", len(controls)})
	}
	return out
}

// excesses bounds, for each profile whose attempts' deadline is known, the layer's own share of an
// outage: an attempt that runs into the outage's end, the wait after it, and what a call may be late. Where packets
// are lost or late one by one the set has no outage: of twelve probes some one gets through soon, while a client
// with one call in flight waits for its own packets. That is told apart.
func (r *Run) excesses(all []Summary) []Bound {
	var out []Bound
	for _, profile := range slices.Sorted(maps.Keys(r.Settings.Attempt)) {
		limit := r.Settings.Attempt[profile] + (backOffCap + callSlack).Seconds()
		b := Bound{Name: "capstan's own share of an outage, profile " + profile, Limit: limit, Unit: "s"}
		packets := Bound{Name: "the same where single packets are lost or late, profile " + profile, Limit: limit, Unit: "s"}
		for _, s := range all {
			of := &b
			if p, ok := planOf(s.Fault); ok && p.packets {
				of = &packets
			}
			if s.Profile == profile {
				of.Trials += s.Trials
				of.Value = max(of.Value, secondsOf(s.ExcessMax))
			}
		}
		for _, b := range []Bound{b, packets} {
			if b.Trials > 0 {
				out = append(out, b)
			}
		}
	}
	return out
}

// secondsOf rounds to what the files hold.
func secondsOf(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// BoundsTable returns the bounds as a markdown table.
func BoundsTable(bounds []Bound) string {
	var b strings.Builder
	b.WriteString("| promise | trials | worst | limit | kept |\n|---|--:|--:|--:|---|\n")
	for _, p := range bounds {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", p.Name, p.Trials, p.text(p.Value), p.text(p.Limit), yes(p.Met()))
	}
	return b.String()
}
