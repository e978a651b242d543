package outage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// events runs a client to its end and returns what it told.
func events(t *testing.T, cfg ClientConfig) []Event {
	t.Helper()
	var out bytes.Buffer
	if err := RunClient(t.Context(), cfg, &out); err != nil {
		t.Fatal(err)
	}
	j := newJournal()
	eachLine(&out, j.line) // as the engine reads a client
	return j.all()
}

func count(all []Event, k Kind) (n int) {
	for _, e := range all {
		if e.Kind == k && e.OK {
			n++
		}
	}
	return n
}

func TestEachClientDoesItsCallsAndTellsOfThem(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	for _, tt := range []struct {
		role Role
		kind Kind
	}{
		{Members, KindProbe}, {Writer, KindWrite}, {Reader, KindRead}, {Prober, KindWrite}, {Plain, KindWrite}, {FreshID, KindWrite}, {One, KindWrite},
	} {
		t.Run(string(tt.role), func(t *testing.T) {
			const calls = 5
			all := events(t, ClientConfig{Role: tt.role, Options: d.Options, Profile: failover.ProfileFast, Name: "calls-" + string(tt.role), Every: time.Millisecond, Count: calls})
			if n := count(all, tt.kind); n != calls {
				t.Errorf("%d calls succeeded, want %d: %+v", n, calls, all)
			}
			if all[len(all)-1].Kind != KindEnd {
				t.Error("it does not say that it has ended")
			}
			if count(all, KindReady) != 1 {
				t.Error("it does not say once that it is ready")
			}
			for _, e := range all {
				if e.Kind == tt.kind && (e.Start == 0 || e.Took <= 0) {
					t.Errorf("a call without its times: %+v", e)
				}
			}
		})
	}
}

func TestAReaderSeesWhatItsWriterWrote(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	events(t, ClientConfig{Role: Writer, Options: d.Options, Name: t.Name(), Every: time.Millisecond, Count: 7})
	for deadline := time.Now().Add(time.Minute); ; {
		all := events(t, ClientConfig{Role: Reader, Options: d.Options, Name: t.Name(), Every: time.Millisecond, Count: 1})
		if seen := all[0].Seen + all[1].Seen; seen == 7 {
			return
		}
		if time.Now().After(deadline) { // a secondary is behind for a moment
			t.Fatalf("the reader does not see the seventh document: %+v", all)
		}
	}
}

func TestProbesTellOnlyOfAMajority(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = RunClient(ctx, ClientConfig{Role: Members, Options: d.Options}, in)
		_ = in.Close()
	})
	probes := make(chan Event, 1)
	wg.Go(func() {
		eachLine(out, func(b []byte) {
			var e Event
			if json.Unmarshal(b, &e) == nil && e.Kind == KindProbe {
				select {
				case probes <- e:
				case <-ctx.Done():
				}
			}
		})
	})
	next := func(ok bool) {
		t.Helper()
		for {
			select {
			case e := <-probes:
				if e.OK == ok {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("no probe with OK %t", ok)
			}
		}
	}
	next(true)
	for range 2 { // without both secondaries there is no majority
		if _, err := d.Cluster.Freeze(t.Context(), localcluster.RoleSecondary); err != nil {
			t.Fatal(err)
		}
	}
	next(false)
	for _, m := range d.Cluster.Members() {
		if m.Frozen {
			if _, err := d.Cluster.Thaw(t.Context(), m.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	next(true)
	cancel()
	_ = out.Close()
	wg.Wait()
}

// brokenPipe fails from the second line on, as a pipe whose reader has gone.
type brokenPipe struct{ lines int }

func (b *brokenPipe) Write(p []byte) (int, error) {
	if b.lines++; b.lines > 1 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func TestAClientThatNobodyListensToEnds(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	err := RunClient(t.Context(), ClientConfig{Role: Plain, Options: d.Options, Every: time.Millisecond}, &brokenPipe{})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v, want the error of the pipe", err)
	}
}

func TestAClientSaysWhatIsWrongWithItsConfig(t *testing.T) {
	t.Parallel()
	opts := func() *options.ClientOptions { return options.Client() }
	for _, tt := range []struct {
		cfg  ClientConfig
		want string
	}{
		{ClientConfig{Role: "nobody", Options: opts}, "role"},
		{ClientConfig{Role: Writer}, "Options"},
		{ClientConfig{Role: Writer, Options: opts, Every: -1}, "Every"},
		{ClientConfig{Role: Writer, Options: opts, Count: -1}, "Count"},
	} {
		if err := RunClient(t.Context(), tt.cfg, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want an error that names %s", tt.cfg, err, tt.want)
		}
	}
}

func TestSecretsStayOutOfEvents(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &client{cfg: ClientConfig{Role: Plain, Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "xxx") }}, out: &out}
	c.emit(Event{Kind: KindWrite, Err: "cannot reach mongodb://u:hunter2@h"})
	if strings.Contains(out.String(), "hunter2") { // I10
		t.Errorf("a password is in %s", out.String())
	}
}

func TestEventsReadWellForPeople(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 21, 49, 7, 0, time.UTC)
	for _, tt := range []struct {
		e    Event
		want string
	}{
		{Event{Kind: KindWrite, Seq: 12, OK: true, Took: 4000, Attempts: 1}, "21:49:07.000  write 12: acknowledged   0.004 s, attempts: 1\n"},
		{Event{Kind: KindWrite, Seq: 13, OK: true, Took: 2_500_000, Attempts: 4, Doubtful: 2}, "21:49:07.000  write 13: acknowledged   2.500 s, attempts: 4 (of these 2 with an outcome that was unknown at first)\n"},
		{Event{Kind: KindWrite, Seq: 14, Outcome: Unknown, Took: 1e6, Attempts: 2, Err: "x"}, "21:49:07.000  write 14: unknown after 1.000 s, attempts: 2: x\n"},
		{Event{Kind: KindRead, OK: true, Seen: 12, Stale: 900_000, Took: 2000, Attempts: 1}, "21:49:07.000  read: newest is 12, 0.9 s old   0.002 s, attempts: 1\n"},
		{Event{Kind: KindTry, Took: 500_000, Err: "x"}, "21:49:07.000    an attempt failed after 0.500 s: x\n"},
		{Event{Kind: KindTry, Took: 90_000, Found: true, Err: "E11000 …"}, "21:49:07.000    an attempt found the document stored by an earlier one, after 0.090 s; now it is compared\n"},
		{Event{Kind: KindRead, OK: true, Took: 2000, Attempts: 1}, "21:49:07.000  read: nothing is there yet   0.002 s, attempts: 1\n"},
		{Event{Kind: KindReady}, ""},
	} {
		if got := tt.e.text(at); got != tt.want {
			t.Errorf("got  %q\nwant %q", got, tt.want)
		}
	}
}
