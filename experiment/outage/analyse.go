package outage

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Analyse fills t.Row from t.Events and t.Servers. It asks nobody, and the same events make the same
// row, in whatever order they are.
func Analyse(t *Trial) {
	t.Row = Row{}
	r := &t.Row
	r.outages(t)
	r.elections(t)
	r.calls(t)
	r.plain(t)
	r.conns(t)
}

func span(i interval) time.Duration { return i.to.Sub(i.from) }

func (r *Row) outages(t *Trial) {
	if i, ok := t.outage(Writer, KindWrite); ok {
		r.WriterOutage = span(i)
	}
	if i, ok := t.outage(Prober, KindRead); ok {
		r.ReadOutage = span(i)
	}
	if i, ok := t.outage(Cluster, KindProbe); ok {
		r.ClusterOutage = span(i)
	}
	out, ok := t.outage(Prober, KindWrite)
	if !ok {
		if i, ok := t.outage(Members, KindProbe); ok {
			r.ReachOutage = span(i)
		}
		return
	}
	r.Outage = span(out)
	if reach, ok := t.reach(Members, out); ok {
		r.ReachOutage = span(reach)
		r.Excess = max(0, r.Outage-r.ReachOutage)
		r.split(t, out, reach.to)
		return
	}
	r.split(t, out, out.to)
}

// split says where each part of an outage went. reached is when a majority write was acknowledged to
// somebody in the clients' place.
func (r *Row) split(t *Trial, out interval, reached Moment) {
	from := max(out.from, t.At)
	if out.to <= from {
		return
	}
	reached = min(max(reached, from), out.to)
	started, won, complete := t.election(from, reached)
	// What was not seen ends where the next step that was seen ends.
	complete = cmp.Or(complete, reached)
	won = cmp.Or(won, complete)
	started = cmp.Or(started, won)
	steps := []*time.Duration{&r.Detection, &r.Elected, &r.Transit, &r.SyncSource, &r.Client}
	for i, end := range []Moment{started, won, complete, reached, out.to} {
		end = max(end, from)
		*steps[i] = end.Sub(from)
		from = end
	}
}

// election returns the steps of the election that ended an outage, 0 for one that was not seen: the
// first candidate of all, since the candidates that failed took their time too, then the last winner
// that completed its transition in time, since an earlier one did not end the outage.
func (t *Trial) election(from, to Moment) (started, won, complete Moment) {
	var winner string
	for _, s := range t.servers() {
		if s.before(from) || s.At > to {
			continue
		}
		switch s.What {
		case ElectionStarted:
			started = cmp.Or(started, s.At)
		case TransitionComplete:
			complete, winner = s.At, s.Member
		}
	}
	for _, s := range t.servers() {
		if s.What != ElectionWon || s.before(from) || s.At > to || complete != 0 && (s.At > complete || s.Member != winner) {
			continue
		}
		won = s.At
	}
	return started, won, complete
}

// logResolution is that of the times in the members' logs, which cut off what is below it.
const logResolution = time.Millisecond

// before reports whether an event was certainly before a moment: after a step-down all happens within
// milliseconds, and must not seem to be before the fault.
func (s ServerEvent) before(m Moment) bool { return s.At.Add(logResolution) <= m }

// servers returns the servers' events in the order of time.
func (t *Trial) servers() []ServerEvent {
	return slices.SortedStableFunc(slices.Values(t.Servers), func(a, b ServerEvent) int { return cmp.Compare(a.At, b.At) })
}

// elections fills what the servers tell, and the first success.
func (r *Row) elections(t *Trial) {
	var first Moment
	for _, e := range t.Events {
		if e.Kind == KindWrite && e.OK && (e.Role == Writer || e.Role == Prober) && e.Start >= t.At && (first == 0 || e.End() < first) {
			first = e.End()
		}
	}
	if first != 0 {
		r.First = first.Sub(t.At)
	}
	until := cmp.Or(first, t.Healed, math.MaxInt64)
	var won Moment
	var winner string
	for _, s := range t.servers() {
		switch {
		case s.before(t.At) || t.Ended != 0 && s.At > t.Ended:
		case s.What == ElectionWon:
			if r.Elections++; won == 0 {
				won, winner = s.At, s.Member
				r.Election = max(0, won.Sub(t.At))
			}
		case s.What == TransitionComplete && s.Member == winner && r.Transition == 0:
			r.Transition = s.At.Sub(won)
		case s.What == SyncSourceChanged && s.At <= until:
			r.SyncChanges++
		}
	}
}

// calls fills what the calls of capstan's clients tell.
func (r *Row) calls(t *Trial) {
	over, bounded := time.Duration(math.MinInt64), false
	for _, e := range t.Events {
		took := time.Duration(e.Took) * time.Microsecond
		writes := e.Kind == KindWrite && (e.Role == Writer || e.Role == Prober)
		reads := e.Kind == KindRead && (e.Role == Reader || e.Role == Prober)
		switch {
		case writes:
			r.MaxCall = max(r.MaxCall, took)
			r.Deadline = max(r.Deadline, time.Duration(e.Deadline)*time.Microsecond)
			if e.End() >= t.At && (t.Healed == 0 || e.Start <= t.Healed) {
				r.Attempts += e.Attempts
				r.Doubtful += e.Doubtful
			}
		case reads:
			r.MaxRead = max(r.MaxRead, took)
			r.Stale = max(r.Stale, time.Duration(e.Stale)*time.Microsecond)
			r.Reads++
			if !e.OK {
				r.FailedReads++
			}
		case e.Kind == KindTry: // an attempt has a deadline of its own
		default:
			continue
		}
		if e.Deadline > 0 {
			over, bounded = max(over, time.Duration(e.Took-e.Deadline-e.Overrun)*time.Microsecond), true
		}
	}
	if bounded {
		r.MaxOver = over
	}
}

// plain fills the longest call of the client without a deadline.
func (r *Row) plain(t *Trial) {
	var last Moment
	seen := false
	for _, e := range t.Events {
		if e.Role != Plain {
			continue
		}
		seen = true
		last = max(last, e.End())
		if e.Kind == KindWrite {
			r.PlainCall = max(r.PlainCall, time.Duration(e.Took)*time.Microsecond)
			r.PlainHung = r.PlainHung || e.Start < t.Healed && e.End() > t.Healed && e.Start.Add(plainHang) < t.Healed
		}
	}
	// One call follows the other, so what said nothing up to the heal was in a call that never returned.
	if seen && last.Add(plainHang) < t.Healed {
		r.PlainHung = true
		r.PlainCall = max(r.PlainCall, t.Healed.Sub(last))
	}
}

// plainHang is how long a call of the plain client has lasted at the heal if it is said to hang: one
// that was begun just before is no more than in flight.
const plainHang = time.Second

// conns fills the connections that the writer opened from the fault to the heal.
func (r *Row) conns(t *Trial) {
	var before, after int64
	healed := cmp.Or(t.Healed, math.MaxInt64)
	for _, e := range t.Events {
		switch {
		case e.Role != Writer || e.Conns == 0: // not every event tells it
		case e.End() < t.At:
			before = max(before, e.Conns)
		case e.Start <= healed:
			after = max(after, e.Conns)
		}
	}
	r.Conns = max(0, after-before)
}
