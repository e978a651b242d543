package stream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
)

// both runs f on a standalone server and on a replica set.
func both(t *testing.T, f func(t *testing.T, db *mongo.Database)) {
	t.Run("standalone", func(t *testing.T) { t.Parallel(); f(t, mongotest.Standalone(t).DB(t)) })
	t.Run("replica set", func(t *testing.T) { t.Parallel(); f(t, mongotest.ReplicaSet(t).DB(t)) })
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func count(t *testing.T, db *mongo.Database, name string) int64 {
	t.Helper()
	return must[int64](t)(db.Collection(name).CountDocuments(t.Context(), bson.D{}))
}

func run(t *testing.T, db *mongo.Database, cmd bson.D) {
	t.Helper()
	if err := db.RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestEnsureCreatesAPrimedCappedCollection(t *testing.T) {
	both(t, func(t *testing.T, db *mongo.Database) {
		info := must[stream.Info](t)(stream.Ensure(t.Context(), db, "lines", stream.Config{Size: 5000, Max: 10}))
		if info.Namespace != db.Name()+".lines" || info.Size != stream.RoundSize(5000) || info.Size != 5120 || info.Max != 10 || !info.Ours || !info.Created {
			t.Errorf("%+v", info)
		}
		if info.UUID.Subtype != 4 || len(info.Fingerprint()) != 32 {
			t.Errorf("UUID %v, fingerprint %q", info.UUID, info.Fingerprint())
		}
		doc := must[bson.Raw](t)(db.Collection("lines").FindOne(t.Context(), bson.D{}).Raw())
		if !record.IsPrimer(doc) || count(t, db, "lines") != 1 {
			t.Errorf("the stream holds %v", doc)
		}
		again := must[stream.Info](t)(stream.Ensure(t.Context(), db, "lines", stream.Config{}))
		info.Created = false
		if again.Fingerprint() != info.Fingerprint() || again.Size != info.Size || again.Created || count(t, db, "lines") != 1 {
			t.Errorf("Ensure again: %+v", again)
		}
		if got := must[stream.Info](t)(stream.Lookup(t.Context(), db, "lines")); got.Fingerprint() != info.Fingerprint() || !got.Ours {
			t.Errorf("Lookup: %+v", got)
		}
	})
}

func TestATailOnAPrimedStreamLives(t *testing.T) {
	both(t, func(t *testing.T, db *mongo.Database) {
		must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", stream.Config{}))
		cur := must[*mongo.Cursor](t)(db.Collection("s").Find(t.Context(), bson.D{}, options.Find().SetCursorType(options.TailableAwait)))
		if cur.ID() == 0 {
			t.Error("the cursor is dead")
		}
		if err := cur.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestManyProcessesThatEnsureAtOnceAgreeOnOneStream(t *testing.T) {
	both(t, func(t *testing.T, db *mongo.Database) {
		const callers, rounds = 8, 5
		for round := range rounds {
			name := fmt.Sprint("s", round)
			infos := make([]stream.Info, callers)
			var g errgroup.Group
			for i := range callers {
				g.Go(func() (err error) {
					infos[i], err = stream.Ensure(t.Context(), db, name, stream.Config{Size: int64(1000 * (i + 1))})
					return err
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			created := 0
			for _, info := range infos {
				if info.Created {
					created++
				}
				if info.Fingerprint() != infos[0].Fingerprint() || info.Size != infos[0].Size {
					t.Errorf("two streams: %+v and %+v", infos[0], info)
				}
			}
			if created != 1 || count(t, db, name) != 1 {
				t.Errorf("created %d times, %d documents", created, count(t, db, name))
			}
		}
	})
}

func TestAStreamThatLostItsPrimerIsPrimedAgainOnlyWhileItIsEmpty(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	info := must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", stream.Config{}))
	empty := func() { must[*mongo.DeleteResult](t)(db.Collection("s").DeleteMany(t.Context(), bson.D{})) }
	empty()
	if err := stream.Prime(t.Context(), db, info); err != nil || count(t, db, "s") != 1 {
		t.Errorf("%d documents, %v", count(t, db, "s"), err)
	}
	empty()
	must[*mongo.InsertOneResult](t)(db.Collection("s").InsertOne(t.Context(), bson.D{{Key: "x", Value: 1}}))
	if err := stream.Prime(t.Context(), db, info); err != nil || count(t, db, "s") != 1 {
		t.Errorf("a stream with a message: %d documents, %v", count(t, db, "s"), err)
	}
}

func TestOtherPeoplesCollectionsAreNeverWrittenTo(t *testing.T) {
	both(t, func(t *testing.T, db *mongo.Database) {
		run(t, db, bson.D{{Key: "create", Value: "theirs"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})
		info := must[stream.Info](t)(stream.Ensure(t.Context(), db, "theirs", stream.Config{}))
		if info.Ours || info.Created || info.Size != 4096 {
			t.Errorf("%+v", info)
		}
		if err := stream.Prime(t.Context(), db, info); !errors.Is(err, stream.ErrNotOurs) {
			t.Errorf("Prime: %v", err)
		}
		if n := count(t, db, "theirs"); n != 0 {
			t.Errorf("%d documents were written", n)
		}
	})
}

func TestWhatIsNoCappedCollectionIsNamedWithWhatToDo(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	run(t, db, bson.D{{Key: "create", Value: "plain"}})
	run(t, db, bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "plain"}, {Key: "pipeline", Value: bson.A{}}})
	run(t, db, bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
	for name, c := range map[string]struct{ kind, hint string }{
		"plain":  {"collection", "convertToCapped"},
		"view":   {"view", "choose another name"},
		"series": {"timeseries", "choose another name"},
	} {
		_, ensure := stream.Ensure(t.Context(), db, name, stream.Config{})
		_, lookup := stream.Lookup(t.Context(), db, name)
		_, describe := stream.Describe(t.Context(), db, name, stream.DescribeConfig{})
		for call, err := range map[string]error{"Ensure": ensure, "Lookup": lookup, "Describe": describe} {
			var kind *stream.KindError
			if !errors.As(err, &kind) || kind.Kind != c.kind || kind.Namespace != db.Name()+"."+name || !strings.Contains(err.Error(), c.hint) {
				t.Errorf("%s of %s: %v", call, name, err)
			}
		}
	}
	if n := count(t, db, "plain"); n != 0 {
		t.Errorf("%d documents were written", n)
	}
}

func TestAMissingStreamAndBadNamesAreTold(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	if _, err := stream.Lookup(t.Context(), db, "none"); !errors.Is(err, stream.ErrNotFound) {
		t.Error(err)
	}
	if _, err := stream.Describe(t.Context(), db, "none", stream.DescribeConfig{}); !errors.Is(err, stream.ErrNotFound) {
		t.Error(err)
	}
	for _, name := range []string{"", "$x", "a\x00b", "system.x", "a..b", ".a", "a.", strings.Repeat("x", 300)} {
		_, ensure := stream.Ensure(t.Context(), db, name, stream.Config{})
		_, lookup := stream.Lookup(t.Context(), db, name)
		if !errors.Is(ensure, stream.ErrBadName) || !errors.Is(lookup, stream.ErrBadName) {
			t.Errorf("%q: %v, %v", name, ensure, lookup)
		}
	}
	for _, c := range []stream.Config{{Size: -1}, {Size: 1 << 60}, {Max: -1}, {Max: 1 << 40}, {Timeout: -1}} {
		if _, err := stream.Ensure(t.Context(), db, "x", c); err == nil || !strings.Contains(err.Error(), "Config.") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestPrimingADroppedOrRecreatedStreamFailsAndCreatesNothing(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	info := must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", stream.Config{}))
	drop := func() {
		if err := db.Collection("s").Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	drop()
	if err := stream.Prime(t.Context(), db, info); !errors.Is(err, stream.ErrGone) {
		t.Errorf("dropped: %v", err)
	}
	if _, err := stream.Lookup(t.Context(), db, "s"); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("the primer made a collection: %v", err)
	}
	run(t, db, bson.D{{Key: "create", Value: "s"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})
	if err := stream.Prime(t.Context(), db, info); !errors.Is(err, stream.ErrGone) || count(t, db, "s") != 0 {
		t.Errorf("re-created: %v", err)
	}
}

func TestListNamesTheCappedCollections(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	if infos := must[[]stream.Info](t)(stream.List(t.Context(), db)); len(infos) != 0 {
		t.Errorf("an empty database has %v", infos)
	}
	run(t, db, bson.D{{Key: "create", Value: "plain"}})
	run(t, db, bson.D{{Key: "create", Value: "b"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})
	must[stream.Info](t)(stream.Ensure(t.Context(), db, "a", stream.Config{}))
	infos := must[[]stream.Info](t)(stream.List(t.Context(), db))
	if len(infos) != 2 || infos[0].Namespace != db.Name()+".a" || !infos[0].Ours || infos[1].Namespace != db.Name()+".b" || infos[1].Ours {
		t.Errorf("%+v", infos)
	}
}

// user returns the database as seen by a user with the given privileges on it.
func user(t *testing.T, d *mongotest.Deployment, admin *mongo.Database, name string, actions ...string) *mongo.Database {
	t.Helper()
	privileges := bson.A{}
	if len(actions) > 0 {
		privileges = bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: admin.Name()}, {Key: "collection", Value: ""}}}, {Key: "actions", Value: actions}}}
	}
	run(t, admin, bson.D{{Key: "createRole", Value: name}, {Key: "privileges", Value: privileges}, {Key: "roles", Value: bson.A{}}})
	run(t, admin, bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: "pw"}, {Key: "roles", Value: bson.A{name}}})
	opts := d.Options().SetAuth(options.Credential{Username: name, Password: "pw", AuthSource: admin.Name()})
	client := must[*mongo.Client](t)(mongo.Connect(opts))
	base := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(base, 30*time.Second)
		defer cancel()
		_ = client.Disconnect(ctx)
	})
	return client.Database(admin.Name())
}

func TestAMissingPrivilegeIsNamed(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Auth: true})
	admin := d.DB(t)
	must[stream.Info](t)(stream.Ensure(t.Context(), admin, "there", stream.Config{}))

	var p *stream.PrivilegeError
	nobody := user(t, d, admin, "nobody")
	if _, err := stream.Lookup(t.Context(), nobody, "there"); !errors.As(err, &p) || p.Action != "listCollections" {
		t.Errorf("Lookup: %v", err)
	}
	reader := user(t, d, admin, "reader", "find", "listCollections", "collStats")
	if _, err := stream.Ensure(t.Context(), reader, "new", stream.Config{}); !errors.As(err, &p) || p.Action != "createCollection" || p.Resource != admin.Name()+".new" {
		t.Errorf("Ensure of a missing stream: %v", err)
	}
	// A stream that needs no writing is open to a reader.
	if _, err := stream.Ensure(t.Context(), reader, "there", stream.Config{}); err != nil {
		t.Errorf("Ensure of a stream: %v", err)
	}
	if _, err := stream.Describe(t.Context(), reader, "there", stream.DescribeConfig{}); err != nil {
		t.Errorf("Describe: %v", err)
	}
	must[*mongo.DeleteResult](t)(admin.Collection("there").DeleteMany(t.Context(), bson.D{}))
	if _, err := stream.Ensure(t.Context(), reader, "there", stream.Config{}); !errors.As(err, &p) || p.Action != "insert" {
		t.Errorf("Ensure of an empty stream: %v", err)
	}
	blind := user(t, d, admin, "blind", "listCollections")
	if _, err := stream.Describe(t.Context(), blind, "there", stream.DescribeConfig{}); !errors.As(err, &p) {
		t.Errorf("Describe: %v", err)
	}
}

// I8: a call ends by its deadline, whatever the server does.
func TestAFrozenServerHoldsNoCallBeyondItsDeadline(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{})
	db := d.DB(t)
	must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", stream.Config{}))
	if _, err := d.Cluster.Freeze(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.Cluster.Thaw(context.Background(), "m0") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	overrun := make(chan time.Duration, 1)
	start := time.Now()
	time.AfterFunc(time.Second, func() { overrun <- time.Since(start) - time.Second })
	_, err := stream.Ensure(ctx, db, "s", stream.Config{})
	took, late := time.Since(start), <-overrun
	if err == nil || took > time.Second+250*time.Millisecond+4*late {
		t.Errorf("after %v: %v", took, err)
	}
}

func TestEnsureSurvivesAnElection(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	db := d.DB(t)
	if _, err := d.Cluster.Kill(t.Context(), "primary"); err != nil {
		t.Fatal(err)
	}
	info, err := stream.Ensure(t.Context(), db, "s", stream.Config{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if got := must[stream.Info](t)(stream.Lookup(t.Context(), db, "s")); got.Fingerprint() != info.Fingerprint() || count(t, db, "s") != 1 {
		t.Errorf("%+v, %d documents", got, count(t, db, "s"))
	}
}
