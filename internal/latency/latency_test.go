package latency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWhatIsWrittenIsReadToTheNanosecond(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want []Sample
		for loc, ns := range rapid.SliceOfN(rapid.Int64Range(-1e9, 3600e9), 0, 50).Draw(t, "latencies") {
			want = append(want, Sample{Loc: int64(loc), Took: time.Duration(ns)})
		}
		var b bytes.Buffer
		if err := Write(&b, want); err != nil {
			t.Fatal(err)
		}
		got, err := Read(&b)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v\ngot  %v\nwant %v", err, got, want)
		}
	})
}

func TestTheFileIsTheOneThatOthersExpect(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	_ = w.Add(1500 * time.Microsecond)
	_ = w.Add(2 * time.Second)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "loc,val\n0,0.001500000\n1,2.000000000\n"; b.String() != want {
		t.Fatalf("got %q, want %q", b.String(), want)
	}
	b.Reset()
	if err := NewWriter(&b).Flush(); err != nil || b.String() != "loc,val\n" {
		t.Fatalf("without samples: %v, %q", err, b.String())
	}
}

func TestWhatIsNoLatencyFileIsRefusedByLine(t *testing.T) {
	for text, where := range map[string]string{
		"": "line 1", "a,b\n": "line 1", "loc,val\nx,1\n": "line 2", "loc,val\n1,1\n2,NaN\n": "line 3",
		"loc,val\n1\n": "line 2", "loc,val\n1,2,3\n": "line 2", "loc,val\n0,1e300\n": "line 2",
	} {
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), where) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("disk full")

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.room -= len(p); d.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

var _ io.Writer = (*fullDisk)(nil)

func TestAFullDiskIsReportedAtTheLatestByFlush(t *testing.T) {
	w := NewWriter(&fullDisk{room: 5000})
	for range 1000 {
		_ = w.Add(time.Millisecond)
	}
	if err := w.Flush(); !errors.Is(err, errFull) {
		t.Fatal(err)
	}
}

// The histogram's promise is three digits: compare with the exact quantile of the sorted samples.
func TestPercentilesAreExactToThreeDigits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		us := rapid.SliceOfN(rapid.Int64Range(1, 60e6), 1, 200).Draw(t, "microseconds")
		h := NewHistogram()
		for _, v := range us {
			h.Add(time.Duration(v) * time.Microsecond)
		}
		slices.Sort(us)
		for _, p := range []float64{50, 90, 99, 100} {
			exact := float64(us[max(0, int(float64(len(us))*p/100+0.5)-1)])
			if got := float64(h.Quantile(p) / time.Microsecond); got < exact*0.998-1 || got > exact*1.002+1 {
				t.Fatalf("p%v: got %v, want %v", p, got, exact)
			}
		}
	})
}

func TestSamplesOutsideOfTheRangeAreCountedAtItsEnds(t *testing.T) {
	h := Of([]Sample{{Took: 0}, {Took: -time.Second}, {Took: time.Hour}})
	if s := h.Summary(); s.Count != 3 || s.Over != 1 || s.Min != Lowest || s.Max < Highest {
		t.Fatalf("%+v", s)
	}
	if s := NewHistogram().Summary(); s != (Summary{}) {
		t.Fatalf("empty: %+v", s)
	}
}

func TestMergedHistogramsCountEverything(t *testing.T) {
	h := Of([]Sample{{Took: time.Millisecond}})
	h.Merge(Of([]Sample{{Took: time.Second}, {Took: time.Hour}}))
	if s := h.Summary(); s.Count != 3 || s.Over != 1 || s.Min > 2*time.Millisecond {
		t.Fatalf("%+v", s)
	}
}

func TestAMessageUnderWayDuringTheOutageBelongsToIt(t *testing.T) {
	const s = time.Second
	o := Outage{Fault: 10 * s, Back: 12 * s, CaughtUp: 13 * s}
	samples := []Sample{
		{Loc: 0, At: 9 * s, Took: s / 2},   // delivered before
		{Loc: 1, At: 9 * s, Took: 3 * s},   // caught by the fault
		{Loc: 2, At: 11 * s, Took: s},      // sent into it
		{Loc: 3, At: 12 * s, Took: s / 2},  // behind the pile
		{Loc: 4, At: 14 * s, Took: s / 10}, // after
	}
	p := Split(samples, []Outage{o})
	if len(p.Calm) != 2 || len(p.During) != 1 || len(p.Calm[0]) != 1 || len(p.During[0]) != 3 || len(p.Calm[1]) != 1 || p.Calm[1][0].Loc != 4 || o.Length() != 2*s {
		t.Fatalf("%+v", p)
	}
}

func TestSeveralOutagesSplitARunIntoOnePartMore(t *testing.T) {
	const s = time.Second
	outages := []Outage{{Fault: 10 * s, Back: 12 * s, CaughtUp: 13 * s}, {Fault: 20 * s, Back: 23 * s, CaughtUp: 20 * s}}
	at := map[time.Duration]string{ // of samples that take a second
		8 * s: "calm 0", 9 * s: "during 0", 13 * s: "during 0", 13*s + 1: "calm 1", 18 * s: "calm 1", 19 * s: "during 1",
		23 * s: "during 1", 24 * s: "calm 2", 90 * s: "calm 2",
	}
	for sent, want := range at {
		p := Split([]Sample{{At: sent, Took: s}}, outages)
		got := ""
		for i, part := range p.Calm {
			if len(part) == 1 {
				got += fmt.Sprintf("calm %d", i)
			}
		}
		for i, part := range p.During {
			if len(part) == 1 {
				got += fmt.Sprintf("during %d", i)
			}
		}
		if got != want {
			t.Errorf("sent at %s: %q, want %q", sent, got, want)
		}
	}
	if p := Split([]Sample{{}}, nil); len(p.Calm) != 1 || len(p.Calm[0]) != 1 || len(p.During) != 0 {
		t.Errorf("without an outage: %+v", p)
	}
}

func TestTextHasOneUnitPerSize(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 34 * time.Microsecond: "0.034 ms", 412 * time.Microsecond: "0.41 ms", 7349 * time.Microsecond: "7.3 ms", 45 * time.Millisecond: "45 ms", 1830 * time.Millisecond: "1.83 s",
	} {
		if got := Text(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}
