package verify

import (
	"bytes"
	"container/heap"
	"context"
	"hash/maphash"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// maxPending and maxPendingBytes bound the documents that wait for a verdict; a scan waits while there are more.
	maxPending      = 100_000
	maxPendingBytes = 16 << 20
	// lookIDs and lookBytes bound the documents of one look.
	lookIDs   = 500
	lookBytes = 4 << 20
	// firstDelay and maxDelay are the waits between two looks at one document.
	firstDelay = 50 * time.Millisecond
	maxDelay   = 2 * time.Second
	// patienceOfChange is how many times Settle a document may go on changing before it is given up.
	patienceOfChange = 2
	// hopeless is how many documents of a collection have stayed different for Settle until the others are waited for no longer than
	// hopelessSettle each: such a collection does not catch up, and to wait for a million documents would take hours.
	hopeless       = 10_000
	hopelessSettle = time.Second
)

// suspect is a document that was not equal when a window was compared. It is owned by the judge once it was handed over.
type suspect struct {
	p    *pair
	key  string // canonical _id
	id   bson.RawValue
	size int // of the larger document, as first seen
	// fromOrder: the natural orders were compared, so being equal is not enough.
	fromOrder bool

	due   time.Time
	delay time.Duration
	looks int
	// first is when it was first looked at, since when when the source last had another version of it than now.
	first, since time.Time
	version      uint64
}

func newSuspect(p *pair, key string, id bson.RawValue, size int) *suspect {
	id.Value = slices.Clone(id.Value)
	return &suspect{p: p, key: key, id: id, size: size}
}

func (s *suspect) weight() int { return len(s.key) + len(s.id.Value) + 200 }

// queue is a heap of suspects by due time.
type queue []*suspect

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(*suspect)) }
func (q *queue) Pop() any {
	old := *q
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return x
}

// judge looks at suspects again until each has its verdict, and until scanned is closed and none is left.
func (r *run) judge(ctx context.Context, scanned <-chan struct{}) error {
	for {
		batch, wait := r.take()
		if len(batch) > 0 {
			if err := r.look(ctx, batch); err != nil {
				return err
			}
			continue
		}
		if scanned == nil && r.pendingCount() == 0 {
			return nil
		}
		if n := r.pendingCount(); n > 0 && r.cfg.Hooks.OnSettle != nil {
			r.cfg.Hooks.OnSettle(n, scanned == nil)
		}
		if wait == 0 {
			wait = time.Hour // until something arrives
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-r.arrived:
		case <-scanned:
			scanned = nil // a nil channel is never ready
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
		t.Stop()
	}
}

// take returns suspects of one pair that are due, or how long to wait for the next (0: there is none).
func (r *run) take() (batch []*suspect, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	size := 0
	for len(r.queue) > 0 && len(batch) < lookIDs {
		s := r.queue[0]
		if s.due.After(now) {
			if len(batch) == 0 {
				wait = max(s.due.Sub(now), time.Millisecond)
			}
			break
		}
		if len(batch) > 0 && (s.p != batch[0].p || size+s.size > lookBytes || s.p.collated) {
			break
		}
		size += s.size
		batch = append(batch, heap.Pop(&r.queue).(*suspect))
	}
	return batch, wait
}

// look reads the documents of a batch on both sides and decides.
func (r *run) look(ctx context.Context, batch []*suspect) error {
	p := batch[0].p
	if batch[0].size >= bigDocument {
		select {
		case r.big <- struct{}{}:
			defer func() { <-r.big }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	before, err := r.source.lookup(ctx, &p.source, p.query, batch)
	if err != nil {
		return err
	}
	there, err := r.target.lookup(ctx, &p.target, nil, batch)
	if err != nil {
		return err
	}
	after := before
	if left := slices.DeleteFunc(slices.Clone(batch), func(s *suspect) bool { return p.same(before[s.key], there[s.key]) }); len(left) > 0 && !r.cfg.Quiet {
		// What the target has may be what the source has had since the first of the two reads.
		if after, err = r.source.lookup(ctx, &p.source, p.query, left); err != nil {
			return err
		}
	}
	r.decide(batch, before, there, after)
	return nil
}

func (r *run) decide(batch []*suspect, before, there, after map[string]bson.Raw) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, s := range batch {
		b, t := before[s.key], there[s.key]
		if s.p.same(b, t) {
			r.close(s, r.kindOfEqual(s, b), b, t)
			continue
		}
		a := after[s.key]
		if s.p.same(a, t) {
			r.close(s, r.kindOfEqual(s, a), a, t)
			continue
		}
		version := r.hash(a)
		if s.looks == 0 {
			s.first, s.since = now, now
		} else if version != s.version || !bytes.Equal(a, b) {
			s.since = now
		}
		s.version = version
		s.looks++
		settle := r.cfg.Settle
		if s.p.lasting >= hopeless {
			settle = min(settle, hopelessSettle)
		}
		switch {
		case r.cfg.Quiet || now.Sub(s.since) >= settle:
			s.p.lasting++
			r.close(s, kindOf(a, t), a, t)
		case now.Sub(s.first) >= patienceOfChange*settle:
			r.close(s, Changing, a, t)
		default:
			s.delay = min(max(2*s.delay, firstDelay), maxDelay)
			s.due = now.Add(min(s.delay, max(s.since.Add(settle).Sub(now), time.Millisecond)))
			heap.Push(&r.queue, s)
		}
	}
}

// kindOfEqual returns "" for a document that is equal, Moved for one that a comparison of quiet natural orders did not meet
// where it should be.
func (r *run) kindOfEqual(s *suspect, doc bson.Raw) string {
	if s.fromOrder && r.cfg.Quiet && doc != nil {
		return Moved
	}
	return ""
}

func kindOf(source, target bson.Raw) string {
	switch {
	case source == nil:
		return Extra
	case target == nil:
		return Missing
	}
	return Different
}

var seed = maphash.MakeSeed()

// hash tells versions of a document apart. 0 stands for none.
func (r *run) hash(doc bson.Raw) uint64 {
	if doc == nil {
		return 0
	}
	return maphash.Bytes(seed, doc) | 1
}

// lookup reads the documents of suspects by _id, as the server understands it, and returns them by the suspects' keys.
func (s *side) lookup(ctx context.Context, c *collection, query bson.Raw, batch []*suspect) (map[string]bson.Raw, error) {
	found := make(map[string]bson.Raw, len(batch))
	if !c.exists || len(batch) == 0 {
		return found, nil
	}
	ids := make(bson.A, len(batch))
	for i, one := range batch {
		ids[i] = one.id
	}
	raw, err := s.run(ctx, c.ns, s.limited(bson.D{
		{Key: "find", Value: c.ns.Coll},
		{Key: "filter", Value: and(bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, query)},
		{Key: "batchSize", Value: len(batch) + 1},
	}))
	if err != nil {
		return nil, err
	}
	r, err := parseReply(raw, len(batch))
	if err != nil {
		return nil, err
	}
	if r.cursor == 0 || len(batch) == 1 {
		for _, doc := range r.docs {
			key := canonical(idOf(doc))
			if len(batch) == 1 {
				key = batch[0].key // a collation may find another spelling
			}
			found[key] = doc
		}
	}
	if r.cursor == 0 {
		return found, nil
	}
	s.kill(ctx, c.ns, r.cursor)
	if len(batch) == 1 {
		return found, nil
	}
	// They are too large for one reply: by halves.
	for _, half := range [][]*suspect{batch[:len(batch)/2], batch[len(batch)/2:]} {
		part, err := s.lookup(ctx, c, query, half)
		if err != nil {
			return nil, err
		}
		for k, doc := range part {
			found[k] = doc
		}
	}
	return found, nil
}

// same reports whether two documents are equal as far as they are compared. nil stands for none.
func (p *pair) same(a, b bson.Raw) bool {
	if (a == nil) != (b == nil) {
		return false
	}
	return bytes.Equal(a, b) || p.newTS && equalButTS(a, b)
}
