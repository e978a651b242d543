package outage

import (
	"testing"

	"pgregory.net/rapid"
)

// write is a write of the writer's that took from one millisecond to another; outcome is "" for applied.
func write(seq int64, from, to Moment, outcome string) Event {
	e := call(Writer, KindWrite, from, to, outcome == "")
	e.Src, e.Seq, e.Outcome = string(Writer), seq, outcome
	return e
}

func saw(seq int64, from, to Moment) Event {
	e := call(Reader, KindRead, from, to, true)
	e.Src, e.Seen = string(Writer), seq
	return e
}

func TestTheSetModelTellsGoodHistoriesFromBroken(t *testing.T) {
	t.Parallel()
	three := []Event{write(1, 0, 10, ""), write(2, 20, 30, Unknown), write(3, 40, 50, NotApplied)}
	failedRead := saw(9, 1, 2)
	failedRead.OK = false
	for name, c := range map[string]struct {
		events []Event
		stored map[int64]int
		want   bool
	}{
		"nothing was written":                        {nil, nil, true},
		"all is there":                               {[]Event{write(1, 0, 10, ""), write(2, 20, 30, "")}, map[int64]int{1: 1, 2: 1}, true},
		"an unknown one is not there":                {three, map[int64]int{1: 1}, true},
		"an unknown one is there":                    {three, map[int64]int{1: 1, 2: 1}, true},
		"lost":                                       {three, map[int64]int{2: 1}, false},
		"lost, with a count of 0":                    {three, map[int64]int{1: 0, 2: 1}, false},
		"doubled":                                    {three, map[int64]int{1: 2}, false},
		"an unknown one doubled":                     {three, map[int64]int{1: 1, 2: 2}, false},
		"resurrected":                                {three, map[int64]int{1: 1, 3: 1}, false},
		"in flight when the client ended":            {three, map[int64]int{1: 1, 4: 1}, true},
		"doubled when the client ended":              {three, map[int64]int{1: 1, 4: 2}, false},
		"never sent":                                 {three, map[int64]int{1: 1, 5: 1}, false},
		"seen after it was acknowledged":             {append(three, saw(1, 11, 12)), map[int64]int{1: 1}, true},
		"seen while it was written":                  {append(three, saw(1, 5, 6), saw(1, 60, 61)), map[int64]int{1: 1}, true},
		"seen before it was sent":                    {append(three, saw(2, 11, 12)), map[int64]int{1: 1, 2: 1}, false},
		"an unknown one seen later and there":        {append(three, saw(2, 99, 100)), map[int64]int{1: 1, 2: 1}, true},
		"a majority read of something later absent":  {append(three, saw(2, 99, 100)), map[int64]int{1: 1}, false},
		"a read of what was reported as not written": {append(three, saw(3, 99, 100)), map[int64]int{1: 1}, false},
		"what a failed read says":                    {append(three, failedRead), map[int64]int{1: 1}, true},
	} {
		tr := &Trial{Ended: 1000 * ms, Events: c.events}
		if got := CheckSets(tr, map[string]map[int64]int{string(Writer): c.stored}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestThePlainClientIsNotJudgedAndNothingOfAnEarlierTrialIs(t *testing.T) {
	t.Parallel()
	plain := write(1, 0, 10, "")
	plain.Role, plain.Src = Plain, string(Plain)
	earlier := saw(7, 1, 2)
	earlier.Src = "of another trial"
	tr := &Trial{Events: []Event{plain, earlier, write(1, 0, 10, "")}}
	if !CheckSets(tr, map[string]map[int64]int{string(Writer): {1: 1}}) {
		t.Error("what is nobody's of this trial was judged")
	}
	if CheckSets(tr, nil) {
		t.Error("the writer was not judged")
	}
}

// A long trial, as they are: one write after the other, reads beside them, and then one mistake.
func TestTheSetModelFindsOneMistakeAmongHundreds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		stored := map[int64]int{}
		tr := &Trial{Ended: 1e9}
		n := int64(rapid.IntRange(1, 80).Draw(rt, "writes"))
		unknown := rapid.SliceOfN(rapid.IntRange(0, 9), int(n), int(n)).Draw(rt, "outcomes")
		for seq := int64(1); seq <= n; seq++ {
			at := Moment(seq * 20)
			outcome := ""
			switch unknown[seq-1] {
			case 0:
				outcome = Unknown
			case 1:
				outcome, stored[seq] = Unknown, 1
			case 2:
				outcome = NotApplied
			default:
				stored[seq] = 1
			}
			tr.Events = append(tr.Events, write(seq, at, at+10, outcome))
			if stored[seq] == 1 {
				tr.Events = append(tr.Events, saw(seq, at+5, at+15), saw(seq, at+16, at+18))
			}
		}
		back := map[string]map[int64]int{string(Writer): stored}
		if !CheckSets(tr, back) {
			rt.Fatal("a good history is refused")
		}
		seq := int64(rapid.IntRange(1, int(n)).Draw(rt, "mistake"))
		if stored[seq] == 1 {
			stored[seq] = rapid.SampledFrom([]int{0, 2}).Draw(rt, "count") // was seen, so it must be there
		} else {
			stored[seq] = 2
		}
		if CheckSets(tr, back) {
			rt.Fatalf("%d was found %d times, and nobody minds", seq, stored[seq])
		}
	})
}
