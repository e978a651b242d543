package plot

import (
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Curve is one distribution in a Percentiles picture.
type Curve struct {
	Name string
	// Values are seconds, in any order. They are not changed.
	Values []float64
}

// Percentiles describes a picture that has the distributions of several measurements side by side. X
// is the percentile, on a scale on which each step to the right is a tenth of the messages that are
// left: the slow ones, which a usual scale hides at its end, get most of the room. Y is logarithmic.
//
// The legend is a column, in the order of the curves from the top. Curves differ in colour and in
// dashes; from the 29th on both repeat.
type Percentiles struct {
	Title, XLabel, YLabel string
	Curves                []Curve
	// Note stands small at the foot.
	Note string
	// Width and Height are in pixels; 0 means DefaultWidth and DefaultHeight.
	Width, Height int
}

// curveColors differ also for most colour-blind people (after Okabe and Ito), without the yellow, which
// is faint on white. Their number and that of curveDashes have no common divisor, so that neighbours
// differ in both and a pair comes again only after all of them.
var curveColors = []color.RGBA{
	Blue, Red, Green, Ink,
	{0xE6, 0x9F, 0x00, 0xFF}, // orange
	{0xB9, 0x5F, 0x90, 0xFF}, // purple
	{0x4B, 0xA8, 0xDE, 0xFF}, // sky
}

var curveDashes = [][]vg.Length{nil, {7, 3}, {1.6, 2}, {8, 2.5, 1.6, 2.5}}

func curveStyle(i int) draw.LineStyle {
	return draw.LineStyle{Color: curveColors[i%len(curveColors)], Width: vg.Points(1.8), Dashes: curveDashes[i%len(curveDashes)]}
}

// curveSteps is how many points a curve is drawn with: about one per two pixels.
const curveSteps = 600

// WritePNG draws p and writes it to w as PNG. Curves without values are left out. The error is ErrEmpty
// if none has any, or one of w.
func (p Percentiles) WritePNG(w io.Writer) error {
	curves := p.drawn()
	if len(curves) == 0 {
		return fmt.Errorf("plot %q: %w", p.Title, ErrEmpty)
	}
	a := percentileArea(curves)
	f := frame(p.XLabel, true)
	f.X.Tick.Marker = plot.TickerFunc(percentileTicks)
	f.Add(grid{})
	for _, c := range curves {
		line, err := plotter.NewLine(c.points(a))
		if err != nil {
			return fmt.Errorf("plot %q: curve %s: %w", p.Title, c.name, err)
		}
		line.LineStyle = c.style
		f.Add(line)
	}
	f.X.Min, f.X.Max, f.Y.Min, f.Y.Max = a.x0, a.x1, a.y0, a.y1 // Add may have widened them
	return writePNG(w, p.Width, p.Height, func(c draw.Canvas) {
		title(c, p.Title)
		axisName(c, c.Max.Y-vg.Points(23), p.YLabel)
		inner := draw.Crop(c, 0, 0, footer(c, p.Note), -vg.Points(41))
		f.Draw(draw.Crop(inner, 0, -curveLegend(inner, curves), 0, 0))
	})
}

// curve is one that is drawn.
type curve struct {
	name   string
	sorted []float64
	style  draw.LineStyle
}

// drawn returns the curves that have values, from the highest to the lowest as they stand where most
// of them are apart: the legend is read like the picture. The style goes by the place among all, so
// that it does not change when the values do.
func (p Percentiles) drawn() []curve {
	var out []curve
	for i, c := range p.Curves {
		if len(c.Values) > 0 {
			out = append(out, curve{c.Name, slices.Sorted(slices.Values(c.Values)), curveStyle(i)})
		}
	}
	const where = 1 // 90 %
	slices.SortStableFunc(out, func(a, b curve) int { return cmp.Compare(b.at(where), a.at(where)) })
	return out
}

// at returns the value at x = -log10(1 - q), q being the quantile.
func (c curve) at(x float64) float64 {
	n := float64(len(c.sorted))
	return c.sorted[min(int(n*(1-math.Pow(10, -x))+1e-6), len(c.sorted)-1)]
}

// end returns where the longest value is reached.
func (c curve) end() float64 { return math.Log10(float64(len(c.sorted))) }

func (c curve) points(a area) plotter.XYs {
	end := min(c.end(), a.x1)
	xys := make(plotter.XYs, curveSteps+1)
	for i := range xys {
		x := end * float64(i) / curveSteps
		xys[i] = plotter.XY{X: x, Y: a.clampY(c.at(x))}
	}
	return xys
}

// The X axis ends where the largest distribution does, but shows 90 % and needs no more than a million.
const (
	leastEnd = 1.0
	mostEnd  = 6.0
)

// leastShown is the part of the messages whose latencies do not widen the Y axis downwards: they have
// three pixels of the X axis, but a few that are next to nothing would take half of the Y axis.
const leastShown = 0.01

func percentileArea(curves []curve) area {
	a := area{x1: leastEnd, y0: math.Inf(1), log: true}
	for _, c := range curves {
		a.x1 = max(a.x1, min(c.end(), mostEnd))
		a.y1 = max(a.y1, c.sorted[len(c.sorted)-1])
		for _, v := range c.sorted[int(leastShown*float64(len(c.sorted))):] {
			if v > 0 {
				a.y0 = min(a.y0, v)
				break
			}
		}
	}
	if a.y1 <= 0 {
		a.y0, a.y1 = 0.5e-3, 1e-3 // nothing above 0, as in a Scatter
	}
	a.y0, a.y1 = stepBelow(a.y0), stepAbove(a.y1*1.05)
	return a
}

// percentileTicks labels 0, 50, 90, 99, 99.9 % and so on.
func percentileTicks(lo, hi float64) []plot.Tick {
	const half = 0.30103 // -log10(1 - 0.5)
	ticks := []plot.Tick{{Value: 0, Label: "0"}, {Value: half, Label: "50 %"}}
	for e := 1.0; e <= hi+1e-6; e++ {
		digits := max(int(e)-2, 0)
		ticks = append(ticks, plot.Tick{Value: e, Label: strconv.FormatFloat(100-100*math.Pow(10, -e), 'f', digits, 64) + " %"})
		if e+half <= hi {
			ticks = append(ticks, plot.Tick{Value: e + half}) // 95, 99.5 % and so on
		}
	}
	return slices.DeleteFunc(ticks, func(t plot.Tick) bool { return t.Value < lo-1e-6 || t.Value > hi+1e-6 })
}

// curveLegend writes the legend as a column at the right and returns its width.
func curveLegend(c draw.Canvas, curves []curve) vg.Length {
	const row, sample = vg.Length(17), vg.Length(34)
	name := draw.TextStyle{Color: Ink, Handler: plot.DefaultTextHandler, YAlign: draw.YCenter, Font: sans(vg.Points(10))}
	widest := vg.Length(0)
	for _, l := range curves {
		widest = max(widest, name.Width(l.name))
	}
	width := min(widest+sample+vg.Points(24), (c.Max.X-c.Min.X)*0.45)
	at := vg.Point{X: c.Max.X - width + vg.Points(16), Y: c.Max.Y - vg.Points(8)}
	for _, l := range curves {
		c.StrokeLine2(l.style, at.X, at.Y, at.X+sample, at.Y)
		fitted(c, name, vg.Point{X: at.X + sample + vg.Points(6), Y: at.Y}, l.name)
		at.Y -= row
	}
	return width
}
