package consumer

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

// model is the frontier as one would write it without caring for cost: a list of all records.
type model struct {
	recs []record.Record
	done []bool
}

func (m *model) safe() int {
	n := slices.Index(m.done, false)
	if n < 0 {
		return len(m.done)
	}
	return n
}

func (m *model) marks() map[string]int64 {
	out := map[string]int64{}
	up := func(src string, seq int64) { out[src] = max(out[src], seq) }
	for _, r := range m.recs[:m.safe()] {
		switch r.Kind {
		case record.KindMessage:
			if r.Src != "" {
				up(r.Src, r.Seq)
			}
		case record.KindProgress:
			for src, seq := range r.Progress {
				up(src, seq)
			}
		case record.KindGap:
			for _, l := range r.Gap.Lost {
				up(l.Src, l.To)
			}
		}
	}
	return out
}

func genRecord(t *rapid.T, n int) record.Record {
	r := record.Record{Position: record.Position{TS: record.Timestamp{T: 1, I: uint32(n)}}, Raw: make([]byte, rapid.IntRange(5, 60).Draw(t, "size"))}
	src := rapid.SampledFrom([]string{"", "a/1", "b/1", "c/1"}).Draw(t, "src")
	seq := int64(rapid.IntRange(1, 1000).Draw(t, "seq"))
	switch r.Kind = rapid.SampledFrom([]record.Kind{record.KindMessage, record.KindMessage, record.KindGap, record.KindProgress}).Draw(t, "kind"); r.Kind {
	case record.KindMessage:
		if src != "" {
			r.Src, r.Seq = src, seq
		}
	case record.KindGap:
		r.Gap = &record.Gap{Lost: []record.Loss{{Src: "a/1", From: 1, To: seq}}}
	case record.KindProgress:
		r.Progress = map[string]int64{"b/1": seq}
	}
	return r
}

// I2: whatever the order of completion, the safe position has everything at or below it done; it
// never goes back, and it is not behind what could be said.
func TestFrontierIsTheHighestPositionWithEverythingBelowItDone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{MaxInFlight: rapid.IntRange(1, 9).Draw(t, "window"), MaxInFlightBytes: 100}.withDefaults()
		f := newFrontier(&cfg, record.Checkpoint{})
		m := &model{}
		var open []uint64
		var before record.Position
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				if len(m.recs)-m.safe() >= cfg.MaxInFlight {
					t.Skip("full")
				}
				r := genRecord(t, len(m.recs)+1)
				f.mu.Lock()
				fits := f.bytes == 0 || f.bytes+int64(len(r.Raw)) <= f.maxBytes
				f.mu.Unlock()
				if !fits {
					t.Skip("no bytes left")
				}
				n, ok := f.add(t.Context(), r)
				if !ok || n != uint64(len(m.recs)+1) {
					t.Fatalf("add = %d, %v, want %d", n, ok, len(m.recs)+1)
				}
				m.recs, m.done = append(m.recs, r), append(m.done, false)
				open = append(open, n)
			},
			"done": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("nothing in flight")
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				n := open[i]
				open = slices.Delete(open, i, i+1)
				f.done(n)
				f.done(n) // a second time changes nothing
				m.done[n-1] = true
			},
			"": func(t *rapid.T) {
				want := record.Position{}
				if s := m.safe(); s > 0 {
					want = m.recs[s-1].Position
				}
				cp, _ := f.snapshot(record.Checkpoint{})
				if cp.Position != want {
					t.Fatalf("safe position %s, want %s", cp.Position, want)
				}
				if cp.Position.TS.Compare(before.TS) < 0 {
					t.Fatalf("safe position went back from %s to %s", before, cp.Position)
				}
				before = cp.Position
				if marks := m.marks(); !maps.Equal(cp.Marks, marks) {
					t.Fatalf("marks %v, want %v", cp.Marks, marks)
				}
				st := f.status()
				if st.InFlight != len(open) || st.Held != len(m.recs)-m.safe()-len(open) || st.Done != uint64(m.safe()) {
					t.Fatalf("status %+v with %d open, %d of %d safe", st, len(open), m.safe(), len(m.recs))
				}
				for n := uint64(0); n <= uint64(len(m.recs))+1; n++ {
					if r, ok := f.lookup(n); ok != slices.Contains(open, n) || (ok && r.Position.TS.I != uint32(n)) {
						t.Fatalf("lookup(%d) = %s, %v, in flight are %v", n, r.Position, ok, open)
					}
				}
			},
		})
	})
}

func TestMarksAreBoundedAndKeepTheSrcsSeenLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		m := newMarks(limit, nil)
		var order []string // without repetition, the last one used at the end
		want := map[string]int64{}
		for i := range rapid.IntRange(0, 200).Draw(t, "steps") {
			src := fmt.Sprintf("p/%d", rapid.IntRange(0, 2*limit).Draw(t, "src"))
			order = append(slices.DeleteFunc(order, func(s string) bool { return s == src }), src)
			m.advance(src, int64(i+1))
			want[src] = int64(i + 1)
			if len(m.all) > limit+limit/4 {
				t.Fatalf("%d marks, want at most %d and a quarter", len(m.all), limit)
			}
		}
		got := m.snapshot()
		if len(got) > limit || len(got) < min(limit, len(order)) {
			t.Fatalf("%d marks of %d srcs, limit %d", len(got), len(order), limit)
		}
		for _, src := range order[max(0, len(order)-limit):] {
			if got[src] != want[src] {
				t.Fatalf("mark of %s is %d, want %d", src, got[src], want[src])
			}
		}
	})
}
