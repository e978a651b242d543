package consumer

import (
	"cmp"
	"slices"
)

// marks are the highest seq per src at the frontier. There are at most max and a quarter of them:
// then those not seen for longest go. To forget a src is safe: after a resume its messages within the
// reader's overlap may be delivered again, and a loss is then "at most" instead of exact.
// Owned by the frontier, below its mutex.
type marks struct {
	max  int
	all  map[string]*seqMark
	tick uint64

	// The last src and its entry: streams have long runs of one src, and this saves the look-up.
	last      string
	lastEntry *seqMark
}

type seqMark struct {
	seq  int64
	used uint64 // the tick of its last use
}

func newMarks(limit int, from map[string]int64) *marks {
	m := &marks{max: limit, all: make(map[string]*seqMark, len(from))}
	for src, seq := range from {
		m.advance(src, seq)
	}
	return m
}

// advance notes that src is done up to seq. It never goes back.
func (m *marks) advance(src string, seq int64) {
	e := m.lastEntry
	if e == nil || src != m.last {
		if e = m.all[src]; e == nil {
			e = &seqMark{seq: seq}
			m.all[src] = e
			m.prune(m.max + m.max/4)
		}
		m.last, m.lastEntry = src, e
	}
	m.tick++
	e.used = m.tick
	e.seq = max(e.seq, seq)
}

// prune forgets the srcs that were not seen for longest, down to max, if there are more than limit.
func (m *marks) prune(limit int) {
	if len(m.all) <= limit {
		return
	}
	type aged struct {
		src  string
		used uint64
	}
	srcs := make([]aged, 0, len(m.all))
	for src, e := range m.all {
		if e.used == 0 { // just made, by advance
			e.used = m.tick + 1
		}
		srcs = append(srcs, aged{src, e.used})
	}
	slices.SortFunc(srcs, func(a, b aged) int { return cmp.Compare(b.used, a.used) })
	for _, s := range srcs[m.max:] {
		delete(m.all, s.src)
	}
	m.last, m.lastEntry = "", nil
}

// snapshot returns a copy of at most max marks.
func (m *marks) snapshot() map[string]int64 {
	m.prune(m.max)
	out := make(map[string]int64, len(m.all))
	for src, e := range m.all {
		out[src] = e.seq
	}
	return out
}
