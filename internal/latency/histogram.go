package latency

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The range and resolution of a Histogram: microseconds up to a minute, three significant digits.
const (
	Lowest  = time.Microsecond
	Highest = 60 * time.Second
	Digits  = 3
)

// Histogram counts latencies. Samples outside of Lowest…Highest count as the nearest of the two, and
// those above are counted apart, too. Use NewHistogram. Not safe for concurrent use.
type Histogram struct {
	h    *hdrhistogram.Histogram
	over int64
}

// NewHistogram returns an empty Histogram.
func NewHistogram() *Histogram {
	return &Histogram{h: hdrhistogram.New(int64(Lowest/time.Microsecond), int64(Highest/time.Microsecond), Digits)}
}

// Of returns a Histogram of samples.
func Of(samples []Sample) *Histogram {
	h := NewHistogram()
	for _, s := range samples {
		h.Add(s.Took)
	}
	return h
}

// Add counts one latency.
func (h *Histogram) Add(took time.Duration) {
	if took > Highest {
		h.over++
	}
	took = min(max(took, Lowest), Highest)
	// Clamped to the range, so recording cannot fail.
	_ = h.h.RecordValue(int64((took + time.Microsecond/2) / time.Microsecond))
}

// Merge adds what other has counted.
func (h *Histogram) Merge(other *Histogram) {
	h.h.Merge(other.h) // drops nothing: both have the same range
	h.over += other.over
}

// Quantile returns the latency below which p percent of the samples lie (0 < p ≤ 100); 0 if there are
// none.
func (h *Histogram) Quantile(p float64) time.Duration {
	return time.Duration(h.h.ValueAtQuantile(p)) * time.Microsecond
}

// Summary returns the usual figures.
func (h *Histogram) Summary() Summary {
	us := func(v int64) time.Duration { return time.Duration(v) * time.Microsecond }
	return Summary{
		Count: h.h.TotalCount(), Over: h.over,
		Min: us(h.h.Min()), P50: h.Quantile(50), P90: h.Quantile(90), P99: h.Quantile(99), P999: h.Quantile(99.9), Max: us(h.h.Max()),
	}
}

// Summary are the usual figures of a set of latencies.
type Summary struct {
	Count int64
	// Over is how many were longer than Highest, which stands for them in the figures.
	Over                          int64
	Min, P50, P90, P99, P999, Max time.Duration
}

// String returns one line for people.
func (s Summary) String() string {
	if s.Count == 0 {
		return "no samples"
	}
	return fmt.Sprintf("%d samples: p50 %s, p90 %s, p99 %s, p99.9 %s, longest %s",
		s.Count, Text(s.P50), Text(s.P90), Text(s.P99), Text(s.P999), Text(s.Max))
}

// Text writes a latency for people, with two or three significant digits: in milliseconds up to a
// second, so that the figures of one table have one unit, then in seconds.
func Text(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case d == 0:
		return "0 ms"
	case d < 100*time.Microsecond:
		return fmt.Sprintf("%.3f ms", ms)
	case d < time.Millisecond:
		return fmt.Sprintf("%.2f ms", ms)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", ms)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}
