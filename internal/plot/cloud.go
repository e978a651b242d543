package plot

import (
	"image"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// cloud draws points as an image of their density: a glyph per point would hide all but the last of
// 100,000, and take ten times as long. A single point is a dot of about three pixels; where many
// fall on one pixel the colour darkens with the logarithm of their number.
type cloud struct {
	series []Series
	area   area
}

// dot is the footprint of one point: its weight on the pixels around it.
var dot = [3][3]float64{{0.25, 0.6, 0.25}, {0.6, 1, 0.6}, {0.25, 0.6, 0.25}}

// Plot implements plot.Plotter.
func (cl cloud) Plot(c draw.Canvas, p *plot.Plot) {
	w := int(math.Round(float64((c.Max.X - c.Min.X) / vg.Inch * dpi)))
	h := int(math.Round(float64((c.Max.Y - c.Min.Y) / vg.Inch * dpi)))
	if w <= 0 || h <= 0 {
		return
	}
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for _, s := range cl.series {
		weights := make([]float64, w*h)
		for _, pt := range s.Points {
			x := int(p.X.Norm(pt.X) * float64(w-1))
			y := int((1 - p.Y.Norm(cl.area.clampY(pt.Y))) * float64(h-1))
			splat(weights, w, h, x, y)
		}
		paint(img, weights, s.Color)
	}
	c.DrawImage(vg.Rectangle{Min: c.Min, Max: c.Max}, img)
}

func splat(weights []float64, w, h, x, y int) {
	for dy := range dot {
		for dx, weight := range dot[dy] {
			px, py := x+dx-1, y+dy-1
			if px >= 0 && px < w && py >= 0 && py < h {
				weights[py*w+px] += weight
			}
		}
	}
}

// paint puts one series over what is there already.
func paint(img *image.NRGBA, weights []float64, base color.RGBA) {
	top := 0.0
	for _, n := range weights {
		top = max(top, n)
	}
	if top == 0 {
		return
	}
	scale := 1 / math.Log1p(max(top, 12)) // few points on one pixel are not yet a dark place
	for i, n := range weights {
		if n == 0 {
			continue
		}
		alpha := 1 - math.Exp(-1.1*n)
		dark := 1 - 0.62*math.Log1p(n)*scale
		at := img.Pix[4*i : 4*i+4 : 4*i+4]
		under := float64(at[3]) / 255 * (1 - alpha)
		sum := alpha + under
		for j, v := range [3]uint8{base.R, base.G, base.B} {
			at[j] = uint8((float64(v)*dark*alpha + float64(at[j])*under) / sum)
		}
		at[3] = uint8(math.Round(255 * sum))
	}
}

// grid draws thin lines behind the data at the labelled ticks.
type grid struct{}

// Plot implements plot.Plotter.
func (grid) Plot(c draw.Canvas, p *plot.Plot) {
	style := draw.LineStyle{Color: gridColor, Width: vg.Points(0.6)}
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if y := c.Y(p.Y.Norm(t.Value)); t.Label != "" && c.ContainsY(y) {
			c.StrokeLine2(style, c.Min.X, y, c.Max.X, y)
		}
	}
	for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		if x := c.X(p.X.Norm(t.Value)); t.Label != "" && c.ContainsX(x) {
			c.StrokeLine2(style, x, c.Min.Y, x, c.Max.Y)
		}
	}
}

// band shades a stretch of the X axis.
type band struct{ Band }

// Plot implements plot.Plotter.
func (b band) Plot(c draw.Canvas, p *plot.Plot) {
	x0, x1 := b.edges(c, p)
	c.FillPolygon(bandColor, []vg.Point{{X: x0, Y: c.Min.Y}, {X: x1, Y: c.Min.Y}, {X: x1, Y: c.Max.Y}, {X: x0, Y: c.Max.Y}})
}

// edges returns where the band is on the canvas, at least a line wide.
func (b band) edges(c draw.Canvas, p *plot.Plot) (vg.Length, vg.Length) {
	x0 := max(c.X(p.X.Norm(b.From)), c.Min.X)
	x1 := min(c.X(p.X.Norm(b.To)), c.Max.X)
	return x0, max(x1, x0+vg.Points(1))
}

// bandLabel writes a band's label behind its upper end, above the points.
type bandLabel struct{ Band }

// Plot implements plot.Plotter.
func (b bandLabel) Plot(c draw.Canvas, p *plot.Plot) {
	x0, x1 := band(b).edges(c, p)
	edge := draw.LineStyle{Color: Red, Width: vg.Points(0.8), Dashes: []vg.Length{vg.Points(3), vg.Points(2)}}
	c.StrokeLine2(edge, x0, c.Min.Y, x0, c.Max.Y)
	c.StrokeLine2(edge, x1, c.Min.Y, x1, c.Max.Y)
	if b.Label == "" {
		return
	}
	style := draw.TextStyle{Color: Red, Handler: plot.DefaultTextHandler, YAlign: draw.YTop,
		Font: bold(vg.Points(10))}
	at := vg.Point{X: x0 - vg.Points(5), Y: c.Max.Y - vg.Points(8)}
	style.XAlign = draw.XRight
	if at.X-style.Width(b.Label) < c.Min.X {
		at.X, style.XAlign = x1+vg.Points(5), draw.XLeft
	}
	c.FillText(style, at, b.Label)
}
