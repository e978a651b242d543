package plot

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"testing"
)

// outage makes a run as the demo has them: 100,000 messages of 3 to 20 ms with a few outliers, and an
// outage in the middle.
func outage(n int) Scatter {
	rng := rand.New(rand.NewPCG(1, 2))
	var before, during, after []Point
	from, to := n*50/100, n*56/100
	for i := range n {
		p := Point{X: float64(i), Y: 0.004 * math.Exp(rng.NormFloat64()*0.35)}
		if rng.IntN(400) == 0 {
			p.Y *= 5 + 10*rng.Float64()
		}
		switch {
		case i < from:
			before = append(before, p)
		case i < to:
			p.Y += 1.9 * float64(to-i) / float64(to-from)
			during = append(during, p)
		default:
			after = append(after, p)
		}
	}
	return Scatter{
		Title: "Latency of 100,000 messages, primary killed in the middle", XLabel: "message", YLabel: "from Send to delivery (log scale)",
		Series: []Series{{"before", Blue, before}, {"during the outage", Red, during}, {"after", Green, after}},
		Lines:  []Line{{Name: "median", Color: Ink, Points: Moving(before, 100, 0.5)}, {Name: "99 %", Color: Ink, Dashed: true, Points: Moving(before, 100, 0.99)}, {Color: Ink, Points: Moving(after, 80, 0.5)}, {Color: Ink, Dashed: true, Points: Moving(after, 80, 0.99)}},
		Bands:  []Band{{From: float64(from), To: float64(to), Label: "primary killed: 1.90 s"}},
	}
}

func picture(t *testing.T, s Scatter) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WritePNG(&b); err != nil {
		t.Fatal(err)
	}
	if keep := os.Getenv("CAPSTAN_KEEP_PLOT"); keep != "" { // to look at it
		if err := os.WriteFile(keep, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func TestAHundredThousandPointsMakeAPicture(t *testing.T) {
	size, n := inked(t, outage(100_000), Blue)
	if size.X != DefaultWidth || size.Y != DefaultHeight {
		t.Errorf("size %v", size)
	}
	if n < 5000 {
		t.Errorf("only %d pixels of the first series", n)
	}
}

// small makes the pictures of the other tests cheap: what they show does not depend on the size.
func small(s Scatter) Scatter {
	s.Width, s.Height = 320, 240
	return s
}

// inked returns the size of the picture and the number of its pixels that are clearly blue, or red, as c is.
func inked(t *testing.T, s Scatter, c color.RGBA) (image.Point, int) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(picture(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	rgba, ok := img.(*image.RGBA)
	if !ok {
		t.Fatalf("the picture is a %T", img)
	}
	n := 0
	for i := 0; i < len(rgba.Pix); i += 4 {
		r, b := int(rgba.Pix[i]), int(rgba.Pix[i+2])
		if c.B > c.R && b-r > 60 || c.R > c.B && r-b > 60 {
			n++
		}
	}
	return img.Bounds().Size(), n
}

func TestASinglePointIsSeen(t *testing.T) {
	s := Scatter{Series: []Series{{"", Blue, []Point{{0, 1}}}}}
	if _, n := inked(t, small(s), Blue); n < 4 {
		t.Fatalf("%d pixels", n)
	}
}

func TestWhateverThePointsAreAPictureComesOut(t *testing.T) {
	for name, points := range map[string][]Point{
		"zero": {{0, 0}}, "negative": {{1, -1}, {2, 1}}, "equal": {{1, 1}, {1, 1}}, "wide": {{-1e9, 1e-9}, {1e9, 1e9}},
	} {
		for _, linear := range []bool{false, true} {
			s := Scatter{LinearY: linear, Series: []Series{{"s", Red, points}}, Bands: []Band{{From: 0, To: 0}, {From: -5, To: 99, Label: "all"}}}
			t.Run(name, func(t *testing.T) { picture(t, small(s)) })
		}
	}
}

func TestNothingToDrawIsSaid(t *testing.T) {
	if err := (Scatter{Title: "x"}).WritePNG(&bytes.Buffer{}); !errors.Is(err, ErrEmpty) {
		t.Fatal(err)
	}
}

func TestAxesNameTheirUnits(t *testing.T) {
	for secs, want := range map[float64]string{0: "0", 20e-6: "20 µs", 0.001: "1 ms", 0.5: "500 ms", 1: "1 s", 60: "60 s"} {
		if got := duration(secs); got != want {
			t.Errorf("%v: got %q, want %q", secs, got, want)
		}
	}
	for n, want := range map[float64]string{5: "5", 0.5: "0.5", 1000: "1,000", 100000: "100,000", -1234567: "-1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%v: got %q, want %q", n, got, want)
		}
	}
	labels := 0
	for _, tick := range logTicks(1e-3, 2) {
		if tick.Label != "" {
			labels++
		}
	}
	if labels < 4 || labels > 12 {
		t.Errorf("%d labels over three decades", labels)
	}
}

func TestMovingQuantilesFollowThePoints(t *testing.T) {
	var points []Point
	for i := range 100 {
		points = append(points, Point{float64(i), float64(i / 50)})
	}
	got := Moving(points, 2, 0.5)
	if len(got) != 2 || got[0].Y != 0 || got[1].Y != 1 {
		t.Fatal(got)
	}
	if Moving(nil, 3, 0.5) != nil || len(Moving([]Point{{1, 1}}, 5, 0.5)) != 1 {
		t.Fatal("edges")
	}
}

func BenchmarkWritePNG(b *testing.B) {
	s := outage(100_000)
	for b.Loop() {
		if err := s.WritePNG(&bytes.Buffer{}); err != nil {
			b.Fatal(err)
		}
	}
}
