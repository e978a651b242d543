package mongoerr_test

import (
	"slices"
	"testing"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// form is where in a reply a code comes back.
type form uint8

const (
	asCommand  form = iota // the whole insert failed
	asDocument             // one document of the insert failed
	asConcern              // the write concern failed
	asRead                 // a find, an aggregate or an administrative command failed
	asTail                 // a tail, or a change stream, failed
)

func (f form) String() string {
	return []string{"command", "document", "concern", "read", "tail"}[f]
}

// happening makes a real server answer with a code, without telling it to.
type happening struct {
	code int
	form form
	name string
	run  func(*testing.T, *world) answer
}

// where an event happens. The order matters: what ends a server comes last.
type place struct {
	name   string
	events []happening
}

func places() []place {
	return []place{
		{"standalone", slices.Concat(documentEvents, commandEvents, tailEvents, interruptEvents)},
		{"set", slices.Concat(setEvents, streamEvents, stepDownEvents)},
		{"users", userEvents},
	}
}

// byFailPointOnly are the codes that no event here produces, each with the reason. The fail point
// tests answer with them all the same.
var byFailPointOnly = map[int]string{
	10058: "only servers before 4.4 and the legacy protocol say it",
	286:   "needs an oplog that has rolled over since the set was made: more than a test should write",
	55:    "since 5.0 the form of a reference is not checked",
	57:    "since 5.0 a dot is allowed, and what is refused has other codes",
	6:     "said by mongos, which is not run here",
	7:     "said by mongos, which is not run here",
	89:    "said by mongos, which is not run here",
	9001:  "said by mongos, which is not run here",
	262:   "internal time limits (of a lock table, of a catalog read) that cannot be forced",
	133:   "said by mongos, which is not run here",
	134:   "only in the first moments of a member that has no snapshot yet",
	462:   "said by MongoDB 8.2 and later",
	46:    "two operations on one lock that is never waited for",
	217:   "needs an oplog that was truncated in the middle of a session",
	14031: "needs a disk of its own that is full",
	8000:  "said by a hosted service",
	11001: "said by servers before 2.6",
	12582: "said by servers before 2.6",
	17280: "said by servers before 4.2",
	391:   "said where an OpenID token expired, by MongoDB 7 and later",
}

// TestEveryRowIsProduced fails for a row that has neither an event nor a reason for having none.
func TestEveryRowIsProduced(t *testing.T) {
	t.Parallel()
	produced := map[int]bool{}
	for _, p := range places() {
		for _, ev := range p.events {
			produced[ev.code] = true
		}
	}
	known := map[int]bool{}
	for _, r := range mongoerr.Rows() {
		known[r.Code] = true
		why, never := byFailPointOnly[r.Code]
		switch {
		case !produced[r.Code] && !never:
			t.Errorf("row %d (%s) has no event that produces it", r.Code, r.Name)
		case produced[r.Code] && never:
			t.Errorf("row %d (%s) is produced, although %q", r.Code, r.Name, why)
		}
	}
	for code := range byFailPointOnly {
		if !known[code] {
			t.Errorf("code %d is explained and has no row", code)
		}
	}
	for code := range produced {
		if !known[code] {
			t.Errorf("code %d is produced and has no row", code)
		}
	}
}

// happen runs the events of a place one after another and compares each answer with its row, and with
// what is stored afterwards.
func happen(t *testing.T, w *world, events []happening) {
	rows := map[int]mongoerr.Row{}
	for _, r := range mongoerr.Rows() {
		rows[r.Code] = r
	}
	for _, ev := range events {
		t.Run(ev.name, func(t *testing.T) {
			a := ev.run(t, w)
			c := mongoerr.Classify(a.err)
			if a.err == nil || c.Code != ev.code {
				t.Fatalf("got code %d (%T %v), want %d", c.Code, a.err, a.err, ev.code)
			}
			agrees(t, rows[ev.code], ev.form, c)
			w.isTrue(t, c, a)
		})
	}
}

// agrees fails the test if a class is not what the row says for that form.
func agrees(t *testing.T, r mongoerr.Row, f form, c mongoerr.Class) {
	t.Helper()
	ok := false
	switch f {
	case asCommand:
		ok = c.Write == r.Cmd && c.Index < 0 && c.Untouched == r.Untouched && !c.Uncommitted
	case asDocument:
		ok = c.Write == r.Doc && c.Index >= 0
	case asConcern:
		// What cannot ever be satisfied stops; the rest was applied and is not known to be committed.
		never := r.Cmd == mongoerr.WriteStop
		ok = c.Uncommitted && !c.Untouched && (c.Write == mongoerr.WriteUncommitted || never && c.Write == mongoerr.WriteStop)
	case asRead:
		ok = c.Read == r.Read
	case asTail:
		ok = c.Tail == r.Tail
	}
	if !ok || c.Event == "" {
		t.Errorf("as %s: got %+v, the row says %+v", f, c, r)
	}
}

func TestStandaloneEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testCommands(1))
	t.Run("fail points", func(t *testing.T) { everyRowByFailPoint(t, w) })
	t.Run("labels", func(t *testing.T) { labelsDecideNothing(t, w) })
	t.Run("network", func(t *testing.T) { networkErrors(t, w) })
	happen(t, w, places()[0].events)
}

func TestSetEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testCommands(3))
	happen(t, w, places()[1].events)
	t.Run("driver", func(t *testing.T) { setErrors(t, w) })
}

func TestUserEvents(t *testing.T) {
	t.Parallel()
	cfg := testCommands(1)
	cfg.Auth, cfg.TLS = true, true
	w := newWorld(t, cfg)
	happen(t, w, userEvents)
	t.Run("tls", func(t *testing.T) { tlsErrors(t, w) })
}
