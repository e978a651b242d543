package replicator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/record"
)

// pending is what a batch of changes makes of one document.
type pending struct {
	key   string
	id    bson.RawValue
	doc   bson.Raw // of an insert or replace; nil if it must be read, or if it is gone
	read  bool     // its present version must be read
	fresh bool     // inserted, and nothing else in this batch: it cannot be there
}

// collected is what a batch of changes makes of one collection.
type collected struct {
	c     CollectionState
	list  []pending
	place map[string]int // in list, by key
}

// apply applies changes of documents. The changes of one document become one: a change says which document, and what is written is
// what the last of them left, which is in the change itself (insert, replace) or is read at the source (update). So a
// replay, or an old change that meets a newer document, ends where the source is, whatever arrays were cut and fields
// moved. Collections are written side by side; all of it is done when apply returns.
func (l *Link) apply(ctx context.Context, records []record.Record) error {
	ops := make(map[string]int, 4)
	parts, at, wall := l.collect(records, ops)
	byCollection := make(map[string][]*collected)
	for _, p := range parts {
		byCollection[p.c.UUID] = append(byCollection[p.c.UUID], p)
	}
	var group errgroup.Group
	group.SetLimit(l.cfg.Workers)
	for _, list := range byCollection {
		group.Go(func() error {
			for _, p := range list {
				if err := l.applyCollection(ctx, p, at); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	l.told(ops, wall)
	return nil
}

// collect sorts changes by collection and document. A collection that is applied in series gets as many parts as it needs.
// at is the position of the last change.
func (l *Link) collect(records []record.Record, ops map[string]int) (parts []*collected, at record.Position, wall time.Time) {
	last := make(map[string]*collected)
	var applied, skipped int64
	for _, r := range records {
		if r.Kind != record.KindChange {
			continue
		}
		ch := r.Change
		at = r.Position
		wall = ch.Wall
		c, ok := l.collectionOf(ch.UUID)
		if !ok || c.Kind == KindCapped && ch.Op == "delete" {
			// Not of this route; dropped before the copy began; or what a capped collection pushed out, which nothing tells
			// from a user's delete: the destination's pushes out by itself.
			skipped++
			continue
		}
		ops[ch.Op]++
		applied++
		key := canonical(ch.Key)
		p := last[ch.UUID]
		if p != nil && c.Serial {
			if _, twice := p.place[key]; twice {
				p = nil // the order of a collection in series is that of its changes
			}
		}
		if p == nil {
			p = &collected{c: c, place: make(map[string]int)}
			parts = append(parts, p)
			last[ch.UUID] = p
		}
		p.add(key, ch)
	}
	l.mu.Lock()
	l.state.Totals.Applied += applied
	l.state.Totals.Skipped += skipped
	l.mu.Unlock()
	return parts, at, wall
}

func (p *collected) add(key string, ch *record.Change) {
	next := pending{key: key, id: ch.Key, doc: ch.Document, read: ch.Op == "update", fresh: ch.Op == "insert"}
	if p.c.Kind == KindCapped && ch.Op == "insert" {
		// After a copy or a restart this insert may have been applied, and its document pushed out since: written again, it would stand
		// behind newer ones and push these out. What the source still has can only be at the destination, or yet to come; what it has
		// not is not written.
		next.doc, next.read, next.fresh = nil, true, false
	}
	if i, ok := p.place[key]; ok {
		next.fresh = false
		p.list[i] = next
		return
	}
	p.place[key] = len(p.list)
	p.list = append(p.list, next)
}

// collectionOf returns the collection of the route with a UUID.
func (l *Link) collectionOf(uuid string) (CollectionState, bool) {
	if uuid == "" {
		return CollectionState{}, false
	}
	return l.find(func(c *CollectionState) bool { return c.UUID == uuid })
}

// collectionNamed returns the collection of the route that the source has under a name.
func (l *Link) collectionNamed(ns record.Namespace) (CollectionState, bool) {
	return l.find(func(c *CollectionState) bool { return c.Source == ns })
}

func (l *Link) find(is func(*CollectionState) bool) (CollectionState, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.state.Collections {
		if is(&l.state.Collections[i]) {
			return l.state.Collections[i], true
		}
	}
	return CollectionState{}, false
}

// applyCollection writes what a batch makes of one collection, in pieces whose present versions fit into memory. One piece is read
// while the one before is written: what is read too early is at least as new as its change all the same.
func (l *Link) applyCollection(ctx context.Context, p *collected, at record.Position) error {
	filter := l.set.Filter(p.c.Source)
	l.sift(p, filter)
	pieces := make(chan []pending) // unbuffered: one piece ahead
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(pieces)
		for rest := p.list; len(rest) > 0; {
			n := l.sizes.fit(p.c, rest)
			if err := l.readPresent(ctx, p.c, rest[:n], filter, at.TS); err != nil {
				return fmt.Errorf("read %s: %w", p.c.Source, err)
			}
			select {
			case pieces <- rest[:n]:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			rest = rest[n:]
		}
		return nil
	})
	group.Go(func() error {
		for list := range pieces {
			if err := l.writeAll(ctx, p.c, list, at); err != nil {
				return err
			}
		}
		return nil
	})
	err := group.Wait()
	if errors.Is(err, ErrGone) {
		return nil // its drop follows, and removes all of it
	}
	return err
}

// writeAll writes documents side by side, each document by the worker that its key belongs to, and settles what was refused when all
// have ended.
func (l *Link) writeAll(ctx context.Context, c CollectionState, list []pending, at record.Position) error {
	shares := make([][]Op, l.cfg.Workers)
	for _, one := range list {
		op, ok := one.op(c)
		if !ok {
			continue
		}
		w := 0
		if c.Serial {
			w = share(c.UUID, l.cfg.Workers)
		} else {
			w = share(one.key, l.cfg.Workers)
		}
		shares[w] = append(shares[w], op)
	}
	refused := make([][]Refusal, len(shares))
	var group errgroup.Group
	for w, ops := range shares {
		if len(ops) == 0 {
			continue
		}
		group.Go(func() (err error) {
			l.workers[w].Lock()
			defer l.workers[w].Unlock()
			refused[w], err = l.target.Apply(ctx, w, c.Target, ops, c.Serial)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("write to %s: %w", c.Target, err)
	}
	for w, list := range refused {
		if err := l.refused(ctx, c, list, at, func(i int) bson.RawValue { return shares[w][i].ID }); err != nil {
			return err
		}
	}
	return nil
}

// sift applies the filter to documents that came with their changes. One that does not match is removed at the destination: it may
// have matched before.
func (l *Link) sift(p *collected, filter bson.Raw) {
	if filter == nil {
		return
	}
	m := l.matchers.of(filter)
	if p.c.Serial {
		m = nil // a collation compares otherwise: the server knows
	}
	kept := p.list[:0]
	for _, one := range p.list {
		switch {
		case one.doc == nil:
		case m == nil:
			one.doc, one.read, one.fresh = nil, true, false
		case !m.Match(one.doc):
			if one.fresh {
				continue // it was never there
			}
			one.doc = nil
		}
		kept = append(kept, one)
	}
	p.list = kept
}

// readPresent reads the present versions of the documents that need it. Those that are not there, or do not match, are to be removed.
func (l *Link) readPresent(ctx context.Context, c CollectionState, list []pending, filter bson.Raw, at record.Timestamp) error {
	var ids []bson.RawValue
	for _, one := range list {
		if one.read {
			ids = append(ids, one.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	docs, err := l.source.Fetch(ctx, c.Source, c.UUID, ids, filter, at)
	if err != nil {
		return err
	}
	present := make(map[string]bson.Raw, len(docs))
	for _, doc := range docs {
		present[canonical(doc.Lookup(record.FieldID))] = doc
	}
	l.sizes.saw(c, docs)
	for i := range list {
		if one := &list[i]; one.read {
			one.doc = present[one.key]
		}
	}
	return nil
}

// op returns what is to be written, if anything.
func (p *pending) op(c CollectionState) (Op, bool) {
	switch {
	case p.doc == nil && p.read && c.Kind == KindCapped:
		return Op{}, false // pushed out at the source: the destination does so by itself
	case p.doc == nil:
		return Op{Verb: Remove, ID: p.id}, true
	case p.fresh:
		return Op{Verb: Insert, ID: p.id, Document: p.doc}, true
	}
	return Op{Verb: Put, ID: p.doc.Lookup(record.FieldID), Document: p.doc}, true
}

const (
	// readBytes bounds about how many bytes of documents are read at once to apply updates, readMost how many documents.
	readBytes = 16 << 20
	readMost  = 1000
	// readFirst is how many are read at once while nothing is known of a collection's documents.
	readFirst = 64
)

// sizes remembers the largest document that was read of each collection, so that a batch of updates of large documents is read in
// pieces. Safe for concurrent use.
type sizes struct {
	mu   sync.Mutex
	most map[string]int
}

// saw notes the sizes of documents.
func (s *sizes) saw(c CollectionState, docs []bson.Raw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, doc := range docs {
		s.most[c.UUID] = max(s.most[c.UUID], len(doc))
	}
}

// fit returns how many of list are applied together.
func (s *sizes) fit(c CollectionState, list []pending) int {
	s.mu.Lock()
	most := s.most[c.UUID]
	s.mu.Unlock()
	limit := readFirst
	if most > 0 {
		limit = min(max(readBytes/most, 1), readMost)
	}
	reads := 0
	for i, one := range list {
		if one.read {
			if reads++; reads > limit {
				return i
			}
		}
	}
	return len(list)
}
