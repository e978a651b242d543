package verify

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// firstLimit is how many documents the first window of a range holds: nothing is known of their size.
	firstLimit = 100
	// maxLimit bounds the documents of a window.
	maxLimit = 20_000
	// growth bounds how much larger a window is than the last one.
	growth = 8
	// probeKeys is how many keys of the _id index one window of a filtered source covers: few may pass.
	probeKeys = 20_000
	// bigDocument is the mean size from which on only one window is read at a time: a reply may have 16 MB.
	bigDocument = 1 << 20
)

var byID = bson.D{{Key: "_id", Value: 1}}

// page is what one side holds of a window [lo, hi): its documents in the order of the _id index, as many as fit.
type page struct {
	docs  []bson.Raw
	batch []byte // the documents, and the one at boundary, as sent
	bytes int
	// full: there may be more in the window, from the _id boundary on.
	full     bool
	boundary bson.RawValue
}

// page reads [lo, hi) of one side; a zero lo or hi is open. It uses min and max on the _id index, which, unlike comparisons in
// a query, know no brackets of types: an _id of any type is found. Only MaxKey lies behind the open end, except in a
// clustered collection, where it is dropped here: it has a window of its own (lo is MaxKey).
func (s *side) page(ctx context.Context, c *collection, query bson.Raw, lo, hi bson.RawValue, limit int) (page, error) {
	if !c.exists {
		return page{}, nil
	}
	raw, err := s.runSmaller(ctx, c.ns, func(failed int) bson.D {
		limit = max(limit>>min(failed, 1), 1)
		return s.limited(c.pageCommand(query, lo, hi, limit+1))
	})
	if err != nil {
		return page{}, err
	}
	r, err := parseReply(raw, limit+1)
	if err != nil {
		return page{}, err
	}
	if r.cursor != 0 {
		s.kill(ctx, c.ns, r.cursor)
	}
	p := page{docs: r.docs, batch: r.batch, bytes: r.bytes}
	n := len(p.docs)
	if n == 0 || lo.Type == bson.TypeMaxKey {
		return p, nil
	}
	last := idOf(p.docs[n-1])
	switch {
	case last.Type == bson.TypeMaxKey:
		p.docs = p.docs[:n-1]
	case n > limit, r.cursor != 0 && n > 1:
		p.docs, p.full, p.boundary = p.docs[:n-1], true, last
	case r.cursor != 0: // one document of many megabytes: the next one's _id is asked for alone
		p.boundary, p.full, err = s.nextID(ctx, c, query, last, hi, 1)
	}
	return p, err
}

func (c *collection) pageCommand(query bson.Raw, lo, hi bson.RawValue, limit int) bson.D {
	cmd := bson.D{{Key: "find", Value: c.ns.Coll}}
	if lo.Type == bson.TypeMaxKey {
		return append(cmd, bson.E{Key: "filter", Value: and(bson.D{{Key: "_id", Value: bson.MaxKey{}}}, query)})
	}
	if query != nil {
		cmd = append(cmd, bson.E{Key: "filter", Value: query})
	}
	cmd = append(cmd, bson.E{Key: "hint", Value: byID}, bson.E{Key: "limit", Value: limit}, bson.E{Key: "batchSize", Value: limit})
	if lo.Type != 0 {
		cmd = append(cmd, bson.E{Key: "min", Value: bson.D{{Key: "_id", Value: lo}}})
	}
	if hi.Type != 0 {
		cmd = append(cmd, bson.E{Key: "max", Value: bson.D{{Key: "_id", Value: hi}}})
	}
	return cmd
}

func and(a bson.D, query bson.Raw) bson.D {
	if query == nil {
		return a
	}
	return bson.D{{Key: "$and", Value: bson.A{a, query}}}
}

// nextID returns the _id skip documents behind lo, if it is before hi. Without a query only the index is read.
func (s *side) nextID(ctx context.Context, c *collection, query bson.Raw, lo, hi bson.RawValue, skip int) (bson.RawValue, bool, error) {
	raw, err := s.runSmaller(ctx, c.ns, func(failed int) bson.D {
		skip = max(skip>>min(failed, 1), 1)
		return s.limited(append(c.pageCommand(query, lo, hi, 1), bson.E{Key: "skip", Value: skip},
			bson.E{Key: "projection", Value: byID}, bson.E{Key: "singleBatch", Value: true}))
	})
	if err != nil {
		return bson.RawValue{}, false, err
	}
	r, err := parseReply(raw, 1)
	if err != nil || len(r.docs) == 0 {
		return bson.RawValue{}, false, err
	}
	id := idOf(r.docs[0])
	return id, id.Type != bson.TypeMaxKey, nil
}

// scanner compares one range of a pair, window by window. It belongs to one goroutine.
type scanner struct {
	*run
	p     *pair
	limit int
	mean  int // bytes of a document, of the last window
}

// scan compares a range from where it is to its end.
func (sc *scanner) scan(ctx context.Context, s *span) error {
	for {
		lo, done := sc.at(s)
		if done {
			return nil
		}
		unlock, err := sc.reserve(ctx)
		if err != nil {
			return err
		}
		w, err := sc.window(ctx, lo, s.hi)
		if err == nil {
			w.compare()
		}
		unlock()
		if err != nil {
			return err
		}
		sc.adapt(w)
		if err := sc.commit(ctx, sc.p, s, w); err != nil {
			return err
		}
	}
}

// reserve lets only one window of large documents be in memory.
func (sc *scanner) reserve(ctx context.Context) (unlock func(), err error) {
	if sc.mean < bigDocument {
		return func() {}, nil
	}
	select {
	case sc.big <- struct{}{}:
		return func() { <-sc.big }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// adapt chooses the size of the next window.
func (sc *scanner) adapt(w *window) {
	n := max(len(w.source.docs), len(w.target.docs))
	if n == 0 {
		sc.limit = min(sc.limit*growth, maxLimit)
		return
	}
	sc.mean = max(w.source.bytes, w.target.bytes) / n
	sc.limit = max(min(sc.cfg.Window/max(sc.mean, 1), sc.limit*growth, maxLimit), 1)
}

// window is one range [lo, next) of _ids as both sides have it.
type window struct {
	p              *pair
	source, target page
	next           bson.RawValue
	end            bool // the range ends here

	scanned  int64
	equal    int64
	suspects []*suspect
}

// window reads the next window of both sides. What it returns is complete: every document of both sides in [lo, next).
//
// Both sides are asked at once. Where they hold the same, they stop at the same _id. Where they do not, the window is cut at
// the first side's end and the other side is asked again, which is rare and needs no idea of how a server orders _ids, by
// type, value and collation: only servers compare them here.
func (sc *scanner) window(ctx context.Context, lo, end bson.RawValue) (*window, error) {
	w := &window{p: sc.p}
	hi := end
	var probed bson.RawValue
	if sc.p.query != nil && sc.p.source.exists && lo.Type != bson.TypeMaxKey {
		id, found, err := sc.source.nextID(ctx, &sc.p.source, nil, lo, end, probeKeys)
		if err != nil {
			return nil, err
		}
		if found {
			hi, probed = id, id
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { w.source, err = sc.read(gctx, sc.source, lo, hi); return err })
	g.Go(func() (err error) { w.target, err = sc.read(gctx, sc.target, lo, hi); return err })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for {
		var err error
		s, t := &w.source, &w.target
		switch {
		case !s.full && !t.full:
			w.next, w.end = hi, sameValue(hi, end)
			if probed.Type != 0 && sameValue(hi, probed) {
				w.scanned = probeKeys
			}
			return w, nil
		case s.full && t.full && sameValue(s.boundary, t.boundary):
			w.next = s.boundary
			return w, nil
		case s.full:
			hi, s.full = s.boundary, false
			*t, err = sc.read(ctx, sc.target, lo, hi)
		default:
			hi, t.full = t.boundary, false
			*s, err = sc.read(ctx, sc.source, lo, hi)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (sc *scanner) read(ctx context.Context, s *side, lo, hi bson.RawValue) (page, error) {
	if s == sc.source {
		return s.page(ctx, &sc.p.source, sc.p.query, lo, hi, sc.limit)
	}
	return s.page(ctx, &sc.p.target, nil, lo, hi, sc.limit)
}

// compare finds the documents that differ (I9). Mostly it is one comparison of two stretches of memory.
func (w *window) compare() {
	s, t := w.source.docs, w.target.docs
	w.scanned = max(w.scanned, int64(len(s)))
	if len(s) == len(t) && bytes.Equal(w.source.batch, w.target.batch) {
		w.equal = int64(len(s))
		return
	}
	i := 0
	for i < len(s) && i < len(t) && bytes.Equal(s[i], t[i]) {
		i++
	}
	w.equal += int64(i)
	s, t = s[i:], t[i:]
	there := make(map[string]bson.Raw, len(t))
	for _, doc := range t {
		there[canonical(idOf(doc))] = doc
	}
	for _, doc := range s {
		key := canonical(idOf(doc))
		other, ok := there[key]
		delete(there, key)
		if ok && bytes.Equal(doc, other) {
			w.equal++
		} else {
			w.suspects = append(w.suspects, newSuspect(w.p, key, idOf(doc), max(len(doc), len(other))))
		}
	}
	for _, doc := range t { // in order
		key := canonical(idOf(doc))
		if _, left := there[key]; left {
			w.suspects = append(w.suspects, newSuspect(w.p, key, idOf(doc), len(doc)))
		}
	}
}

// collection is one side of a pair.
type collection struct {
	ns      record.Namespace
	exists  bool
	uuid    string
	kind    string
	options bson.Raw
	indexes map[string]bson.Raw
}

// pair is a collection of the source and the one at the target that should be equal.
type pair struct {
	source, target collection
	query          bson.Raw // the route's filter, nil: all documents
	// collated: an _id is not known by its bytes alone.
	collated bool
	// newTS: "ts" and the primer are not compared.
	newTS bool
	state *state
	// lasting counts the documents that stayed different; guarded by run.mu.
	lasting int
}
