package history

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

// The readers of a drawn run: one that sees everything once, one with gaps, and one that is restarted.
const (
	strict    = "strict"
	gappy     = "gappy"
	restarted = "restarted"
)

func rules() Rules {
	return Rules{Stored: true, Readers: map[string]ReaderRules{
		strict: {}, gappy: {}, restarted: {AtLeastOnce: true, Handles: true},
	}}
}

// drawRun makes the history of a good run.
func drawRun(t *rapid.T) []Event {
	r := &Recorder{}
	var stream []Key // what is in it, in its order
	srcs := rapid.IntRange(1, 3).Draw(t, "producers")
	seqs := make([]int64, srcs)
	for range rapid.IntRange(8, 30).Draw(t, "messages") {
		p := rapid.IntRange(0, srcs-1).Draw(t, "producer")
		seqs[p]++
		k := Key{fmt.Sprintf("p%d", p), seqs[p]}
		r.Sent(k)
		if rapid.IntRange(0, 9).Draw(t, "outcome") == 0 {
			r.Unknown(k)
		} else {
			r.Acknowledged(k)
		}
		stream = append(stream, k)
		if rapid.IntRange(0, 9).Draw(t, "reject") == 0 {
			k := Key{"rejected", int64(r.Len())}
			r.Sent(k)
			r.Rejected(k)
		}
	}
	for _, k := range stream {
		r.Reader(strict).Delivered(k)
		r.Stored(k)
	}
	drawGaps(t, r.Reader(gappy), stream)
	drawRestarts(t, r.Reader(restarted), stream)
	return r.Events()
}

// drawGaps delivers the stream and reports parts of it as lost.
func drawGaps(t *rapid.T, r *Reader, stream []Key) {
	for i := 0; i < len(stream); {
		n := rapid.IntRange(1, 9).Draw(t, "stretch")
		part := stream[i:min(i+n, len(stream))]
		i += len(part)
		if rapid.Bool().Draw(t, "read") {
			for _, k := range part {
				r.Delivered(k)
			}
			continue
		}
		from, to := map[string]int64{}, map[string]int64{}
		for _, k := range part {
			if from[k.Src] == 0 {
				from[k.Src] = k.Seq
			}
			to[k.Src] = k.Seq
		}
		g := &record.Gap{}
		for src := range from {
			g.Lost = append(g.Lost, record.Loss{Src: src, From: from[src], To: to[src], Exact: true})
		}
		r.Gap(g)
	}
}

// drawRestarts delivers and handles the stream, going back at each restart.
func drawRestarts(t *rapid.T, r *Reader, stream []Key) {
	handled := map[Key]bool{}
	r.Resumed()
	for i := 0; i < len(stream); i++ {
		r.Delivered(stream[i])
		if rapid.IntRange(0, 5).Draw(t, "kill") > 0 {
			r.Handled(stream[i])
			handled[stream[i]] = true
			continue
		}
		r.Resumed()
		i -= rapid.IntRange(1, 6).Draw(t, "back")
		i = max(i, -1)
	}
}

func TestAGoodRunIsJudgedGood(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if v := Check(drawRun(t), rules()); !v.OK() {
			t.Fatal(v)
		}
	})
}

// indexes returns where events match.
func indexes(events []Event, match func(Event) bool) []int {
	var at []int
	for i, e := range events {
		if match(e) {
			at = append(at, i)
		}
	}
	return at
}

func is(kind Kind, reader string) func(Event) bool {
	return func(e Event) bool { return e.Kind == kind && e.Reader == reader }
}

// breakages break a good run at the place at, which is one of those that pick returns, and name the
// rules of which one must be reported.
var breakages = map[string]struct {
	pick  func(events []Event) []int
	do    func(events []Event, at int) []Event
	wants []Rule
}{
	"a message is lost": {
		pick: func(ev []Event) []int {
			acked := map[Key]bool{}
			for _, e := range ev {
				acked[e.Key] = acked[e.Key] || e.Kind == KindAcknowledged
			}
			return indexes(ev, func(e Event) bool { return is(KindDelivered, strict)(e) && acked[e.Key] })
		},
		do:    func(ev []Event, at int) []Event { return slices.Delete(ev, at, at+1) },
		wants: []Rule{RuleLost},
	},
	"a message is doubled": {
		pick:  func(ev []Event) []int { return indexes(ev, is(KindDelivered, strict)) },
		do:    func(ev []Event, at int) []Event { return append(ev, ev[at]) },
		wants: []Rule{RuleDoubled},
	},
	"a message is doubled without a restart": {
		pick:  func(ev []Event) []int { return indexes(ev, is(KindDelivered, restarted)) },
		do:    func(ev []Event, at int) []Event { return slices.Insert(ev, at, ev[at]) },
		wants: []Rule{RuleDoubled},
	},
	"two messages change places": {
		pick: func(ev []Event) []int {
			at := indexes(ev, func(e Event) bool { return is(KindDelivered, strict)(e) && e.Key.Seq > 1 })
			return at
		},
		do: func(ev []Event, at int) []Event {
			k := ev[at].Key
			before := indexes(ev, func(e Event) bool { return is(KindDelivered, strict)(e) && e.Key == Key{k.Src, k.Seq - 1} })[0]
			ev[at], ev[before] = ev[before], ev[at]
			return ev
		},
		wants: []Rule{RuleReordered},
	},
	"a message is invented": {
		pick: func(ev []Event) []int { return []int{len(ev)} },
		do: func(ev []Event, at int) []Event {
			return append(ev, Event{Kind: KindDelivered, Reader: strict, Key: Key{"p0", 9999}})
		},
		wants: []Rule{RuleInvented},
	},
	"a rejected message is delivered": {
		pick: func(ev []Event) []int { return indexes(ev, is(KindRejected, "")) },
		do: func(ev []Event, at int) []Event {
			return append(ev, Event{Kind: KindDelivered, Reader: strict, Key: ev[at].Key})
		},
		wants: []Rule{RuleResurrected},
	},
	"a gap counts one too many in front": {
		pick: func(ev []Event) []int {
			return indexes(ev, func(e Event) bool { return is(KindLost, gappy)(e) })
		},
		do:    func(ev []Event, at int) []Event { ev[at].Key.Seq--; return ev },
		wants: []Rule{RuleMiscounted},
	},
	"a gap counts one too many behind": {
		pick:  func(ev []Event) []int { return indexes(ev, is(KindLost, gappy)) },
		do:    func(ev []Event, at int) []Event { ev[at].To++; return ev },
		wants: []Rule{RuleMiscounted},
	},
	"a gap counts one too few": {
		pick: func(ev []Event) []int {
			acked := map[Key]bool{}
			for _, e := range ev {
				acked[e.Key] = acked[e.Key] || e.Kind == KindAcknowledged
			}
			return indexes(ev, func(e Event) bool { return is(KindLost, gappy)(e) && acked[Key{e.Key.Src, e.To}] })
		},
		do:    func(ev []Event, at int) []Event { ev[at].To--; return ev },
		wants: []Rule{RuleMiscounted, RuleLost},
	},
	"a gap is reported twice": {
		pick:  func(ev []Event) []int { return indexes(ev, is(KindLost, gappy)) },
		do:    func(ev []Event, at int) []Event { return append(ev, ev[at]) },
		wants: []Rule{RuleMiscounted},
	},
	"an outcome is missing": {
		pick:  func(ev []Event) []int { return indexes(ev, is(KindAcknowledged, "")) },
		do:    func(ev []Event, at int) []Event { return slices.Delete(ev, at, at+1) },
		wants: []Rule{RuleUnsettled},
	},
	"an outcome comes twice": {
		pick:  func(ev []Event) []int { return indexes(ev, is(KindAcknowledged, "")) },
		do:    func(ev []Event, at int) []Event { return append(ev, ev[at]) },
		wants: []Rule{RuleContradicted},
	},
	"a message is not handled": {
		pick: func(ev []Event) []int { return indexes(ev, is(KindHandled, restarted)) },
		do: func(ev []Event, at int) []Event {
			k := ev[at].Key
			return slices.DeleteFunc(ev, func(e Event) bool { return is(KindHandled, restarted)(e) && e.Key == k })
		},
		wants: []Rule{RuleUnhandled},
	},
	"a message is not stored": {
		pick: func(ev []Event) []int {
			acked := map[Key]bool{}
			for _, e := range ev {
				acked[e.Key] = acked[e.Key] || e.Kind == KindAcknowledged
			}
			return indexes(ev, func(e Event) bool { return e.Kind == KindStored && acked[e.Key] })
		},
		do:    func(ev []Event, at int) []Event { return slices.Delete(ev, at, at+1) },
		wants: []Rule{RuleUnstored},
	},
	"a message is stored twice": {
		pick:  func(ev []Event) []int { return indexes(ev, is(KindStored, "")) },
		do:    func(ev []Event, at int) []Event { return append(ev, ev[at]) },
		wants: []Rule{RuleDoubled},
	},
	"a message is stored that nobody sent": {
		pick: func(ev []Event) []int { return []int{len(ev)} },
		do: func(ev []Event, at int) []Event {
			return append(ev, Event{Kind: KindStored, Key: Key{"p0", 9999}})
		},
		wants: []Rule{RuleInvented},
	},
}

func TestEachBreakageOfARunIsCaught(t *testing.T) {
	for name, b := range breakages {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				events := drawRun(t)
				places := b.pick(events)
				if len(places) == 0 {
					t.Skip("this run has no such event")
				}
				broken := b.do(events, rapid.SampledFrom(places).Draw(t, "place"))
				v := Check(broken, rules())
				for _, want := range b.wants {
					if v.ByRule[want] > 0 {
						return
					}
				}
				t.Fatalf("want one of %v, got: %s", b.wants, v)
			})
		})
	}
}

func TestAReaderThatNeverDeliversIsNotForgotten(t *testing.T) {
	r := &Recorder{}
	r.Sent(Key{"p", 1})
	r.Acknowledged(Key{"p", 1})
	v := Check(r.Events(), Rules{Readers: map[string]ReaderRules{"absent": {}}})
	if v.Reader("absent").Lost != 1 || v.Err() == nil {
		t.Fatal(v)
	}
}

func TestAGapOfImpossibleLengthEndsTheCheckSoon(t *testing.T) {
	r := &Recorder{}
	r.Sent(Key{"p", 1})
	r.Acknowledged(Key{"p", 1})
	r.Reader("x").Lost("p", 1, 1<<62, true)
	if v := Check(r.Events(), Rules{}); v.ByRule[RuleMiscounted] == 0 {
		t.Fatal(v)
	}
}

func TestAVerdictIsReadable(t *testing.T) {
	r := &Recorder{}
	for seq := range int64(20) {
		r.Sent(Key{"p", seq + 1})
		r.Acknowledged(Key{"p", seq + 1})
	}
	r.Reader("slow").Lost("p", 1, 4, true)
	r.Reader("slow").Delivered(Key{"p", 5})
	text := Check(r.Events(), Rules{MaxViolations: 2}).String()
	for _, want := range []string{"sent 20", "lost 15", "reported as lost 4 exactly", "15 violations", "p#6", "… and 13 more"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}

func BenchmarkRecorderAdd(b *testing.B) {
	r := (&Recorder{}).Reader("x")
	b.ReportAllocs()
	for i := range b.N {
		r.Delivered(Key{"p", int64(i)})
	}
}

func BenchmarkCheck(b *testing.B) {
	r := &Recorder{}
	for i := range int64(100_000) {
		k := Key{"p", i + 1}
		r.Sent(k)
		r.Acknowledged(k)
		r.Reader("x").Delivered(k)
	}
	for b.Loop() {
		if v := Check(r.Events(), Rules{}); !v.OK() {
			b.Fatal(v)
		}
	}
}
