package mongodb

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// fetchDocuments is how many documents one command of Fetch asks for; fewer where they do not fit into a reply.
	fetchDocuments = 1000
	// fetchBytes bounds the _ids of one command.
	fetchBytes = 4 << 20
)

// Check implements replicator.Source. It asks as the copy does: a filter stands inside an $and, and the index on _id is prescribed, so that
// nearness and text search are refused too.
func (s *Source) Check(ctx context.Context, ns record.Namespace, filter bson.Raw) error {
	_, err := s.command(ctx, ns.DB, ns.String(), bson.D{{Key: "explain", Value: bson.D{
		{Key: "find", Value: ns.Coll}, {Key: "filter", Value: bson.D{{Key: "$and", Value: bson.A{filter}}}}, {Key: "hint", Value: byID},
	}}, {Key: "verbosity", Value: "queryPlanner"}})
	c := mongoerr.Classify(err)
	switch {
	case err == nil, mongoerr.IsUnauthorized(err):
		return nil // who may not read here is told so by the copy
	case c.Code != 0 && c.Read == mongoerr.ReadStop:
		return fmt.Errorf("the source refuses the filter %v on the documents of %s: correct the query (nearness and text search cannot filter a route): %w", filter, ns, err)
	}
	return fmt.Errorf("check the filter on the documents of %s: %w", ns, err)
}

// Fetch implements replicator.Source. It returns a document once, also if ids name it twice by numbers of
// different types.
func (s *Source) Fetch(ctx context.Context, ns record.Namespace, uuid string, ids []bson.RawValue, filter bson.Raw, at record.Timestamp) ([]bson.Raw, error) {
	var docs []bson.Raw
	chunks := 0
	for len(ids) > 0 {
		n := fetchChunk(ids)
		var part []bson.Raw
		var read int
		err := s.named(ns, func(now record.Namespace) (err error) {
			part, read, err = s.fetch(ctx, now, uuid, ids[:n], filter, at)
			return err
		})
		if err != nil {
			return nil, needs(err, "read documents of "+ns.String(), "read on the database "+ns.DB)
		}
		if docs == nil {
			docs = part
		} else {
			docs = append(docs, part...)
		}
		chunks++
		ids = ids[read:]
	}
	if chunks < 2 {
		return docs, nil
	}
	return once(docs)
}

// fetchChunk returns how many of ids go into one command.
func fetchChunk(ids []bson.RawValue) int {
	size := 0
	for i, id := range ids[:min(len(ids), fetchDocuments)] {
		if size += len(id.Value) + 10; size > fetchBytes && i > 0 {
			return i
		}
	}
	return min(len(ids), fetchDocuments)
}

// fetch reads the documents of the first of ids, as many as a reply holds, and says how many of ids that were.
func (s *Source) fetch(ctx context.Context, ns record.Namespace, uuid string, ids []bson.RawValue, filter bson.Raw, at record.Timestamp) (docs []bson.Raw, read int, err error) {
	n := len(ids)
	for {
		more := false
		err = s.read(ctx, ns.DB, ns.String(), func(ctx context.Context, _ int, d *mongo.Database) (err error) {
			cmd := bson.D{{Key: "find", Value: ns.Coll}, {Key: "filter", Value: among(ids[:n], filter)}, {Key: "readConcern", Value: majorityAfter(at)},
				{Key: "batchSize", Value: n + 1}}
			cmd = withUUID(cmd, uuid)
			docs, more, err = firstBatch(ctx, d, s.pref, cmd, 0)
			if err != nil && n > 1 && tooMuch(err) {
				n = (n + 1) / 2
			}
			return err
		})
		if err != nil || !more || n == 1 {
			return docs, n, err
		}
		n = (n + 1) / 2
	}
}

// among selects the documents with one of the ids that match filter.
func among(ids []bson.RawValue, filter bson.Raw) bson.D {
	in := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}
	if isEmpty(filter) {
		return in
	}
	return bson.D{{Key: "$and", Value: bson.A{in, filter}}}
}

// once leaves out documents that are there twice.
func once(docs []bson.Raw) ([]bson.Raw, error) {
	seen := make(map[record.ID]struct{}, len(docs))
	out := docs[:0]
	for _, doc := range docs {
		v, err := idOf(doc)
		if err != nil {
			return nil, err
		}
		id := record.IDOf(v)
		if _, twice := seen[id]; !twice {
			seen[id] = struct{}{}
			out = append(out, doc)
		}
	}
	return out, nil
}
