// Package plot draws the latencies of many messages as one picture: a PNG that stays legible with
// 100,000 points, as each pixel shows how many of them it holds.
package plot

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// The size of a picture in pixels, where Scatter leaves it at 0.
const (
	DefaultWidth  = 1600
	DefaultHeight = 900
)

// dpi makes text of the usual sizes legible in a picture of the default size.
const dpi = 144

// ErrEmpty says that there is no point to draw.
var ErrEmpty = errors.New("no points to plot")

// Point is one sample: X in the unit of the X axis, Y in seconds.
type Point struct{ X, Y float64 }

// Series are points of one colour with one entry in the legend.
type Series struct {
	Name   string
	Color  color.RGBA
	Points []Point
}

// Line is a curve over the points, such as a moving median.
type Line struct {
	Name   string
	Color  color.RGBA
	Dashed bool
	Points []Point
}

// Band is a shaded stretch of the X axis, such as an outage.
type Band struct {
	From, To float64
	// Label stands at its upper end, beside it, in one line or more.
	Label string
}

// Scatter describes a picture.
type Scatter struct {
	Title, XLabel, YLabel string
	// LinearY draws the Y axis linear from 0; the zero value is logarithmic, on which points of 0 and
	// less are drawn at the lowest point above 0.
	LinearY bool
	Series  []Series
	Lines   []Line
	Bands   []Band
	// Note stands small at the foot, such as the machine that it was measured on.
	Note string
	// Width and Height are in pixels; 0 means DefaultWidth and DefaultHeight.
	Width, Height int
}

// Colours that differ also for most colour-blind people (after Okabe and Ito).
var (
	Blue   = color.RGBA{0x00, 0x72, 0xB2, 0xFF}
	Red    = color.RGBA{0xD5, 0x5E, 0x00, 0xFF}
	Green  = color.RGBA{0x00, 0x9E, 0x73, 0xFF}
	Purple = color.RGBA{0xCC, 0x79, 0xA7, 0xFF}
	Sky    = color.RGBA{0x56, 0xB4, 0xE9, 0xFF}
	Ink    = color.RGBA{0x22, 0x22, 0x2A, 0xFF}
)

var (
	gridColor = color.RGBA{0xE4, 0xE6, 0xEA, 0xFF}
	axisColor = color.RGBA{0x70, 0x74, 0x7C, 0xFF}
	bandColor = color.RGBA{0xFB, 0xE9, 0xDF, 0xFF}
)

// WritePNG draws s and writes it to w as PNG. It takes about a second for 100,000 points. The error is
// ErrEmpty, or one of w.
func (s Scatter) WritePNG(w io.Writer) error {
	area, ok := s.area()
	if !ok {
		return fmt.Errorf("plot %q: %w", s.Title, ErrEmpty)
	}
	p := frame(s.XLabel, area.log)
	for _, b := range s.Bands {
		p.Add(band{b})
	}
	p.Add(grid{})
	p.Add(cloud{s.Series, area})
	for _, l := range s.Lines {
		if err := addLine(p, l, area); err != nil {
			return fmt.Errorf("plot %q: line %s: %w", s.Title, l.Name, err)
		}
	}
	for _, b := range s.Bands {
		p.Add(bandLabel{b})
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = area.x0, area.x1, area.y0, area.y1 // Add may have widened them
	return writePNG(w, s.Width, s.Height, func(c draw.Canvas) {
		p.Draw(draw.Crop(c, 0, 0, footer(c, s.Note), -s.header(c)))
	})
}

// writePNG writes the picture that paint makes. A width or height of 0 is the default.
func writePNG(w io.Writer, width, height int, paint func(draw.Canvas)) error {
	if width <= 0 {
		width = DefaultWidth
	}
	if height <= 0 {
		height = DefaultHeight
	}
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseDPI(dpi), vgimg.UseWH(pixels(width), pixels(height)))}
	paint(draw.Crop(draw.New(canvas), vg.Points(10), -vg.Points(18), vg.Points(8), -vg.Points(10)))
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

func pixels(n int) vg.Length { return vg.Length(n) * vg.Inch / dpi }

// area is the range of the axes.
type area struct {
	x0, x1, y0, y1 float64
	log            bool
}

// clampY moves what a logarithmic axis cannot show to its lower end.
func (a area) clampY(y float64) float64 { return min(max(y, a.y0), a.y1) }

func (s Scatter) area() (area, bool) {
	a := area{x0: math.Inf(1), x1: math.Inf(-1), y0: math.Inf(1), y1: math.Inf(-1), log: !s.LinearY}
	n := 0
	extend := func(points []Point) {
		for _, p := range points {
			n++
			a.x0, a.x1 = min(a.x0, p.X), max(a.x1, p.X)
			a.y1 = max(a.y1, p.Y)
			if p.Y > 0 {
				a.y0 = min(a.y0, p.Y)
			}
		}
	}
	for _, series := range s.Series {
		extend(series.Points)
	}
	for _, l := range s.Lines {
		extend(l.Points)
	}
	if n == 0 {
		return a, false
	}
	if a.x1 <= a.x0 {
		a.x0, a.x1 = a.x0-0.5, a.x0+0.5
	}
	// Message 99,999 is the last of 100,000: the axis ends at the number that people know.
	step := stepBelow((a.x1 - a.x0) / 4)
	if end := math.Ceil(a.x1/step) * step; end-a.x1 < (a.x1-a.x0)/500 {
		a.x1 = end
	}
	if a.y1 <= 0 {
		a.y0, a.y1 = 0.5e-3, 1e-3 // nothing above 0: a millisecond is as good as anything
	}
	if s.LinearY {
		a.y0, a.y1 = 0, a.y1*1.08
	} else {
		a.y0, a.y1 = stepBelow(a.y0), stepAbove(a.y1*1.05)
	}
	return a, true
}

// stepBelow and stepAbove round to 1, 2 or 5 times a power of ten.
func stepBelow(y float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(y)))
	for _, m := range []float64{5, 2} {
		if base*m <= y {
			return base * m
		}
	}
	return base
}

func stepAbove(y float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(y)))
	for _, m := range []float64{1, 2, 5} {
		if base*m >= y {
			return base * m
		}
	}
	return base * 10
}

// frame returns a plot with everything but the data.
func frame(xLabel string, log bool) *plot.Plot {
	p := plot.New()
	style := func(t *text.Style, size vg.Length, c color.Color) {
		t.Font, t.Color = sans(size), c
	}
	p.X.Label.Text = xLabel // the Y axis has its name in the header
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		style(&axis.Label.TextStyle, vg.Points(11), Ink)
		style(&axis.Tick.Label, vg.Points(10), axisColor)
		axis.Label.Padding = vg.Points(5)
		axis.LineStyle.Color, axis.Tick.Color = axisColor, axisColor
		axis.Tick.Length = vg.Points(4)
		axis.Padding = 0
	}
	p.X.Tick.Marker = plot.TickerFunc(countTicks)
	p.Y.Tick.Marker = plot.TickerFunc(secondTicks)
	if log {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = plot.TickerFunc(logTicks)
	}
	return p
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

func addLine(p *plot.Plot, l Line, a area) error {
	if len(l.Points) < 2 {
		return nil
	}
	xys := make(plotter.XYs, len(l.Points))
	for i, pt := range l.Points {
		xys[i] = plotter.XY{X: pt.X, Y: a.clampY(pt.Y)}
	}
	// A white line below keeps the curve apart from the points.
	halo, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	halo.LineStyle = draw.LineStyle{Color: color.RGBA{0xFF, 0xFF, 0xFF, 0xFF}, Width: vg.Points(3)}
	curve, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	curve.LineStyle = l.style()
	p.Add(halo, curve)
	return nil
}
