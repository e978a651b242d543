package verify

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// byLookup compares a pair whose servers order _ids differently, because the collations differ: what one side holds is
// looked for at the other by _id, first from the source and then from the target. Twice the work, and no order is needed.
func (r *run) byLookup(ctx context.Context, p *pair) error {
	r.mu.Lock()
	p.state.report.Compared = "documents by _id, each looked for at the other side (the collations differ)"
	n := &p.state.report
	n.SourceDocuments, n.TargetDocuments, n.Scanned, n.Equal = 0, 0, 0, 0
	r.mu.Unlock()
	err := r.eachPage(ctx, p, r.source, func(pg page, batch []*suspect) error {
		there, err := r.target.lookup(ctx, &p.target, nil, batch)
		if err != nil {
			return err
		}
		w := &window{p: p, source: pg, scanned: int64(len(pg.docs))}
		for i, s := range batch {
			if bytes.Equal(pg.docs[i], there[s.key]) {
				w.equal++
			} else {
				w.suspects = append(w.suspects, s)
			}
		}
		return r.commit(ctx, p, &span{}, w)
	})
	if err != nil {
		return err
	}
	return r.eachPage(ctx, p, r.target, func(pg page, batch []*suspect) error {
		there, err := r.source.lookup(ctx, &p.source, p.query, batch)
		if err != nil {
			return err
		}
		w := &window{p: p, target: pg}
		for _, s := range batch {
			if there[s.key] == nil { // what both have was compared before
				w.suspects = append(w.suspects, s)
			}
		}
		return r.commit(ctx, p, &span{}, w)
	})
}

// eachPage calls do for every page of one side.
func (r *run) eachPage(ctx context.Context, p *pair, s *side, do func(page, []*suspect) error) error {
	c, query := &p.target, bson.Raw(nil)
	if s == r.source {
		c, query = &p.source, p.query
	}
	for _, lo := range []bson.RawValue{{}, maxKey} {
		for {
			pg, err := s.page(ctx, c, query, lo, bson.RawValue{}, lookIDs)
			if err != nil {
				return err
			}
			batch := make([]*suspect, len(pg.docs))
			for i, doc := range pg.docs {
				batch[i] = newSuspect(p, canonical(idOf(doc)), idOf(doc), len(doc))
			}
			if err := do(pg, batch); err != nil {
				return err
			}
			if !pg.full {
				break
			}
			lo = pg.boundary
		}
	}
	return nil
}
