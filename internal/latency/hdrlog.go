package latency

import (
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The range of the histogram in a log. It is in nanoseconds, as the tools that read such logs print
// milliseconds from it without being told, and wider than Histogram's, as a replay may wait long.
const (
	logLowest  = time.Nanosecond
	logHighest = time.Hour
)

// WriteHDR writes samples to w as a HdrHistogram log of one interval, which begins at 0 and is as
// long as given. Samples outside of one nanosecond to one hour count as the nearest of the two. There
// is no tag, because the tools skip tagged intervals unless they are asked for the tag.
func WriteHDR(w io.Writer, samples []Sample, length time.Duration) error {
	h := hdrhistogram.New(int64(logLowest), int64(logHighest), Digits)
	for _, s := range samples {
		// Clamped to the range, so recording cannot fail.
		_ = h.RecordValue(int64(min(max(s.Took, logLowest), logHighest)))
	}
	h.SetStartTimeMs(0)
	h.SetEndTimeMs(length.Milliseconds())
	lw := hdrhistogram.NewHistogramLogWriter(w)
	for _, write := range []func() error{
		lw.OutputLogFormatVersion, lw.OutputLegend,
		func() error { return lw.OutputIntervalHistogram(h) },
	} {
		if err := write(); err != nil {
			return fmt.Errorf("write histogram log: %w", err)
		}
	}
	return nil
}
