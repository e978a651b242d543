package sourcetest

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

type testCase struct {
	name  string
	needs Features
	run   func(T, Harness)
}

func (c testCase) allowed(f Features) bool {
	return (!c.needs.Overwrites || f.Overwrites) && (!c.needs.Subjects || f.Subjects)
}

// cases are the promises of a source, by name.
var cases = []testCase{
	{"every message is delivered once, in the order of its src", Features{}, everyMessage},
	{"latest delivers exactly what comes after the opening", Features{}, latest},
	{"a restart in the middle goes on behind the position", Features{}, restart},
	{"a position without marks is enough", Features{}, position},
	{"a start at a time delivers what is at or after it", Features{}, atTime},
	{"a record carries what was sent and owns its memory", Features{}, owned},
	{"a cancelled Next leaves the source usable", Features{}, cancelled},
	{"Close unblocks Next, is idempotent, and is final", Features{}, closed},
	{"the end of data is io.EOF, again and again", Features{}, end},
	{"messages sent while it reads come too", Features{}, concurrent},
	{"I5: what was overwritten is counted, exactly per src", Features{Overwrites: true}, overrun},
	{"a subject selects, and the position moves over the rest", Features{Subjects: true}, subject},
}

// take returns the next n messages; gaps are handed to gap, or fail if it is nil.
func take(t T, s Source, n int, gap func(record.Record)) []record.Record {
	t.Helper()
	var out []record.Record
	for len(out) < n {
		if t.Context().Err() != nil {
			t.Fatalf("message %d of %d does not come", len(out)+1, n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), DefaultPatience)
		r, err := s.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("message %d of %d: %v", len(out)+1, n, err)
		}
		switch {
		case carries(r):
			out = append(out, message(t, r))
		case r.Kind == record.KindGap && gap != nil:
			gap(r)
		case r.Kind == record.KindGap:
			t.Fatalf("a gap where nothing was lost: %s", r.Gap)
		}
	}
	return out
}

// order checks that the records continue the marks without a hole, and moves the marks.
func order(t T, rs []record.Record, marks map[string]int64) {
	t.Helper()
	for _, r := range rs {
		if r.Seq != marks[r.Src]+1 {
			t.Fatalf("%s: seq %d after %d", r.Src, r.Seq, marks[r.Src])
		}
		marks[r.Src] = r.Seq
		if r.Position.IsZero() {
			t.Fatalf("%s: seq %d has no position", r.Src, r.Seq)
		}
	}
}

func nothing(t T, s Source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if r, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, %s %s seq %d, want nothing", err, r.Kind, r.Src, r.Seq)
	}
}

func fill(t T, h Harness) int {
	for i := range 20 {
		h.Send(t, []string{"a/1", "b/1", "c/1"}[i%3], "x.y", 1+i%4)
	}
	return 50 // 20 rounds of 1, 2, 3, 4
}

func everyMessage(t T, h Harness) {
	n := fill(t, h)
	s := h.Open(t, Options{Start: record.Start{Where: record.Earliest}})
	defer s.Close()
	marks := map[string]int64{}
	order(t, take(t, s, n, nil), marks)
	h.Send(t, "a/1", "", 10)
	order(t, take(t, s, 10, nil), marks)
	nothing(t, s)
}

func latest(t T, h Harness) {
	fill(t, h)
	s := h.Open(t, Options{})
	defer s.Close()
	nothing(t, s)
	h.Send(t, "a/1", "", 3)
	h.Send(t, "z/1", "", 2)
	rs := take(t, s, 5, nil)
	nothing(t, s)
	if rs[2].Src != "a/1" || rs[3].Src != "z/1" || rs[3].Seq != 1 || rs[2].Seq != rs[0].Seq+2 {
		t.Fatalf("got %s seq %d and %s seq %d", rs[2].Src, rs[2].Seq, rs[3].Src, rs[3].Seq)
	}
}

func restart(t T, h Harness) {
	n := fill(t, h)
	marks := map[string]int64{}
	start := record.Start{Where: record.Earliest}
	for read := 0; read < n; read += 5 {
		s := h.Open(t, Options{Start: start})
		rs := take(t, s, 5, nil)
		order(t, rs, marks)
		start = record.Start{Where: record.After, Position: rs[4].Position, Marks: maps.Clone(marks), Fingerprint: rs[4].Fingerprint}
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	s := h.Open(t, Options{Start: start})
	defer s.Close()
	nothing(t, s)
}

func position(t T, h Harness) {
	n := fill(t, h)
	s := h.Open(t, Options{Start: record.Start{Where: record.Earliest}})
	rs := take(t, s, n, nil)
	_ = s.Close()
	for i := 0; i < n; i += 7 {
		s := h.Open(t, Options{Start: record.Start{Where: record.After, Position: rs[i].Position}, UntilEnd: true})
		got := drain(t, s)
		if !slices.EqualFunc(got, rs[i+1:], same) {
			t.Fatalf("after message %d: got %d messages, want %d", i+1, len(got), n-i-1)
		}
	}
}

// runaway is more than any case sends: a source that goes on and on is broken.
const runaway = 100_000

func same(a, b record.Record) bool {
	return a.Position == b.Position && a.Src == b.Src && a.Seq == b.Seq
}

// drain reads messages to the end and closes s.
func drain(t T, s Source) []record.Record {
	t.Helper()
	defer s.Close()
	var out []record.Record
	for {
		if t.Context().Err() != nil || len(out) > runaway {
			t.Fatalf("%d messages, and no end", len(out))
		}
		ctx, cancel := context.WithTimeout(t.Context(), DefaultPatience)
		r, err := s.Next(ctx)
		cancel()
		switch {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatalf("next: %v", err)
		case carries(r):
			out = append(out, message(t, r))
		}
	}
}

// carries reports whether r is a message, or a change that is the insert of one.
func carries(r record.Record) bool {
	return r.Kind == record.KindMessage || r.Kind == record.KindChange && r.Change.Op == record.OpInsert
}

// message returns a message as it is; of a change the message that was inserted, at the change's position.
func message(t T, r record.Record) record.Record {
	t.Helper()
	if r.Kind == record.KindMessage {
		return r
	}
	m, err := record.Decode(r.Change.Document, make(record.Interner))
	if err != nil {
		t.Fatalf("the document of a change: %v", err)
	}
	m.Position, m.Fingerprint = r.Position, r.Fingerprint
	return m
}

func atTime(t T, h Harness) {
	n := fill(t, h)
	for _, c := range []struct {
		at   time.Time
		want int
	}{{time.Now().Add(-time.Hour), n}, {time.Now().Add(time.Hour), 0}} {
		got := drain(t, h.Open(t, Options{Start: record.Start{Where: record.AtTime, Time: c.at}, UntilEnd: true}))
		if len(got) != c.want {
			t.Fatalf("from %s on: got %d messages, want %d", c.at, len(got), c.want)
		}
	}
}

func owned(t T, h Harness) {
	before := time.Now().Add(-time.Minute)
	h.Send(t, "a/1", "x.y", 300)
	s := h.Open(t, Options{Start: record.Start{Where: record.Earliest}})
	defer s.Close()
	rs := take(t, s, 300, nil)
	var texts []string
	for _, r := range rs {
		texts = append(texts, string(r.Raw))
	}
	h.Send(t, "a/1", "z", 300)
	take(t, s, 300, nil)
	for i, r := range rs {
		if string(r.Raw) != texts[i] || r.Subject != "x.y" || r.Src != "a/1" || time.UnixMicro(r.Time).Before(before) {
			t.Fatalf("message %d changed or is not what was sent: subject %q, src %q, time %d", i+1, r.Subject, r.Src, r.Time)
		}
		d, err := record.Decode(r.Raw, make(record.Interner))
		if _, change := record.TokenOf(r.Position); change {
			d.Position = r.Position // it is the event's
		}
		if err != nil || !same(d, r) {
			t.Fatalf("message %d: its Raw is another one: %v", i+1, err)
		}
	}
}

func cancelled(t T, h Harness) {
	h.Send(t, "a/1", "", 3)
	s := h.Open(t, Options{Start: record.Start{Where: record.Earliest}})
	defer s.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	marks := map[string]int64{}
	for range 3 {
		if _, err := s.Next(ended); !errors.Is(err, context.Canceled) {
			t.Fatalf("with a cancelled context: got %v", err)
		}
		order(t, take(t, s, 1, nil), marks)
	}
	nothing(t, s)
	h.Send(t, "a/1", "", 1)
	order(t, take(t, s, 1, nil), marks)
}

func closed(t T, h Harness) {
	h.Send(t, "a/1", "", 1)
	s := h.Open(t, Options{})
	done := make(chan error, 1)
	go func() {
		_, err := s.Next(t.Context())
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	select {
	case err := <-done:
		if !errors.Is(err, record.ErrClosed) {
			t.Fatalf("a Next that waited: got %v", err)
		}
	case <-time.After(DefaultPatience):
		t.Fatalf("Next waits after Close")
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, record.ErrClosed) {
		t.Fatalf("Next after Close: got %v", err)
	}
}

func end(t T, h Harness) {
	n := fill(t, h)
	s := h.Open(t, Options{Start: record.Start{Where: record.Earliest}, UntilEnd: true})
	defer s.Close()
	order(t, take(t, s, n, nil), map[string]int64{})
	for range 2 {
		if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: got %v", err)
		}
	}
}

func concurrent(t T, h Harness) {
	const each = 200
	h.Send(t, "a/1", "", 1)
	s := h.Open(t, Options{Start: record.Start{Where: record.Earliest}})
	defer s.Close()
	done := make(chan struct{}, 3)
	for _, src := range []string{"x/1", "y/1", "z/1"} {
		go func() {
			defer func() { done <- struct{}{} }()
			for range each / 10 {
				h.Send(t, src, "", 10)
			}
		}()
	}
	order(t, take(t, s, 1+3*each, nil), map[string]int64{})
	for range 3 {
		<-done
	}
	nothing(t, s)
}

func overrun(t T, h Harness) {
	h.Send(t, "a/1", "", 3)
	h.Send(t, "b/1", "", 3)
	s := h.Open(t, Options{Start: record.Start{Where: record.Earliest}})
	rs := take(t, s, 6, nil)
	_ = s.Close()
	h.Send(t, "b/1", "", 5)
	n := h.Overrun(t, "a/1")
	h.Send(t, "b/1", "", 1) // stays
	last := rs[5]
	sum := map[string]int64{"a/1": 3, "b/1": 3}
	gaps := 0
	s = h.Open(t, Options{Start: record.Start{Where: record.After, Position: last.Position, Marks: maps.Clone(sum), Fingerprint: last.Fingerprint}})
	defer s.Close()
	for sum["b/1"] < 9 {
		r := take(t, s, 1, func(g record.Record) {
			gaps++
			for _, l := range g.Gap.Lost {
				if !l.Exact || l.From != sum[l.Src]+1 {
					t.Fatalf("%s: lost from %d, exact %v, after %d", l.Src, l.From, l.Exact, sum[l.Src])
				}
				sum[l.Src] = l.To
			}
		})
		order(t, r, sum)
	}
	if gaps == 0 || sum["a/1"] != int64(3+n) {
		t.Fatalf("%d gaps; a/1 is accounted for up to %d, sent %d", gaps, sum["a/1"], 3+n)
	}
}

func subject(t T, h Harness) {
	h.Send(t, "a/1", "x.no", 5)
	h.Send(t, "a/1", "x.yes", 2)
	h.Send(t, "a/1", "x.no", 5)
	got := drain(t, h.Open(t, Options{Start: record.Start{Where: record.Earliest}, UntilEnd: true, Subject: "*.yes"}))
	if len(got) != 2 || got[0].Seq != 6 || got[1].Seq != 7 {
		t.Fatalf("got %d messages", len(got))
	}
}
