package replicator

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/record"
)

// copyRange copies one range from where it stands. One window is read while the one before is written.
func (l *Link) copyRange(ctx context.Context, worker int, t task, c CollectionState, d Collection) error {
	windows := make(chan Window) // unbuffered: one window ahead, and no more memory than two
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(windows)
		return l.readRange(ctx, c, d, c.Ranges[t.part], windows)
	})
	group.Go(func() error {
		r := c.Ranges[t.part]
		for w := range windows {
			from := r.At
			if from.IsZero() {
				from = r.From
			}
			to := w.At
			if w.Done {
				to = r.To
			}
			written, err := l.writeWindow(ctx, worker, c, r, w, from, to)
			if err != nil {
				return err
			}
			r.At, r.Done = w.At, w.Done
			r.Scanned += w.Scanned
			r.Matched += int64(len(w.Documents))
			l.advance(t, r, w, written)
		}
		return nil
	})
	return group.Wait()
}

func (l *Link) readRange(ctx context.Context, c CollectionState, d Collection, r Range, windows chan<- Window) error {
	filter := l.set.Filter(c.Source)
	for !r.Done {
		w, err := l.source.Window(ctx, d, r, l.cfg.Window, filter, c.Seen)
		if errors.Is(err, ErrGone) {
			// Dropped meanwhile: the change that says so follows. What was copied is removed by it.
			w, err = Window{At: r.At, Done: true}, nil
		}
		if err != nil {
			return err
		}
		r.At, r.Done = w.At, w.Done
		select {
		case windows <- w:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// writeWindow writes the documents of a window, and in a resync removes what the source does not have in (from, to]. It returns how many
// bytes were written.
func (l *Link) writeWindow(ctx context.Context, worker int, c CollectionState, r Range, w Window, from, to record.ID) (int64, error) {
	wctx, cancel := drained(ctx)
	defer cancel()
	l.mu.Lock()
	compare := l.state.Resync && !r.Natural && !l.cfg.Shared // what others have written is none of the source's
	l.mu.Unlock()
	if compare {
		if err := l.removeOthers(wctx, worker, c, w.Documents, from, to); err != nil {
			return 0, err
		}
	}
	if len(w.Documents) == 0 {
		return 0, nil
	}
	refused, err := l.target.Insert(wctx, c.Target, w.Documents, r.Natural)
	if err != nil {
		return 0, fmt.Errorf("write to %s: %w", c.Target, err)
	}
	var size int64
	for _, doc := range w.Documents {
		size += int64(len(doc))
	}
	return size, l.refused(wctx, c, refused, record.Position{}, func(i int) bson.RawValue { return w.Documents[i].Lookup(record.FieldID) })
}

// removeOthers removes the documents of the destination with an _id in (from, to] that is none of docs'.
func (l *Link) removeOthers(ctx context.Context, worker int, c CollectionState, docs []bson.Raw, from, to record.ID) error {
	ours := make(map[record.ID]struct{}, len(docs))
	for _, doc := range docs {
		ours[record.IDOf(doc.Lookup(record.FieldID))] = struct{}{}
	}
	for {
		ids, err := l.target.IDs(ctx, c.Target, from, to, idsAtOnce)
		if err != nil {
			return fmt.Errorf("compare with %s: %w", c.Target, err)
		}
		var ops []Op
		for _, id := range ids {
			if _, ok := ours[record.IDOf(id)]; !ok {
				ops = append(ops, Op{Verb: Remove, ID: id})
			}
		}
		if len(ops) > 0 {
			if _, err := l.target.Apply(ctx, worker, c.Target, ops, false); err != nil {
				return fmt.Errorf("remove from %s what the source does not have: %w", c.Target, err)
			}
		}
		if len(ids) < idsAtOnce {
			return nil
		}
		from = record.IDOf(ids[len(ids)-1])
	}
}

// advance notes how far a range is.
func (l *Link) advance(t task, r Range, w Window, written int64) {
	l.set1(func() {
		l.state.Collections[t.collection].Ranges[t.part] = r
		l.state.Totals.Scanned += w.Scanned
		l.state.Totals.Matched += int64(len(w.Documents))
		l.state.Totals.CopiedBytes += written
		l.view.rate.add(w.Scanned, written)
		l.view.lastError = ""
		l.unsaved = true
	})
	if l.cfg.Hooks.OnCopied != nil {
		l.cfg.Hooks.OnCopied(w.Scanned, int64(len(w.Documents)), written)
	}
}
