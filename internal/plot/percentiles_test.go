package plot

import (
	"bytes"
	"errors"
	"image/png"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// distributions makes n curves of 10,000 values, each slower than the one before.
func distributions(n int) Percentiles {
	rng := rand.New(rand.NewPCG(1, 2))
	p := Percentiles{Title: "Latency", XLabel: "share", YLabel: "time", Note: "a machine"}
	for i := range n {
		c := Curve{Name: string(rune('a' + i))}
		for range 10_000 {
			c.Values = append(c.Values, 0.001*float64(i+1)*math.Exp(rng.NormFloat64()*0.2))
		}
		p.Curves = append(p.Curves, c)
	}
	return p
}

func TestEveryCurveIsSeenInItsOwnColour(t *testing.T) {
	p := distributions(len(curveColors))
	given := slices.Clone(p.Curves[0].Values)
	var b bytes.Buffer
	if err := p.WritePNG(&b); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(given, p.Curves[0].Values) {
		t.Error("the caller's values were sorted")
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	if size := img.Bounds().Size(); size.X != DefaultWidth || size.Y != DefaultHeight {
		t.Errorf("size %v", size)
	}
	found := make([]int, len(curveColors))
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, bl, _ := img.At(x, y).RGBA()
			for i, c := range curveColors {
				if uint8(r>>8) == c.R && uint8(g>>8) == c.G && uint8(bl>>8) == c.B {
					found[i]++
				}
			}
		}
	}
	for i, n := range found {
		if n < 300 {
			t.Errorf("%d pixels of curve %d", n, i)
		}
	}
}

func TestNoTwoCurvesLookTheSame(t *testing.T) {
	seen := map[string]int{}
	for i := range 28 {
		s := curveStyle(i)
		r, g, b, _ := s.Color.RGBA()
		key := strings.Join([]string{string(rune(r)), string(rune(g)), string(rune(b)), string(rune('0' + i%4))}, " ")
		if other, ok := seen[key]; ok {
			t.Errorf("curves %d and %d look the same", other, i)
		}
		seen[key] = i
		if next := curveStyle(i + 1); len(next.Dashes) > 0 && slices.Equal(next.Dashes, s.Dashes) || next.Color == s.Color {
			t.Errorf("curve %d is too much like the next one", i)
		}
	}
}

func TestACurveHasTheExactQuantiles(t *testing.T) {
	p := Percentiles{}
	values := make([]float64, 1000)
	for i := range values {
		values[i] = float64(1000 - i) // 1 to 1000
	}
	p.Curves = []Curve{{Name: "low", Values: []float64{0.5}}, {Name: "none"}, {Name: "x", Values: values}}
	curves := p.drawn()
	if len(curves) != 2 || curves[0].name != "x" || curves[1].name != "low" {
		t.Fatalf("the legend goes from the top: %+v", curves)
	}
	for x, want := range map[float64]float64{0: 1, 0.30103: 501, 1: 901, 2: 991, 3: 1000, 9: 1000} {
		if got := curves[0].at(x); got != want {
			t.Errorf("at %v: %v, want %v", x, got, want)
		}
	}
	a := percentileArea(curves)
	if math.Abs(a.x1-3) > 1e-9 || a.y0 != 0.5 || a.y1 < 1000 {
		t.Errorf("axes: %+v", a)
	}
	points := curves[0].points(a)
	if last := points[len(points)-1]; last.Y != 1000 {
		t.Errorf("the longest is not shown: %v", last)
	}
}

func TestAFewNearNothingDoNotStretchTheAxis(t *testing.T) {
	p := distributions(1)
	p.Curves[0].Values[5] = 1e-9
	if a := percentileArea(p.drawn()); a.y0 < 1e-4 {
		t.Errorf("the axis begins at %v", a.y0)
	}
}

func TestPercentilesAreLabelled(t *testing.T) {
	var got []string
	for _, tick := range percentileTicks(0, 5) {
		if tick.Label != "" {
			got = append(got, tick.Label)
		}
	}
	if want := "0, 50 %, 90 %, 99 %, 99.9 %, 99.99 %, 99.999 %"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestWhateverTheDistributionsAreAPictureComesOut(t *testing.T) {
	long := strings.Repeat("a very long name ", 20)
	for name, curves := range map[string][]Curve{
		"one": {{"x", []float64{1}}}, "zero": {{"x", []float64{0, 0}}}, "negative": {{"x", []float64{-1, 1}}}, "none too": {{"x", nil}, {"y", []float64{1e-9, 1e9}}},
		"long": {{long, []float64{1, 2}}}, "many": distributions(40).Curves,
	} {
		p := Percentiles{Title: long, Note: long, Curves: curves, Width: 320, Height: 240}
		if err := p.WritePNG(&bytes.Buffer{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Percentiles{Title: "x", Curves: []Curve{{Name: "y"}}}).WritePNG(&bytes.Buffer{}); !errors.Is(err, ErrEmpty) {
		t.Error(err)
	}
}

func TestALinearAxisHasEnoughLabels(t *testing.T) {
	for hi, want := range map[float64]string{28.1: "0 5 s 10 s 15 s 20 s 25 s", 1.08: "0 200 ms 400 ms 600 ms 800 ms 1 s"} {
		var got []string
		for _, tick := range secondTicks(0, hi) {
			if tick.Label != "" {
				got = append(got, tick.Label)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("up to %v: %q, want %q", hi, got, want)
		}
	}
	s := Scatter{Series: []Series{{Points: []Point{{0, 1}, {99_999, 1}}}}}
	if a, _ := s.area(); a.x1 != 100_000 {
		t.Errorf("100,000 messages end at %v", a.x1)
	}
}
