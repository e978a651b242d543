package replication

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// maxDifferences bounds what Compare tells; that there is one is enough to fail.
const maxDifferences = 20

// Compare reads what the databases hold on both sides, whole and side by side, and says what differs: collections and views,
// their options and indexes, every document byte for byte, and the order of capped collections. It is simple on purpose, and shares
// nothing with what it judges but the meaning of names. Both sides must be at rest.
func Compare(ctx context.Context, from, to *mongo.Client, set *scope.Set, databases []string) (differences []string, documents int64, err error) {
	for _, db := range databases {
		source, err := specs(ctx, from, db)
		if err != nil {
			return nil, 0, err
		}
		maps.DeleteFunc(source, func(name string, _ bson.Raw) bool {
			return !set.Matches(record.Namespace{DB: db, Coll: name})
		})
		target, err := specs(ctx, to, set.Target(record.Namespace{DB: db, Coll: "x"}).DB)
		if err != nil {
			return nil, 0, err
		}
		for _, name := range slices.Sorted(maps.Keys(source)) {
			ns := record.Namespace{DB: db, Coll: name}
			other, ok := target[set.Target(ns).Coll]
			delete(target, set.Target(ns).Coll)
			if !ok {
				differences = append(differences, ns.String()+": is missing")
				continue
			}
			n, diffs, err := compareCollection(ctx, from, to, ns, set, source[name], other)
			if err != nil {
				return nil, 0, fmt.Errorf("compare %s: %w", ns, err)
			}
			documents += n
			differences = append(differences, diffs...)
		}
		for _, name := range slices.Sorted(maps.Keys(target)) {
			differences = append(differences, db+"."+name+": the source has none")
		}
	}
	if len(differences) > maxDifferences {
		differences = append(differences[:maxDifferences], fmt.Sprintf("and %d more", len(differences)-maxDifferences))
	}
	return differences, documents, nil
}

func database(c *mongo.Client, name string) *mongo.Database {
	return c.Database(name, options.Database().SetReadConcern(readconcern.Majority()))
}

// specs returns what listCollections says, by name, without MongoDB's own.
func specs(ctx context.Context, c *mongo.Client, db string) (map[string]bson.Raw, error) {
	cur, err := database(c, db).ListCollections(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("list collections of %s: %w", db, err)
	}
	defer func() { _ = cur.Close(ctx) }()
	all := map[string]bson.Raw{}
	for cur.Next(ctx) {
		if name := cur.Current.Lookup("name").StringValue(); !strings.HasPrefix(name, "system.") {
			all[name] = bytes.Clone(cur.Current)
		}
	}
	return all, cur.Err()
}

func compareCollection(ctx context.Context, from, to *mongo.Client, ns record.Namespace, set *scope.Set, a, b bson.Raw) (n int64, diffs []string, err error) {
	other := set.Target(ns)
	if x, y := a.Lookup("options"), b.Lookup("options"); !x.Equal(y) {
		diffs = append(diffs, fmt.Sprintf("%s: options %s and %s", ns, x, y))
	}
	if a.Lookup("type").StringValue() == "view" {
		return 0, diffs, nil
	}
	source, target := database(from, ns.DB).Collection(ns.Coll), database(to, other.DB).Collection(other.Coll)
	if d, err := compareIndexes(ctx, source, target); err != nil {
		return 0, nil, err
	} else if d != "" {
		diffs = append(diffs, ns.String()+": "+d)
	}
	var filter any = bson.D{}
	if q := set.Filter(ns); q != nil {
		filter = q
	}
	sort := bson.D{{Key: "_id", Value: 1}}
	if isCapped, ok := a.Lookup("options", "capped").BooleanOK(); ok && isCapped {
		sort = bson.D{{Key: "$natural", Value: 1}}
	}
	n, d, err := compareDocuments(ctx, source, target, filter, sort)
	for i := range d {
		d[i] = ns.String() + ": " + d[i]
	}
	return n, append(diffs, d...), err
}

func compareIndexes(ctx context.Context, a, b *mongo.Collection) (string, error) {
	var texts [2][]string
	for i, c := range []*mongo.Collection{a, b} {
		cur, err := c.Indexes().List(ctx)
		if err != nil {
			return "", fmt.Errorf("list indexes: %w", err)
		}
		var all []bson.Raw
		if err := cur.All(ctx, &all); err != nil {
			return "", fmt.Errorf("list indexes: %w", err)
		}
		for _, spec := range all {
			texts[i] = append(texts[i], spec.String())
		}
		slices.Sort(texts[i])
	}
	if slices.Equal(texts[0], texts[1]) {
		return "", nil
	}
	return fmt.Sprintf("indexes %v and %v", texts[0], texts[1]), nil
}

// compareDocuments goes through both sides in one order. What is out of step is told and not mended: the first difference of a
// collection may make others.
func compareDocuments(ctx context.Context, a, b *mongo.Collection, filter any, sort bson.D) (n int64, diffs []string, err error) {
	left, err := a.Find(ctx, filter, options.Find().SetSort(sort))
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = left.Close(ctx) }()
	right, err := b.Find(ctx, bson.D{}, options.Find().SetSort(sort))
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = right.Close(ctx) }()
	for {
		x, y := left.Next(ctx), right.Next(ctx)
		switch {
		case !x && !y:
			return n, diffs, firstError(left.Err(), right.Err())
		case !x:
			return n, append(diffs, "more at the destination, from "+short(right.Current)), left.Err()
		case !y:
			return n, append(diffs, "more at the source, from "+short(left.Current)), right.Err()
		}
		n++
		if !bytes.Equal(left.Current, right.Current) {
			diffs = append(diffs, short(left.Current)+" is "+short(right.Current))
			if !left.Current.Lookup("_id").Equal(right.Current.Lookup("_id")) || len(diffs) >= maxDifferences {
				return n, diffs, nil
			}
		}
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func short(d bson.Raw) string {
	const most = 300
	s := d.String()
	if len(s) > most {
		s = s[:most] + " …"
	}
	return s
}
