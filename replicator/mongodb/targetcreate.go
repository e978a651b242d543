package mongodb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// heldSeconds is the longest expireAfterSeconds that an index may have: 68 years.
const heldSeconds = 2147483647

// created are the options that a collection is created with, as listCollections names them. What is not here is left to the
// destination (storageEngine), means nothing (flags, temp) or is said elsewhere (idIndex).
var created = []string{"capped", "size", "max", "validator", "validationLevel", "validationAction", "collation", "clusteredIndex",
	"changeStreamPreAndPostImages", "expireAfterSeconds", "viewOn", "pipeline"}

// structural are those that cannot be changed afterwards, or not without another meaning of the documents.
var structural = []string{"capped", "collation", "clusteredIndex", "viewOn"}

// Create makes the collection or view c, or leaves it if it exists, and its indexes. The viewOn of a view, and collections that its
// pipeline names, are in the names of the destination: the caller rewrites them. A time-series collection is not made; a
// note says so. If c exists with other options, notes say which; with another kind, collation or clustering, Create refuses.
//
// On a clustered collection HoldTTL leaves expiry off; it has a Held with the Index "".
func (t *Target) Create(ctx context.Context, c replicator.Collection, o replicator.CreateOptions) (held []replicator.Held, notes []string, err error) {
	if c.Kind == replicator.KindTimeseries || timeseries(c.Options) {
		return nil, []string{fmt.Sprintf("%s is a time-series collection, which is not replicated: its changes are in no change stream", c.Name)}, nil
	}
	held, notes, err = t.createCollection(ctx, c, o.HoldTTL)
	if err != nil || c.Kind == replicator.KindView {
		return held, notes, err
	}
	var specs []bson.Raw
	for _, spec := range c.Indexes {
		if o.Secondary == replicator.AllIndexes || truthy(spec, "unique") {
			specs = append(specs, spec)
		}
	}
	more, said, err := t.createIndexes(ctx, c.Name, specs, o.HoldTTL)
	return append(held, more...), append(notes, said...), err
}

func timeseries(options bson.Raw) bool {
	if _, err := options.LookupErr("timeseries"); err == nil {
		return true
	}
	// In a change stream it shows as a view.
	on, _ := options.Lookup("viewOn").StringValueOK()
	return len(on) > len("system.buckets.") && on[:len("system.buckets.")] == "system.buckets."
}

func (t *Target) createCollection(ctx context.Context, c replicator.Collection, hold bool) (held []replicator.Held, notes []string, err error) {
	cmd := bson.D{{Key: "create", Value: c.Name.Coll}}
	options := c.Options
	if v, err := options.LookupErr("expireAfterSeconds"); err == nil && hold {
		if seconds, ok := v.AsInt64OK(); ok {
			held = append(held, replicator.Held{Namespace: c.Name, Seconds: seconds})
			notes = append(notes, fmt.Sprintf("%s: expiry after %d s is held back until the route is finalized", c.Name, seconds))
		}
		options = without(options, "expireAfterSeconds")
	}
	for _, key := range created {
		if v, err := options.LookupErr(key); err == nil {
			cmd = append(cmd, bson.E{Key: key, Value: creatable(key, v)})
		}
	}
	existing, err := t.Describe(ctx, []record.Namespace{c.Name})
	if err != nil {
		return nil, nil, err
	}
	if len(existing) == 0 {
		err = t.command(ctx, c.Name.DB, cmd)
		if err == nil {
			return held, notes, nil
		}
		if !mongoerr.IsNamespaceExists(err) {
			return nil, nil, fmt.Errorf("create %s: %w", c.Name, explain(err))
		}
		if existing, err = t.Describe(ctx, []record.Namespace{c.Name}); err != nil {
			return nil, nil, err
		}
	}
	if len(existing) == 0 {
		return nil, nil, fmt.Errorf("create %s: it exists and then it does not: does somebody else create and drop collections at the destination?", c.Name)
	}
	differ, err := differences(existing[0], c, options)
	if err == nil && len(held) > 0 && truthyExpiry(existing[0].Options) {
		err = t.command(ctx, c.Name.DB, bson.D{{Key: "collMod", Value: c.Name.Coll}, {Key: "expireAfterSeconds", Value: "off"}})
	}
	return held, append(notes, differ...), err
}

func truthyExpiry(options bson.Raw) bool {
	_, err := options.LookupErr("expireAfterSeconds")
	return err == nil
}

// creatable returns an option's value as create takes it.
func creatable(key string, v bson.RawValue) any {
	doc, ok := v.DocumentOK()
	switch {
	case ok && key == "collation":
		return without(doc, "version") // the server's own
	case ok && key == "clusteredIndex":
		return without(doc, "v")
	}
	return v
}

// otherError says that what exists cannot be made what is wanted.
type otherError struct{ what string }

func (e *otherError) Error() string { return e.what + "; drop it, or map one of them to another name" }

// differences says how what exists differs from what is wanted.
func differences(have, want replicator.Collection, options bson.Raw) (notes []string, err error) {
	if (have.Kind == replicator.KindView) != (want.Kind == replicator.KindView) || have.Kind == replicator.KindTimeseries {
		return nil, &otherError{fmt.Sprintf("%s exists at the destination as a %s, and is a %s at the source", have.Name, have.Kind, want.Kind)}
	}
	for _, key := range created {
		if key == "expireAfterSeconds" {
			continue // it is held back here, or not
		}
		h, w := normal(key, have.Options), normal(key, options)
		if bytes.Equal(h, w) {
			continue
		}
		text := fmt.Sprintf("%s exists at the destination with another %s: %s there, %s at the source", have.Name, key, shown(h), shown(w))
		if slices.Contains(structural, key) {
			return nil, &otherError{text}
		}
		notes = append(notes, text)
	}
	return notes, nil
}

// normal returns an option in a form in which equal ones have equal bytes, nil if it is not set or says what no option says.
func normal(key string, options bson.Raw) []byte {
	v, err := options.LookupErr(key)
	if err != nil {
		return nil
	}
	if n, ok := v.AsInt64OK(); ok {
		v = number(n)
	}
	switch doc, isDoc := v.DocumentOK(); {
	case isDoc && (key == "collation" || key == "clusteredIndex"):
		doc = without(doc, "version", "v")
		v.Value = doc
		if l, _ := doc.Lookup("locale").StringValueOK(); l == "simple" {
			return nil
		}
	case isDoc && key == "validator" && len(doc) <= emptyDocument:
		return nil
	case isDoc && key == "changeStreamPreAndPostImages" && !truthy(doc, "enabled"):
		return nil
	}
	b, _ := v.BooleanOK()
	s, _ := v.StringValueOK()
	switch {
	case key == "capped" && v.Type == bson.TypeBoolean && !b:
		return nil
	case key == "validationLevel" && s == "strict", key == "validationAction" && s == "error":
		return nil
	case key == "size": // the server rounds up
		return fmt.Appendf(nil, "%d", (v.AsInt64()+255)/256*256)
	}
	return append([]byte{byte(v.Type)}, v.Value...)
}

const emptyDocument = 5 // bytes

func number(n int64) bson.RawValue {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
	return bson.RawValue{Type: bson.TypeInt64, Value: b}
}

func shown(v []byte) string {
	switch {
	case v == nil:
		return "not set"
	case v[0] >= '0' && v[0] <= '9' && len(v) < 20 && len(v) > 1 && v[1] >= '0' && v[1] <= '9':
		return string(v)
	}
	return bson.RawValue{Type: bson.Type(v[0]), Value: v[1:]}.String()
}

// createIndexes makes indexes one by one, so that one that is not possible does not keep the others from being made. Those that equal
// values are in the way of are in a *replicator.DelayedError.
func (t *Target) createIndexes(ctx context.Context, ns record.Namespace, specs []bson.Raw, hold bool) (held []replicator.Held, notes []string, err error) {
	_, set, err := t.connected(ctx)
	if err != nil {
		return nil, nil, err
	}
	var later bson.A
	var reason error
	for _, whole := range specs {
		name, _ := whole.Lookup("name").StringValueOK()
		if name == "_id_" || truthy(whole, "clustered") {
			continue // made with the collection
		}
		spec, seconds := indexSpec(whole, hold)
		cmd := bson.D{{Key: "createIndexes", Value: ns.Coll}, {Key: "indexes", Value: bson.A{spec}}}
		if set {
			cmd = append(cmd, bson.E{Key: "commitQuorum", Value: "majority"}) // not all members: one may be down
		}
		err := t.command(ctx, ns.DB, cmd)
		if want, expires := expiryOf(spec); expires && mongoerr.IsIndexConflict(err) {
			// Perhaps the one that is there differs in its expiry only, which can be changed.
			if t.command(ctx, ns.DB, bson.D{{Key: "collMod", Value: ns.Coll}, expiry(name, want)}) == nil {
				err = t.command(ctx, ns.DB, cmd)
			}
		}
		switch {
		case err == nil:
		case mongoerr.IsIndexConflict(err):
			notes = append(notes, fmt.Sprintf("%s: index %s was not made, as another one is in its way: %v", ns, name, err))
			continue
		case mongoerr.Classify(err).Write == mongoerr.WriteDuplicate:
			later, reason = append(later, whole), errors.Join(reason, err)
			continue
		default:
			return held, notes, fmt.Errorf("create index %s of %s: %w", name, ns, explain(err))
		}
		if seconds >= 0 {
			held = append(held, replicator.Held{Namespace: ns, Index: name, Seconds: seconds})
			notes = append(notes, fmt.Sprintf("%s: index %s expires documents after %d s; this is held back until the route is finalized", ns, name, seconds))
		}
	}
	if len(later) == 0 {
		return held, notes, nil
	}
	description, err := bson.Marshal(bson.D{{Key: "indexes", Value: later}})
	if err != nil {
		return held, notes, fmt.Errorf("create indexes of %s: %w", ns, err)
	}
	return held, notes, &replicator.DelayedError{Delayed: replicator.Delayed{Op: "createIndexes", Collection: ns, Description: description}, Err: reason}
}

func expiryOf(spec bson.D) (seconds int64, ok bool) {
	for _, e := range spec {
		if e.Key != "expireAfterSeconds" {
			continue
		}
		switch v := e.Value.(type) {
		case int32:
			return int64(v), true
		case bson.RawValue:
			return v.AsInt64OK()
		}
	}
	return 0, false
}

// indexSpec returns an index as createIndexes takes it, and the expiry that is held back, -1 for none.
func indexSpec(spec bson.Raw, hold bool) (bson.D, int64) {
	elems, err := spec.Elements()
	if err != nil {
		return nil, -1
	}
	d := bson.D{}
	seconds, collated, version := int64(-1), false, int64(2)
	for _, e := range elems {
		switch key, v := e.Key(), e.Value(); key {
		case "ns", "background":
		case "collation":
			collated = true
			d = append(d, bson.E{Key: key, Value: without(v.Document(), "version")})
		case "expireAfterSeconds":
			n, ok := v.AsInt64OK()
			if f, isDouble := v.DoubleOK(); isDouble && f != f {
				n, ok = 0, true // NaN: servers take it for 0
			}
			if hold && ok {
				seconds = n
				d = append(d, bson.E{Key: key, Value: int32(heldSeconds)})
				continue
			}
			d = append(d, bson.E{Key: key, Value: v})
		case "v":
			version, _ = v.AsInt64OK()
			d = append(d, bson.E{Key: key, Value: v})
		default:
			d = append(d, bson.E{Key: key, Value: v})
		}
	}
	if !collated && version >= 2 {
		// Without a word an index takes the collection's collation, and a text index is refused then.
		d = append(d, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}})
	}
	return d, seconds
}

// Release gives TTL indexes, and clustered collections, their own expiry. What is gone meanwhile, or is not held back (any more), is
// left alone: an index of the same name may be another one by now.
func (t *Target) Release(ctx context.Context, held []replicator.Held) error {
	for _, h := range held {
		found, err := t.Describe(ctx, []record.Namespace{h.Namespace})
		if err != nil {
			return err
		}
		if len(found) == 0 || !isHeld(found[0], h.Index) || h.Seconds < 0 {
			continue
		}
		cmd := bson.D{{Key: "collMod", Value: h.Namespace.Coll}}
		if h.Index == "" {
			cmd = append(cmd, bson.E{Key: "expireAfterSeconds", Value: h.Seconds})
		} else {
			cmd = append(cmd, expiry(h.Index, h.Seconds))
		}
		err = t.command(ctx, h.Namespace.DB, cmd)
		if err != nil && !mongoerr.IsNotFound(err) && !mongoerr.IsIndexNotFound(err) {
			return fmt.Errorf("give index %q of %s its expiry: %w", h.Index, h.Namespace, explain(err))
		}
	}
	return nil
}

// expiry is the part of a collMod that sets the expiry of an index.
func expiry(index string, seconds int64) bson.E {
	return bson.E{Key: "index", Value: bson.D{{Key: "name", Value: index}, {Key: "expireAfterSeconds", Value: seconds}}}
}

// isHeld reports whether the expiry of an index, or of a clustered collection, is held back.
func isHeld(c replicator.Collection, index string) bool {
	if index == "" {
		_, clustered := c.Options.LookupErr("clusteredIndex")
		_, expires := c.Options.LookupErr("expireAfterSeconds")
		return clustered == nil && expires != nil
	}
	for _, spec := range c.Indexes {
		if name, _ := spec.Lookup("name").StringValueOK(); name == index {
			seconds, ok := spec.Lookup("expireAfterSeconds").AsInt64OK()
			return ok && seconds == heldSeconds
		}
	}
	return false
}
