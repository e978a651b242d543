package tailer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// skimWorkload writes what the oplog can hold, in and beside what is watched.
func skimWorkload(t *testing.T, r *rand.Rand, mine, other *mongo.Database) {
	t.Helper()
	ctx := t.Context()
	run := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	command := func(cmd ...bson.E) {
		t.Helper()
		run(mine.Client().Database("admin").RunCommand(ctx, bson.D(cmd)).Err())
	}
	other = mine.Client().Database(other.Name()) // sessions are of one client
	large := strings.Repeat("x", 17<<19)
	transaction := func(where []*mongo.Collection, size int) {
		t.Helper()
		s, err := mine.Client().StartSession()
		run(err)
		defer s.EndSession(ctx)
		for range 20 { // a large one has no room in the cache at times
			_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
				for _, c := range where {
					if _, err := c.InsertOne(ctx, bson.D{{Key: "a", Value: large[:size]}}); err != nil {
						return nil, err
					}
				}
				return nil, nil
			})
			if err == nil {
				break
			}
			run(pace.Sleep(ctx, time.Second))
		}
		run(err)
	}
	watched, beside, far := mine.Collection("s"), mine.Collection("beside"), other.Collection("s")
	for _, c := range []*mongo.Collection{watched, beside, far} {
		run(c.Database().CreateCollection(ctx, c.Name()))
	}
	steps := []func(int){
		func(i int) { insertDoc(t, watched, i) },
		func(i int) { insertDoc(t, beside, i) },
		func(i int) { insertDoc(t, far, i) },
		func(i int) { insertDoc(t, far, i+1000) },
		func(int) {
			mustUpdate(t, watched, bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		},
		func(int) { _, err := watched.DeleteOne(ctx, bson.D{}); run(err) },
		func(int) { transaction([]*mongo.Collection{watched, far, watched}, 1) },
		func(int) { transaction([]*mongo.Collection{far, far}, 1) },
		func(i int) {
			c := mine.Collection(fmt.Sprintf("moved%d", i))
			insertDoc(t, c, i)
			command(bson.E{Key: "renameCollection", Value: mine.Name() + "." + c.Name()}, bson.E{Key: "to", Value: other.Name() + "." + c.Name()})
		},
		func(i int) {
			c := other.Collection(fmt.Sprintf("coming%d", i))
			insertDoc(t, c, i)
			command(bson.E{Key: "renameCollection", Value: other.Name() + "." + c.Name()}, bson.E{Key: "to", Value: mine.Name() + "." + c.Name()})
		},
		func(i int) { run(other.CreateCollection(ctx, fmt.Sprintf("c%d", i))) },
		func(int) { run(watched.Drop(ctx)) },
		func(i int) { run(mine.CreateView(ctx, fmt.Sprintf("view%d", i), "s", mongo.Pipeline{})) },
		func(int) {
			_, err := watched.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "n", Value: 1}}})
			run(err)
		},
	}
	for i := range 70 {
		steps[r.IntN(len(steps))](i)
	}
	// Its first entry alone is about what is watched, and the last one, with which the events come, is not.
	transaction([]*mongo.Collection{watched, far}, len(large))
	insertDoc(t, far, 9001)
	run(other.Drop(ctx))
	insertDoc(t, watched, 9002)
	insertDoc(t, far, 9003)
}

// short is an event for people; the end of a token tells events of one time apart.
func short(r record.Record) string {
	id := r.Position.ID.String()
	return fmt.Sprintf("%d.%d …%s %s %s", r.Position.TS.T, r.Position.TS.I, id[max(0, len(id)-24):], r.Change.Op, r.Change.Namespace.Coll)
}

// A reader that looks through the oplog first gets what one gets that does not, from every position that there is.
func TestALookThroughTheOplogPassesNoEvent(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	mine, other := d.DB(t), d.DB(t)
	pipeline := []bson.D{{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "ns.db", Value: mine.Name()}}, bson.D{{Key: "to.db", Value: mine.Name()}}}}}}}}
	scopes := map[string]struct {
		db, coll string
		cfg      ChangesConfig
	}{
		"collection": {mine.Name(), "s", ChangesConfig{}},
		"database":   {mine.Name(), "", ChangesConfig{Expanded: true}},
		"cluster":    {"", "", ChangesConfig{Expanded: true, Pipeline: pipeline, Namespaces: "^" + mine.Name() + `\.`}},
	}
	begin := watchOpen(t, d, "", "", ChangesConfig{}).Start()
	skimWorkload(t, rand.New(rand.NewPCG(seed, 0)), mine, other)
	for name, s := range scopes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := func(from record.Position, change func(*ChangesConfig)) (all []record.Record) {
				cfg := s.cfg
				cfg.Start, cfg.UntilEnd, cfg.Progress = after(from), true, time.Nanosecond
				change(&cfg)
				c := watchUnopened(t, d, s.db, s.coll, cfg)
				for r, err := range c.All(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, r)
				}
				_ = c.Close()
				return all
			}
			plain := read(begin, func(c *ChangesConfig) { c.skimNever, c.BatchSize = true, 1 })
			moved := 0
			check := func(from record.Position) {
				t.Helper()
				var want, got []string
				for _, r := range plain {
					// A time alone is behind every event of that time.
					if r.Kind == record.KindChange && r.Position.Compare(from) > 0 && (!from.ID.IsZero() || r.Position.TS != from.TS) {
						want = append(want, short(r))
					}
				}
				for i, r := range read(from, func(c *ChangesConfig) { c.skimAll = true }) {
					if r.Kind == record.KindChange {
						got = append(got, short(r))
					} else if i == 0 && r.Position.ID.IsZero() {
						moved++
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("behind %.20s (%d) came\n%s\nwant\n%s", from, record.KindOfToken(from), strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
			all := append([]record.Record{{Position: begin}}, plain...)
			for i, r := range all {
				if k := record.KindOfToken(r.Position); k == record.TokenUnknown || r.Kind == record.KindChange && k != record.TokenOfEvent {
					t.Errorf("the token of a %s is of kind %d", r.Kind, k)
				}
				if i > 2 && i < len(all)-8 && i%7 != 0 {
					continue // each takes its time
				}
				check(r.Position)
				check(record.Position{TS: r.Position.TS})
			}
			if moved < 5 {
				t.Errorf("the position moved only %d times by a look through the oplog", moved)
			}
		})
	}
}

// What nothing fits for long is passed in windows: the position moves before the server has said anything, and who is
// stopped in the middle goes on from there.
func TestTheOplogIsPassedInWindows(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	mine, other := d.DB(t), d.DB(t)
	begin := watchOpen(t, d, mine.Name(), "", ChangesConfig{}).Start()
	for i := range 45 {
		insertDoc(t, other.Collection("s"), i)
		if err := pace.Sleep(t.Context(), 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	insertDoc(t, mine.Collection("s"), 1)
	c := watchUnopened(t, d, mine.Name(), "", ChangesConfig{Start: after(begin), Progress: time.Nanosecond, skimAll: true})
	half := progressed(t, c).Position
	if half.TS.Compare(begin.TS) <= 0 || !half.ID.IsZero() {
		t.Errorf("the first look went from %s to %s", begin, half)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = watchOpen(t, d, mine.Name(), "", ChangesConfig{Start: after(half), Progress: time.Nanosecond, skimAll: true})
	looks := 0
	for r := pullNext(t, c); ; r = pullNext(t, c) {
		if r.Position.Compare(half) <= 0 {
			t.Fatalf("%s comes behind %s", r.Position, half)
		}
		if r.Kind == record.KindChange {
			if key(r) != 1 {
				t.Errorf("got the event of %d", key(r))
			}
			break
		}
		looks++
	}
	if looks == 0 {
		t.Error("no progress before the event")
	}
}
