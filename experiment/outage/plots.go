package outage

import (
	"cmp"
	"fmt"
	"image/color"
	"slices"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/plot"
)

// Colours of the parts of an outage: the servers' from dark to light, the client's apart from them.
var (
	partColors  = []color.RGBA{{0x3B, 0x3F, 0x5C, 0xFF}, {0xB9, 0x5F, 0x90, 0xFF}, {0x6F, 0x87, 0xB8, 0xFF}, {0xA9, 0xC4, 0xE0, 0xFF}, {0xE6, 0x9F, 0x00, 0xFF}}
	healedColor = color.RGBA{0x00, 0x7A, 0x58, 0xFF}
)

// The shortest time without a success that a bar shows is a tenth of the outage, within these limits:
// shorter ones are a busy machine, or too narrow to see.
const (
	leastOut = 50 * time.Millisecond
	mostOut  = 150 * time.Millisecond
)

// picture returns the timeline of a trial, one of so many, of a run.
func (t *Trial) picture(r *Run, of, width, height int) plot.Timeline {
	w := t.window()
	p := plot.Timeline{
		Title: fmt.Sprintf("%s, profile %s: %s without an acknowledged write (trial %d of %d, the median)",
			t.Fault, t.Profile, text(t.Row.Outage), t.Number, of),
		XLabel: "time since the fault", From: t.since(w.from), To: t.since(w.to),
		Band:     plot.Band{From: t.since(w.out.from), To: t.since(w.out.to)},
		BarsName: "without an acknowledged majority write (the last row: without an answered read)",
		Bars:     t.bars(w), Marks: t.marks(w), Parts: t.parts(w), Lanes: t.lanes(),
		Note: r.Machine.String(), Width: width, Height: height,
	}
	return p
}

// since returns a moment in seconds relative to the fault.
func (t *Trial) since(m Moment) float64 { return m.Sub(t.At).Seconds() }

// parts says what the outage consists of, with what was before the fault: the last write need not end
// in the moment of the fault.
func (t *Trial) parts(w window) []plot.Part {
	r := &t.Row
	if r.Outage < leastOut {
		return nil
	}
	var out []plot.Part
	if before := t.At.Sub(w.out.from); before > r.Outage/50 { // else not to be seen
		out = append(out, plot.Part{Name: "before the fault", Length: before.Seconds(), Color: color.RGBA{0xD8, 0xDA, 0xDE, 0xFF}})
	}
	names := []string{"detection", "election", "transition", "sync source", "client"}
	for i, d := range []time.Duration{r.Detection, r.Elected, r.Transit, r.SyncSource, r.Client} {
		out = append(out, plot.Part{Name: names[i], Length: d.Seconds(), Color: partColors[i]})
	}
	return out
}

// mostMarks leaves room for the lanes: flapping makes dozens of elections.
const mostMarks = 5

// atOnce is the longest time from a fault to its heal that is none: a step-down is not healed.
const atOnce = 50 * time.Millisecond

// marks are the fault, what the servers did about it, and the heal. If the servers did much, it is what
// is nearest to the outage.
func (t *Trial) marks(w window) []plot.Mark {
	near := slices.DeleteFunc(t.servers(), func(s ServerEvent) bool {
		shown := s.What == ElectionWon || s.What == TransitionComplete || s.What == SteppedDown || s.What == RollbackBegun
		return !shown || s.At < w.from || s.At > w.to
	})
	away := func(s ServerEvent) Moment { return max(0, w.out.from-s.At, s.At-w.out.to) }
	slices.SortStableFunc(near, func(a, b ServerEvent) int { return cmp.Compare(away(a), away(b)) })
	out := []plot.Mark{{At: 0, Label: "fault", Color: plot.Red}}
	for _, s := range near[:min(len(near), mostMarks)] {
		out = append(out, plot.Mark{At: t.since(s.At), Label: s.Member + ": " + s.What, Color: plot.Ink})
	}
	switch after := t.Healed.Sub(t.At); {
	case t.Healed == 0 || after < atOnce:
	case t.Healed <= w.to:
		out = append(out, plot.Mark{At: t.since(t.Healed), Label: "healed", Color: healedColor})
	default:
		out = append(out, plot.Mark{At: t.since(w.to), Label: "healed at " + text(after) + ", beyond the picture", Color: healedColor})
	}
	slices.SortStableFunc(out, func(a, b plot.Mark) int { return cmp.Compare(a.At, b.At) })
	return out
}

// bars say when nobody could write: at all, where the clients are, through capstan, and with a plain
// InsertOne; and when nobody could read.
func (t *Trial) bars(w window) []plot.Bar {
	least := min(mostOut, max(leastOut, t.Row.Outage/10))
	var out []plot.Bar
	for _, b := range []struct {
		name string
		role Role
		kind Kind
	}{{"the set", Cluster, KindProbe}, {"clients' place", Members, KindProbe}, {"capstan", Prober, KindWrite}, {"InsertOne", Plain, KindWrite}, {"capstan's reads", Prober, KindRead}} {
		until, ok := t.watched(b.role, b.kind)
		if !ok {
			continue
		}
		without := gaps(t.successes(b.role, b.kind), t.Begun, until)
		if b.role == Plain { // which pauses between its calls
			without = t.plainCalls()
		}
		bar := plot.Bar{Name: b.name}
		for _, g := range without {
			if span(g) >= least && g.overlaps(w.from, w.to) {
				bar.Out = append(bar.Out, plot.Band{From: t.since(g.from), To: t.since(g.to), Label: text(span(g))})
			}
		}
		out = append(out, bar)
	}
	return out
}

// plainCalls returns the calls of the plain client, the one that never returned among them.
func (t *Trial) plainCalls() []interval {
	var out []interval
	var last Moment
	for _, e := range t.Events {
		if e.Role == Plain && e.Kind == KindWrite {
			out = append(out, interval{e.Start, e.End()})
			last = max(last, e.End())
		}
	}
	if t.Row.PlainHung && last < t.Healed {
		out = append(out, interval{last, t.Healed})
	}
	return out
}

// lanes are the calls: a point stands where a call or an attempt ended, as high as it lasted.
func (t *Trial) lanes() []plot.Lane {
	points := func(ok bool, kind Kind, roles ...Role) []plot.Point {
		var out []plot.Point
		for _, e := range t.Events {
			if e.OK == ok && e.Kind == kind && slices.Contains(roles, e.Role) {
				out = append(out, plot.Point{X: t.since(e.End()), Y: float64(e.Took) / 1e6})
			}
		}
		return out
	}
	series := func(name string, c color.RGBA, cross, large bool, points []plot.Point) plot.LaneSeries {
		return plot.LaneSeries{Series: plot.Series{Name: name, Color: c, Points: points}, Cross: cross, Large: large}
	}
	failed := points(false, KindTry, Prober, Writer)
	failed = append(failed, points(false, KindWrite, Prober, Writer)...)
	return []plot.Lane{
		{Name: "writes: how long each call took, and each attempt that failed", Share: 2, Series: []plot.LaneSeries{
			series("write acknowledged", plot.Blue, false, false, points(true, KindWrite, Prober)),
			series("the same, once a second", plot.Ink, false, true, points(true, KindWrite, Writer)),
			series("attempt failed", plot.Red, true, false, failed),
		}},
		{Name: "reads with secondaryPreferred", Share: 1.3, Series: []plot.LaneSeries{
			series("read answered", plot.Green, false, false, points(true, KindRead, Prober, Reader)),
			series("read failed", plot.Red, true, false, points(false, KindRead, Prober, Reader)),
		}},
	}
}
