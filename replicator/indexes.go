package replicator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// lateFirst and lateMost are the least and the most time between two attempts at changes that were delayed: building an index in
	// vain reads the collection.
	lateFirst = time.Second
	lateMost  = 5 * time.Minute
)

// hold remembers TTL indexes that are held back, and forgets those that expire nothing any more.
func (l *Link) hold(held []Held) {
	if len(held) == 0 {
		return
	}
	l.set1(func() {
		for _, h := range held {
			l.state.Held = slices.DeleteFunc(l.state.Held, func(old Held) bool { return old.Namespace == h.Namespace && old.Index == h.Index })
			if h.Seconds >= 0 {
				l.state.Held = append(l.state.Held, h)
			}
		}
		l.unsaved = true
	})
}

// release forgets what is remembered of the indexes of a collection of the destination that is no more. mu is held.
func (l *Link) release(ns record.Namespace) {
	l.state.Held = slices.DeleteFunc(l.state.Held, func(h Held) bool { return h.Namespace == ns })
	l.state.Delayed = slices.DeleteFunc(l.state.Delayed, func(d Delayed) bool { return d.Collection == ns })
	l.unsaved = true
}

// moveIndexes follows a rename at the destination. mu is held.
func (l *Link) moveIndexes(from, to record.Namespace) {
	for i := range l.state.Held {
		if l.state.Held[i].Namespace == from {
			l.state.Held[i].Namespace = to
		}
	}
	for i := range l.state.Delayed {
		if l.state.Delayed[i].Collection == from {
			l.state.Delayed[i].Collection = to
		}
	}
}

// unindexed forgets what is remembered of indexes that are dropped.
func (l *Link) unindexed(ns record.Namespace, description bson.Raw) {
	names := make(map[string]bool)
	for _, spec := range specsOf(description) {
		names[nameOf(spec)] = true
	}
	l.set1(func() {
		l.state.Held = slices.DeleteFunc(l.state.Held, func(h Held) bool { return h.Namespace == ns && names[h.Index] })
		l.unsaved = true
	})
	l.punctual(ns, names)
}

// punctual forgets delayed indexes of a collection by their names; nil means all.
func (l *Link) punctual(ns record.Namespace, names map[string]bool) {
	l.set1(func() {
		var kept []Delayed
		for _, d := range l.state.Delayed {
			if d.Collection != ns || d.Op != "createIndexes" {
				kept = append(kept, d)
				continue
			}
			var specs bson.A
			for _, spec := range specsOf(d.Description) {
				if names != nil && !names[nameOf(spec)] {
					specs = append(specs, spec)
				}
			}
			l.unsaved = true
			if b, err := bson.Marshal(bson.D{{Key: "indexes", Value: specs}}); err == nil && len(specs) > 0 {
				d.Description = b
				kept = append(kept, d)
			}
		}
		l.state.Delayed = kept
	})
}

func specsOf(description bson.Raw) []bson.Raw {
	array, _ := description.Lookup("indexes").ArrayOK()
	values, err := array.Values()
	if err != nil {
		return nil
	}
	var specs []bson.Raw
	for _, v := range values {
		if spec, ok := v.DocumentOK(); ok {
			specs = append(specs, spec)
		}
	}
	return specs
}

func nameOf(spec bson.Raw) string {
	name, _ := spec.Lookup("name").StringValueOK()
	return name
}

// delay remembers a change that the destination cannot make yet, and returns any other error.
func (l *Link) delay(err error) error {
	late, ok := errors.AsType[*DelayedError](err)
	if !ok {
		return err
	}
	l.set1(func() {
		l.state.Delayed = append(l.state.Delayed, late.Delayed)
		l.view.lateAt, l.view.lateWait, l.unsaved = time.Now(), lateFirst, true
	})
	l.log.Warn().Err(late.Err).Str("op", late.Delayed.Op).Str("namespace", late.Delayed.Collection.String()).Msg("the destination cannot make this yet; it is tried again")
	return nil
}

// catchUpIndexes tries delayed changes again, if it is time to; with final it is, and what is not possible then is an error.
func (l *Link) catchUpIndexes(ctx context.Context, final bool) error {
	l.mu.Lock()
	list := slices.Clone(l.state.Delayed)
	due := final || time.Since(l.view.lateAt) >= l.view.lateWait
	l.mu.Unlock()
	if len(list) == 0 || !due {
		return nil
	}
	var left []Delayed
	var reason error
	for _, d := range list {
		held, notes, err := l.target.Change(ctx, DDL{Op: d.Op, Collection: d.Collection, Description: d.Description}, !l.cfg.KeepTTL)
		late, delayed := errors.AsType[*DelayedError](err)
		if err != nil && !delayed {
			return fmt.Errorf("%s %s at the destination: %w", d.Op, d.Collection, err)
		}
		if delayed {
			left, reason = append(left, late.Delayed), errors.Join(reason, err)
		}
		l.hold(held)
		for _, n := range notes {
			l.note(n)
		}
	}
	l.set1(func() {
		l.state.Delayed, l.unsaved = left, true
		l.view.lateAt, l.view.lateWait = time.Now(), min(max(2*l.view.lateWait, lateFirst), lateMost)
	})
	if final && len(left) > 0 {
		return fmt.Errorf("the destination lacks something that the source has: remove the documents that are in the way, or the dead letters, and finalize again: %w", reason)
	}
	return nil
}

// readdress moves the dead letters of a collection of the source to its new name; nil: it is gone, and they with it.
func (l *Link) readdress(ctx context.Context, from record.Namespace, to *record.Namespace) error {
	l.mu.Lock()
	n := l.view.letters
	l.mu.Unlock()
	if n == 0 {
		return nil
	}
	letters, err := l.letters.List(ctx, l.route, 0)
	if err != nil {
		return fmt.Errorf("list the dead letters: %w", err)
	}
	for _, letter := range letters {
		if letter.Source != from {
			continue
		}
		if to != nil {
			moved := letter
			moved.Source = *to
			if err := l.letters.Add(ctx, []Letter{moved}); err != nil {
				return fmt.Errorf("store a dead letter: %w", err)
			}
		}
		if err := l.letters.Remove(ctx, letter); err != nil {
			return fmt.Errorf("remove a dead letter: %w", err)
		}
	}
	if n, err = l.letters.Count(ctx, l.route); err != nil {
		return fmt.Errorf("count the dead letters: %w", err)
	}
	l.set1(func() { l.view.letters = n })
	return nil
}
