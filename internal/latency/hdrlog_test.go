package latency

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

func TestAHistogramLogIsReadByTheLibrarysReader(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var samples []Sample
	for i := range int64(5000) {
		samples = append(samples, Sample{Loc: i, Took: time.Duration(50_000 + rng.IntN(3_000_000))})
	}
	samples[7].Took = 90 * time.Second // longer than Histogram's range
	var b bytes.Buffer
	if err := WriteHDR(&b, samples, 2500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "#[Histogram log format version 1.3]\n") || !strings.Contains(b.String(), "\n0.000000,2.500000,") {
		t.Errorf("head of the log: %.200s", b.String())
	}
	r := hdrhistogram.NewHistogramLogReader(bytes.NewReader(b.Bytes()))
	h, err := r.NextIntervalHistogram()
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	if h.TotalCount() != 5000 || h.EndTimeMs() != 2500 {
		t.Errorf("%d samples, ends at %d ms", h.TotalCount(), h.EndTimeMs())
	}
	// Three digits, whichever of the two histograms rounds; that one has whole microseconds, too.
	for _, p := range []float64{50, 90, 99, 99.9} {
		got, want := time.Duration(h.ValueAtQuantile(p)), Of(samples).Quantile(p)
		if off := (got - want).Abs(); off > want/500+time.Microsecond {
			t.Errorf("p%v: got %v, want %v", p, got, want)
		}
	}
	if top := time.Duration(h.Max()); top < 89*time.Second || top > 91*time.Second {
		t.Errorf("longest: %v", top)
	}
	if more, err := r.NextIntervalHistogram(); more != nil || err != nil {
		t.Errorf("a second interval: %v, %v", more, err)
	}
}

func TestAHistogramLogTakesAnySample(t *testing.T) {
	var b bytes.Buffer
	if err := WriteHDR(&b, []Sample{{Took: -1}, {Took: 0}, {Took: 100 * time.Hour}}, 0); err != nil {
		t.Fatal(err)
	}
	h, err := hdrhistogram.NewHistogramLogReader(&b).NextIntervalHistogram()
	if err != nil || h.TotalCount() != 3 {
		t.Fatal(h, err)
	}
	if err := WriteHDR(&fullDisk{room: 50}, nil, 0); !errors.Is(err, errFull) {
		t.Fatal(err)
	}
}
