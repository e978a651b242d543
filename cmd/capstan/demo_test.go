package main

import (
	"bytes"
	"errors"
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
	o, longest := l.outage(1000 * ms)
	if longest != 1895*ms || o.Length() != 1900*ms || o.CaughtUp != 3000*ms {
		t.Fatalf("%+v, longest %v", o, longest)
	}
	if o, longest := newDemoLoad(1, 1, 1).outage(ms); longest != 0 || o.Length() != 0 {
		t.Fatalf("without acknowledgements: %+v, %v", o, longest)
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
	r.killed = "m0"
	r.load.acks = []time.Duration{0, time.Second, 3 * time.Second}
	r.load.samples = []latency.Sample{{At: 0, Took: time.Millisecond}, {At: 4 * time.Second, Took: time.Second}}
	r.outage, r.longest = r.load.outage(1500 * time.Millisecond)
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
