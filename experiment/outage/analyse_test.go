package outage

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const ms = Moment(1000)

// call is an event of a call that began and ended at these milliseconds.
func call(role Role, kind Kind, from, to Moment, ok bool) Event {
	e := Event{Role: role, Kind: kind, Start: from * ms, Took: int64((to - from) * ms), OK: ok, Attempts: 1}
	if kind == KindWrite && !ok {
		e.Outcome = Unknown
	}
	return e
}

// steady returns calls of 1 ms, one every step, from one millisecond to another.
func steady(role Role, kind Kind, from, to, step Moment) []Event {
	var out []Event
	for at := from; at < to; at += step {
		out = append(out, call(role, kind, at, at+1, true))
	}
	return out
}

// trial has its fault at 10 s, healed at 20 s.
func trial(events ...[]Event) *Trial {
	return &Trial{Begun: 0, At: 10_000 * ms, Healed: 20_000 * ms, Ended: 40_000 * ms, Events: slices.Concat(events...)}
}

func server(at Moment, member, what string) ServerEvent {
	return ServerEvent{At: at * ms, Member: member, What: what}
}

// failover is a trial as they usually go: the last write before the fault at 9.981 s, the next one at
// 12.900 s, begun at 10.001 s.
func failedOver() *Trial {
	t := trial(
		steady(Prober, KindWrite, 0, 10_000, 20),
		[]Event{
			{Role: Prober, Kind: KindTry, Start: 10_001 * ms, Took: int64(500 * ms), Err: "time-out"},
			{Role: Prober, Kind: KindWrite, Start: 10_001 * ms, Took: int64(2_899 * ms), OK: true, Attempts: 6, Doubtful: 5, Deadline: int64(60_000 * ms)},
		},
		steady(Prober, KindWrite, 12_920, 25_000, 20),
		steady(Prober, KindRead, 0, 10_000, 20), []Event{call(Prober, KindRead, 10_000, 10_500, false)}, steady(Prober, KindRead, 10_520, 25_000, 20),
		steady(Members, KindProbe, 0, 10_000, 10), steady(Members, KindProbe, 12_500, 25_000, 10),
		steady(Cluster, KindProbe, 0, 10_000, 10), steady(Cluster, KindProbe, 12_400, 25_000, 10),
	)
	t.Servers = []ServerEvent{
		server(11_100, "m1", ElectionStarted), server(11_110, "m1", ElectionWon), server(12_110, "m1", TransitionComplete),
		server(12_350, "m2", SyncSourceChanged), server(20_500, "m0", SteppedDown), server(20_600, "m0", SyncSourceChanged),
	}
	return t
}

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestAFailoverIsTakenApart(t *testing.T) {
	t.Parallel()
	tr := failedOver()
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(tr.Events), func(i, j int) { tr.Events[i], tr.Events[j] = tr.Events[j], tr.Events[i] })
	slices.Reverse(tr.Servers)
	Analyse(tr)
	want := Row{
		Election: millis(1110), Transition: millis(1000), Elections: 1, SyncChanges: 1, First: millis(2900),
		Outage: millis(2919), ReachOutage: millis(2510), ClusterOutage: millis(2410), Excess: millis(409),
		ReadOutage: millis(540), // from the answer at 9.981 s to that at 10.521 s
		Detection:  millis(1100), Elected: millis(10), Transit: millis(1000), SyncSource: millis(391), Client: millis(399),
		MaxCall: millis(2899), MaxRead: millis(500), MaxOver: millis(2899 - 60_000), Deadline: 60 * time.Second,
		Attempts: 6 + 354 + 1, // and the one that begins with the heal
		Doubtful: 5, Reads: 500 + 1 + 724, FailedReads: 1,
	}
	if diff := cmp.Diff(want, tr.Row); diff != "" {
		t.Error(diff)
	}
}

func TestAnOutageIsTheLongestTimeWithoutASuccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trial *Trial
		want  time.Duration
	}{
		"nothing happened":                   {trial(steady(Prober, KindWrite, 0, 30_000, 20)), millis(20)},
		"no prober":                          {trial(steady(Writer, KindWrite, 0, 30_000, 1000)), 0},
		"no success at all":                  {trial([]Event{call(Prober, KindWrite, 1_000, 30_000, false)}), millis(30_000)},
		"none after the fault":               {trial(steady(Prober, KindWrite, 0, 10_000, 20), []Event{call(Prober, KindWrite, 10_000, 30_000, false)}), millis(30_000 - 9_981)},
		"still in its call at the end":       {trial(steady(Prober, KindWrite, 0, 10_000, 20)), millis(20_000 - 9_981)}, // no event tells of it; it lasts to the heal at least
		"the last of several":                {trial(steady(Prober, KindWrite, 0, 10_500, 20), steady(Prober, KindWrite, 11_000, 15_000, 20), steady(Prober, KindWrite, 17_000, 30_000, 20)), millis(17_001 - 14_981)},
		"after the heal":                     {trial(steady(Prober, KindWrite, 0, 21_000, 20), steady(Prober, KindWrite, 24_000, 30_000, 20)), millis(24_001 - 20_981)},
		"before the fault only":              {trial(steady(Prober, KindWrite, 0, 1_000, 20), steady(Prober, KindWrite, 8_000, 30_000, 20)), millis(20)},
		"begun before the fault":             {trial(steady(Prober, KindWrite, 0, 9_000, 20), steady(Prober, KindWrite, 10_500, 30_000, 20)), millis(10_501 - 8_981)},
		"a call in flight that then succeds": {trial(steady(Prober, KindWrite, 0, 9_990, 20), []Event{call(Prober, KindWrite, 9_999, 10_004, true)}, steady(Prober, KindWrite, 12_000, 30_000, 20)), millis(12_001 - 10_004)},
		"the first success after the start":  {trial([]Event{call(Prober, KindWrite, 1, 10_200, true)}, steady(Prober, KindWrite, 10_210, 30_000, 20)), millis(10_200)},
		"failures are no successes": {trial(steady(Prober, KindWrite, 0, 10_000, 20), []Event{call(Prober, KindWrite, 10_000, 10_500, false)},
			steady(Prober, KindWrite, 11_000, 30_000, 20)), millis(11_001 - 9_981)},
	} {
		if Analyse(c.trial); c.trial.Row.Outage != c.want {
			t.Errorf("%s: outage %v, want %v", name, c.trial.Row.Outage, c.want)
		}
	}
}

func TestTheLayersShareIsWhatTheProbesDoNotExplain(t *testing.T) {
	t.Parallel()
	writes := slices.Concat(steady(Prober, KindWrite, 0, 10_000, 20), steady(Prober, KindWrite, 13_000, 30_000, 20))
	for name, c := range map[string]struct {
		probes        []Event
		reach, excess time.Duration
	}{
		"no probes":              {nil, 0, 0},
		"as long":                {slices.Concat(steady(Members, KindProbe, 0, 10_000, 20), steady(Members, KindProbe, 13_000, 30_000, 20)), millis(3020), 0},
		"longer by chance":       {slices.Concat(steady(Members, KindProbe, 0, 9_900, 20), steady(Members, KindProbe, 13_000, 30_000, 20)), millis(3120), 0},
		"shorter":                {slices.Concat(steady(Members, KindProbe, 0, 10_000, 20), steady(Members, KindProbe, 12_000, 30_000, 20)), millis(2020), millis(1000)},
		"another, longer later":  {slices.Concat(steady(Members, KindProbe, 0, 10_000, 20), steady(Members, KindProbe, 12_000, 15_000, 20), steady(Members, KindProbe, 25_000, 30_000, 20)), millis(2020), millis(1000)},
		"a longer one beside it": {slices.Concat(steady(Members, KindProbe, 0, 4_000, 20), steady(Members, KindProbe, 10_040, 10_400, 20), steady(Members, KindProbe, 12_900, 30_000, 20)), millis(12_901 - 10_381), millis(500)},
		"no probes any more":     {steady(Members, KindProbe, 0, 5_000, 20), millis(20_000 - 4_981), 0},
		"never again":            {slices.Concat(steady(Members, KindProbe, 0, 10_000, 20), []Event{call(Members, KindProbe, 10_000, 30_000, false)}), millis(20_019), 0},
	} {
		tr := trial(writes, c.probes)
		Analyse(tr)
		if tr.Row.ReachOutage != c.reach || tr.Row.Excess != c.excess {
			t.Errorf("%s: reach %v, excess %v, want %v, %v", name, tr.Row.ReachOutage, tr.Row.Excess, c.reach, c.excess)
		}
	}
}

func TestTheTimeOfAnOutageIsSplit(t *testing.T) {
	t.Parallel()
	// From the fault at 10 s the prober is out until 14.001 s, the probes until 13.001 s.
	for name, c := range map[string]struct {
		servers []ServerEvent
		want    [5]int // detection, election, transition, sync source, client
	}{
		"all steps seen": {[]ServerEvent{server(11_000, "m1", ElectionStarted), server(11_100, "m1", ElectionWon), server(12_000, "m1", TransitionComplete)}, [5]int{1000, 100, 900, 1001, 1000}},
		"no election":    {nil, [5]int{3001, 0, 0, 0, 1000}},
		"none was won":   {[]ServerEvent{server(11_000, "m1", ElectionStarted)}, [5]int{1000, 2001, 0, 0, 1000}},
		"a dry run failed": {[]ServerEvent{server(11_000, "m1", ElectionStarted), server(12_000, "m2", ElectionStarted), server(12_100, "m2", ElectionWon), server(12_200, "m2", TransitionComplete)},
			[5]int{1000, 1100, 100, 801, 1000}},
		"the first winner lost it again": {[]ServerEvent{server(11_000, "m1", ElectionStarted), server(11_100, "m1", ElectionWon), server(12_000, "m2", ElectionStarted), server(12_100, "m2", ElectionWon), server(12_300, "m2", TransitionComplete)},
			[5]int{1000, 1100, 200, 701, 1000}},
		"the winner was not seen to win": {[]ServerEvent{server(12_000, "m1", TransitionComplete)}, [5]int{2000, 0, 0, 1001, 1000}},
		"before and after do not count":  {[]ServerEvent{server(9_000, "m1", ElectionWon), server(20_000, "m2", ElectionStarted)}, [5]int{3001, 0, 0, 0, 1000}},
	} {
		tr := trial(steady(Prober, KindWrite, 0, 10_000, 20), steady(Prober, KindWrite, 14_000, 30_000, 20),
			steady(Members, KindProbe, 0, 10_000, 20), steady(Members, KindProbe, 13_000, 30_000, 20))
		tr.Servers = c.servers
		Analyse(tr)
		r := tr.Row
		var got [5]int
		for i, d := range []time.Duration{r.Detection, r.Elected, r.Transit, r.SyncSource, r.Client} {
			got[i] = int(d.Milliseconds())
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestWhatTheLogsCutOffDoesNotHideAnElection(t *testing.T) {
	t.Parallel()
	tr := failedOver()
	tr.At += 400 // µs
	tr.Servers = []ServerEvent{server(9_998, "m2", ElectionStarted), server(10_000, "m1", ElectionStarted), server(10_000, "m1", ElectionWon), server(10_001, "m1", TransitionComplete)}
	Analyse(tr)
	if r := tr.Row; r.Elections != 1 || r.Election != 0 || r.Transition != millis(1) || r.Detection != 0 || r.Elected != 0 || r.Transit != 600*time.Microsecond {
		t.Errorf("%+v", r)
	}
}

func TestTheSplitOfAnyOutageAddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		moment := rapid.Int64Range(0, 40_000)
		tr := trial()
		tr.Healed = Moment(rapid.Int64Range(10_000, 30_000).Draw(rt, "healed")) * ms
		for i := range rapid.IntRange(0, 30).Draw(rt, "events") {
			from := Moment(moment.Draw(rt, "from"))
			role := rapid.SampledFrom([]Role{Prober, Members, Cluster, Writer}).Draw(rt, "role")
			kind := KindWrite
			if role == Members || role == Cluster {
				kind = KindProbe
			}
			e := call(role, kind, from, min(from+Moment(moment.Draw(rt, "took")), 40_000), rapid.Bool().Draw(rt, "ok"))
			e.Seq = int64(i)
			tr.Events = append(tr.Events, e)
		}
		for range rapid.IntRange(0, 12).Draw(rt, "servers") {
			tr.Servers = append(tr.Servers, server(Moment(moment.Draw(rt, "at")), rapid.SampledFrom([]string{"m1", "m2"}).Draw(rt, "member"),
				rapid.SampledFrom([]string{ElectionStarted, ElectionWon, TransitionComplete, SyncSourceChanged}).Draw(rt, "what")))
		}
		Analyse(tr)
		r := tr.Row
		steps := []time.Duration{r.Detection, r.Elected, r.Transit, r.SyncSource, r.Client}
		var sum time.Duration
		for _, d := range steps {
			if sum += d; d < 0 {
				rt.Fatalf("a negative part: %v", steps)
			}
		}
		out, ok := tr.outage(Prober, KindWrite)
		if after := out.to.Sub(max(out.from, tr.At)); ok && sum != after || !ok && sum != 0 {
			rt.Fatalf("the parts %v add up to %v, the outage after the fault is %v", steps, sum, after)
		}
		if r.Excess < 0 || r.Excess > r.Outage || r.Outage < 0 {
			rt.Fatalf("excess %v of %v", r.Excess, r.Outage)
		}
		// No stretch without a success is longer, looked at in another way: from every success to the next.
		for _, from := range append(tr.successes(Prober, KindWrite), tr.Begun) {
			next := Moment(0)
			for _, to := range tr.successes(Prober, KindWrite) {
				if to > from && (next == 0 || to < next) {
					next = to
				}
			}
			if next > tr.At && next.Sub(from) > r.Outage {
				rt.Fatalf("from %v to %v nothing succeeded, but the outage is %v", from, next, r.Outage)
			}
		}
	})
}

func TestThePlainClientHangsOrNot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []Event
		want   time.Duration
		hung   bool
	}{
		"not there":              {nil, 0, false},
		"undisturbed":            {steady(Plain, KindWrite, 0, 25_000, 100), millis(1), false},
		"back before the heal":   {append(steady(Plain, KindWrite, 0, 10_000, 100), append(steady(Plain, KindWrite, 13_000, 25_000, 100), call(Plain, KindWrite, 10_000, 13_000, true))...), millis(3000), false},
		"back after the heal":    {append(steady(Plain, KindWrite, 0, 10_000, 100), call(Plain, KindWrite, 10_000, 21_000, true)), millis(11_000), true},
		"never back":             {steady(Plain, KindWrite, 0, 10_000, 100), millis(20_000 - 9_901), true},
		"in flight at the heal":  {append(steady(Plain, KindWrite, 0, 19_900, 100), call(Plain, KindWrite, 19_990, 20_010, true)), millis(20), false},
		"ended in its last call": {append(steady(Plain, KindWrite, 0, 19_900, 100), call(Plain, KindEnd, 19_901, 19_902, false)), millis(1), false},
	} {
		tr := trial(c.events)
		Analyse(tr)
		if tr.Row.PlainCall != c.want || tr.Row.PlainHung != c.hung {
			t.Errorf("%s: %v, hung %v; want %v, %v", name, tr.Row.PlainCall, tr.Row.PlainHung, c.want, c.hung)
		}
	}
}

func TestOnlyConnectionsFromTheFaultToTheHealCount(t *testing.T) {
	t.Parallel()
	conns := func(role Role, from, to Moment, n int64) Event {
		e := call(role, KindWrite, from, to, true)
		e.Conns = n
		return e
	}
	tr := trial([]Event{
		conns(Writer, 1_000, 1_001, 2), conns(Writer, 9_000, 9_001, 3), conns(Writer, 10_001, 12_000, 5), conns(Writer, 19_990, 20_001, 6),
		conns(Writer, 21_000, 21_001, 9), conns(Prober, 15_000, 15_001, 40),
	})
	if Analyse(tr); tr.Row.Conns != 3 {
		t.Errorf("%d connections, want 3", tr.Row.Conns)
	}
}

func TestTheMachinesShareOfALateCallIsTakenOff(t *testing.T) {
	t.Parallel()
	late := func(role Role, kind Kind, took, deadline, overrun Moment) Event {
		e := call(role, kind, 10_000, 10_000+took, false)
		e.Deadline, e.Overrun = int64(deadline*ms), int64(overrun*ms)
		return e
	}
	for name, c := range map[string]struct {
		events []Event
		want   time.Duration
	}{
		"none has a deadline":          {[]Event{late(Writer, KindWrite, 900, 0, 0)}, 0},
		"in time":                      {[]Event{late(Writer, KindWrite, 900, 1000, 0)}, millis(-100)},
		"late":                         {[]Event{late(Writer, KindWrite, 900, 1000, 0), late(Reader, KindRead, 700, 500, 0)}, millis(200)},
		"the timer was late as well":   {[]Event{late(Prober, KindWrite, 1900, 1000, 800)}, millis(100)},
		"an attempt has its own":       {[]Event{late(Writer, KindWrite, 900, 1000, 0), late(Writer, KindTry, 700, 500, 0)}, millis(200)},
		"other clients are not judged": {[]Event{late(Writer, KindWrite, 900, 1000, 0), late(FreshID, KindWrite, 2000, 500, 0)}, millis(-100)},
	} {
		tr := trial(c.events)
		if Analyse(tr); tr.Row.MaxOver != c.want {
			t.Errorf("%s: %v, want %v", name, tr.Row.MaxOver, c.want)
		}
	}
}
