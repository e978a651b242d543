package outage

import (
	"cmp"
	"slices"
)

// interval is a stretch of time in which something did not succeed.
type interval struct{ from, to Moment }

func (i interval) length() Moment { return max(0, i.to-i.from) }

func (i interval) overlaps(from, to Moment) bool { return i.to > from && i.from < to }

// gaps returns the intervals between the moments at which something succeeded, the one before the first
// and the one behind the last among them: whoever never succeeds is out all the time. The moments may
// be in any order; those outside from and to bound the first and the last interval.
func gaps(moments []Moment, from, to Moment) []interval {
	sorted := slices.Sorted(slices.Values(moments))
	var out []interval
	for _, m := range sorted {
		out = append(out, interval{from, m})
		from = m
	}
	return append(out, interval{from, max(from, to)})
}

// longest returns the longest of the intervals that overlap the stretch, the first of equal ones. What
// begins before the stretch counts as a whole: a call that was in flight at the fault began before it.
func longest(of []interval, from, to Moment) (best interval, found bool) {
	for _, i := range of {
		if i.overlaps(from, to) && (!found || i.length() > best.length()) {
			best, found = i, true
		}
	}
	return best, found
}

// successes returns when calls of a role and kind succeeded.
func (t *Trial) successes(role Role, kind Kind) []Moment {
	var out []Moment
	for _, e := range t.Events {
		if e.Role == role && e.Kind == kind && e.OK {
			out = append(out, e.End())
		}
	}
	return out
}

// watched returns until when a role was there to succeed: its last word on calls of that kind, or the
// heal if it said nothing more (its call was in flight); ok is false if it said nothing at all.
// Afterwards silence is no outage: the clients end before all is read back.
func (t *Trial) watched(role Role, kind Kind) (until Moment, ok bool) {
	for _, e := range t.Events {
		if e.Role == role && (e.Kind == kind || e.Kind == KindTry) {
			until, ok = max(until, e.End()), true
		}
	}
	until = max(until, t.Healed)
	if t.Ended != 0 {
		until = min(until, t.Ended)
	}
	return until, ok
}

// outage returns the longest interval from the fault on in which no call of a role and kind succeeded;
// ok is false if the role was not there.
func (t *Trial) outage(role Role, kind Kind) (interval, bool) {
	until, ok := t.watched(role, kind)
	if !ok {
		return interval{}, false
	}
	return longest(gaps(t.successes(role, kind), t.Begun, until), t.At, max(until, t.At+1))
}

// reach returns the interval in which no member acknowledged a majority write to a role of probes, of
// those the one that covers the most of an outage: a longer one beside it is not its cause. ok is false
// if there were no such probes then.
func (t *Trial) reach(role Role, out interval) (best interval, ok bool) {
	until, ok := t.watched(role, KindProbe)
	if !ok {
		return interval{}, false
	}
	covers := func(i interval) Moment { return interval{max(i.from, out.from), min(i.to, out.to)}.length() }
	best = slices.MaxFunc(gaps(t.successes(role, KindProbe), t.Begun, until), func(a, b interval) int {
		return cmp.Compare(covers(a), covers(b))
	})
	return best, covers(best) > 0
}
