package replicator

import (
	"cmp"
	"maps"
	"slices"
)

// streamMarks are the highest seq per src that is replicated: at most limit and a quarter of them, then those that were silent for
// longest go. To forget one is safe: its messages are told by their _id. Owned by the goroutine of Run.
type streamMarks struct {
	limit int
	all   map[string]*streamMark
	tick  uint64
}

type streamMark struct {
	seq  int64
	used uint64 // the tick of its last use
}

func newStreamMarks(limit int, from map[string]int64) *streamMarks {
	m := &streamMarks{limit: limit, all: make(map[string]*streamMark, len(from))}
	for src, seq := range from {
		m.advance(src, seq)
	}
	return m
}

// advance notes that src is done up to seq. It never goes back.
func (m *streamMarks) advance(src string, seq int64) {
	m.tick++
	if k := m.all[src]; k != nil {
		k.used, k.seq = m.tick, max(k.seq, seq)
		return
	}
	m.all[src] = &streamMark{seq: seq, used: m.tick}
	if len(m.all) > m.limit+m.limit/4 {
		m.prune()
	}
}

func (m *streamMarks) get(src string) int64 {
	if k := m.all[src]; k != nil {
		return k.seq
	}
	return 0
}

func (m *streamMarks) prune() {
	if len(m.all) <= m.limit {
		return
	}
	srcs := slices.SortedFunc(maps.Keys(m.all), func(a, b string) int { return cmp.Compare(m.all[b].used, m.all[a].used) })
	for _, src := range srcs[m.limit:] {
		delete(m.all, src)
	}
}

// snapshot returns a copy of at most limit marks.
func (m *streamMarks) snapshot() map[string]int64 {
	m.prune()
	out := make(map[string]int64, len(m.all))
	for src, k := range m.all {
		out[src] = k.seq
	}
	return out
}
