package verify

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/retry"
)

const (
	// beginning is among how many of the oldest documents of each side a common one is looked for.
	beginning = 1000
	// maxPasses is how often a capped collection is read from its oldest document before the run gives up.
	maxPasses = 20
)

// order compares a pair of capped collections: their documents, in natural order. A position in natural order cannot be
// gone back to, so what breaks a cursor begins the collection again.
func (r *run) order(ctx context.Context, p *pair) error {
	loop := retry.New(retry.Policy{})
	begin := time.Now()
	for {
		o := &ordering{run: r, p: p}
		err := o.pass(ctx)
		switch {
		case err == nil:
			return r.settleOrder(ctx, o)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case mongoerr.Classify(err).Read != mongoerr.ReadRetry:
			return err
		case loop.Attempts()+1 >= maxPasses && time.Since(begin) > r.cfg.Patience:
			return fmt.Errorf("read in natural order (%d attempts; the collection may roll over faster than it can be read): %w", loop.Attempts()+1, err)
		}
		if f := r.cfg.Hooks.OnRetry; f != nil {
			f(o.where, err)
		}
		if err := loop.Wait(ctx, err); err != nil {
			return err
		}
	}
}

// ordering is one pass over a pair of capped collections. It belongs to one goroutine.
type ordering struct {
	*run
	p              *pair
	src, dst       *tape
	where          string // the side that was read last
	compared       string
	equal          int64
	moved          []bson.RawValue
	movedCount     int64
	olderS, olderT int64
	// missing and extra are documents that one side had not where the other has it; if the other comes to it later, it was
	// moved far. late lists those that are neither.
	missing, extra map[string]entry
	different      []entry
}

func (o *ordering) pass(ctx context.Context) (err error) {
	o.missing, o.extra = make(map[string]entry), make(map[string]entry)
	if o.src, err = o.source.openTape(ctx, o.p, &o.p.source, o.p.query); err == nil {
		defer o.src.close(ctx)
		if o.dst, err = o.target.openTape(ctx, o.p, &o.p.target, nil); err == nil {
			defer o.dst.close(ctx)
		}
	}
	if err != nil {
		return err
	}
	if err := o.align(ctx); err != nil {
		return err
	}
	said := int64(0)
	for {
		s, t, err := o.heads(ctx)
		if err != nil {
			return err
		}
		if s == nil && t == nil {
			return nil
		}
		if err := o.step(ctx, s, t); err != nil {
			return err
		}
		if f := o.cfg.Hooks.OnWindow; f != nil && o.src.read-said >= tapeBatch {
			f(o.p.source.ns, o.src.read-said, 0)
			said = o.src.read
		}
	}
}

// heads returns the next entry of both sides. Both are filled at the same time.
func (o *ordering) heads(ctx context.Context) (s, t *entry, err error) {
	if low := lookAhead / 2; len(o.src.entries) < low && !o.src.ended || len(o.dst.entries) < low && !o.dst.ended {
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() error { return o.src.fill(gctx, lookAhead) })
		g.Go(func() error { return o.dst.fill(gctx, lookAhead) })
		if err := g.Wait(); err != nil {
			return nil, nil, err
		}
	}
	if s, err = o.src.head(ctx); err == nil {
		t, err = o.dst.head(ctx)
	}
	return s, t, err
}

// step compares the two next entries.
func (o *ordering) step(ctx context.Context, s, t *entry) error {
	switch {
	case s != nil && t != nil && s.key == t.key:
		o.same(o.src.pop(), o.dst.pop())
		return nil
	case s == nil:
		return o.only(ctx, o.dst, o.extra, o.missing)
	case t == nil:
		return o.only(ctx, o.src, o.missing, o.extra)
	}
	inT, farT := o.dst.find(s.key)
	inS, farS := o.src.find(t.key)
	switch {
	case inT == nil:
		return o.only(ctx, o.src, o.missing, o.extra)
	case inS == nil:
		return o.only(ctx, o.dst, o.extra, o.missing)
	case farT >= farS: // the one that went further is the one that was moved
		inT.taken = true
		o.move(o.src.pop(), *inT)
	default:
		inS.taken = true
		o.move(*inS, o.dst.pop())
	}
	return nil
}

func (o *ordering) same(s, t entry) {
	if s.hash == t.hash && sameValue(s.id, t.id) {
		o.equal++
		return
	}
	s.size = max(s.size, t.size)
	o.different = append(o.different, s)
}

func (o *ordering) move(s, t entry) {
	if s.hash != t.hash {
		o.different = append(o.different, s)
		return
	}
	o.movedCount++
	if len(o.moved) < o.cfg.MaxDifferences {
		o.moved = append(o.moved, s.id)
	}
}

// only takes an entry that the other side does not have near. If it is one that the other side had far before, it was moved.
func (o *ordering) only(ctx context.Context, from *tape, here, there map[string]entry) error {
	e := from.pop()
	if other, ok := there[e.key]; ok {
		delete(there, e.key)
		o.move(e, other)
		return nil
	}
	here[e.key] = e
	if len(here)+len(there) < maxPending {
		return nil
	}
	return o.flush(ctx)
}

// flush hands what differs so far to the judge.
func (o *ordering) flush(ctx context.Context) error {
	var list []*suspect
	add := func(e entry, order bool) {
		s := newSuspect(o.p, e.key, e.id, e.size)
		s.fromOrder = order
		list = append(list, s)
	}
	for _, m := range []map[string]entry{o.missing, o.extra} {
		for _, e := range m {
			add(e, true)
		}
		clear(m)
	}
	for _, e := range o.different {
		add(e, false)
	}
	o.different = nil
	if err := o.waitForRoom(ctx, len(list)); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.suspect(list...)
	return nil
}

// settleOrder adds the result of a whole pass.
func (r *run) settleOrder(ctx context.Context, o *ordering) error {
	if err := o.flush(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &o.p.state.report
	n.Compared = o.compared
	n.SourceDocuments, n.TargetDocuments, n.Scanned, n.Bytes = o.src.read, o.dst.read, o.src.read, o.src.bytes
	n.Equal += o.equal
	n.OlderAtSource, n.OlderAtTarget = o.olderS, o.olderT
	for _, id := range o.moved {
		r.differ(n, Moved, id, nil)
	}
	n.Moved += o.movedCount - int64(len(o.moved))
	return nil
}

// align finds where the two begin to be comparable: a side that may have rolled over holds fewer old documents than the
// other, and those are not compared.
func (o *ordering) align(ctx context.Context) error {
	if err := o.src.fill(ctx, lookAhead); err != nil {
		return err
	}
	if err := o.dst.fill(ctx, lookAhead); err != nil {
		return err
	}
	o.compared = "documents in natural order, from the oldest on"
	if len(o.src.entries) == 0 || len(o.dst.entries) == 0 {
		return nil
	}
	firstT, err := o.firstIn(ctx, o.dst, o.source, &o.p.source, o.p.query)
	if err != nil {
		return err
	}
	firstS, err := o.firstIn(ctx, o.src, o.target, &o.p.target, nil)
	if err != nil {
		return err
	}
	switch {
	case firstT != "" && firstS == "": // the source holds many that the target does not
		if rolled, err := o.target.rolled(ctx, &o.p.target); err != nil || !rolled {
			return err
		}
		o.compared = "documents in natural order, from the target's oldest on (it has rolled over the older ones)"
		return o.skip(ctx, o.src, firstT, &o.olderS)
	case firstS != "" && firstT == "":
		if rolled, err := o.source.rolled(ctx, &o.p.source); err != nil || !rolled {
			return err
		}
		o.compared = "documents in natural order, from the source's oldest on (it has rolled over the older ones)"
		return o.skip(ctx, o.dst, firstS, &o.olderT)
	}
	return o.alignNear(ctx, firstS, firstT)
}

// alignNear aligns two that have a document in common among the oldest of both.
func (o *ordering) alignNear(ctx context.Context, firstS, firstT string) error {
	if firstS == "" || firstS != firstT {
		return nil
	}
	_, aheadS := o.src.find(firstS)
	_, aheadT := o.dst.find(firstT)
	if aheadS > 0 && aheadT == 0 {
		rolled, err := o.target.rolled(ctx, &o.p.target)
		if err != nil || !rolled {
			return err
		}
		o.compared = "documents in natural order, from the target's oldest on (it has rolled over the older ones)"
		return o.skip(ctx, o.src, firstT, &o.olderS)
	}
	if aheadT > 0 && aheadS == 0 {
		rolled, err := o.source.rolled(ctx, &o.p.source)
		if err != nil || !rolled {
			return err
		}
		o.compared = "documents in natural order, from the source's oldest on (it has rolled over the older ones)"
		return o.skip(ctx, o.dst, firstS, &o.olderT)
	}
	return nil
}

// firstIn returns the key of the first of a tape's oldest documents that the other side has, "" if it has none of them.
func (o *ordering) firstIn(ctx context.Context, t *tape, other *side, c *collection, query bson.Raw) (string, error) {
	var batch []*suspect
	for _, e := range t.entries[:min(len(t.entries), beginning)] {
		batch = append(batch, newSuspect(o.p, e.key, e.id, e.size))
	}
	for len(batch) > 0 {
		n, size := 0, 0
		for n < len(batch) && n < lookIDs && (n == 0 || size+batch[n].size <= lookBytes) {
			size += batch[n].size
			n++
		}
		found, err := other.lookup(ctx, c, query, batch[:n])
		if err != nil {
			return "", err
		}
		for _, s := range batch[:n] {
			if found[s.key] != nil {
				return s.key, nil
			}
		}
		batch = batch[n:]
	}
	return "", nil
}

// skip passes over the entries before a key.
func (o *ordering) skip(ctx context.Context, t *tape, key string, count *int64) error {
	for {
		e, err := t.head(ctx)
		if err != nil || e == nil || e.key == key {
			return err
		}
		t.pop()
		*count++
	}
}

// rolled reports whether a capped collection may have evicted documents: whether it is nearly full.
func (s *side) rolled(ctx context.Context, c *collection) (bool, error) {
	raw, err := s.run(ctx, c.ns, bson.D{{Key: "collStats", Value: c.ns.Coll}})
	if err != nil {
		return false, err
	}
	number := func(name string) int64 {
		n, _ := raw.Lookup(name).AsInt64OK()
		return n
	}
	limit := number("max")
	return limit > 0 && number("count") >= limit || number("size")+number("avgObjSize")*2 >= number("maxSize"), nil
}
