package mongodb

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// Describe returns what exists of the names, as the primary has it.
func (t *Target) Describe(ctx context.Context, names []record.Namespace) ([]replicator.Collection, error) {
	byDB := map[string][]string{}
	var dbs []string
	for _, n := range names {
		if byDB[n.DB] == nil {
			dbs = append(dbs, n.DB)
		}
		byDB[n.DB] = append(byDB[n.DB], n.Coll)
	}
	slices.Sort(dbs)
	var found []replicator.Collection
	for _, db := range dbs {
		for part := range slices.Chunk(byDB[db], 1000) {
			some, err := t.describe(ctx, db, part)
			if err != nil {
				return nil, fmt.Errorf("describe %s: %w", db, explain(err))
			}
			found = append(found, some...)
		}
	}
	return found, nil
}

func (t *Target) describe(ctx context.Context, db string, colls []string) ([]replicator.Collection, error) {
	var found []replicator.Collection
	err := t.layer.Read(ctx, db, onPrimary(db), func(ctx context.Context, d *mongo.Database) error {
		found = nil
		cur, err := d.RunCommandCursor(ctx, bson.D{{Key: "listCollections", Value: 1},
			{Key: "filter", Value: bson.D{{Key: "name", Value: bson.D{{Key: "$in", Value: colls}}}}}})
		if err != nil {
			return err
		}
		var specs []bson.Raw
		if err := cur.All(ctx, &specs); err != nil {
			return err
		}
		for _, spec := range specs {
			found = append(found, described(db, spec))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range found {
		if err := t.details(ctx, &found[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// described returns what an entry of listCollections says.
func described(db string, spec bson.Raw) replicator.Collection {
	name, _ := spec.Lookup("name").StringValueOK()
	typ, _ := spec.Lookup("type").StringValueOK()
	c := replicator.Collection{Name: record.Namespace{DB: db, Coll: name}, Kind: replicator.KindCollection}
	if o, ok := spec.Lookup("options").DocumentOK(); ok {
		if elems, err := o.Elements(); err == nil && len(elems) > 0 {
			c.Options = o
		}
	}
	if _, id, ok := spec.Lookup("info", "uuid").BinaryOK(); ok {
		c.UUID = fmt.Sprintf("%x", id)
	}
	switch {
	case typ == "view":
		c.Kind = replicator.KindView
	case typ == "timeseries":
		c.Kind = replicator.KindTimeseries
	case truthy(c.Options, "capped"):
		c.Kind = replicator.KindCapped
	}
	return c
}

// truthy reports whether an option is set, in any of the ways in which servers write that.
func truthy(doc bson.Raw, key string) bool {
	v, err := doc.LookupErr(key)
	if err != nil {
		return false
	}
	if b, ok := v.BooleanOK(); ok {
		return b
	}
	n, ok := v.AsInt64OK()
	return ok && n != 0
}

// details fills in indexes and estimates.
func (t *Target) details(ctx context.Context, c *replicator.Collection) error {
	if c.Kind != replicator.KindCollection && c.Kind != replicator.KindCapped {
		return nil
	}
	return t.layer.Read(ctx, c.Name.DB, onPrimary(c.Name.String()), func(ctx context.Context, d *mongo.Database) error {
		c.Indexes = nil
		cur, err := d.RunCommandCursor(ctx, bson.D{{Key: "listIndexes", Value: c.Name.Coll}})
		if err == nil {
			err = cur.All(ctx, &c.Indexes)
		}
		if mongoerr.IsNotFound(err) {
			return nil // gone meanwhile
		}
		if err != nil {
			return err
		}
		stats, err := d.RunCommand(ctx, bson.D{{Key: "collStats", Value: c.Name.Coll}}).Raw()
		if mongoerr.IsUnauthorized(err) {
			c.Documents, err = d.Collection(c.Name.Coll).EstimatedDocumentCount(ctx)
			return err
		}
		if err != nil {
			return err
		}
		c.Documents, _ = stats.Lookup("count").AsInt64OK()
		c.Bytes, _ = stats.Lookup("size").AsInt64OK()
		return nil
	})
}

// IDs returns the _ids in (from, to] in the order of the index, at most limit. The bounds are compared by $expr: a plain comparison
// sees values of the bound's own type only.
func (t *Target) IDs(ctx context.Context, ns record.Namespace, from, to record.ID, limit int) ([]bson.RawValue, error) {
	var bounds bson.A
	add := func(op string, id record.ID) {
		if !id.IsZero() {
			bounds = append(bounds, bson.D{{Key: op, Value: bson.A{"$_id", bson.D{{Key: "$literal", Value: id.RawValue()}}}}})
		}
	}
	add("$gt", from)
	add("$lte", to)
	filter := bson.D{}
	if len(bounds) > 0 {
		filter = bson.D{{Key: "$expr", Value: bson.D{{Key: "$and", Value: bounds}}}}
	}
	o := options.Find().SetSort(bson.D{{Key: record.FieldID, Value: 1}}).SetProjection(bson.D{{Key: record.FieldID, Value: 1}}).
		SetLimit(int64(limit)).SetBatchSize(int32(min(limit, maxOperations)))
	docs, err := t.layer.Find(ctx, ns.DB, ns.Coll, onPrimary(ns.String()), filter, o)
	if err != nil {
		return nil, fmt.Errorf("read _ids of %s: %w", ns, explain(err))
	}
	ids := make([]bson.RawValue, len(docs))
	for i, doc := range docs {
		ids[i] = doc.Lookup(record.FieldID)
	}
	return ids, nil
}
