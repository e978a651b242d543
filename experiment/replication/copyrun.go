package replication

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/scope"
)

const (
	// fillBatch is how many documents are written at once where nothing is measured.
	fillBatch = 2000
	// docs is the name of the collection that is copied or changed.
	docs = "docs"
)

// figureID is the _id of the k-th document. They rise, as those of drivers do, so the bounds of ranges are known.
func figureID(k int) bson.ObjectID {
	var id bson.ObjectID
	binary.BigEndian.PutUint32(id[0:], uint32(1_700_000_000+k/1000))
	binary.BigEndian.PutUint64(id[4:], uint64(k))
	return id
}

// smallDocument makes a document of about 200 bytes.
func smallDocument(r *rand.Rand, id bson.ObjectID) bson.D { return figureDocument(r, id, 74) }

// largeDocument makes one of about 1 KB.
func largeDocument(r *rand.Rand, id bson.ObjectID) bson.D { return figureDocument(r, id, 898) }

const letters = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func figureDocument(r *rand.Rand, id bson.ObjectID, pad int) bson.D {
	text := make([]byte, pad)
	for i := range text {
		text[i] = letters[r.IntN(len(letters))]
	}
	return bson.D{{Key: "_id", Value: id}, {Key: "n", Value: int32(r.IntN(1000))}, {Key: "price", Value: r.Float64() * 100},
		{Key: "when", Value: bson.DateTime(1_700_000_000_000 + r.Int64N(1e10))},
		{Key: "tags", Value: bson.A{"a", int64(r.IntN(5))}}, {Key: "sub", Value: bson.D{{Key: "x", Value: r.Int64()}}}, {Key: "text", Value: string(text)}}
}

// fill writes n documents, numbered from first, to a collection.
func fill(ctx context.Context, c *mongo.Collection, seed uint64, first, n int, doc func(*rand.Rand, bson.ObjectID) bson.D) error {
	r := rand.New(rand.NewPCG(seed, uint64(first)))
	for from := 0; from < n; from += fillBatch {
		batch := make([]any, 0, fillBatch)
		for k := from; k < min(n, from+fillBatch); k++ {
			batch = append(batch, doc(r, figureID(first+k)))
		}
		if _, err := c.InsertMany(ctx, batch, options.InsertMany().SetOrdered(false)); err != nil {
			return fmt.Errorf("fill %s.%s: %w", c.Database().Name(), c.Name(), err)
		}
	}
	return nil
}

// variant is who does it.
type variant struct {
	name   string
	kind   string // of a naive program; "" is capstan
	ranges int
}

func copyVariants() []variant {
	return []variant{{name: "capstan"}, {"naive-1", NaiveCopy, 1}, {"naive-2", NaiveCopy, 2}, {"naive-4", NaiveCopy, 4}}
}

// copies measures the copy of n documents by every variant, in turns.
func (b *bench) copies(ctx context.Context, part string, n int, doc func(*rand.Rand, bson.ObjectID) bson.D) error {
	db := dbName(part)
	b.note("%s: writing %d documents", part, n)
	if err := fill(ctx, b.pair.From.Database(db).Collection(docs), b.cfg.Seed, 0, n, doc); err != nil {
		return err
	}
	for round := range b.cfg.Rounds {
		for _, v := range turn(copyVariants(), round) {
			args, err := b.copyArgs(v, db, fmt.Sprintf("%s-%d", part, round), n)
			if err != nil {
				return err
			}
			if _, err := b.measure(ctx, Row{Part: part, Variant: v.name, Round: round + 1, Count: int64(n)}, args); err != nil {
				return err
			}
			if err := b.expect(ctx, db, int64(n)); err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			// The next route copies to the same collections, which this one owns for as long as it is remembered.
			for _, name := range []string{db, scope.Own} {
				if err := b.pair.To.Database(name).Drop(ctx); err != nil {
					return err
				}
			}
		}
	}
	if part == PartCopySmall {
		return nil // verify compares it
	}
	return b.pair.From.Database(db).Drop(ctx)
}

// dbName is the database of a part.
func dbName(part string) string { return "bench-" + part }

func (b *bench) copyArgs(v variant, db, route string, n int) ([]string, error) {
	if v.kind == "" {
		return b.replicate(db, route, "--until", "copied"), nil
	}
	j := NaiveJob{Kind: v.kind, Database: db, Collection: docs, Ranges: v.ranges}
	for i := 1; i < v.ranges; i++ {
		j.Bounds = append(j.Bounds, figureID(i*n/v.ranges))
	}
	return b.naive(j)
}

// replicate are the arguments of `capstan replicate` of one database.
func (b *bench) replicate(db, route string, more ...string) []string {
	r := Route{Name: route, Scope: scope.Config{Include: []string{db + ".*"}}}
	return CapstanProgram(b.capstan, more...).Args(b.pair, r)
}

func (b *bench) naive(j NaiveJob) ([]string, error) {
	j.SourceURI, j.TargetURI = b.pair.SourceURI(), b.pair.TargetURI()
	job, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("write job: %w", err)
	}
	return append(append([]string{}, b.cfg.Naive...), string(job)), nil
}

// expect checks that the destination holds n documents: a fast copy of less is none.
func (b *bench) expect(ctx context.Context, db string, n int64) error {
	got, err := b.pair.To.Database(db).Collection(docs).CountDocuments(ctx, bson.D{})
	if err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("the destination holds %d documents of %d", got, n)
	}
	return nil
}

// verify measures `capstan verify` on the copy of the small documents.
func (b *bench) verify(ctx context.Context) error {
	db := dbName(PartCopySmall)
	for _, client := range []*mongo.Client{b.pair.From, b.pair.To} {
		c := client.Database(db).Collection(docs)
		if n, err := c.EstimatedDocumentCount(ctx); err != nil {
			return err
		} else if n == int64(b.cfg.Small) {
			continue
		}
		if err := c.Drop(ctx); err != nil {
			return err
		}
		if err := fill(ctx, c, b.cfg.Seed, 0, b.cfg.Small, smallDocument); err != nil {
			return err
		}
	}
	args := append([]string{"verify"}, sideArgs(b.pair, Route{Scope: scope.Config{Include: []string{db + ".*"}}})...)
	for round := range b.cfg.Rounds {
		if _, err := b.measure(ctx, Row{Part: PartVerify, Variant: "capstan", Round: round + 1, Count: int64(b.cfg.Small)}, args); err != nil {
			return err
		}
	}
	return nil
}
