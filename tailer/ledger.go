package tailer

import (
	"slices"

	"github.com/seed-12ef14e5/capstan/record"
)

// verdict is what the ledger says of one message.
type verdict uint8

const (
	// fresh: it is the next one of its src, or nothing can be said about it.
	fresh verdict = iota
	// seen: it was delivered, or passed, before.
	seen
	// hole: messages of its src between the last one and this one are missing.
	hole
	// stranger: its src was not seen before and does not begin with it, and no position was ever lost:
	// the src is older than this reader.
	stranger
)

// loss is a lost position that is not accounted for yet.
type loss struct {
	cause record.GapCause
	// after is the last position before it.
	after record.Position
	// open are the srcs that were active shortly before and have not come back.
	open map[string]struct{}
	// must: it is reported even if no message is known to be lost.
	must bool
	// told: it has been reported.
	told bool
}

// ledger counts: it holds what was seen per src and turns holes into gaps. It knows nothing of the
// server. Not safe for concurrent use: it belongs to the goroutine that reads.
//
// I5: only seq says what was lost. A lost position (CappedPositionLost, a position that is not there)
// is a reason to look, and a hole is a loss even if the server said nothing.
type ledger struct {
	marks *marks
	// birth: this reader has seen the stream from its first message on, so that a src that is not in
	// marks begins with seq 1.
	birth bool
	// lost: a position was lost at some time, so that the first messages of a src that is not in marks
	// may have been among what was lost.
	lost    bool
	pending *loss
}

// maxOpen bounds Gap.Open.
const maxOpen = 100

func (l *ledger) fromBirth() bool { return l.birth && !l.marks.forgot }

// judge says what r is. It changes nothing.
func (l *ledger) judge(r *record.Record) verdict {
	if !r.Ours() {
		return fresh
	}
	last, known := l.marks.get(r.Src)
	switch {
	case known && r.Seq <= last: // I1: delivered once, also where a rolled-back message is sent again
		return seen
	case known && r.Seq > last+1:
		return hole
	case known || r.Seq == 1:
		return fresh
	case l.fromBirth() || l.lost:
		return hole
	default:
		return stranger
	}
}

// pass counts r as seen.
func (l *ledger) pass(r *record.Record) {
	if r.Ours() {
		l.marks.set(r.Src, r.Seq, r.Position.TS)
		if l.pending != nil {
			delete(l.pending.open, r.Src)
		}
	}
}

// lose notes that the position was lost. recently is the timestamp from which on a src counts as
// active.
func (l *ledger) lose(cause record.GapCause, after record.Position, recently record.Timestamp, must bool) {
	p := l.pending
	if p == nil || p.told {
		p = &loss{cause: cause, after: after, open: make(map[string]struct{})}
		l.pending = p
	}
	if cause == record.CauseRecreated {
		p.cause = cause
	}
	p.must = p.must || must
	l.marks.newest(func(k *mark) bool {
		if k.ts.IsZero() || k.ts.Compare(recently) >= 0 { // zero: it came with a checkpoint
			p.open[k.src] = struct{}{}
		}
		return len(p.open) < maxOpen
	})
}

// due reports whether a gap must be told before a message with verdict v of r is delivered.
func (l *ledger) due(v verdict) bool {
	return v == hole || (l.pending != nil && l.pending.must && !l.pending.told)
}

// gap accounts for the pending loss: it looks ahead over rest, which are the messages behind the
// loss as far as they are known, and counts per src up to its first message there. Afterwards that
// message is fresh. A src that shows up later has a gap of its own.
func (l *ledger) gap(rest []record.Record) *record.Gap {
	p := l.pending
	g := &record.Gap{Cause: p.cause, After: p.after}
	if len(rest) > 0 {
		g.Before = rest[0].Position
	}
	back := make(map[string]struct{})
	for i := range rest {
		r := &rest[i]
		if !r.Ours() {
			g.Uncounted = true
			continue
		}
		if _, ok := back[r.Src]; ok {
			continue
		}
		last, known := l.marks.get(r.Src)
		if known && r.Seq <= last {
			continue // seen before: it says nothing about what lies between
		}
		back[r.Src] = struct{}{}
		delete(p.open, r.Src)
		if r.Seq > last+1 && (known || l.fromBirth() || l.lost) {
			// I5: exact where the src was seen before, or the stream from its birth; else these are all
			// that it ever sent, and only what came after the reader's start was lost.
			g.Lost = append(g.Lost, record.Loss{Src: r.Src, From: last + 1, To: r.Seq - 1, Exact: known || l.fromBirth()})
			l.marks.set(r.Src, r.Seq-1, record.Timestamp{})
		}
	}
	for src := range p.open {
		g.Open = append(g.Open, src)
	}
	slices.Sort(g.Open)
	p.must, p.told = false, true
	return g
}

// settle is called when everything that the stream holds has been read. If the position was lost
// and no message is known to be, it returns a gap without Lost: "position lost, 0 messages lost". It
// is worth a record only where srcs are open. What is missing of a src that comes back later is
// then a loss of its own.
func (l *ledger) settle() *record.Gap {
	p := l.pending
	if p == nil || p.must { // nothing behind the loss yet: it is told with the first message
		return nil
	}
	var g *record.Gap
	if !p.told {
		g = l.gap(nil)
	}
	l.pending = nil
	return g
}
