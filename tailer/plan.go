package tailer

import (
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxFilterSrcs bounds how many srcs the server-side filter of a resume names: the server checks each
// of them for every document, for the life of the tail.
const maxFilterSrcs = 8

// plan says where one tail begins to read and which of what it reads is old. It knows nothing of the
// server; it belongs to the goroutine that reads.
//
// Several producers make three natural orders (the primary's, the secondaries', and that of ts), so
// no single place separates old from new on every member. What decides is, in this order: the seq per
// src for every src that is known; and for an unknown src its place before or behind the anchor, with
// a tolerance of the overlap (a src that began just before a failover may stand before the anchor on
// the new primary, and was not delivered).
type plan struct {
	// anchor is the message that was read last, in the member's natural order; waiting is true until it
	// has come by. Before a first opening it is the message to start behind.
	anchor  record.ID
	waiting bool
	// src and seq are the anchor's, where its seq is its src's mark: the filter then lets it pass by its
	// seq, one comparison less per document (a third of the server's time in a resume).
	src string
	seq int64
	// first: everything up to the anchor is old, and tells the marks. It is so once, when a reader
	// starts behind a message without marks; later the marks know better.
	first bool
	// bound is the server-side limit on ts for unknown srcs, zero for none. A tail keeps its filter for
	// life, so with a bound a server whose clock stepped back would hide new messages: the loop looks.
	bound record.Timestamp
	// floor: what an unknown src sent before it, and stands before the anchor, is from before this
	// reader's time.
	floor record.Timestamp
	// since: an unknown src's messages below it are not asked for (AtTime, or a position that is a time).
	since record.Timestamp
	// exact: the marks are complete, so a src that is unknown and does not begin here is a reason to
	// read again without the bound.
	exact bool
	// overlap: the first late id of another program's stream has come by, see admit.
	overlap bool
	// birth: the tail reads from the oldest message on, for the first time.
	birth bool
}

// filtered reports whether the server may hide messages that were not delivered.
func (p *plan) filtered() bool { return !p.bound.IsZero() }

// filter returns the server-side filter, nil for none. It lets pass the anchor, and everything that
// is neither known to be delivered (that cannot fake a hole) nor below the bound.
func (p *plan) filter(m *marks) bson.D {
	if !p.since.IsZero() && m.len() == 0 {
		return bson.D{{Key: record.FieldTS, Value: bson.D{{Key: "$gte", Value: bson.Timestamp(p.since)}}}}
	}
	if p.anchor.IsZero() && p.bound.IsZero() {
		return nil
	}
	var old, known bson.A
	m.newest(func(k *mark) bool {
		upTo := "$lte"
		if k.src == p.src && k.seq == p.seq {
			upTo = "$lt"
		}
		old = append(old, bson.D{{Key: record.FieldSeq, Value: bson.D{{Key: upTo, Value: k.seq}}}, {Key: record.FieldSrc, Value: k.src}})
		known = append(known, k.src)
		return len(old) < maxFilterSrcs
	})
	if p.filtered() {
		below := bson.D{{Key: record.FieldTS, Value: bson.D{{Key: "$lt", Value: bson.Timestamp(p.bound)}}}}
		if len(known) > 0 {
			below = append(bson.D{{Key: record.FieldSrc, Value: bson.D{{Key: "$nin", Value: known}}}}, below...)
		}
		old = append(old, below)
	}
	if len(old) == 0 {
		return nil
	}
	fresh := bson.D{{Key: "$nor", Value: old}}
	if p.anchor.IsZero() || p.src != "" {
		return fresh
	}
	return bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: record.FieldID, Value: p.anchor.RawValue()}}, fresh}}}
}

// admit reports whether r is to be delivered, as far as its place says: false means that it is old.
// It notes what old messages tell about their srcs.
func (p *plan) admit(r *record.Record, l *ledger, ids *recent) bool {
	if !p.waiting {
		return p.behind(r, l, ids)
	}
	if r.Position.ID == p.anchor {
		p.waiting = false
		p.note(r, l, ids)
		return false
	}
	if p.first {
		p.note(r, l, ids)
		return false
	}
	if !r.Ours() {
		// What stands before the anchor here may have stood behind it on the member that was read
		// before: but only near it. So what is not among the recent ids is new only where the read has
		// met one of the newer half of them.
		if ids.has(r.Position.ID) {
			p.overlap = p.overlap || ids.late(r.Position.ID)
			return false
		}
		return p.overlap
	}
	if _, known := l.marks.get(r.Src); !known && (p.floor.IsZero() || r.Position.TS.Compare(p.floor) < 0) {
		return false // without a mark: it would make the src's next old message look new
	}
	return p.behind(r, l, ids)
}

func (p *plan) behind(r *record.Record, l *ledger, ids *recent) bool {
	if !r.Ours() {
		return !ids.has(r.Position.ID) && r.Position.TS.Compare(p.since) >= 0
	}
	last, known := l.marks.get(r.Src)
	if known {
		return r.Seq > last
	}
	if r.Position.TS.Compare(p.since) < 0 {
		p.note(r, l, ids)
		return false
	}
	return true
}

// note takes what an old message tells.
func (p *plan) note(r *record.Record, l *ledger, ids *recent) {
	if r.Ours() {
		l.marks.set(r.Src, r.Seq, r.Position.TS)
	} else {
		ids.add(r.Position.ID)
	}
}

// before returns t minus d, in whole seconds, and never below the first Timestamp.
func before(t record.Timestamp, seconds uint32) record.Timestamp {
	if t.T <= seconds {
		return record.Timestamp{I: 1}
	}
	return record.Timestamp{T: t.T - seconds}
}
