package mongodb

import (
	"context"
	"encoding/hex"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

// describers is how many collections are looked at at the same time.
const describers = 4

// Collections implements replicator.Source. They come in the order of their names. It needs the role read on each database,
// and clusterMonitor or readAnyDatabase to list the databases.
func (s *Source) Collections(ctx context.Context, set *scope.Set) ([]replicator.Collection, error) {
	dbs, err := s.databases(ctx, set)
	if err != nil {
		return nil, err
	}
	// What a member that lags behind does not have yet must not be missing.
	at := s.floor()
	var all []replicator.Collection
	for _, db := range dbs {
		some, err := s.listCollections(ctx, db, set, at)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(describers)
	for i := range all {
		g.Go(func() error { return s.describe(gctx, &all[i], at) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(c replicator.Collection) bool { return c.Name.IsZero() }) // dropped meanwhile
	slices.SortFunc(all, func(a, b replicator.Collection) int { return compareNames(a.Name, b.Name) })
	return all, nil
}

func compareNames(a, b record.Namespace) int {
	switch {
	case a == b:
		return 0
	case a.DB < b.DB || a.DB == b.DB && a.Coll < b.Coll:
		return -1
	}
	return 1
}

// databases returns the databases that may hold something of the set.
func (s *Source) databases(ctx context.Context, set *scope.Set) ([]string, error) {
	if db := set.Database(); db != "" {
		return []string{db}, nil
	}
	reply, err := s.command(ctx, "admin", "listDatabases", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if err != nil {
		return nil, needs(err, "list databases", "readAnyDatabase")
	}
	var dbs []string
	for _, v := range values(reply.Lookup("databases")) {
		if name, ok := v.Document().Lookup("name").StringValueOK(); ok && !scope.System(record.Namespace{DB: name}) {
			dbs = append(dbs, name)
		}
	}
	return dbs, nil
}

func (s *Source) listCollections(ctx context.Context, db string, set *scope.Set, at record.Timestamp) ([]replicator.Collection, error) {
	docs, err := s.all(ctx, db, db, bson.D{{Key: "listCollections", Value: 1}, {Key: "readConcern", Value: concern("local", at)}})
	if err != nil {
		return nil, needs(err, "list the collections of "+db, "read on the database "+db)
	}
	var all []replicator.Collection
	for _, doc := range docs {
		name, _ := doc.Lookup("name").StringValueOK()
		c := replicator.Collection{Name: record.Namespace{DB: db, Coll: name}, Kind: replicator.KindCollection}
		if !set.Matches(c.Name) {
			continue
		}
		if o, ok := doc.Lookup("options").DocumentOK(); ok && !isEmpty(o) {
			c.Options = o
		}
		if _, id, ok := doc.Lookup("info", "uuid").BinaryOK(); ok {
			c.UUID = hex.EncodeToString(id)
		}
		switch t, _ := doc.Lookup("type").StringValueOK(); {
		case t == "view":
			c.Kind = replicator.KindView
		case t == "timeseries":
			c.Kind = replicator.KindTimeseries
		default:
			if capped, _ := c.Options.Lookup("capped").BooleanOK(); capped {
				c.Kind = replicator.KindCapped
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// describe adds indexes and estimates to c, and clears its name if it is gone.
func (s *Source) describe(ctx context.Context, c *replicator.Collection, at record.Timestamp) error {
	if c.Kind == replicator.KindView {
		return nil
	}
	ns := c.Name
	docs, err := s.all(ctx, ns.DB, ns.String(), bson.D{{Key: "listIndexes", Value: ns.Coll}, {Key: "includeBuildUUIDs", Value: true},
		{Key: "readConcern", Value: concern("local", at)}})
	if mongoerr.IsNotFound(err) {
		*c = replicator.Collection{}
		return nil
	}
	if err != nil {
		return needs(err, "list the indexes of "+ns.String(), "read on the database "+ns.DB)
	}
	for _, spec := range docs {
		// One that is being built may be given up, of which no change tells; the change that it is there tells of it else.
		if _, none := spec.LookupErr("buildUUID"); none != nil {
			c.Indexes = append(c.Indexes, spec)
		}
	}
	if c.Kind == replicator.KindTimeseries { // its documents are in a collection of the server's
		return nil
	}
	stats, err := s.all(ctx, ns.DB, ns.String(), bson.D{{Key: "aggregate", Value: ns.Coll}, {Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: bson.A{
		bson.D{{Key: "$collStats", Value: bson.D{{Key: "count", Value: bson.D{}}, {Key: "storageStats", Value: bson.D{}}}}},
		bson.D{{Key: "$project", Value: bson.D{{Key: "count", Value: 1}, {Key: "size", Value: "$storageStats.size"}}}},
	}}})
	switch {
	case mongoerr.IsNotFound(err):
		*c = replicator.Collection{}
		return nil
	case err != nil:
		return needs(err, "estimate the size of "+ns.String(), "read on the database "+ns.DB)
	case len(stats) == 1:
		c.Documents, _ = stats[0].Lookup("count").AsInt64OK()
		c.Bytes, _ = stats[0].Lookup("size").AsInt64OK()
	}
	return nil
}
