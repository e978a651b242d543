package plot

import (
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
)

// logTicks labels 1, 2 and 5 times the powers of ten over few decades, the powers alone over many.
func logTicks(lo, hi float64) []plot.Tick {
	labelled := "125"
	if decades := math.Log10(hi / lo); decades > 4 {
		labelled = "1"
	} else if decades > 2.5 {
		labelled = "13"
	}
	var ticks []plot.Tick
	for e := int(math.Floor(math.Log10(lo))); e <= int(math.Ceil(math.Log10(hi))); e++ {
		for m := 1; m <= 9; m++ {
			v := float64(m) * math.Pow(10, float64(e))
			if v < lo*0.999 || v > hi*1.001 {
				continue
			}
			label := ""
			if strings.Contains(labelled, strconv.Itoa(m)) {
				label = duration(v)
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}

// secondTicks labels a linear axis of seconds.
func secondTicks(lo, hi float64) []plot.Tick { return linearTicks(lo, hi, duration) }

// countTicks labels an axis of numbers of messages.
func countTicks(lo, hi float64) []plot.Tick { return linearTicks(lo, hi, thousands) }

// linearTicks makes four to ten labels at 1, 2 or 5 times a power of ten, and four or five short ticks
// between two of them.
func linearTicks(lo, hi float64, label func(float64) string) []plot.Tick {
	step := stepBelow((hi - lo) / 4)
	small := step / 5
	if first := step / math.Pow(10, math.Floor(math.Log10(step))); first > 1.5 && first < 3 {
		small = step / 4
	}
	var ticks []plot.Tick
	for i := int64(math.Ceil(lo / small * 0.999999)); float64(i)*small <= hi+small*1e-6; i++ {
		v := float64(i) * small
		tick := plot.Tick{Value: v}
		if off := math.Abs(math.Remainder(v, step)); off < small/2 {
			tick.Label = label(math.Round(v/step) * step)
		}
		ticks = append(ticks, tick)
	}
	return ticks
}

// duration writes seconds with the unit that keeps the number short: 200 µs, 5 ms, 1 s.
func duration(secs float64) string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
	switch {
	case secs == 0:
		return "0"
	case secs < 0.9995e-3:
		return number(secs*1e6) + " µs"
	case secs < 0.9995:
		return number(secs*1e3) + " ms"
	default:
		return number(secs) + " s"
	}
}

// thousands writes a number with a comma between groups of three digits.
func thousands(x float64) string {
	if x != math.Trunc(x) || math.Abs(x) < 1000 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	digits := strconv.FormatFloat(math.Abs(x), 'f', 0, 64)
	var b strings.Builder
	if x < 0 {
		b.WriteByte('-')
	}
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
