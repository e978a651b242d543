package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
)

func TestTheOutageIsTheLongestSilenceBehindTheFault(t *testing.T) {
	const ms = time.Millisecond
	l := newDemoLoad(10, 100, 1)
	// A silence of 300 ms before the fault at 1 s is not it; the last acknowledgement before the kill
	// comes a little after it.
	l.acks = []time.Duration{0, 300 * ms, 990 * ms, 1005 * ms, 2900 * ms, 2901 * ms, 3100 * ms}
	l.samples = []latency.Sample{
		{At: 100 * ms, Took: 5 * ms}, {At: 900 * ms, Took: 6 * ms}, {At: 2000 * ms, Took: 900 * ms},
		{At: 2950 * ms, Took: 100 * ms}, {At: 3000 * ms, Took: 5 * ms},
	}
	o, longest := l.outage(0, 1000*ms, time.Hour)
	if longest != 1895*ms || o.Length() != 1900*ms || o.CaughtUp != 3000*ms {
		t.Fatalf("%+v, longest %v", o, longest)
	}
	if o, longest := newDemoLoad(1, 1, 1).outage(0, ms, time.Hour); longest != 0 || o.Length() != 0 {
		t.Fatalf("without acknowledgements: %+v, %v", o, longest)
	}
}

// Each fault has its own outage: neither the other's longer silence nor its pile counts.
func TestTwoFaultsAreMeasuredApart(t *testing.T) {
	const ms = time.Millisecond
	l := newDemoLoad(10, 100, 1)
	l.acks = []time.Duration{0, 1000 * ms, 3000 * ms, 3001 * ms, 5000*ms - 1, 8000 * ms, 8001 * ms}
	for _, at := range []time.Duration{100, 900, 2000, 3100, 3200, 4000, 4500, 6000, 8100, 8200, 8300} {
		took := 5 * ms
		switch at {
		case 2000, 3100:
			took = 1000 * ms
		case 6000, 8100, 8200:
			took = 2500 * ms
		}
		l.samples = append(l.samples, latency.Sample{At: at * ms, Took: took})
	}
	faults := []demoFault{{outage: latency.Outage{Fault: 1001 * ms}}, {outage: latency.Outage{Fault: 5000 * ms}}}
	l.measure(faults)
	for i, want := range []latency.Outage{{Fault: 1001 * ms, Back: 3000 * ms, CaughtUp: 3200 * ms}, {Fault: 5000 * ms, Back: 8000 * ms, CaughtUp: 8300 * ms}} {
		if faults[i].outage != want {
			t.Errorf("fault %d: %+v, want %+v", i, faults[i].outage, want)
		}
	}
}

func TestTheSeedAloneDecidesTheFaults(t *testing.T) {
	seen := map[int64]bool{}
	for seed := range uint64(50) {
		kill, freeze := demoMoments(100_000, seed)
		if k, f := demoMoments(100_000, seed); k != kill || f != freeze {
			t.Fatalf("seed %d: %d and %d, then %d and %d", seed, kill, freeze, k, f)
		}
		if kill < 28_000 || kill > 38_000 || freeze < 61_000 || freeze > 71_000 {
			t.Errorf("seed %d: %d and %d", seed, kill, freeze)
		}
		seen[kill], seen[freeze] = true, true
	}
	if len(seen) < 90 {
		t.Errorf("only %d different moments of 50 seeds", len(seen))
	}
	if kill, freeze := demoMoments(1, 1); kill != 1 || freeze != 1 {
		t.Errorf("of one message: %d and %d", kill, freeze)
	}
}

func TestASetIsWholeWhenAllServeAndFollow(t *testing.T) {
	now := time.Now()
	set := func(states ...string) (all []demoState) {
		for i, s := range states {
			all = append(all, demoState{Name: fmt.Sprintf("m%d", i), State: s, Applied: now})
		}
		return all
	}
	if err := wholeIs(set("SECONDARY", "PRIMARY", "SECONDARY")); err != nil {
		t.Error(err)
	}
	for _, states := range [][]string{{}, {"SECONDARY", "SECONDARY"}, {"PRIMARY", "ROLLBACK"}, {"PRIMARY", "(not reachable/healthy)"}} {
		if wholeIs(set(states...)) == nil {
			t.Errorf("%v is whole", states)
		}
	}
	behind := set("SECONDARY", "PRIMARY")
	behind[0].Applied = now.Add(-demoLag - time.Millisecond)
	if wholeIs(behind) == nil {
		t.Error("a member that is behind counts as caught up")
	}
}

// judged makes the result of a load of n messages whose message number missing was not delivered.
func judged(n int, missing int64) *demoResult {
	l := newDemoLoad(n, 100, 1)
	consumer, back := l.rec.Reader(demoConsumer), l.rec.Reader(demoReadBack)
	for i := int64(1); i <= int64(n); i++ {
		l.rec.Sent(demoKey(i))
		l.settled(demoKey(i), producer.Result{})
		back.Delivered(demoKey(i))
		if i != missing {
			consumer.Delivered(demoKey(i))
			consumer.Handled(demoKey(i))
		}
	}
	return &demoResult{column: "replica set", load: l, verdict: l.judge(), csv: "x.csv", png: "x.png"}
}

func TestADemoThatLosesOneMessageSaysSoAndFails(t *testing.T) {
	var out bytes.Buffer
	d := &demo{env: newEnviron(nil, &out, io.Discard, func(string) string { return "" }), seed: 42, out: t.TempDir()}
	if err := d.report([]*demoResult{judged(1000, 0)}, time.Minute); err != nil || !strings.Contains(out.String(), "PASSED") {
		t.Fatalf("a good run: %v\n%s", err, out.String())
	}
	out.Reset()
	err := d.report([]*demoResult{judged(1000, 517)}, time.Minute)
	if exitCode(err) != exitFailed {
		t.Errorf("exit code %d", exitCode(err))
	}
	for _, want := range []string{"delivered                     999\n", "lost                            1\n", "FAILED", "demo#517", "seed 42"} {
		if !strings.Contains(strings.ReplaceAll(out.String(), "   to a consumer; on the set, once a majority had it", ""), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}

func TestADemoWhosePartsFailedFails(t *testing.T) {
	var out bytes.Buffer
	d := &demo{env: newEnviron(nil, &out, io.Discard, func(string) string { return "" }), out: t.TempDir()}
	r := judged(10, 0)
	r.failed = errors.New("connect mongodb://user:secret@host/: no route")
	if err := d.report([]*demoResult{r}, time.Minute); exitCode(err) != exitFailed {
		t.Errorf("exit code %d", exitCode(err))
	}
	if !strings.Contains(out.String(), "no route") || strings.Contains(out.String(), "secret") { // I10
		t.Error(out.String())
	}
}

func TestABusyMachineIsNamedAsTheCauseOfItsLatencies(t *testing.T) {
	r := judged(10, 0)
	r.load.samples = []latency.Sample{{Took: 7 * time.Millisecond}}
	if note := busyNote([]*demoResult{r}); note != "" {
		t.Error(note)
	}
	r.load.samples = []latency.Sample{{Took: time.Second}}
	if note := busyNote([]*demoResult{r}); !strings.Contains(note, "p50 1.00 s") {
		t.Error(note)
	}
}

func TestAPileThatIsNotGoneByTheEndIsSaid(t *testing.T) {
	r := judged(10, 0)
	r.faults = []demoFault{{member: "m0", verb: "killed", how: "kill -9", outage: latency.Outage{Fault: 1500 * time.Millisecond}}}
	r.load.acks = []time.Duration{0, time.Second, 3 * time.Second}
	r.load.samples = []latency.Sample{{At: 0, Took: time.Millisecond}, {At: 4 * time.Second, Took: time.Second}}
	r.load.measure(r.faults)
	if table := demoTable([]*demoResult{r}); !strings.Contains(table, "not by the end") || !strings.Contains(table, "1.50 s") {
		t.Error(table)
	}
}

func TestOutcomesOfTheDemoAreToldApart(t *testing.T) {
	l := newDemoLoad(3, 1, 1)
	for n, err := range []error{nil, &record.UnknownOutcomeError{}, &producer.NotSentError{Err: record.ErrClosed}} {
		l.rec.Sent(demoKey(int64(n + 1)))
		l.settled(demoKey(int64(n+1)), producer.Result{Err: err})
	}
	if v := l.judge(); v.Acknowledged != 1 || v.Unknown != 1 || v.Rejected != 1 || v.Unsettled != 0 {
		t.Fatal(v)
	}
}
