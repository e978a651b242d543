package replicator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// ddl applies a change of a collection. Everything before it is applied, and nothing after it has begun. A change that the
// state knows already (by the collection's UUID, and the time at which it was seen) is a replay and does nothing: so
// a create that comes again drops nothing, and a drop takes only the collection that it was about.
func (l *Link) ddl(ctx context.Context, r record.Record) error {
	ch := r.Change
	l.told(map[string]int{ch.Op: 1}, ch.Wall)
	switch ch.Op {
	case "create":
		return l.created(ctx, ch)
	case "drop":
		return l.dropped(ctx, ch)
	case "rename":
		return l.renamed(ctx, ch)
	case "createIndexes", "dropIndexes", "modify":
		return l.modified(ctx, ch)
	case "dropDatabase", "invalidate":
		return nil // each collection's drop came before it
	}
	l.note(fmt.Sprintf("an event %q of %s is not replicated", ch.Op, ch.Namespace))
	return nil
}

// created makes a collection or view that was created.
func (l *Link) created(ctx context.Context, ch *record.Change) error {
	ns := ch.Namespace
	if !l.set.Matches(ns) {
		return nil
	}
	on, isView := ch.Description.Lookup("viewOn").StringValueOK()
	if isView && strings.HasPrefix(on, "system.buckets.") {
		l.note(fmt.Sprintf("%s is a time-series collection, which change streams do not report: it is not replicated", ns))
		return nil
	}
	c := CollectionState{UUID: ch.UUID, Source: ns, Target: l.set.Target(ns), Kind: KindCollection, Copied: true, Created: true, Seen: ch.Time}
	if isView {
		c.UUID, c.Kind = "", KindView
	}
	if _, known := l.find(func(o *CollectionState) bool { return o.identity() == c.identity() }); known && !isView {
		return nil
	}
	if l.overtaken(c, ch.Time) {
		return nil // it went again before the other one got its name, and that one is here already
	}
	description := ch.Description
	if isView {
		options, note := l.viewOptions(ns, description)
		if note != "" {
			l.note(note)
		}
		if description = options; options == nil {
			return nil
		}
	}
	if capped, _ := description.Lookup("capped").BooleanOK(); capped {
		c.Kind = KindCapped
	}
	c.Serial = c.Kind == KindCapped || collated(description)
	if err := l.vacant(ctx, c); err != nil {
		return err
	}
	if err := l.change(ctx, DDL{Op: "create", Collection: c.Target, Description: description, Change: ch}); err != nil {
		return err
	}
	l.set1(func() {
		l.state.Collections = slices.DeleteFunc(l.state.Collections, func(o CollectionState) bool { return o.identity() == c.identity() })
		l.state.Collections = append(l.state.Collections, c)
		l.unsaved = true
	})
	return nil
}

// holder returns what else of the route has the name at the destination that c is to have.
func (l *Link) holder(c CollectionState) (CollectionState, bool) {
	return l.find(func(o *CollectionState) bool { return o.Target == c.Target && o.identity() != c.identity() })
}

// overtaken reports whether another collection has the names that c got by a change, and what the route knows of that one is newer than the
// change, or may be: the change comes again, or happened while the collections were listed. Of two that had one name, the later one is here
// then, and another change takes the name from c. Where two names of the source meet at the destination, it is for a person to mend.
func (l *Link) overtaken(c CollectionState, change record.Timestamp) bool {
	other, taken := l.holder(c)
	if !taken || other.Source != c.Source {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return other.Seen.Compare(change) > 0 || other.Kind != KindView && change.Compare(l.state.Listed) <= 0 // a view may have gone without a change
}

// unview drops a view whose name c is to have: no event tells that a view was dropped.
func (l *Link) unview(ctx context.Context, c CollectionState) error {
	if other, taken := l.holder(c); taken && other.Kind == KindView {
		return l.forget(ctx, other)
	}
	return nil
}

// vacant makes sure that a collection that is about to be made is none that somebody else has filled.
func (l *Link) vacant(ctx context.Context, c CollectionState) error {
	if err := l.unview(ctx, c); err != nil {
		return err
	}
	if err := l.overlap(ctx, map[record.Namespace]record.Namespace{c.Target: c.Source}); err != nil {
		return err
	}
	if l.loops(c) {
		return fmt.Errorf("%w: %s", ErrLoop, c.Target)
	}
	if other, err := l.sharer(ctx, c.Target); err != nil || other != "" {
		return err
	}
	there, err := l.target.Describe(ctx, []record.Namespace{c.Target})
	if err != nil {
		return fmt.Errorf("look at the destination: %w", err)
	}
	if len(there) == 0 || there[0].Documents == 0 || c.Kind == KindView {
		return nil
	}
	if other, ours := l.holder(c); ours {
		// Two collections of the source under one name of the destination: the older one's drop or rename was not reported.
		return fmt.Errorf("%s goes to %s, which %s goes to already", c.Source, c.Target, other.Source)
	}
	switch l.cfg.Existing {
	case DropExisting, MergeExisting:
		// Nothing of it is the source's: its collection begins empty.
		return l.target.Drop(ctx, c.Target)
	}
	return fmt.Errorf("%w: %s was created at the source, and the destination has %d documents under that name: remove them and resume, or resync", ErrNotEmpty, c.Target, there[0].Documents)
}

// dropped removes a collection that was dropped.
func (l *Link) dropped(ctx context.Context, ch *record.Change) error {
	c, ok := l.collectionOf(ch.UUID)
	if !ok {
		return nil // dropped before the copy, or not of this route
	}
	return l.forget(ctx, c)
}

// forget drops a collection at the destination and takes it out of the route.
func (l *Link) forget(ctx context.Context, c CollectionState) error {
	other, err := l.sharer(ctx, c.Target)
	if err != nil {
		return err
	}
	if other != "" {
		l.note(fmt.Sprintf("%s was dropped or renamed at the source; %s is left as it is, as route %q writes to it too", c.Source, c.Target, other))
	} else if err := l.target.Drop(ctx, c.Target); err != nil {
		return fmt.Errorf("drop %s: %w", c.Target, err)
	}
	l.set1(func() {
		l.state.Collections = slices.DeleteFunc(l.state.Collections, func(o CollectionState) bool { return o.identity() == c.identity() })
		l.release(c.Target)
		l.unsaved = true
	})
	if err := l.readdress(ctx, c.Source, nil); err != nil {
		return err
	}
	// If this comes again, it must not drop what has got the name meanwhile.
	return l.save(ctx)
}

// renamed follows a rename: within the route, out of it, or into it.
func (l *Link) renamed(ctx context.Context, ch *record.Change) error {
	c, known := l.collectionOf(ch.UUID)
	if known && ch.Time.Compare(c.Seen) <= 0 {
		return nil
	}
	if known {
		// If this comes again, what comes before it must not: that would be written to the old name, which the destination has not any more.
		if err := l.save(ctx); err != nil {
			return err
		}
	}
	// What it replaced is gone, wherever it goes itself.
	if replaced, ok := l.collectionOf(uuidOf(ch.Description, "dropTarget")); ok && replaced.UUID != ch.UUID {
		if err := l.forget(ctx, replaced); err != nil {
			return err
		}
	}
	inside := l.set.Matches(ch.To)
	switch {
	case !known && !inside:
		return nil
	case known && !inside:
		l.note(fmt.Sprintf("%s was renamed to %s, which takes no part: it is dropped at the destination", c.Source, ch.To))
		return l.forget(ctx, c)
	case !known:
		return l.adopt(ctx, ch.To, ch.UUID, ch.Time)
	case string(l.set.Filter(c.Source)) != string(l.set.Filter(ch.To)):
		// Other documents take part under the new name.
		if err := l.forget(ctx, c); err != nil {
			return err
		}
		return l.adopt(ctx, ch.To, ch.UUID, ch.Time)
	}
	to := l.set.Target(ch.To)
	if to != c.Target {
		moved := CollectionState{UUID: c.UUID, Source: ch.To, Target: to}
		if err := l.unview(ctx, moved); err != nil {
			return err
		}
		if l.overtaken(moved, ch.Time) {
			return nil
		}
		if other, taken := l.holder(moved); taken {
			return fmt.Errorf("%s was renamed to %s, which goes to %s, and %s goes there already: resync the route", c.Source, ch.To, to, other.Source)
		}
		if err := l.change(ctx, DDL{Op: "rename", Collection: c.Target, To: to, Description: ch.Description, Change: ch}); err != nil {
			return err
		}
	}
	if err := l.readdress(ctx, c.Source, &ch.To); err != nil {
		return err
	}
	l.set1(func() {
		for i := range l.state.Collections {
			if o := &l.state.Collections[i]; o.UUID == c.UUID {
				o.Source, o.Target, o.Seen = ch.To, to, ch.Time
			}
		}
		l.moveIndexes(c.Target, to)
		l.unsaved = true
	})
	return nil
}

// adopt copies a collection that has become part of the route by a rename at that time. It goes by the name that it got then,
// as others may still have its later names here: further renames come in their turn.
func (l *Link) adopt(ctx context.Context, ns record.Namespace, uuid string, at record.Timestamp) error {
	found, err := l.source.Collections(ctx, l.set)
	if err != nil {
		return fmt.Errorf("list the source's collections: %w", err)
	}
	i := slices.IndexFunc(found, func(c Collection) bool { return c.UUID == uuid })
	if i < 0 {
		return nil // renamed out again or dropped: the changes say so in their turn
	}
	found[i].Name = ns
	c := l.entry(found[i], at)
	if c.Kind == KindTimeseries {
		return nil
	}
	if l.overtaken(c, at) {
		return nil
	}
	if err := l.vacant(ctx, c); err != nil {
		return err
	}
	l.set1(func() { l.state.Collections = append(l.state.Collections, c); l.unsaved = true })
	l.log.Info().Str("namespace", ns.String()).Msg("a collection has become part of the route, and is copied")
	return l.copyRest(ctx)
}

// modified applies a change of indexes or options.
func (l *Link) modified(ctx context.Context, ch *record.Change) error {
	c, ok := l.collectionOf(ch.UUID)
	if !ok {
		c, ok = l.find(func(o *CollectionState) bool { return o.Kind == KindView && o.Source == ch.Namespace })
	}
	if !ok || ch.Time.Compare(c.Seen) <= 0 {
		return nil
	}
	description := ch.Description
	if c.Kind == KindView {
		options, note := l.viewOptions(c.Source, description)
		if note != "" {
			l.note(note)
		}
		if description = options; options == nil {
			return nil
		}
	}
	if ch.Op == "dropIndexes" {
		l.unindexed(c.Target, description)
	}
	return l.change(ctx, DDL{Op: ch.Op, Collection: c.Target, Description: description, Change: ch})
}

func (l *Link) change(ctx context.Context, d DDL) error {
	held, notes, err := l.target.Change(ctx, d, !l.cfg.KeepTTL)
	if err = l.delay(err); err != nil {
		return fmt.Errorf("%s %s at the destination: %w", d.Op, d.Collection, err)
	}
	l.hold(held)
	for _, n := range notes {
		l.note(n)
	}
	return nil
}

// uuidOf returns a UUID in an event's description as hex, "" if there is none.
func uuidOf(description bson.Raw, field string) string {
	_, data, ok := description.Lookup(field).BinaryOK()
	if !ok {
		return ""
	}
	return fmt.Sprintf("%x", data)
}
