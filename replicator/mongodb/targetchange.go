package mongodb

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// Change applies a DDL idempotently. Names inside the Description that are not its Collection or To (a view's viewOn and what its
// pipeline names) are the destination's too: the caller rewrites them. An op that is not known is a note.
func (t *Target) Change(ctx context.Context, d replicator.DDL, holdTTL bool) (held []replicator.Held, notes []string, err error) {
	switch d.Op {
	case "create":
		c := replicator.Collection{Name: d.Collection, Kind: replicator.KindCollection, Options: d.Description}
		if _, err := d.Description.LookupErr("viewOn"); err == nil {
			c.Kind = replicator.KindView
		}
		held, notes, err = t.Create(ctx, c, replicator.CreateOptions{HoldTTL: holdTTL})
		if other, ok := errors.AsType[*otherError](err); ok {
			// A replay: what has the name now was made, or renamed to it, later.
			return nil, []string{other.what + ", where it was created; it is left as it is"}, nil
		}
		return held, notes, err
	case "drop":
		return nil, nil, t.Drop(ctx, d.Collection)
	case "rename":
		notes, err = t.rename(ctx, d)
		return nil, notes, err
	case "createIndexes":
		return t.createIndexes(ctx, d.Collection, indexes(d.Description), holdTTL)
	case "dropIndexes":
		notes, err = t.dropIndexes(ctx, d.Collection, indexes(d.Description))
		return nil, notes, err
	case "modify":
		return t.modify(ctx, d, holdTTL)
	}
	return nil, []string{fmt.Sprintf("%s: the change %q is not replicated", d.Collection, d.Op)}, nil
}

func indexes(description bson.Raw) []bson.Raw {
	array, ok := description.Lookup("indexes").ArrayOK()
	if !ok {
		return nil
	}
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

// rename is done if the new name is there and the old one is not. The command carries the UUID, so that it never renames what
// has the old name later.
func (t *Target) rename(ctx context.Context, d replicator.DDL) (notes []string, err error) {
	found, err := t.Describe(ctx, []record.Namespace{d.Collection, d.To})
	if err != nil {
		return nil, err
	}
	var from, to *replicator.Collection
	for i := range found {
		switch found[i].Name {
		case d.Collection:
			from = &found[i]
		case d.To:
			to = &found[i]
		}
	}
	_, noTarget := d.Description.LookupErr("dropTarget")
	switch {
	case from == nil && to == nil:
		return []string{fmt.Sprintf("%s was renamed to %s at the source, and the destination has neither", d.Collection, d.To)}, nil
	case from == nil:
		return nil, nil
	case to != nil && noTarget != nil:
		return []string{fmt.Sprintf("%s was renamed to %s at the source, and the destination has both: they are left as they are", d.Collection, d.To)}, nil
	}
	cmd := bson.D{{Key: "renameCollection", Value: d.Collection.String()}, {Key: "to", Value: d.To.String()}, {Key: "dropTarget", Value: to != nil}}
	if id := uuidOf(from.UUID); id != nil {
		cmd = append(cmd, bson.E{Key: "collectionUUID", Value: *id})
	}
	err = t.command(ctx, "admin", cmd)
	if mongoerr.IsNotFound(err) || mongoerr.IsUUIDMismatch(err) {
		// An earlier attempt has done it.
		if found, derr := t.Describe(ctx, []record.Namespace{d.To}); derr == nil && len(found) == 1 && found[0].UUID == from.UUID {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("rename %s to %s: %w", d.Collection, d.To, explain(err))
	}
	return nil, nil
}

func (t *Target) dropIndexes(ctx context.Context, ns record.Namespace, specs []bson.Raw) (notes []string, err error) {
	for _, spec := range specs {
		name, _ := spec.Lookup("name").StringValueOK()
		err := t.command(ctx, ns.DB, bson.D{{Key: "dropIndexes", Value: ns.Coll}, {Key: "index", Value: name}})
		if err != nil && !mongoerr.IsIndexNotFound(err) && !mongoerr.IsNotFound(err) {
			return notes, fmt.Errorf("drop index %s of %s: %w", name, ns, explain(err))
		}
	}
	return notes, nil
}

// modify is collMod with what was asked at the source; expiry is held back.
func (t *Target) modify(ctx context.Context, d replicator.DDL, hold bool) (held []replicator.Held, notes []string, err error) {
	elems, err := d.Description.Elements()
	if err != nil {
		return nil, nil, fmt.Errorf("change options of %s: the description is damaged: %w", d.Collection, err)
	}
	cmd := bson.D{{Key: "collMod", Value: d.Collection.Coll}}
	for _, e := range elems {
		key, v := e.Key(), e.Value()
		doc, isDoc := v.DocumentOK()
		switch {
		case key == "collation":
			continue // of a view: it cannot be changed, and is said nevertheless
		case key == "expireAfterSeconds" && hold:
			// Of a clustered collection: it is off here, and stays so. Seconds below 0 mean that nothing is held any more.
			seconds, ok := v.AsInt64OK()
			if !ok {
				seconds = -1 // "off"
			}
			held = append(held, replicator.Held{Namespace: d.Collection, Seconds: seconds})
			continue
		case key == "index" && isDoc && hold:
			name, _ := doc.Lookup("name").StringValueOK()
			if seconds, ok := doc.Lookup("expireAfterSeconds").AsInt64OK(); ok {
				held = append(held, replicator.Held{Namespace: d.Collection, Index: name, Seconds: seconds})
				if doc, err = t.heldIndex(ctx, d.Collection, doc); err != nil {
					return nil, nil, err
				}
			}
			cmd = append(cmd, bson.E{Key: key, Value: doc})
		default:
			cmd = append(cmd, bson.E{Key: key, Value: v})
		}
	}
	if len(cmd) == 1 {
		return held, nil, nil // nothing but an expiry that is held back
	}
	err = t.command(ctx, d.Collection.DB, cmd)
	switch {
	case err == nil:
		return held, nil, nil
	case mongoerr.IsNotFound(err), mongoerr.IsIndexNotFound(err):
		return nil, []string{fmt.Sprintf("%s: a change of its options came too late, as it or its index is gone: %v", d.Collection, err)}, nil
	case mongoerr.CannotConvertIndex(err):
		return held, nil, &replicator.DelayedError{Delayed: replicator.Delayed{Op: d.Op, Collection: d.Collection, Description: d.Description}, Err: err}
	case mongoerr.Classify(err).Write == mongoerr.WriteStop && mongoerr.IsBadOption(err):
		return held, []string{fmt.Sprintf("%s: the destination refuses a change of its options: %v", d.Collection, err)}, nil
	}
	return nil, nil, fmt.Errorf("change options of %s: %w", d.Collection, explain(err))
}

// heldIndex returns a collMod of an index with its expiry held back.
func (t *Target) heldIndex(ctx context.Context, ns record.Namespace, index bson.Raw) (bson.Raw, error) {
	elems, err := index.Elements()
	if err != nil {
		return nil, err
	}
	d := bson.D{}
	for _, e := range elems {
		if e.Key() == "expireAfterSeconds" {
			d = append(d, bson.E{Key: e.Key(), Value: int32(heldSeconds)})
		} else {
			d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	b, err := bson.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("change options of %s: %w", ns, err)
	}
	return b, nil
}
