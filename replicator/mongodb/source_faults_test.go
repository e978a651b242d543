package mongodb_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

func TestACopyGoesOnThroughElectionsFreezesAndKills(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	ctx := t.Context()
	coll := d.DB(t).Collection("c")
	fill(t, coll, 20_000, 50)
	capped := newCapped(t, coll.Database(), 8<<20, 0)
	put(t, capped, 0, 10_000)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	c, cc := describe(t, s, coll), describe(t, s, capped)
	natural := oneRange(t, s, cc)
	at := now(t, s)
	filter := raw(t, bson.D{{Key: "k", Value: 3}})
	for _, fault := range []struct {
		name string
		do   func(ctx context.Context, who string) (localcluster.Member, error)
		undo func(ctx context.Context, who string) (localcluster.Member, error)
	}{
		{"stepdown", d.Cluster.StepDown, nil},
		{"freeze", d.Cluster.Freeze, d.Cluster.Thaw},
		{"kill", d.Cluster.Kill, d.Cluster.Start},
	} {
		must(t, d.Cluster.AwaitHealthy(ctx))
		hit := ""
		windows := 0
		middle := func(*replicator.Range) {
			if windows++; windows != 3 {
				return
			}
			m, err := fault.do(ctx, "primary")
			must(t, err)
			hit = m.Name
		}
		heal := func() {
			if fault.undo != nil && hit != "" {
				_, err := fault.undo(ctx, hit)
				must(t, err)
			}
			must(t, d.Cluster.AwaitHealthy(ctx))
			windows, hit = 0, ""
		}
		start := time.Now()
		docs, _ := walk(t, s, c, replicator.Range{}, 2000, nil, at, middle)
		t.Logf("%s: a copy took %v", fault.name, time.Since(start))
		heal()
		sameDocuments(t, docs, stored(t, coll, bson.D{}))
		docs, end := walk(t, s, c, replicator.Range{}, 2000, filter, at, middle)
		heal()
		sameDocuments(t, docs, stored(t, coll, filter))
		if end.Scanned != 20_000 {
			t.Errorf("%s: %d documents count as looked at", fault.name, end.Scanned)
		}
		docs, _ = walk(t, s, cc, natural, 1000, nil, at, middle)
		heal()
		seen := map[int64]bool{}
		for _, n := range numbers(docs) {
			seen[n] = true
		}
		if len(seen) != 10_000 {
			t.Errorf("%s: %d of 10000 documents of a capped collection were read", fault.name, len(seen))
		}
	}
}

func TestSecondariesAreReadWhileThereIsNoPrimary(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	ctx := t.Context()
	coll := d.DB(t).Collection("c")
	fill(t, coll, 5000, 50)
	s := newSource(t, d.Options().SetReadPreference(readpref.SecondaryPreferred()), mongodb.SourceConfig{})
	p := newSource(t, d.Options(), mongodb.SourceConfig{})
	c := describe(t, p, coll)
	want := stored(t, coll, bson.D{})
	at := now(t, p)
	eventually(t, "a secondary has everything", func() bool {
		docs, err := s.Fetch(ctx, c.Name, "", []bson.RawValue{want[0].Lookup("_id")}, nil, at)
		return err == nil && len(docs) == 1
	})
	// Without a majority there is no primary, and what it had is still known to be committed.
	for _, who := range []string{"primary", "secondary"} {
		_, err := d.Cluster.Kill(ctx, who)
		must(t, err)
	}
	docs, _ := walk(t, s, c, replicator.Range{}, 500, nil, record.Timestamp{}, nil)
	sameDocuments(t, docs, want)
	if _, err := s.Identity(ctx); err != nil {
		t.Error(err)
	}
	if _, err := s.Collections(ctx, setOf(t, c.Name.String())); err != nil {
		t.Error(err)
	}
}
