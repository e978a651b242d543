package experiment

import (
	"fmt"
	"image/color"
	"slices"
	"strings"

	"github.com/seed-12ef14e5/capstan/internal/plot"
)

// movingWindows is how many values the moving curves of a scatter plot have.
const movingWindows = 100

// overviewCurves is the most that an overview has: more could not be told apart.
const overviewCurves = 13

// shape is how the latencies of a variant lie, which says how to draw them.
type shape int

const (
	scattered shape = iota // around one value, with outliers
	sawtooth               // from the length of a sleep down to nothing, again and again
	straight               // a line: who reads later waits for less
)

func (v *VariantResult) shape() shape {
	name := v.Name
	if v.Base != "" {
		name = v.Base
	}
	switch {
	case name == "sleep-poll":
		return sawtooth
	case strings.Contains(name, "replay"):
		return straight
	}
	return scattered
}

// scatter returns the picture of every sample of v. The Y axis is linear where the shape is known, as
// a logarithm would bend it.
func (r *LatencyRun) scatter(v *VariantResult, how output) plot.Scatter {
	points := make([]plot.Point, len(v.Samples))
	for i, s := range v.Samples {
		points[i] = plot.Point{X: float64(s.Loc), Y: s.Took.Seconds()}
	}
	s := plot.Scatter{
		Title: v.Name, XLabel: "message index", YLabel: "from Send to delivery (log scale)",
		Series: []plot.Series{{Name: fmt.Sprintf("%s messages, longest %s", countText(float64(len(points))), timeText(v.Max)), Color: plot.Blue, Points: points}},
		Note:   r.Machine.String(), Width: how.width, Height: how.height,
	}
	if v.What != "" {
		s.Title += ": " + v.What
	}
	level := func(name string, y float64) plot.Line {
		return plot.Line{Name: name + " " + timeText(y), Points: []plot.Point{{X: points[0].X, Y: y}, {X: points[len(points)-1].X, Y: y}}}
	}
	switch v.shape() {
	case scattered:
		s.Lines = []plot.Line{
			{Name: "moving p50 (of all: " + timeText(v.P50) + ")", Points: plot.Moving(points, movingWindows, 0.5)},
			{Name: "moving p99 (of all: " + timeText(v.P99) + ")", Points: plot.Moving(points, movingWindows, 0.99)},
		}
	case sawtooth: // windows and teeth would only interfere
		s.Lines = []plot.Line{level("p50", v.P50), level("p99", v.P99)}
	case straight: // the points are a line themselves, which another would hide
	}
	for i := range s.Lines {
		s.Lines[i].Color, s.Lines[i].Dashed = []color.RGBA{plot.Ink, plot.Red}[i], i == 1
	}
	if v.shape() != scattered {
		s.LinearY, s.YLabel = true, "from Send to delivery"
	}
	return s
}

// overview returns the percentiles of all variants but sweeps. If there are too many, those that
// replay go first: what they measure is the age of a stream rather than a latency.
func (r *LatencyRun) overview(how output) plot.Percentiles {
	var shown []*VariantResult
	for i := range r.Variants {
		if v := &r.Variants[i]; v.Base == "" && len(v.Samples) > 0 {
			shown = append(shown, v)
		}
	}
	var left []string
	drop := func(i int) {
		left = append(left, shown[i].Name)
		shown = slices.Delete(shown, i, i+1)
	}
	for i := len(shown) - 1; i >= 0 && len(shown) > overviewCurves; i-- {
		if shown[i].shape() == straight {
			drop(i)
		}
	}
	for len(shown) > overviewCurves {
		drop(len(shown) - 1)
	}
	p := plot.Percentiles{
		Title:  fmt.Sprintf("Latency of %s messages in each variant", countText(float64(r.Settings.Count))),
		XLabel: "share of the messages that took no longer", YLabel: "from Send to delivery (log scale)", Note: r.Machine.String(),
		Width: how.width, Height: how.height,
	}
	if len(left) > 0 {
		p.Note = "Not shown: " + strings.Join(left, ", ") + ". " + p.Note
	}
	for _, v := range shown {
		c := plot.Curve{Name: v.Name, Values: make([]float64, len(v.Samples))}
		for i, s := range v.Samples {
			c.Values[i] = s.Took.Seconds()
		}
		p.Curves = append(p.Curves, c)
	}
	return p
}
