package plot

import "slices"

// Moving returns the q-quantile (0 to 1) of Y over windows of equal width in X: one point in the
// middle of each window that holds at least one point. points need not be sorted.
func Moving(points []Point, windows int, q float64) []Point {
	if len(points) == 0 || windows < 1 {
		return nil
	}
	x0, x1 := points[0].X, points[0].X
	for _, p := range points {
		x0, x1 = min(x0, p.X), max(x1, p.X)
	}
	width := (x1 - x0) / float64(windows)
	values := make([][]float64, windows)
	for _, p := range points {
		at := 0
		if width > 0 {
			at = min(int((p.X-x0)/width), windows-1)
		}
		values[at] = append(values[at], p.Y)
	}
	var out []Point
	for i, v := range values {
		if len(v) == 0 {
			continue
		}
		slices.Sort(v)
		out = append(out, Point{X: x0 + (float64(i)+0.5)*width, Y: v[min(int(q*float64(len(v))), len(v)-1)]})
	}
	return out
}
