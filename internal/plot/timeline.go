package plot

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Timeline describes a picture of something that happened: lanes one above the other with one time axis
// below, vertical marks through all of them, and the one stretch that matters enlarged at the top,
// taken apart into what it consists of. X is in seconds.
type Timeline struct {
	Title, XLabel string
	// From and To are the ends of the time axis. What is outside is not drawn.
	From, To float64
	// Bars stand above the lanes: a row each, and above these their name, as of a lane.
	Bars     []Bar
	BarsName string
	Lanes    []Lane
	Marks    []Mark
	// Band is shaded through all lanes; Parts, if there are any, say what it consists of, from its left.
	Band  Band
	Parts []Part
	// Note stands small at the foot.
	Note string
	// Width and Height are in pixels; 0 means DefaultWidth and DefaultHeight.
	Width, Height int
}

// Lane is a chart with a logarithmic Y axis in seconds. Points are drawn one by one, so a lane suits
// some thousands of them.
type Lane struct {
	Name string
	// Share is the lane's part of the height, in relation to the other lanes.
	Share  float64
	Series []LaneSeries
}

// LaneSeries is a Series with a shape.
type LaneSeries struct {
	Series
	// Cross draws crosses, which stand out, instead of dots. Large dots are for what is rare.
	Cross, Large bool
}

// Bar is a row that says when something was so and when not.
type Bar struct {
	Name string
	// Out are the stretches in which it was not; the rest of the row, from From to To, is drawn quietly.
	Out []Band
}

// Mark is a vertical line with a label above the lanes. Marks are in the order of time.
type Mark struct {
	At    float64
	Label string
	Color color.RGBA
}

// Part is a piece of a stretch.
type Part struct {
	Name   string
	Length float64
	Color  color.RGBA
}

// The measures of a Timeline, in points.
const (
	timelineLeft  = vg.Length(78) // for the names of the bars and the labels of the Y axes
	timelineRow   = vg.Length(14) // a bar with its distance, a mark's label
	timelineGap   = vg.Length(18) // above a lane, for its name
	timelineFoot  = vg.Length(34) // the time axis
	timelineBar   = vg.Length(13) // the enlarged stretch
	timelineBreak = vg.Length(14) // from that to the labels of the marks
)

var (
	goodColor = color.RGBA{0xCF, 0xE5, 0xDC, 0xFF}
)

// WritePNG draws t and writes it to w as PNG. The error is ErrEmpty if there is not a point in any lane,
// or one of w.
func (t Timeline) WritePNG(w io.Writer) error {
	points := 0
	for _, l := range t.Lanes {
		for _, s := range l.Series {
			points += len(s.Points)
		}
	}
	if points == 0 || !(t.To > t.From) {
		return fmt.Errorf("plot %q: %w", t.Title, ErrEmpty)
	}
	return writePNG(w, t.Width, t.Height, t.paint)
}

// panel is a part of the picture whose X axis is the time axis.
type panel struct {
	draw.Canvas
	from, to float64
}

// x returns where a moment is.
func (p panel) x(at float64) vg.Length {
	return p.X((at - p.from) / (p.to - p.from))
}

func (t Timeline) paint(c draw.Canvas) {
	title(c, t.Title)
	c = draw.Crop(c, 0, 0, footer(c, t.Note), 0)
	t.legend(c, c.Max.Y-vg.Points(31))
	top := c.Max.Y - vg.Points(44)
	inner := panel{draw.Crop(c, timelineLeft, -vg.Points(10), timelineFoot, 0), t.From, t.To}
	bottom := top
	if len(t.Parts) > 0 {
		bottom = t.parts(c, inner, top)
	}
	labels := bottom - timelineBreak
	rows, used := t.rows(inner)
	inner.Max.Y = labels - timelineRow*vg.Length(used) - vg.Points(2)
	t.band(inner, bottom)
	t.axis(inner)
	t.marks(inner, labels, rows)
	lanes := inner
	if len(t.Bars) > 0 {
		lanes.Max.Y -= timelineGap
		lanes.name(t.BarsName)
		t.bars(lanes)
		lanes.Max.Y -= timelineRow * vg.Length(len(t.Bars))
	}
	total := 0.0
	for _, l := range t.Lanes {
		total += l.Share
	}
	room := lanes.Max.Y - lanes.Min.Y - timelineGap*vg.Length(len(t.Lanes))
	for _, l := range t.Lanes {
		p := lanes
		p.Max.Y = lanes.Max.Y - timelineGap
		p.Min.Y = p.Max.Y - room*vg.Length(l.Share/total)
		lanes.Max.Y = p.Min.Y
		l.paint(p)
	}
}

// legend writes the names of all series in one row.
func (t Timeline) legend(c draw.Canvas, y vg.Length) {
	at := vg.Point{X: c.Min.X + vg.Points(10), Y: y}
	for _, l := range t.Lanes {
		for _, s := range l.Series {
			if len(s.Points) == 0 || s.Name == "" {
				continue
			}
			style := s.glyph()
			style.Radius = max(style.Radius, vg.Points(2.6))
			c.DrawGlyph(style, at)
			at.X += vg.Points(8)
			at.X += entry(c, at, s.Name)
		}
	}
}

func (s LaneSeries) glyph() draw.GlyphStyle {
	style := draw.GlyphStyle{Color: s.Color, Radius: vg.Points(1.1), Shape: draw.CircleGlyph{}}
	switch {
	case s.Cross:
		style.Radius, style.Shape = vg.Points(3), boldCross{}
	case s.Large:
		style.Radius = vg.Points(2.6)
	}
	return style
}

// boldCross is a cross that is seen beside hundreds of dots; the one of package draw has hairlines.
type boldCross struct{}

// DrawGlyph implements draw.GlyphDrawer.
func (boldCross) DrawGlyph(c *draw.Canvas, style draw.GlyphStyle, at vg.Point) {
	line := draw.LineStyle{Color: style.Color, Width: vg.Points(1.4)}
	r := style.Radius
	c.StrokeLine2(line, at.X-r, at.Y-r, at.X+r, at.Y+r)
	c.StrokeLine2(line, at.X-r, at.Y+r, at.X+r, at.Y-r)
}

// parts draws the band enlarged to the whole width, in the colours of what it consists of, with their
// names and lengths above, and lines to where it is below. It returns the lower end of the bar.
func (t Timeline) parts(c draw.Canvas, p panel, top vg.Length) vg.Length {
	total := 0.0
	for _, part := range t.Parts {
		total += part.Length
	}
	at := vg.Point{X: p.Min.X, Y: top - vg.Points(6)}
	for _, part := range t.Parts {
		fill(c, part.Color, at.X, at.Y-vg.Points(4), at.X+vg.Points(9), at.Y+vg.Points(4))
		at.X += vg.Points(13)
		at.X += entry(c, at, part.Name+" "+duration(round3(part.Length)))
	}
	upper := top - vg.Points(15)
	lower := upper - timelineBar
	x := p.Min.X
	for _, part := range t.Parts {
		next := x
		if total > 0 {
			next += (p.Max.X - p.Min.X) * vg.Length(part.Length/total)
		}
		fill(c, part.Color, x, lower, next, upper)
		x = next
	}
	return lower
}

// round3 rounds to three significant digits.
func round3(x float64) float64 {
	if x == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-2)
	return math.Round(x/unit) * unit
}

func fill(c draw.Canvas, col color.Color, x0, y0, x1, y1 vg.Length) {
	c.FillPolygon(col, []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
}

// band shades the band, and ties it to its enlarged form, whose lower end is at y.
func (t Timeline) band(p panel, y vg.Length) {
	if !(t.Band.To > t.Band.From) {
		return
	}
	x0, x1 := max(p.x(t.Band.From), p.Min.X), min(p.x(t.Band.To), p.Max.X)
	fill(p.Canvas, bandColor, x0, p.Min.Y, x1, p.Max.Y)
	if len(t.Parts) > 0 {
		p.FillPolygon(bandColor, []vg.Point{{X: x0, Y: p.Max.Y}, {X: x1, Y: p.Max.Y}, {X: p.Max.X, Y: y}, {X: p.Min.X, Y: y}})
	}
}

// bars draws the rows at the top of p.
func (t Timeline) bars(p panel) {
	name := draw.TextStyle{Color: axisColor, Handler: plot.DefaultTextHandler, XAlign: draw.XRight, YAlign: draw.YCenter, Font: sans(vg.Points(9))}
	length := draw.TextStyle{Color: color.White, Handler: plot.DefaultTextHandler, XAlign: draw.XCenter, YAlign: draw.YCenter, Font: bold(vg.Points(8))}
	for i, b := range t.Bars {
		y1 := p.Max.Y - timelineRow*vg.Length(i) - vg.Points(1.5)
		y0 := y1 - timelineRow + vg.Points(3)
		p.FillText(name, vg.Point{X: p.Min.X - vg.Points(5), Y: (y0 + y1) / 2}, b.Name)
		fill(p.Canvas, goodColor, p.Min.X, y0, p.Max.X, y1)
		for _, o := range b.Out {
			x0, x1 := max(p.x(o.From), p.Min.X), min(p.x(o.To), p.Max.X)
			if x1 <= x0 {
				continue
			}
			fill(p.Canvas, Red, x0, y0, max(x1, x0+vg.Points(0.8)), y1)
			if length.Width(o.Label) < x1-x0 {
				p.FillText(length, vg.Point{X: (x0 + x1) / 2, Y: (y0 + y1) / 2}, o.Label)
			}
		}
	}
}

// axis draws the time axis.
func (t Timeline) axis(p panel) {
	label := draw.TextStyle{Color: axisColor, Handler: plot.DefaultTextHandler, XAlign: draw.XCenter, YAlign: draw.YTop, Font: sans(vg.Points(10))}
	line := draw.LineStyle{Color: axisColor, Width: vg.Points(0.8)}
	for _, tick := range linearTicks(t.From, t.To, signedSeconds) {
		x, size := p.x(tick.Value), vg.Points(2)
		if tick.Label != "" {
			size = vg.Points(4)
			p.FillText(label, vg.Point{X: x, Y: p.Min.Y - vg.Points(6)}, tick.Label)
		}
		p.StrokeLine2(line, x, p.Min.Y, x, p.Min.Y-size)
	}
	p.StrokeLine2(line, p.Min.X, p.Min.Y, p.Max.X, p.Min.Y)
	label.Color, label.Font = Ink, sans(vg.Points(11))
	p.FillText(label, vg.Point{X: (p.Min.X + p.Max.X) / 2, Y: p.Min.Y - vg.Points(20)}, t.XLabel)
}

func signedSeconds(secs float64) string {
	if secs < 0 {
		return "−" + duration(-secs)
	}
	return duration(secs)
}

func (m Mark) style() draw.TextStyle {
	return draw.TextStyle{Color: m.Color, Handler: plot.DefaultTextHandler, YAlign: draw.YCenter, Font: bold(vg.Points(9.5))}
}

// rows returns the row of each mark's label, the highest being 0, and how many are used: the highest in
// and below which no earlier label reaches the mark's line. So no line crosses a label, however close
// the marks are.
func (t Timeline) rows(p panel) (rows []int, used int) {
	var ends []vg.Length // of the last label in each row
	for _, m := range t.Marks {
		row := len(ends)
		for row > 0 && ends[row-1] < p.x(m.At)-vg.Points(4) {
			row--
		}
		rows = append(rows, row)
		ends = append(ends[:row], p.x(m.At)+vg.Points(4)+m.style().Width(m.Label))
		used = max(used, len(ends))
	}
	return rows, used
}

// marks draws the marks. A label that would leave the picture stands at the left of its line, where it
// may lie over those of earlier marks.
func (t Timeline) marks(p panel, top vg.Length, rows []int) {
	for i, m := range t.Marks {
		if m.At < t.From || m.At > t.To {
			continue
		}
		x, y := p.x(m.At), top-timelineRow*vg.Length(rows[i])-timelineRow/2
		p.StrokeLine2(draw.LineStyle{Color: m.Color, Width: vg.Points(1)}, x, p.Min.Y, x, y)
		style := m.style()
		at := vg.Point{X: x + vg.Points(4), Y: y}
		if at.X+style.Width(m.Label) > p.Max.X+vg.Points(10) {
			at.X, style.XAlign = x-vg.Points(4), draw.XRight
		}
		haloed(p.Canvas, style, at, m.Label)
	}
}

// name writes the name of a lane above it.
func (p panel) name(text string) {
	style := draw.TextStyle{Color: Ink, Handler: plot.DefaultTextHandler, YAlign: draw.YBottom, Font: sans(vg.Points(10))}
	haloed(p.Canvas, style, vg.Point{X: p.Min.X, Y: p.Max.Y + vg.Points(3)}, text)
}

// haloed writes a text with a halo that keeps it apart from the lines of marks.
func haloed(c draw.Canvas, style draw.TextStyle, at vg.Point, text string) {
	const width = vg.Length(1.2)
	halo := style
	halo.Color = color.White
	for i := range 8 {
		dy, dx := math.Sincos(float64(i) * math.Pi / 4)
		c.FillText(halo, vg.Point{X: at.X + width*vg.Length(dx), Y: at.Y + width*vg.Length(dy)}, text)
	}
	c.FillText(style, at, text)
}

// laneTicks are those of a logarithmic axis that is so high, the powers of ten alone where there is
// no room for more.
func laneTicks(lo, hi float64, height vg.Length) []plot.Tick {
	const label = vg.Length(12)
	ticks := logTicks(lo, hi)
	labels := 0
	for _, t := range ticks {
		if t.Label != "" {
			labels++
		}
	}
	for i, t := range ticks {
		if e := math.Log10(t.Value); vg.Length(labels)*label > height && math.Abs(e-math.Round(e)) > 1e-6 {
			ticks[i].Label = ""
		}
	}
	return ticks
}

// paint draws a lane into p.
func (l Lane) paint(p panel) {
	lo, hi := l.ends()
	y := func(v float64) vg.Length {
		return p.Y(math.Log(min(max(v, lo), hi)/lo) / math.Log(hi/lo))
	}
	label := draw.TextStyle{Color: axisColor, Handler: plot.DefaultTextHandler, XAlign: draw.XRight, YAlign: draw.YCenter, Font: sans(vg.Points(9))}
	p.name(l.Name)
	for _, tick := range laneTicks(lo, hi, p.Max.Y-p.Min.Y) {
		if tick.Label != "" {
			p.StrokeLine2(draw.LineStyle{Color: gridColor, Width: vg.Points(0.6)}, p.Min.X, y(tick.Value), p.Max.X, y(tick.Value))
			p.FillText(label, vg.Point{X: p.Min.X - vg.Points(5), Y: y(tick.Value)}, tick.Label)
		}
	}
	p.StrokeLine2(draw.LineStyle{Color: axisColor, Width: vg.Points(0.8)}, p.Min.X, p.Min.Y, p.Min.X, p.Max.Y)
	for _, s := range l.Series {
		style := s.glyph()
		for _, pt := range s.Points {
			if pt.X >= p.from && pt.X <= p.to {
				p.DrawGlyphNoClip(style, vg.Point{X: p.x(pt.X), Y: y(pt.Y)})
			}
		}
	}
}

// ends returns the ends of the Y axis.
func (l Lane) ends() (lo, hi float64) {
	lo = math.Inf(1)
	for _, s := range l.Series {
		for _, p := range s.Points {
			if p.Y > 0 {
				lo, hi = min(lo, p.Y), max(hi, p.Y)
			}
		}
	}
	if hi == 0 {
		return 1e-3, 1e-2 // nothing above 0, as in a Scatter
	}
	return stepBelow(lo), stepAbove(hi * 1.3)
}
