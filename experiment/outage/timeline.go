package outage

import (
	"cmp"
	"io"
	"slices"
	"time"

	"github.com/seed-12ef14e5/capstan/experiment/results"
)

// window is what a timeline shows of a trial.
type window struct {
	interval
	// out is the outage, empty if there was none to speak of.
	out interval
}

// The least that a timeline shows before the fault and after the outage.
const (
	leastBefore = 2 * time.Second
	leastAfter  = 3 * time.Second
)

// window returns the stretch around the outage: half as long before it and as long behind it, and the
// heal if it is not much further away. A whole trial would leave the outage too narrow to look into.
func (t *Trial) window() window {
	out, _ := t.outage(Prober, KindWrite)
	w := window{out: out, interval: interval{min(t.At, cmp.Or(out.from, t.At)), max(t.At, out.to)}}
	long := w.to.Sub(w.from)
	if t.Healed > w.to && t.Healed.Sub(w.to) < 3*long+leastAfter {
		w.to = t.Healed
	}
	w.from = max(w.from.Add(-max(leastBefore, long/2)), t.Begun)
	w.to = w.to.Add(max(leastAfter, long))
	last := t.At // the clients end before all is read back, and then nothing happens
	for _, e := range t.Events {
		last = max(last, e.End())
	}
	w.to = min(w.to, last)
	return w
}

// timelineLine is a line of timeline-….csv.
type timelineLine struct {
	at     time.Duration // relative to the fault
	who    string
	what   string
	ok     bool
	took   time.Duration
	seq    int64
	member string
	text   string
}

var timelineColumns = []results.Column[timelineLine]{
	results.Col("at", 6, func(l *timelineLine) any { return &l.at }),
	results.Col("who", 0, func(l *timelineLine) any { return &l.who }),
	results.Col("what", 0, func(l *timelineLine) any { return &l.what }),
	results.Col("ok", 0, func(l *timelineLine) any { return &l.ok }),
	results.Col("took", 6, func(l *timelineLine) any { return &l.took }),
	results.Col("seq", 0, func(l *timelineLine) any { return &l.seq }),
	results.Col("member", 0, func(l *timelineLine) any { return &l.member }),
	results.Col("text", 0, func(l *timelineLine) any { return &l.text }),
}

// writeTimeline writes what happened around the outage, line by line: calls by their end, the servers'
// log, the fault and the heal. Of the probes, which are many, it has those whose answer is another than
// the one before from the same member.
func (t *Trial) writeTimeline(w io.Writer) error {
	win := t.window()
	lines := []timelineLine{{who: "experiment", what: "fault", ok: true, member: t.Victim, text: t.Fault}}
	if t.Healed != 0 && t.Healed <= win.to {
		lines = append(lines, timelineLine{at: t.Healed.Sub(t.At), who: "experiment", what: "healed", ok: true, member: t.Victim})
	}
	for _, s := range t.servers() {
		if s.At >= win.from && s.At <= win.to {
			lines = append(lines, timelineLine{at: s.At.Sub(t.At), who: "server", what: s.What, ok: true, member: s.Member, text: s.Text})
		}
	}
	type prober struct {
		role   Role
		member string
	}
	probed := map[prober]bool{}
	for _, e := range t.byEnd() {
		if e.End() < win.from || e.End() > win.to {
			continue
		}
		if e.Kind == KindProbe {
			p := prober{e.Role, e.Member}
			if before, known := probed[p]; known && before == e.OK {
				continue
			}
			probed[p] = e.OK
		}
		text := e.Err
		if e.Outcome != "" {
			text = e.Outcome + ": " + text
		}
		lines = append(lines, timelineLine{
			at: e.End().Sub(t.At), who: string(e.Role), what: string(e.Kind), ok: e.OK, took: time.Duration(e.Took) * time.Microsecond,
			seq: cmp.Or(e.Seq, e.Seen), member: e.Member, text: text,
		})
	}
	slices.SortStableFunc(lines, func(a, b timelineLine) int { return cmp.Compare(a.at, b.at) })
	return results.WriteCSV(w, timelineColumns, lines)
}

func (t *Trial) byEnd() []Event {
	return slices.SortedStableFunc(slices.Values(t.Events), func(a, b Event) int { return cmp.Compare(a.End(), b.End()) })
}
