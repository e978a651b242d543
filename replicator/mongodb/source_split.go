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
	// stepDocuments is how many documents are stepped through to find bounds, instead of taking a sample: it is exact, costs 0.4 us
	// each (the index alone is read), and does not suffer from the server's random cursor, which finds nothing but a part of what
	// was written lately (measured on mongod 6.0.5: 1000 samples of 40,000 fresh documents missed a quarter of the index).
	stepDocuments = 2_000_000
	// stepLength is how far one command steps.
	stepLength = 50_000
	// samplesPerRange makes ranges of about the same size: with 40 a range is off by a sixth.
	samplesPerRange = 40
	// maxSamples keeps the sample small; the server draws it from random places of the collection, one by one.
	maxSamples = 4000
	// splitTries is how many attempts a sample gets. Where the server has no random access (clustered collections), it scans.
	splitTries = 2
)

// errNoSample says that the server could not sample in time. It ends the read at once.
var errNoSample = errors.New("the sample took too long")

// Split implements replicator.Source. The bounds are _ids in the order of the index, and so by the collection's own
// collation, of whatever types: every so many documents, or in a large collection those of a sample. If the server cannot sample
// in time, the collection is one range.
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
	find := s.sample
	if c.Documents <= stepDocuments {
		find = s.steps
	}
	ids, err := find(ctx, c, n)
	if errors.Is(err, errNoSample) {
		s.cfg.Logger.Info().Str("collection", c.Name.String()).Msg("the collection cannot be sampled in time, so it is copied as one range")
		return []replicator.Range{{}}, nil
	}
	if err != nil {
		return nil, needs(err, "split "+c.Name.String(), "read on the database "+c.Name.DB)
	}
	return ranges(ids), nil
}

// steps returns n-1 _ids of c at about equal distances, fewer if c has fewer documents than estimated.
func (s *Source) steps(ctx context.Context, c replicator.Collection, n int) ([]record.ID, error) {
	var ids []record.ID
	err := s.named(c.Name, func(ns record.Namespace) (err error) {
		ids, err = (&scan{src: s, ns: ns, uuid: c.UUID, limit: stepLength}).steps(ctx, n, max(1, c.Documents/int64(n)))
		return err
	})
	return ids, err
}

// steps returns n-1 _ids, per documents apart, or fewer where the collection ends.
func (s *scan) steps(ctx context.Context, n int, per int64) (ids []record.ID, err error) {
	for len(ids) < n-1 {
		for left := per; left > 0; {
			var id record.ID
			var looked int64
			var paced bool
			err := s.src.paced(ctx, s.ns, int(min(left, stepLength)), func(ctx context.Context, d *mongo.Database, k int) (err error) {
				id, looked, err = s.inside(ctx, d, k)
				return err
			}, &paced)
			if err != nil || id.IsZero() {
				return ids, err
			}
			s.from = id
			left -= looked
		}
		ids = append(ids, s.from)
	}
	return ids, nil
}

// sample returns n-1 _ids of c that cut a sample into equal parts.
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
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	bounds := make([]record.ID, 0, n-1)
	for i := 1; i < n; i++ {
		bounds = append(bounds, ids[i*len(ids)/n])
	}
	return bounds, nil
}

// ranges cuts at bounds, which are in order and may repeat.
func ranges(bounds []record.ID) []replicator.Range {
	var out []replicator.Range
	var from record.ID
	for _, to := range bounds {
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
