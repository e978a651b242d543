package scope_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

// stream is a change stream of the whole cluster from a moment on.
func stream(t *testing.T, db *mongo.Database, from bson.Timestamp, match bson.D) []string {
	t.Helper()
	pipeline := mongo.Pipeline{}
	if match != nil {
		pipeline = append(pipeline, bson.D{{Key: "$match", Value: match}})
	}
	cs, err := db.Client().Watch(t.Context(), pipeline, options.ChangeStream().SetStartAtOperationTime(&from).SetShowExpandedEvents(true).SetMaxAwaitTime(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cs.Close(t.Context()) }()
	var all []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if !cs.TryNext(t.Context()) {
			if cs.Err() != nil {
				t.Fatal(cs.Err())
			}
			continue
		}
		line := describe(cs.Current)
		all = append(all, line)
		if strings.Contains(line, "dropDatabase") && strings.Contains(line, db.Name()) {
			return all
		}
	}
	t.Fatal("the last event did not come")
	return nil
}

func describe(event bson.Raw) string {
	part := func(keys ...string) string { s, _ := event.Lookup(keys...).StringValueOK(); return s }
	return strings.Join([]string{part("operationType"), part("ns", "db"), part("ns", "coll"), part("to", "db"), part("to", "coll")}, "|")
}

// TestMatchLetsTheEventsOfTheSetPassAndNoOthers judges the condition by the events of a real change stream.
func TestMatchLetsTheEventsOfTheSetPassAndNoOthers(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	db, other := d.DB(t), d.DB(t)
	var hello bson.Raw
	if err := db.RunCommand(t.Context(), bson.D{{Key: "insert", Value: "first"}, {Key: "documents", Value: bson.A{bson.D{}}}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	var from bson.Timestamp
	from.T, from.I = hello.Lookup("operationTime").Timestamp()
	names := []string{"orders", "order_1", "orders.old", "Orders", "or+d(e)r", "my orders", "tmp", "tmp\nx", "x"}
	for _, one := range []*mongo.Database{other, db} {
		for _, name := range names {
			if _, err := one.Collection(name).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		for old, name := range map[string]string{"x": "renamed", "tmp": "orders_new", "Orders": "zzz"} {
			cmd := bson.D{{Key: "renameCollection", Value: one.Name() + "." + old}, {Key: "to", Value: one.Name() + "." + name}}
			if err := one.Client().Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if err := one.Collection("order_1").Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := one.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	everything := stream(t, db, from, nil)
	full := storedNames(t, d.DB(t).Collection("names"), everything)
	for i, c := range []scope.Config{
		{},
		{Include: []string{db.Name()}},
		{Include: []string{db.Name() + ".orders"}},
		{Include: []string{db.Name() + ".order*"}},
		{Include: []string{"*.orders", db.Name() + ".*x"}},
		{Include: []string{db.Name() + ".or+d(e)r", db.Name() + ".my orders"}},
		{Include: []string{db.Name() + ".*"}, Exclude: []string{"*.tmp", "*.order*"}},
		{Exclude: []string{other.Name() + ".*"}},
		{Include: []string{"*"}, Exclude: []string{"*.*o*"}},
		{Include: []string{db.Name()[:8] + "*.zzz", "*.renamed"}},
		{Include: []string{db.Name() + ".tmp"}},
		{Include: []string{"no_such.*"}},
		{Exclude: []string{"*"}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			set, err := scope.Compile(c)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(everything)
			want = slices.DeleteFunc(want, func(line string) bool { return !passes(set, line) })
			if got := stream(t, db, from, set.Match()); !slices.Equal(got, want) {
				t.Errorf("%+v: got\n\t%s\nwant\n\t%s", c, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
			}
			namesFit(t, full, set, everything)
		})
	}
}

// passes says what Match promises.
func passes(set *scope.Set, line string) bool {
	f := strings.Split(line, "|")
	about := set.Matches(record.Namespace{DB: f[1], Coll: f[2]})
	to := f[3] != "" && set.Matches(record.Namespace{DB: f[3], Coll: f[4]})
	return f[2] == "" || about || to
}

// storedNames returns a collection whose _ids are the full names of the collections in events.
func storedNames(t *testing.T, coll *mongo.Collection, events []string) *mongo.Collection {
	t.Helper()
	for _, line := range events {
		f := strings.Split(line, "|")
		if _, err := coll.UpdateByID(t.Context(), f[1]+"."+f[2], bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
			t.Fatal(err)
		}
	}
	return coll
}

// namesFit checks that Names fits what the set matches, for the server and for Go, and little else.
func namesFit(t *testing.T, coll *mongo.Collection, set *scope.Set, events []string) {
	t.Helper()
	re := set.Names()
	for _, line := range events {
		f := strings.Split(line, "|")
		ns := record.Namespace{DB: f[1], Coll: f[2]}
		if f[2] == "" || !set.Matches(ns) {
			continue
		}
		n, err := coll.CountDocuments(t.Context(), bson.D{{Key: "$and", Value: bson.A{
			bson.D{{Key: "_id", Value: ns.String()}}, bson.D{{Key: "_id", Value: bson.Regex{Pattern: re}}}}}})
		if err != nil || n != 1 || !regexp.MustCompile(re).MatchString(ns.String()) {
			t.Errorf("%q does not fit %q: %d, %v", ns, re, n, err)
		}
	}
}
