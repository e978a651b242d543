package plot

import (
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

func bold(size vg.Length) font.Font {
	f := sans(size)
	f.Weight = 3 // font.WeightBold of golang.org/x/image, which we need for nothing else
	return f
}

// header draws the title, the legend as one row and the name of the Y axis, and returns their height.
// They stand above the data, because with 100,000 points no corner is sure to be empty, and because
// a name that need not be turned is read faster.
func (s Scatter) header(c draw.Canvas) vg.Length {
	title(c, s.Title)
	const row = vg.Length(32) // from the top to the middle of the legend's row, in points
	at := vg.Point{X: c.Min.X + vg.Points(8), Y: c.Max.Y - row}
	for _, series := range s.Series {
		if len(series.Points) > 0 && series.Name != "" {
			c.DrawGlyph(draw.GlyphStyle{Color: series.Color, Radius: vg.Points(3.2), Shape: draw.CircleGlyph{}},
				vg.Point{X: at.X + vg.Points(3), Y: at.Y})
			at.X += vg.Points(11)
			at.X += entry(c, at, series.Name)
		}
	}
	for _, l := range s.Lines {
		if len(l.Points) > 1 && l.Name != "" {
			c.StrokeLine2(l.style(), at.X, at.Y, at.X+vg.Points(20), at.Y)
			at.X += vg.Points(25)
			at.X += entry(c, at, l.Name)
		}
	}
	axisName(c, c.Max.Y-row-vg.Points(16), s.YLabel)
	return row + vg.Points(34)
}

// title writes the title at the top.
func title(c draw.Canvas, s string) {
	style := draw.TextStyle{Color: Ink, Handler: plot.DefaultTextHandler, YAlign: draw.YTop, Font: bold(vg.Points(14))}
	fitted(c, style, vg.Point{X: c.Min.X + vg.Points(6), Y: c.Max.Y}, s)
}

// axisName writes the name of the Y axis below y.
func axisName(c draw.Canvas, y vg.Length, s string) {
	style := draw.TextStyle{Color: axisColor, Handler: plot.DefaultTextHandler, YAlign: draw.YTop, Font: sans(vg.Points(10))}
	c.FillText(style, vg.Point{X: c.Min.X + vg.Points(6), Y: y}, s)
}

// footer writes a note at the bottom and returns its height, 0 if there is none.
func footer(c draw.Canvas, note string) vg.Length {
	if note == "" {
		return 0
	}
	style := draw.TextStyle{Color: axisColor, Handler: plot.DefaultTextHandler, YAlign: draw.YBottom, Font: sans(vg.Points(8))}
	fitted(c, style, vg.Point{X: c.Min.X + vg.Points(6), Y: c.Min.Y - vg.Points(1)}, note)
	return vg.Points(12)
}

// smallest is the part of its size to which a text may shrink before it is cut.
const smallest = 0.7

// fitted writes a text that begins at at and ends within the canvas: too long a one is shrunk, then cut.
func fitted(c draw.Canvas, style draw.TextStyle, at vg.Point, s string) {
	room := c.Max.X - at.X
	if w := style.Width(s); w > room {
		style.Font.Size *= max(room/w, smallest)
	}
	for runes := []rune(s); style.Width(s) > room && len(runes) > 0; {
		runes = runes[:len(runes)-1]
		s = string(runes) + "…"
	}
	c.FillText(style, at, s)
}

// entry writes one name of the legend and returns how far the next one is.
func entry(c draw.Canvas, at vg.Point, name string) vg.Length {
	style := draw.TextStyle{Color: Ink, Handler: plot.DefaultTextHandler, YAlign: draw.YCenter, Font: sans(vg.Points(10))}
	c.FillText(style, at, name)
	return style.Width(name) + vg.Points(18)
}

// style returns how the curve is drawn.
func (l Line) style() draw.LineStyle {
	style := draw.LineStyle{Color: color.Color(l.Color), Width: vg.Points(1.3)}
	if l.Dashed {
		style.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
	}
	return style
}
