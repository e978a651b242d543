package mongodb_test

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

func TestAZeroSourceConfigIsValidAndBadOnesAreNamed(t *testing.T) {
	t.Parallel()
	s, err := mongodb.NewSource(nil, mongodb.SourceConfig{})
	must(t, err)
	must(t, s.Close(t.Context()))
	if _, err := mongodb.NewSource(nil, mongodb.SourceConfig{Progress: -1}); err == nil || !strings.Contains(err.Error(), "Progress") {
		t.Errorf("a negative Progress: %v", err)
	}
	if _, err := mongodb.NewSource(options.Client().ApplyURI("mongodb://h/?w=1"), mongodb.SourceConfig{}); err != nil {
		t.Errorf("what a source's connection string says of writes matters: %v", err)
	}
}

func TestASetIsKnownByItsIDAndAStandaloneHasNone(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	for _, pref := range []*readpref.ReadPref{readpref.Primary(), readpref.Secondary()} {
		s := newSource(t, d.Options().SetReadPreference(pref), mongodb.SourceConfig{})
		id, err := s.Identity(t.Context())
		must(t, err)
		if id.SetName == "" || len(id.SetID) != 24 || !strings.HasPrefix(id.Version, "6.") {
			t.Errorf("identity is %+v", id)
		}
	}
	alone := newSource(t, mongotest.Standalone(t).Options(), mongodb.SourceConfig{})
	id, err := alone.Identity(t.Context())
	must(t, err)
	if id.SetName != "" || id.SetID != "" || id.Version == "" {
		t.Errorf("a standalone's identity is %+v", id)
	}
	if _, err := alone.Position(t.Context(), setOf(t, "x")); !errors.Is(err, mongodb.ErrNotReplicaSet) {
		t.Errorf("a position of a standalone: %v", err)
	}
	if _, err := alone.Clock(t.Context(), record.Position{}); !errors.Is(err, mongodb.ErrNotReplicaSet) {
		t.Errorf("a clock of a standalone: %v", err)
	}
	c, err := alone.Changes(setOf(t, "x"), record.Position{TS: record.Timestamp{T: 1}})
	must(t, err)
	if _, err := c.Next(t.Context()); !errors.Is(err, mongodb.ErrNotReplicaSet) {
		t.Errorf("changes of a standalone: %v", err)
	}
	must(t, c.Close())
}

func TestAStandaloneCanBeCopied(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("c")
	fill(t, coll, 1000, 10)
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	docs, _ := walkAll(t, s, describe(t, s, coll), 2, 300, nil)
	sameDocuments(t, docs, stored(t, coll, bson.D{}))
}

func TestCollectionsAreDescribedWithKindOptionsAndIndexes(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	ctx := t.Context()
	fill(t, db.Collection("plain"), 1000, 100)
	_, err := db.Collection("plain").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetName("by_k")})
	must(t, err)
	must(t, db.CreateCollection(ctx, "log", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20)))
	must(t, db.CreateView(ctx, "view", "plain", mongo.Pipeline{}))
	must(t, db.CreateCollection(ctx, "times", options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t"))))
	must(t, db.CreateCollection(ctx, "other"))
	s := newSource(t, d.Options().SetReadPreference(readpref.Nearest()), mongodb.SourceConfig{})
	pos, err := s.Position(ctx, setOf(t, db.Name()))
	must(t, err)
	if pos.TS.IsZero() {
		t.Fatal("a position without a time")
	}
	all, err := s.Collections(ctx, setOf(t, db.Name()+".plain", db.Name()+".log", db.Name()+".view", db.Name()+".times"))
	must(t, err)
	var got []string
	for _, c := range all {
		got = append(got, name("%s:%s", c.Name.Coll, c.Kind))
	}
	if want := []string{"log:capped", "plain:collection", "times:timeseries", "view:view"}; !slices.Equal(got, want) {
		t.Fatalf("found %v, want %v", got, want)
	}
	log, plain, view := all[0], all[1], all[3]
	if n, _ := log.Options.Lookup("size").AsInt64OK(); n != 1<<20 {
		t.Errorf("options of a capped collection: %v", log.Options)
	}
	if plain.Options != nil || len(plain.UUID) != 32 || len(plain.Indexes) != 2 || plain.Documents != 1000 || plain.Bytes < 100_000 {
		t.Errorf("plain is %+v", plain)
	}
	if on, _ := view.Options.Lookup("viewOn").StringValueOK(); on != "plain" || view.UUID != "" || view.Indexes != nil {
		t.Errorf("view is %+v", view)
	}
	// Without a pattern, other tests' databases are there too.
	everything, err := s.Collections(ctx, setOf(t))
	must(t, err)
	if !slices.ContainsFunc(everything, func(c replicator.Collection) bool { return c.Name == plain.Name }) {
		t.Error("without a pattern, the collection is not there")
	}
}

// TestAnIndexThatIsBeingBuiltIsNotThereYet: it may be given up, and no change would tell; when it is there, one does.
func TestAnIndexThatIsBeingBuiltIsNotThereYet(t *testing.T) {
	t.Parallel()
	dep := mongotest.Own(t, localcluster.Config{Members: 1, Set: "building", ExtraArgs: []string{"--setParameter", "enableTestCommands=1"}})
	db := dep.DB(t)
	fill(t, db.Collection("c"), 100, 10)
	s := newSource(t, dep.Options(), mongodb.SourceConfig{})
	admin := db.Client().Database("admin")
	command(t, admin, d("configureFailPoint", "hangAfterStartingIndexBuild", "mode", "alwaysOn"))
	built := make(chan error, 1)
	go func() {
		_, err := db.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}})
		built <- err
	}()
	eventually(t, "the build has begun", func() bool {
		var r struct {
			Cursor struct{ FirstBatch []bson.Raw }
		}
		must(t, db.RunCommand(t.Context(), d("listIndexes", "c")).Decode(&r))
		return len(r.Cursor.FirstBatch) == 2
	})
	if n := len(describe(t, s, db.Collection("c")).Indexes); n != 1 {
		t.Errorf("%d indexes while one of two is being built", n)
	}
	command(t, admin, d("configureFailPoint", "hangAfterStartingIndexBuild", "mode", "off"))
	must(t, <-built)
	if n := len(describe(t, s, db.Collection("c")).Indexes); n != 2 {
		t.Errorf("%d indexes, want 2", n)
	}
}

func TestWhatIsBehindAPositionComesAndWhatWasBeforeIsRead(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	ctx := t.Context()
	for _, pref := range []*readpref.ReadPref{readpref.Primary(), readpref.Secondary()} {
		coll := db.Collection("c_" + pref.Mode().String())
		s := newSource(t, d.Options().SetReadPreference(pref), mongodb.SourceConfig{})
		set := setOf(t, db.Name()+"."+coll.Name())
		done := make(chan error, 1)
		go func() {
			for i := range 600 {
				if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		eventually(t, "documents are there", func() bool {
			n, err := coll.CountDocuments(ctx, bson.D{})
			return err == nil && n > 100
		})
		pos, err := s.Position(ctx, set)
		must(t, err)
		copied, _ := walkAll2(t, s, describe(t, s, coll), pos.TS)
		must(t, <-done)
		seen := map[int64]bool{}
		for _, doc := range copied {
			seen[doc.Lookup("_id").AsInt64()] = true
		}
		c, err := s.Changes(set, pos)
		must(t, err)
		for len(seen) < 600 {
			r := next(t, c)
			if r.Kind == record.KindChange && r.Change.Op == record.OpInsert {
				seen[r.Change.Key.AsInt64()] = true
			}
		}
		// A token goes on where it is, and its text form is all that a store keeps.
		must(t, c.Close())
		text, err := record.ParsePosition(pos.String())
		must(t, err)
		c, err = s.Changes(set, text)
		must(t, err)
		for {
			if r := next(t, c); r.Kind == record.KindChange && r.Change.Key.AsInt64() == 599 {
				break
			}
		}
		must(t, c.Close())
	}
}

func walkAll2(t testing.TB, s *mongodb.Source, c replicator.Collection, at record.Timestamp) (docs []bson.Raw, end replicator.Range) {
	t.Helper()
	return walk(t, s, c, replicator.Range{}, 50, nil, at, nil)
}

// next returns the next record of a change stream, which must come within a minute.
func next(t testing.TB, c replicator.Changes) record.Record {
	t.Helper()
	r, err := c.Next(t.Context())
	must(t, err)
	return r
}

func TestChangesAreOfTheSetAndMoveOnWithoutAny(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	ctx := t.Context()
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	set := setOf(t, db.Name()+".in_*")
	pos, err := s.Position(ctx, set)
	must(t, err)
	c, err := s.Changes(set, pos)
	must(t, err)
	for i := range 5 {
		_, err = db.Collection("out").InsertOne(ctx, bson.D{{Key: "_id", Value: i}})
		must(t, err)
	}
	for {
		r := next(t, c)
		if r.Kind == record.KindChange {
			t.Fatalf("a change of another collection comes: %v", r.Change)
		}
		if r.Position.Compare(pos) > 0 {
			break
		}
	}
	_, err = db.Collection("in_a").InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	must(t, err)
	// The database goes; what is created under its name afterwards comes too.
	must(t, db.Drop(ctx))
	_, err = db.Collection("in_a").InsertOne(ctx, bson.D{{Key: "_id", Value: 2}})
	must(t, err)
	var ops []string
	for !slices.Contains(ops, "insert 2") {
		r := next(t, c)
		if r.Kind != record.KindChange {
			continue
		}
		op := r.Change.Op
		if r.Change.OnDocument() {
			op = name("%s %d", op, r.Change.Key.AsInt64())
		}
		ops = append(ops, op)
	}
	want := []string{"create", "insert 1", "drop", "dropDatabase", "invalidate", "create", "insert 2"}
	if !slices.Equal(ops, want) {
		t.Errorf("changes are %v, want %v", ops, want)
	}
	must(t, c.Close())
}

func TestTheClockCountsWhatIsBehind(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	s := newSource(t, d.Options(), mongodb.SourceConfig{})
	coll := d.DB(t).Collection("c")
	fill(t, coll, 10, 10)
	first, err := s.Clock(t.Context(), record.Position{})
	must(t, err)
	if first.Head.IsZero() || first.Oldest.IsZero() || first.Oldest.Compare(first.Head) > 0 || first.Behind != -1 {
		t.Errorf("the clock says %+v", first)
	}
	var c replicator.Clock
	for i := range 50 {
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1000 + i}})
		must(t, err)
	}
	c, err = s.Clock(t.Context(), record.Position{TS: first.Head})
	must(t, err)
	if c.Head.Compare(first.Head) <= 0 || c.Behind < 50 || c.Behind > 80 {
		t.Errorf("the clock says %+v behind %+v after 50 inserts", c, first.Head)
	}
	c, err = s.Clock(t.Context(), record.Position{TS: c.Head})
	must(t, err)
	if c.Behind > 30 { // what the members themselves write
		t.Errorf("at the head, %d operations are behind", c.Behind)
	}
}

func TestAReadOnlyUserCanBeASourceAndWhatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, Auth: true})
	ctx := t.Context()
	db := d.DB(t)
	fill(t, db.Collection("c"), 100, 10)
	user := func(name string, roles bson.A) *options.ClientOptions {
		must(t, db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: "p"}, {Key: "roles", Value: roles},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 3}}}}).Err())
		u, err := url.Parse(d.URI)
		must(t, err)
		u.User = url.UserPassword(name, "p")
		return options.Client().ApplyURI(u.String())
	}
	reader := newSource(t, user("reader", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: db.Name()}}}), mongodb.SourceConfig{})
	set := setOf(t, db.Name())
	id, err := reader.Identity(ctx)
	must(t, err)
	if id.SetName == "" || id.SetID != id.SetName {
		t.Errorf("without clusterMonitor the identity is %+v", id)
	}
	docs, _ := walkAll(t, reader, describe(t, reader, db.Collection("c")), 2, 30, nil)
	if len(docs) != 100 {
		t.Errorf("%d documents were read", len(docs))
	}
	pos, err := reader.Position(ctx, set)
	must(t, err)
	clock, err := reader.Clock(ctx, pos)
	must(t, err)
	if clock.Head.IsZero() || !clock.Oldest.IsZero() || clock.Behind != -1 {
		t.Errorf("without read on local the clock says %+v", clock)
	}
	nobody := newSource(t, user("nobody", bson.A{}), mongodb.SourceConfig{})
	if _, err := nobody.Collections(ctx, set); err == nil || !strings.Contains(err.Error(), "grant the role read on the database "+db.Name()) {
		t.Errorf("collections without a role: %v", err)
	}
	c := replicator.Collection{Name: record.Namespace{DB: db.Name(), Coll: "c"}, Kind: replicator.KindCollection}
	if _, err := nobody.Window(ctx, c, replicator.Range{}, 10, nil, record.Timestamp{}); err == nil || !strings.Contains(err.Error(), "grant the role") {
		t.Errorf("a window without a role: %v", err)
	}
	if _, err := nobody.Position(ctx, set); err == nil {
		t.Error("a position without a role")
	}
}

func TestAReadWaitsUntilTheMemberIsNotOlderThanAsked(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	coll := d.DB(t).Collection("c")
	fill(t, coll, 100, 10)
	ctx := t.Context()
	s := newSource(t, d.Options().SetReadPreference(readpref.Secondary()), mongodb.SourceConfig{})
	c := describe(t, newSource(t, d.Options(), mongodb.SourceConfig{}), coll)
	for i := range 20 {
		_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1000 + i}})
		must(t, err)
		// The primary's own time: the secondary must wait for it.
		p := newSource(t, d.Options(), mongodb.SourceConfig{})
		docs, err := s.Fetch(ctx, c.Name, "", []bson.RawValue{raw(t, bson.D{{Key: "v", Value: 1000 + i}}).Lookup("v")}, nil, now(t, p))
		must(t, err)
		if len(docs) != 1 {
			t.Fatalf("document %d is not seen by a read that waits for it", i)
		}
	}
}

func TestAClosedSourceSaysSo(t *testing.T) {
	t.Parallel()
	s, err := mongodb.NewSource(mongotest.ReplicaSet(t).Options(), mongodb.SourceConfig{})
	must(t, err)
	must(t, s.Close(t.Context()))
	start := time.Now()
	if _, err := s.Identity(t.Context()); !errors.Is(err, record.ErrClosed) || time.Since(start) > 10*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}
