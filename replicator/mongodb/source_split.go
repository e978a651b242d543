package mongodb

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

const (
	// splitDocuments and splitBytes: a range has at least one of them. Below, what a range costs is more than what it saves.
	splitDocuments = 10_000
	splitBytes     = 16 << 20
	// samplesPerRange makes ranges of about the same size: with 40 a range is off by a sixth.
	samplesPerRange = 40
	// maxSamples keeps the sample small; the server draws it from random places of the collection, one by one.
	maxSamples = 4000
	// splitTries is how many attempts a sample gets. Where the server has no random access (clustered collections), it scans.
	splitTries = 2
)

// errNoSample says that the server could not sample in time. It ends the read at once.
var errNoSample = errors.New("the sample took too long")

// Split implements replicator.Source. The bounds are _ids of a sample, in the order of the index on _id and so by the
// collection's own collation, of whatever types. If the server cannot sample in time, the collection is one range.
func (s *Source) Split(ctx context.Context, c replicator.Collection, n int) ([]replicator.Range, error) {
	switch c.Kind {
	case replicator.KindCapped:
		return s.splitNatural(ctx, c)
	case replicator.KindCollection:
	default:
		return nil, fmt.Errorf("split %s: a %s has no documents of its own to copy", c.Name, c.Kind)
	}
	n = int(min(int64(n), max(c.Documents/splitDocuments, c.Bytes/splitBytes)))
	if n < 2 || c.Documents < 2 {
		return []replicator.Range{{}}, nil
	}
	ids, err := s.sample(ctx, c, n)
	if errors.Is(err, errNoSample) {
		s.cfg.Logger.Info().Str("collection", c.Name.String()).Msg("the collection cannot be sampled in time, so it is copied as one range")
		return []replicator.Range{{}}, nil
	}
	if err != nil {
		return nil, needs(err, "split "+c.Name.String(), "read on the database "+c.Name.DB)
	}
	return ranges(ids, n), nil
}

// sample returns _ids of c in the order of the index.
func (s *Source) sample(ctx context.Context, c replicator.Collection, n int) ([]record.ID, error) {
	size := min(n*samplesPerRange, maxSamples)
	cmd := bson.D{{Key: "aggregate", Value: c.Name.Coll}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: size + 1}}}, {Key: "readConcern", Value: majorityAfter(record.Timestamp{})},
		{Key: "pipeline", Value: bson.A{
			bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: size}}}},
			bson.D{{Key: "$project", Value: byID}},
			bson.D{{Key: "$sort", Value: byID}},
		}}}
	var ids []record.ID
	err := s.read(ctx, c.Name.DB, c.Name.String(), func(ctx context.Context, try int, d *mongo.Database) error {
		docs, _, err := firstBatch(ctx, d, s.pref, cmd, 0)
		if err != nil {
			if try+1 >= splitTries && tooMuch(err) {
				return errNoSample
			}
			return err
		}
		ids = ids[:0]
		for _, doc := range docs {
			v, err := idOf(doc)
			if err != nil {
				return err
			}
			ids = append(ids, record.IDOf(v))
		}
		return nil
	})
	return ids, err
}

// ranges cuts at ids, which are in order, into at most n ranges.
func ranges(ids []record.ID, n int) []replicator.Range {
	var out []replicator.Range
	var from record.ID
	for i := 1; i < n && len(ids) > 0; i++ {
		to := ids[i*len(ids)/n]
		if to == from || to == minKey || to == maxKey {
			continue
		}
		out = append(out, replicator.Range{From: from, To: to})
		from = to
	}
	return append(out, replicator.Range{From: from})
}

// splitNatural returns the range of a capped collection, which ends at the newest document: what comes later is a change. The
// member that answers must not be behind the position that the changes begin at.
func (s *Source) splitNatural(ctx context.Context, c replicator.Collection) ([]replicator.Range, error) {
	var reply bson.Raw
	err := s.named(c.Name, func(ns record.Namespace) (err error) {
		cmd := bson.D{{Key: "find", Value: ns.Coll}, {Key: "sort", Value: bson.D{{Key: "$natural", Value: -1}}}, {Key: "projection", Value: byID},
			{Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}, {Key: "readConcern", Value: majorityAfter(s.floor())}}
		reply, err = s.command(ctx, ns.DB, ns.String(), withUUID(cmd, c.UUID))
		return err
	})
	if err != nil {
		return nil, needs(err, "split "+c.Name.String(), "read on the database "+c.Name.DB)
	}
	docs, _, err := batch(nil, reply)
	if err != nil {
		return nil, err
	}
	r := replicator.Range{Natural: true, Done: len(docs) == 0}
	if len(docs) == 1 {
		v, err := idOf(docs[0])
		if err != nil {
			return nil, err
		}
		r.To = record.IDOf(v)
	}
	return []replicator.Range{r}, nil
}
