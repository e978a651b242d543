package mongodb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

// command runs a command of the test's own.
func command(t testing.TB, db *mongo.Database, cmd bson.D) {
	t.Helper()
	if err := db.RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
}

// createSource makes collections of every kind, with every kind of index, and returns their names.
func createSource(t testing.TB, db *mongo.Database) []string {
	t.Helper()
	en := d("locale", "en", "strength", 2)
	for _, cmd := range []bson.D{
		d("create", "plain"),
		d("create", "capped", "capped", true, "size", 5000, "max", 10, "validator", d("a", d("$ne", 1)), "validationLevel", "moderate", "validationAction", "warn"),
		d("create", "collated", "collation", en, "changeStreamPreAndPostImages", d("enabled", true)),
		d("create", "clustered", "clusteredIndex", d("key", d("_id", 1), "unique", true, "name", "mine"), "expireAfterSeconds", 100),
		d("create", "view", "viewOn", "plain", "pipeline", bson.A{d("$match", d("a", 1))}, "collation", en),
	} {
		command(t, db, cmd)
	}
	for _, c := range []string{"plain", "collated", "clustered"} {
		command(t, db, d("createIndexes", c, "indexes", bson.A{
			d("key", d("t", 1), "name", "ttl", "expireAfterSeconds", 50),
			d("key", d("x", "text", "y", 1), "name", "txt", "weights", d("x", 7), "default_language", "german", "collation", d("locale", "simple")),
			d("key", d("g", "2dsphere"), "name", "geo", "hidden", true),
			d("key", d("$**", 1), "name", "wild", "wildcardProjection", d("a", 1)),
			d("key", d("h", "hashed"), "name", "hash", "collation", d("locale", "simple")),
			d("key", d("u", 1), "name", "unique", "unique", true, "sparse", true),
			d("key", d("p", 1, "q", -1), "name", "partial", "partialFilterExpression", d("p", d("$gt", 1))),
			d("key", d("c", 1), "name", "collation", "collation", d("locale", "de", "strength", 1)),
			d("key", d("s", 1), "name", "simple", "collation", d("locale", "simple")),
		}))
	}
	return []string{"plain", "capped", "collated", "clustered", "view"}
}

// describe returns what a Target says of collections of db.
func describeTarget(t testing.TB, tg *mongodb.Target, db *mongo.Database, names ...string) []replicator.Collection {
	t.Helper()
	var ns []record.Namespace
	for _, n := range names {
		ns = append(ns, namespace(db, n))
	}
	cs, err := tg.Describe(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// alike compares collections of two databases, but for the expiry of TTL indexes if held.
func alike(t testing.TB, tg *mongodb.Target, a, b *mongo.Database, held bool, names ...string) {
	t.Helper()
	for _, n := range names {
		ca, cb := describeTarget(t, tg, a, n), describeTarget(t, tg, b, n)
		if len(ca) != 1 || len(cb) != 1 {
			t.Errorf("%s: %d and %d are there", n, len(ca), len(cb))
			continue
		}
		if ca[0].Kind != cb[0].Kind || !held && !bytes.Equal(ca[0].Options, cb[0].Options) {
			t.Errorf("%s: %s %v, want %s %v", n, cb[0].Kind, cb[0].Options, ca[0].Kind, ca[0].Options)
		}
		have := map[string]string{}
		for _, spec := range cb[0].Indexes {
			have[spec.Lookup("name").StringValue()] = spec.String()
		}
		for _, spec := range ca[0].Indexes {
			name := spec.Lookup("name").StringValue()
			want := spec.String()
			if held && name == "ttl" {
				want = strings.ReplaceAll(want, `{"$numberInt":"50"}`, `{"$numberInt":"2147483647"}`)
			}
			if have[name] != want {
				t.Errorf("%s: index %s: got %s, want %s", n, name, have[name], want)
			}
			delete(have, name)
		}
		if len(have) > 0 {
			t.Errorf("%s: too many indexes: %v", n, have)
		}
	}
}

func TestCollectionsAreMadeAnewWithAllTheyHave(t *testing.T) {
	t.Parallel()
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src, dst, tg := dep.DB(t), dep.DB(t), target(t, dep, mongodb.TargetConfig{})
			names := createSource(t, src)
			var held []replicator.Held
			for _, phase := range []replicator.IndexPhase{replicator.UniqueIndexes, replicator.AllIndexes, replicator.AllIndexes} {
				held = nil
				for _, c := range describeTarget(t, tg, src, names...) {
					c.Name.DB = dst.Name()
					h, notes, err := tg.Create(t.Context(), c, replicator.CreateOptions{HoldTTL: true, Secondary: phase})
					if err != nil {
						t.Fatalf("%s: %v", c.Name, err)
					}
					if len(notes) != len(h) {
						t.Errorf("notes: %q, held %v", notes, h)
					}
					held = append(held, h...)
					if n := len(describeTarget(t, tg, dst, c.Name.Coll)[0].Indexes); phase == replicator.UniqueIndexes && len(c.Indexes) > 2 && n != 2 {
						t.Errorf("%s has %d indexes before the copy", c.Name, n)
					}
				}
			}
			if len(held) != 4 { // one on each of three, and the clustered one itself
				t.Errorf("held: %v", held)
			}
			alike(t, tg, src, dst, true, names...)
			for range 2 {
				if err := tg.Release(t.Context(), held); err != nil {
					t.Fatal(err)
				}
			}
			alike(t, tg, src, dst, false, names...)
			for range 2 {
				for _, n := range names {
					if err := tg.Drop(t.Context(), namespace(dst, n)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if left := describeTarget(t, tg, dst, names...); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestWhatExistsOtherwiseIsSaid(t *testing.T) {
	t.Parallel()
	dep := mongotest.ReplicaSet(t)
	db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
	createSource(t, db)
	for _, c := range []struct {
		name    string
		options bson.D
		kind    replicator.CollectionKind
		note    string
		refused bool
	}{
		{"plain", bson.D{}, replicator.KindCollection, "", false},
		{"plain", d("validator", bson.D{}, "validationLevel", "strict"), replicator.KindCollection, "", false},
		{"plain", d("validator", d("a", 1)), replicator.KindCollection, "validator", false},
		{"plain", d("collation", d("locale", "simple")), replicator.KindCollection, "", false},
		{"plain", d("collation", d("locale", "en")), replicator.KindCollection, "", true},
		{"plain", d("capped", true, "size", 4096), replicator.KindCapped, "", true},
		{"plain", d("viewOn", "x", "pipeline", bson.A{}), replicator.KindView, "", true},
		{"capped", d("capped", true, "size", 5120, "max", int64(10), "validator", d("a", d("$ne", 1)), "validationLevel", "moderate", "validationAction", "warn"), replicator.KindCapped, "", false},
		{"capped", d("capped", true, "size", 9000, "max", 10, "validator", d("a", d("$ne", 1)), "validationLevel", "moderate", "validationAction", "warn"), replicator.KindCapped, "size", false},
		{"view", bson.D{}, replicator.KindCollection, "", true},
		{"series", d("timeseries", d("timeField", "t")), replicator.KindTimeseries, "time-series", false},
	} {
		col := replicator.Collection{Name: namespace(db, c.name), Kind: c.kind, Options: raw(t, c.options)}
		_, notes, err := tg.Create(t.Context(), col, replicator.CreateOptions{})
		if (err != nil) != c.refused || (len(notes) > 0) != (c.note != "") || len(notes) > 0 && !strings.Contains(notes[0], c.note) {
			t.Errorf("%s with %v: %q, %v", c.name, c.options, notes, err)
		}
	}
}

// ddl reads the events of a database until it sees a collection "end" created.
func ddl(t testing.TB, cs *mongo.ChangeStream) []replicator.DDL {
	t.Helper()
	var all []replicator.DDL
	for cs.Next(t.Context()) {
		e := append(bson.Raw(nil), cs.Current...)
		op := e.Lookup("operationType").StringValue()
		coll := e.Lookup("ns", "coll").StringValue()
		if coll == "end" {
			return all
		}
		if op == "insert" {
			continue
		}
		one := replicator.DDL{Op: op, Collection: record.Namespace{DB: e.Lookup("ns", "db").StringValue(), Coll: coll}}
		one.Description, _ = e.Lookup("operationDescription").DocumentOK()
		if to, ok := e.Lookup("to").DocumentOK(); ok {
			one.To = record.Namespace{DB: to.Lookup("db").StringValue(), Coll: to.Lookup("coll").StringValue()}
		}
		all = append(all, one)
	}
	t.Fatal(cs.Err())
	return nil
}

// TestChangesOfCollectionsAreReplicatedAndRepeatable applies the events of a source, and then all of them again.
func TestChangesOfCollectionsAreReplicatedAndRepeatable(t *testing.T) {
	t.Parallel()
	dep := mongotest.ReplicaSet(t)
	src, dst, tg := dep.DB(t), dep.DB(t), target(t, dep, mongodb.TargetConfig{})
	cs, err := src.Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetShowExpandedEvents(true).SetMaxAwaitTime(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cs.Close(t.Context()) }()
	names := createSource(t, src)
	for _, cmd := range []bson.D{
		d("collMod", "capped", "cappedSize", 10240, "cappedMax", 20),
		d("collMod", "collated", "validator", d("b", 1), "validationLevel", "strict"),
		d("collMod", "collated", "changeStreamPreAndPostImages", d("enabled", false)),
		d("collMod", "plain", "index", d("name", "ttl", "expireAfterSeconds", 70)),
		d("collMod", "plain", "index", d("keyPattern", d("p", 1, "q", -1), "hidden", true)),
		d("collMod", "plain", "index", d("name", "simple", "prepareUnique", true)),
		d("collMod", "plain", "index", d("name", "simple", "unique", true)),
		d("collMod", "clustered", "expireAfterSeconds", 200),
		d("collMod", "view", "viewOn", "plain", "pipeline", bson.A{d("$match", d("a", 2))}),
		d("dropIndexes", "plain", "index", "wild"),
		d("dropIndexes", "collated", "index", "*"),
		d("create", "gone"), d("drop", "gone"),
		d("create", "from"), d("create", "over", "capped", true, "size", 4096),
		d("create", "moved"),
		d("create", "series", "timeseries", d("timeField", "t")),
	} {
		command(t, src, cmd)
	}
	admin := src.Client().Database("admin")
	command(t, admin, d("renameCollection", src.Name()+".from", "to", src.Name()+".over", "dropTarget", true))
	command(t, admin, d("renameCollection", src.Name()+".moved", "to", src.Name()+".there"))
	command(t, src, d("create", "end"))
	events := ddl(t, cs)
	if len(events) < 40 {
		t.Fatalf("only %d events", len(events))
	}
	held := map[replicator.Held]bool{}
	for round := range 2 {
		for _, e := range events {
			e.Collection.DB = dst.Name()
			if !e.To.IsZero() {
				e.To.DB = dst.Name()
			}
			h, notes, err := tg.Change(t.Context(), e, true)
			if err != nil {
				t.Fatalf("round %d: %s of %s: %v", round, e.Op, e.Collection, err)
			}
			for _, one := range h {
				for old := range held {
					if old.Namespace == one.Namespace && old.Index == one.Index {
						delete(held, old)
					}
				}
				held[one] = true
			}
			if round == 0 && len(notes) > len(h) && e.Collection.Coll != "series" {
				t.Errorf("%s of %s: %q", e.Op, e.Collection, notes)
			}
		}
		if round == 1 {
			// What was renamed is made again by its replayed creation: the documents decide where such a replay ends.
			_ = tg.Drop(t.Context(), namespace(dst, "moved"))
		}
	}
	var all []replicator.Held
	for h := range held {
		if h.Namespace.Coll != "collated" { // its indexes are gone
			all = append(all, h)
		}
	}
	if err := tg.Release(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	alike(t, tg, src, dst, false, append(names, "over", "there")...)
	_, notes, err := tg.Change(t.Context(), replicator.DDL{Op: "shardCollection", Collection: namespace(dst, "plain")}, true)
	if err != nil || len(notes) != 1 {
		t.Error(notes, err)
	}
}

// TestAnIndexIsBuiltHoweverLongItTakes holds an index build for several attempt deadlines: a server ends a build whose client goes
// away.
func TestAnIndexIsBuiltHoweverLongItTakes(t *testing.T) {
	t.Parallel()
	dep := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: []string{"--setParameter", "enableTestCommands=1"}})
	db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{Failover: failover.Config{AttemptTimeout: 300 * time.Millisecond}})
	refusals, err := tg.Insert(t.Context(), namespace(db, "c"), []bson.Raw{raw(t, d("_id", 1, "a", 1))}, false)
	none(t, refusals, err)
	admin := db.Client().Database("admin")
	command(t, admin, d("configureFailPoint", "hangAfterStartingIndexBuild", "mode", "alwaysOn"))
	built := make(chan error, 1)
	go func() {
		_, notes, err := tg.Change(t.Context(), replicator.DDL{Op: "createIndexes", Collection: namespace(db, "c"),
			Description: raw(t, d("indexes", bson.A{d("v", 2, "key", d("a", 1), "name", "a")}))}, false)
		if len(notes) > 0 {
			err = errors.Join(err, fmt.Errorf("notes: %q", notes))
		}
		built <- err
	}()
	select {
	case err := <-built:
		t.Error("it did not wait: ", err)
	case <-time.After(3 * time.Second):
	}
	command(t, admin, d("configureFailPoint", "hangAfterStartingIndexBuild", "mode", "off"))
	if err := <-built; err != nil {
		t.Fatal(err)
	}
	if n := len(describeTarget(t, tg, db, "c")[0].Indexes); n != 2 {
		t.Errorf("%d indexes", n)
	}
}

// TestCreationSurvivesElections creates, renames and drops while primaries step down.
func TestCreationSurvivesElections(t *testing.T) {
	t.Parallel()
	dep := mongotest.Own(t, localcluster.Config{Members: 3})
	db, tg := dep.DB(t), target(t, dep, mongodb.TargetConfig{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var faults atomic.Int64
	go func() {
		for ctx.Err() == nil {
			if _, err := dep.Cluster.StepDown(ctx, "primary"); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
			faults.Add(1)
			select { // a set that elects without end acknowledges nothing
			case <-ctx.Done():
			case <-time.After(4 * time.Second):
			}
		}
		ended <- nil
	}()
	for i := 0; faults.Load() < 4 || i < 3; i++ {
		a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
		c := replicator.Collection{Name: namespace(db, a), Kind: replicator.KindCollection, Indexes: []bson.Raw{raw(t, d("v", 2, "key", d("x", 1), "name", "x", "unique", true))}}
		if _, notes, err := tg.Create(t.Context(), c, replicator.CreateOptions{}); err != nil || len(notes) > 0 {
			t.Error(notes, err)
			break
		}
		if _, notes, err := tg.Change(t.Context(), replicator.DDL{Op: "rename", Collection: c.Name, To: namespace(db, b)}, false); err != nil || len(notes) > 0 {
			t.Error(notes, err)
			break
		}
		if cs := describeTarget(t, tg, db, a, b); len(cs) != 1 || cs[0].Name.Coll != b || len(cs[0].Indexes) != 2 {
			t.Errorf("got %v", cs)
		}
		if err := tg.Drop(t.Context(), namespace(db, b)); err != nil {
			t.Error(err)
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
