package replicator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// rangeDocuments is about how many documents a range should have at least.
	rangeDocuments = 50_000
	// rangesPerReader bounds the ranges of one collection: more than readers, so that one slow range does not leave the others idle.
	rangesPerReader = 3
	// idsAtOnce is how many _ids of the destination are read at once when a window is compared.
	idsAtOnce = 20_000
)

// task is one range of one collection, by their places in the state.
type task struct{ collection, part int }

// copy makes the initial copy, or that of a resync, and then the state catching-up.
func (l *Link) copy(ctx context.Context) error {
	l.show(PhaseCopying)
	l.mu.Lock()
	planned := !l.state.Start.IsZero()
	l.mu.Unlock()
	if !planned {
		if err := l.plan(ctx); err != nil {
			return err
		}
	}
	if err := l.copyRest(ctx); err != nil {
		return err
	}
	l.set1(func() { l.state.Phase, l.state.WasLive, l.unsaved = PhaseCatchingUp, false, true })
	l.log.Info().Msg("the copy is done")
	if err := l.save(ctx); err != nil {
		return err
	}
	if l.cfg.Until == UntilCopied {
		return errReached
	}
	return nil
}

// copyRest copies what is not copied yet.
func (l *Link) copyRest(ctx context.Context) error {
	l.mu.Lock()
	rest := false
	for _, c := range l.state.Collections {
		rest = rest || !c.Copied
	}
	l.mu.Unlock()
	if !rest {
		return nil
	}
	found, err := l.source.Collections(ctx, l.set)
	if err != nil {
		return fmt.Errorf("list the source's collections: %w", err)
	}
	work := copying{link: l, described: make(map[string]Collection), tasks: make(chan task), left: make(map[int]int)}
	for _, c := range found {
		work.described[c.identity()] = c
	}
	return work.run(ctx)
}

// identity is the UUID, or the name of a view.
func (c Collection) identity() string {
	if c.UUID == "" {
		return c.Name.String()
	}
	return c.UUID
}

func (c CollectionState) identity() string {
	if c.UUID == "" {
		return c.Source.String()
	}
	return c.UUID
}

// copying is one run of the copy.
type copying struct {
	link      *Link
	described map[string]Collection // what the source says now, by identity
	tasks     chan task

	mu   sync.Mutex
	left map[int]int // ranges of a collection that are not done
}

func (w *copying) run(ctx context.Context) error {
	group, all := errgroup.WithContext(ctx) // all ends with Wait; the views come after it
	for worker := range w.link.cfg.Readers {
		group.Go(func() error {
			for t := range w.tasks {
				if err := w.part(all, worker, t); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(w.tasks)
		return w.hand(all)
	})
	if err := group.Wait(); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return context.Cause(ctx)
		}
		return err
	}
	return w.views(ctx)
}

// hand prepares one collection after the other and hands its ranges out.
func (w *copying) hand(ctx context.Context) error {
	l := w.link
	for i := 0; ; i++ {
		l.mu.Lock()
		if i >= len(l.state.Collections) {
			l.mu.Unlock()
			return nil
		}
		c := l.state.Collections[i]
		l.mu.Unlock()
		if c.Copied || c.Kind == KindView {
			continue
		}
		d, ok := w.described[c.identity()]
		if !ok {
			// Dropped, or renamed to a name that takes no part: the changes say so in their turn.
			l.finish(i)
			continue
		}
		parts, err := w.prepare(ctx, i, c, d)
		if err != nil {
			return err
		}
		if len(parts) == 0 {
			if err := w.complete(ctx, i); err != nil {
				return err
			}
			continue
		}
		w.mu.Lock()
		w.left[i] = len(parts)
		w.mu.Unlock()
		for _, part := range parts {
			select {
			case w.tasks <- task{i, part}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// prepare makes the collection at the destination and cuts it into ranges, unless an earlier run did; it returns those that are not done.
func (w *copying) prepare(ctx context.Context, i int, c CollectionState, d Collection) ([]int, error) {
	l := w.link
	if !c.Created || c.Ranges == nil {
		if err := l.create(ctx, c, d, UniqueIndexes); err != nil {
			return nil, err
		}
		n := int(min(int64(l.cfg.Readers*rangesPerReader), d.Documents/rangeDocuments+1))
		ranges, err := l.source.Split(ctx, d, n)
		if err != nil && !errors.Is(err, ErrGone) {
			return nil, fmt.Errorf("split %s: %w", c.Source, err)
		}
		l.set1(func() {
			l.state.Collections[i].Ranges, l.state.Collections[i].Created, l.unsaved = ranges, true, true
		})
		c.Ranges = ranges
		if err := l.save(ctx); err != nil {
			return nil, err
		}
	}
	var parts []int
	for j, r := range c.Ranges {
		if !r.Done {
			parts = append(parts, j)
		}
	}
	return parts, nil
}

// create makes a collection at the destination, with some of its indexes or all.
func (l *Link) create(ctx context.Context, c CollectionState, d Collection, phase IndexPhase) error {
	d.Name = c.Target
	held, notes, err := l.target.Create(ctx, d, CreateOptions{HoldTTL: !l.cfg.KeepTTL, Secondary: phase})
	// It makes the unique indexes in each of its phases: what an earlier one could not make is made now, or delayed again.
	l.punctual(c.Target, nil)
	if err = l.delay(err); err != nil {
		return fmt.Errorf("create %s at the destination: %w", c.Target, err)
	}
	l.hold(held)
	for _, n := range notes {
		l.note(n)
	}
	return nil
}

// part copies one range.
func (w *copying) part(ctx context.Context, worker int, t task) error {
	l := w.link
	l.mu.Lock()
	c := l.state.Collections[t.collection]
	l.mu.Unlock()
	d, ok := w.described[c.identity()]
	if !ok {
		return nil
	}
	if err := l.copyRange(ctx, worker, t, c, d); err != nil {
		return fmt.Errorf("copy %s: %w", c.Source, err)
	}
	w.mu.Lock()
	w.left[t.collection]--
	last := w.left[t.collection] == 0
	w.mu.Unlock()
	if !last {
		return nil
	}
	return w.complete(ctx, t.collection)
}

// complete makes the indexes that are made after the copy.
func (w *copying) complete(ctx context.Context, i int) error {
	l := w.link
	l.mu.Lock()
	c := l.state.Collections[i]
	l.mu.Unlock()
	if err := l.create(ctx, c, w.described[c.identity()], AllIndexes); err != nil {
		return err
	}
	l.finish(i)
	return l.save(ctx)
}

func (l *Link) finish(i int) {
	l.set1(func() { l.state.Collections[i].Copied, l.state.Collections[i].Created, l.unsaved = true, true, true })
}

// views makes the views, once what they look at is there.
func (w *copying) views(ctx context.Context) error {
	l := w.link
	l.mu.Lock()
	list := l.state.clone().Collections
	l.mu.Unlock()
	for i, c := range list {
		if c.Copied || c.Kind != KindView {
			continue
		}
		if d, ok := w.described[c.identity()]; ok {
			options, note := l.viewOptions(c.Source, d.Options)
			if note != "" {
				l.note(note)
			}
			if d.Options = options; options != nil {
				if err := l.create(ctx, c, d, AllIndexes); err != nil {
					return err
				}
			}
		}
		l.finish(i)
	}
	return nil
}

// viewOptions returns the options of a view with the destination's name of what it looks at, or nil and why it cannot be there.
func (l *Link) viewOptions(view record.Namespace, options bson.Raw) (bson.Raw, string) {
	on, _ := options.Lookup("viewOn").StringValueOK()
	base := record.Namespace{DB: view.DB, Coll: on}
	to := l.set.Target(base)
	if to.DB != l.set.Target(view).DB {
		return nil, fmt.Sprintf("view %s is on %s, which goes to another database of the destination: it is not replicated", view, base)
	}
	note := ""
	if !l.set.Matches(base) {
		note = fmt.Sprintf("view %s is on %s, which takes no part: it will be empty", view, base)
	}
	if to.Coll == on {
		return options, note
	}
	elems, err := options.Elements()
	if err != nil {
		return nil, fmt.Sprintf("view %s has options that are no BSON: %v", view, err)
	}
	var d bson.D
	for _, e := range elems {
		if e.Key() == "viewOn" {
			d = append(d, bson.E{Key: "viewOn", Value: to.Coll})
			continue
		}
		d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
	}
	renamed, err := bson.Marshal(d)
	if err != nil {
		return nil, fmt.Sprintf("view %s: %v", view, err)
	}
	return renamed, note
}
