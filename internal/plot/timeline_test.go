package plot

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/png"
	"slices"
	"testing"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"pgregory.net/rapid"
)

// fault makes a timeline from -2 to 8 s with an outage from 1 to 3 s.
func fault() Timeline {
	var before, after, failed []Point
	for i := range 300 {
		before = append(before, Point{X: -2 + float64(i)/100, Y: 0.005})
		after = append(after, Point{X: 3 + float64(i)/60, Y: 0.005})
	}
	for i := range 4 {
		failed = append(failed, Point{X: 1.5 + float64(i)/2, Y: 0.5})
	}
	return Timeline{
		Title: "a fault", XLabel: "time", From: -2, To: 8, Note: "a machine",
		Bars:  []Bar{{Name: "one", Out: []Band{{From: 1, To: 3, Label: "2 s"}}}, {Name: "two", Out: []Band{{From: 1, To: 9}}}},
		Marks: []Mark{{0, "fault", Green}, {2, "won", Green}, {2.001, "complete", Green}, {9, "never seen", Green}},
		Band:  Band{From: 1, To: 3},
		Parts: []Part{{"detection", 1.5, Ink}, {"election", 0, Ink}, {"client", 0.5, Ink}},
		Lanes: []Lane{
			{Name: "writes", Share: 2, Series: []LaneSeries{{Series: Series{"written", Blue, append(before, after...)}}, {Series: Series{"failed", Red, failed}, Cross: true}}},
			{Name: "reads", Share: 1, Series: []LaneSeries{{Series: Series{Name: "none", Color: Green}}}},
		},
	}
}

func timelinePicture(t *testing.T, tl Timeline) image.Image {
	t.Helper()
	var b bytes.Buffer
	if err := tl.WritePNG(&b); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// columns returns which columns of the picture have at least so many pixels of exactly this colour.
func columns(img image.Image, c color.RGBA, least int) []int {
	var out []int
	for x := range img.Bounds().Dx() {
		n := 0
		for y := range img.Bounds().Dy() {
			if r, g, b, _ := img.At(x, y).RGBA(); uint8(r>>8) == c.R && uint8(g>>8) == c.G && uint8(b>>8) == c.B {
				n++
			}
		}
		if n >= least {
			out = append(out, x)
		}
	}
	return out
}

func TestATimelineShowsWhereTheOutageWas(t *testing.T) {
	t.Parallel()
	tl := fault()
	tl.Parts = nil // their ties have the band's colour
	tl.Bars = nil
	img := timelinePicture(t, tl)
	if size := img.Bounds().Size(); size.X != DefaultWidth || size.Y != DefaultHeight {
		t.Errorf("size %v", size)
	}
	shaded := columns(img, bandColor, 100)
	if len(shaded) == 0 {
		t.Fatal("there is no band")
	}
	// The axis has 10 s: the band is a fifth of it, and begins at three tenths.
	width, from := shaded[len(shaded)-1]-shaded[0], shaded[0]
	axis := float64(DefaultWidth) - float64(timelineLeft+38)/72*dpi
	if got := float64(width) / axis; got < 0.19 || got > 0.21 {
		t.Errorf("the band is %.3f of the axis", got)
	}
	if got := (float64(from) - float64(timelineLeft+10)/72*dpi) / axis; got < 0.29 || got > 0.31 {
		t.Errorf("the band begins at %.3f of the axis", got)
	}
}

func TestABarIsAsLongAsTheOutage(t *testing.T) {
	t.Parallel()
	length := func(out ...Band) int {
		tl := fault()
		tl.Width, tl.Height, tl.Parts, tl.Marks = 800, 500, nil, nil // a small one, which takes a part of the time
		tl.Lanes = []Lane{{Share: 1, Series: []LaneSeries{{Series: Series{Color: Blue, Points: []Point{{0, 1}}}}}}}
		tl.Bars = []Bar{{Name: "one", Out: out}}
		return len(columns(timelinePicture(t, tl), Red, 8))
	}
	two := length(Band{From: 1, To: 3})
	if none := length(); none > 0 || two < 80 {
		t.Fatalf("%d columns without an outage, %d with one of 2 s", none, two)
	}
	for name, c := range map[string]struct {
		got  int
		want float64 // times two seconds
	}{
		"twice":                {length(Band{From: 1, To: 2}, Band{From: 4, To: 5}), 1},
		"cut off at the right": {length(Band{From: 7, To: 20}), 0.5},
		"cut off at the left":  {length(Band{From: -9, To: 0}), 1},
		"outside":              {length(Band{From: 20, To: 30}), 0},
	} {
		if got := float64(c.got) / float64(two); got < c.want-0.03 || got > c.want+0.03 {
			t.Errorf("%s: %d columns, want %g times %d", name, c.got, c.want, two)
		}
	}
}

func TestNoLineOfAMarkCrossesALabel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := panel{draw.Canvas{Rectangle: vg.Rectangle{Max: vg.Point{X: 700, Y: 400}}}, 0, 100}
		at := rapid.SliceOfN(rapid.Float64Range(0, 100), 1, 12).Draw(rt, "at")
		slices.Sort(at)
		tl := Timeline{From: 0, To: 100}
		for _, x := range at {
			tl.Marks = append(tl.Marks, Mark{At: x, Label: rapid.StringMatching("[a-z ]{1,30}").Draw(rt, "label"), Color: Ink})
		}
		rows, used := tl.rows(p)
		if used < 1 || used > len(at) || slices.Max(rows) != used-1 {
			rt.Fatalf("rows %v of %d", rows, used)
		}
		for i := range at {
			end := p.x(at[i]) + 4 + tl.Marks[i].style().Width(tl.Marks[i].Label)
			for j := i + 1; j < len(at); j++ {
				// The line of j goes from its row down: it meets the label of i if that is at or below it.
				if rows[i] >= rows[j] && p.x(at[j]) < end {
					rt.Fatalf("the line of %v crosses the label of %v", at[j], at[i])
				}
			}
		}
	})
}

func TestATimelineWithoutAPointIsAnError(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	empty := fault()
	empty.Lanes = empty.Lanes[1:]
	if err := empty.WritePNG(&b); !errors.Is(err, ErrEmpty) {
		t.Error(err)
	}
	none := fault()
	none.To = none.From
	if err := none.WritePNG(&b); !errors.Is(err, ErrEmpty) {
		t.Error(err)
	}
}

func TestATimelineOfPointsAtZeroIsDrawn(t *testing.T) {
	t.Parallel()
	tl := Timeline{To: 1, Width: 320, Height: 240, Lanes: []Lane{{Share: 1, Series: []LaneSeries{{Series: Series{"zero", Blue, []Point{{0.5, 0}}}, Large: true}}}}}
	if got := columns(timelinePicture(t, tl), Blue, 2); len(got) == 0 {
		t.Error("the point is not there")
	}
}

func TestTheTicksOfALowLaneDoNotTouch(t *testing.T) {
	t.Parallel()
	labels := func(height vg.Length) int {
		n := 0
		for _, tick := range laneTicks(1e-3, 1, height) {
			if tick.Label != "" {
				n++
			}
		}
		return n
	}
	if high, low := labels(200), labels(50); high <= low || low != 4 {
		t.Errorf("%d labels on a high lane, %d on a low one", high, low)
	}
}
