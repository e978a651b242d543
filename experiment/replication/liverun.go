package replication

import (
	"context"
	"fmt"
	"math/rand/v2"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// liveBase is how many documents there are before the changes.
const liveBase = 20_000

func liveVariants(part string) []variant {
	all := []variant{{name: "capstan"}, {name: "naive-replace", kind: NaiveReplace}}
	if part == PartUpdates { // inserts are the same for both
		all = append(all, variant{name: "naive-set", kind: NaiveSet})
	}
	return all
}

// lives measures how fast changes are applied that have piled up at the source while nobody followed. Every variant has its own
// collection with the same documents and the same changes.
func (b *bench) lives(ctx context.Context, part string, variants []variant) error {
	for round := range b.cfg.Rounds {
		for i, v := range turn(variants, round) {
			if err := b.live(ctx, part, fmt.Sprintf("%s-%d-%d", dbName(part), round, i), v, round); err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
		}
	}
	return nil
}

func (b *bench) live(ctx context.Context, part, db string, v variant, round int) error {
	source := b.pair.From.Database(db).Collection(docs)
	base := min(liveBase, b.cfg.Inserts)
	if err := fill(ctx, source, b.cfg.Seed, 0, base, smallDocument); err != nil {
		return err
	}
	args, err := b.follow(ctx, source, db, v)
	if err != nil {
		return err
	}
	changes, documents, err := b.change(ctx, part, source, base)
	if err != nil {
		return err
	}
	if v.kind != "" {
		args.job.Events = changes
		if args.list, err = b.naive(args.job); err != nil {
			return err
		}
	}
	if _, err := b.measure(ctx, Row{Part: part, Variant: v.name, Round: round + 1, Count: changes}, args.list); err != nil {
		return err
	}
	if err := b.expect(ctx, db, documents); err != nil {
		return err
	}
	for _, client := range []*mongo.Client{b.pair.From, b.pair.To} {
		if err := client.Database(db).Drop(ctx); err != nil {
			return err
		}
	}
	return nil
}

// following is what makes a variant go on from where it stands.
type following struct {
	list []string
	job  NaiveJob
}

// follow copies what is there and remembers where the changes begin.
func (b *bench) follow(ctx context.Context, source *mongo.Collection, db string, v variant) (following, error) {
	if v.kind == "" {
		f := following{list: b.replicate(db, db, "--until", "live")}
		return f, b.quietly(ctx, f.list)
	}
	cs, err := source.Watch(ctx, mongo.Pipeline{})
	if err != nil {
		return following{}, err
	}
	token := cs.ResumeToken().Lookup("_data").StringValue()
	if err := cs.Close(ctx); err != nil {
		return following{}, err
	}
	copied, err := b.naive(NaiveJob{Kind: NaiveCopy, Database: db, Collection: docs, Ranges: 1})
	if err != nil {
		return following{}, err
	}
	return following{job: NaiveJob{Kind: v.kind, Database: db, Collection: docs, Token: token}}, b.quietly(ctx, copied)
}

// quietly runs a program to its end without measuring it.
func (b *bench) quietly(ctx context.Context, args []string) error {
	var log logBuffer
	p, err := startProcess(ctx, &log, &log, b.capstan, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.kill()
		return context.Cause(ctx)
	}
	if p.err != nil {
		return fmt.Errorf("capstan %s: %w: %s", args[0], p.err, log.bytes())
	}
	return nil
}

// change makes the changes of a part and returns how many they are, and how many documents there are then.
func (b *bench) change(ctx context.Context, part string, source *mongo.Collection, base int) (changes, documents int64, err error) {
	r := rand.New(rand.NewPCG(b.cfg.Seed, 77))
	inserts, updates := b.cfg.Inserts, b.cfg.Inserts/5
	if part == PartUpdates {
		inserts, updates = 0, b.cfg.Updates
	}
	// In slices, so that inserts and updates alternate as in an application.
	const slices = 20
	for s := range slices {
		n := inserts*(s+1)/slices - inserts*s/slices
		if n > 0 {
			if err := fill(ctx, source, b.cfg.Seed, base+inserts*s/slices, n, smallDocument); err != nil {
				return 0, 0, err
			}
		}
		var batch []mongo.WriteModel
		for range updates*(s+1)/slices - updates*s/slices {
			changes++
			batch = append(batch, mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: figureID(r.IntN(base))}}).
				SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: int32(1000) + int32(changes)}}}})) // always another value: no event else
		}
		if len(batch) > 0 {
			if _, err := source.BulkWrite(ctx, batch, options.BulkWrite().SetOrdered(false)); err != nil {
				return 0, 0, fmt.Errorf("update: %w", err)
			}
		}
	}
	return changes + int64(inserts), int64(base + inserts), nil
}
