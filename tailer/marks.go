package tailer

import "github.com/seed-12ef14e5/capstan/record"

// mark is the highest seq seen of one src.
type mark struct {
	src        string
	seq        int64
	ts         record.Timestamp
	prev, next *mark // the ring, newest behind the root
}

// marks holds the highest seq per src, for at most max srcs: the exact resume point of a stream of
// ours. The src that was silent for longest is forgotten first. Not safe for concurrent use.
//
// An intrusive ring instead of container/list: moving a mark to the front allocates nothing, and the
// common case, the same src as before, is one comparison.
type marks struct {
	max    int
	by     map[string]*mark
	root   mark
	forgot bool // a src was forgotten: one that is not here need not be new
}

func newMarks(maxSrcs int, from map[string]int64) *marks {
	m := &marks{max: maxSrcs, by: make(map[string]*mark)}
	m.root.prev, m.root.next = &m.root, &m.root
	for src, seq := range from {
		m.set(src, seq, record.Timestamp{})
	}
	return m
}

// get returns the highest seq seen of src, and whether src is known.
func (m *marks) get(src string) (int64, bool) {
	if k := m.root.next; k.src == src && k != &m.root {
		return k.seq, true
	}
	k, ok := m.by[src]
	if !ok {
		return 0, false
	}
	return k.seq, true
}

// set makes seq the highest seen of src. It never goes back: a rolled-back message that is sent
// again has the same seq, and was delivered.
func (m *marks) set(src string, seq int64, ts record.Timestamp) {
	k := m.root.next
	if k == &m.root || k.src != src {
		var ok bool
		if k, ok = m.by[src]; ok {
			k.prev.next, k.next.prev = k.next, k.prev
		} else {
			k = &mark{src: src}
			m.by[src] = k
		}
		k.prev, k.next = &m.root, m.root.next
		k.prev.next, k.next.prev = k, k
		if len(m.by) > m.max {
			m.forget()
		}
	}
	k.seq = max(k.seq, seq)
	if ts.Compare(k.ts) > 0 {
		k.ts = ts
	}
}

func (m *marks) forget() {
	k := m.root.prev
	k.prev.next, k.next.prev = k.next, k.prev
	delete(m.by, k.src)
	m.forgot = true
}

// newest calls yield for each src, the one seen last first, until yield returns false.
func (m *marks) newest(yield func(*mark) bool) {
	for k := m.root.next; k != &m.root; k = k.next {
		if !yield(k) {
			return
		}
	}
}

func (m *marks) len() int { return len(m.by) }

// recent holds the last ids that were read of a stream of another program, in the order of reading,
// so that an overlap that is read again is not delivered again. Not safe for concurrent use.
type recent struct {
	ids []record.ID
	at  map[record.ID]int64 // when it was added, counting from 1
	n   int64
}

// maxRecent is how many ids are kept. Natural order differs between members by some 80 places (seen
// with four writers in batches of 100); half of the ring must cover that.
const maxRecent = 10_000

func (r *recent) add(id record.ID) {
	if r.at == nil {
		r.at = make(map[record.ID]int64)
	}
	if _, ok := r.at[id]; ok {
		return
	}
	r.n++
	r.at[id] = r.n
	if len(r.ids) < maxRecent {
		r.ids = append(r.ids, id)
		return
	}
	slot := &r.ids[(r.n-1)%maxRecent]
	delete(r.at, *slot)
	*slot = id
}

func (r *recent) has(id record.ID) bool {
	_, ok := r.at[id]
	return ok
}

// late reports whether id is in the newer half of the ring.
func (r *recent) late(id record.ID) bool { return r.at[id] > r.n-maxRecent/2 }

// last returns up to n ids, the newest first.
func (r *recent) last(n int) []record.ID {
	var out []record.ID
	for i := r.n; i > 0 && i > r.n-int64(min(n, len(r.ids))); i-- {
		out = append(out, r.ids[(i-1)%maxRecent])
	}
	return out
}
