package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// write does a write until it is acknowledged: the tests kill servers.
func write(t *testing.T, do func(ctx context.Context) error) {
	t.Helper()
	eventually(t, "the write is acknowledged", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := do(ctx)
		return err == nil || mongo.IsDuplicateKeyError(err) // ours, from the attempt before
	})
}

func shown(t *testing.T, p *process, what string) {
	t.Helper()
	eventually(t, what+" is printed; stderr: "+p.stderr.String(), func() bool { return strings.Contains(p.stdout.String(), what) })
}

// The promise of the help: what happens in a live database is printed as it happens, also behind a
// kill -9 of the primary, each once and in order.
func TestTailPrintsTheChangesOfALiveDatabaseThroughAKillOfThePrimary(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3})
	shop := d.DB(t)
	orders, stock := shop.Collection("orders"), shop.Collection("stock")
	write(t, func(ctx context.Context) error {
		_, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: 0}})
		return err
	})
	p := start(t, d.URI, nil, "tail", shop.Name(), "--from", "earliest")
	shown(t, p, "\tinsert\t"+shop.Name()+".orders\t0\t")
	var want []string
	happen := func(i int) {
		write(t, func(ctx context.Context) error {
			_, err := orders.InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "total", Value: 10}, {Key: "note", Value: "x"}})
			return err
		})
		write(t, func(ctx context.Context) error {
			_, err := orders.UpdateByID(ctx, i, bson.D{{Key: "$set", Value: bson.D{{Key: "total", Value: 20}}}, {Key: "$unset", Value: bson.D{{Key: "note", Value: 1}}}})
			return err
		})
		write(t, func(ctx context.Context) error {
			_, err := stock.InsertOne(ctx, bson.D{{Key: "_id", Value: i}})
			return err
		})
		write(t, func(ctx context.Context) error {
			_, err := orders.DeleteOne(ctx, bson.D{{Key: "_id", Value: i}})
			return err
		})
		n := shop.Name()
		want = append(want,
			fmt.Sprintf("insert\t%s.orders\t%d\t{\"_id\":%d,\"total\":10,\"note\":\"x\"}", n, i, i),
			fmt.Sprintf("update\t%s.orders\t%d\tset {\"total\":20} unset [\"note\"]", n, i),
			fmt.Sprintf("insert\t%s.stock\t%d\t{\"_id\":%d}", n, i, i),
			fmt.Sprintf("delete\t%s.orders\t%d", n, i))
	}
	for i := 1; i <= 3; i++ {
		happen(i)
	}
	shown(t, p, want[len(want)-1])
	if _, err := d.Cluster.Kill(t.Context(), "primary"); err != nil {
		t.Fatal(err)
	}
	for i := 4; i <= 6; i++ {
		happen(i)
	}
	shown(t, p, want[len(want)-1])
	if err := p.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := p.code(t); code != 0 {
		t.Errorf("code %d\n%s", code, p.stderr.String())
	}
	var got []string
	for line := range strings.Lines(p.stdout.String()) {
		at, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if _, err := time.Parse("2006-01-02T15:04:05.000Z", at); err != nil {
			t.Errorf("no time: %q", line)
		}
		if op, _, _ := strings.Cut(rest, "\t"); (op == "insert" || op == "update" || op == "delete") && !strings.Contains(rest, "\t0\t") {
			got = append(got, rest)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func set(t *testing.T) (*mongotest.Deployment, *mongo.Collection) {
	t.Helper()
	d := mongotest.ReplicaSet(t)
	return d, d.DB(t).Collection("orders")
}

func mustInsert(t *testing.T, coll *mongo.Collection, docs ...any) {
	t.Helper()
	if _, err := coll.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

// positions returns the positions of a tail's lines of JSON.
func positions(t *testing.T, out string) []string {
	t.Helper()
	var ps []string
	for line := range strings.Lines(out) {
		var v struct{ Position string }
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Position == "" {
			t.Fatalf("%q: %v", line, err)
		}
		ps = append(ps, v.Position)
	}
	return ps
}

func TestTailOfChangesTakesThePlacesThatItPrints(t *testing.T) {
	t.Parallel()
	d, coll := set(t)
	name := coll.Database().Name() + ".orders"
	for i := range 5 {
		mustInsert(t, coll, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: int64(i)}})
	}
	run := func(args ...string) string {
		t.Helper()
		out, stderr, code := capstan(t, d.URI, append([]string{"tail", name}, args...)...)
		if code != 0 {
			t.Fatalf("%v: code %d\n%s", args, code, stderr)
		}
		return out
	}
	inserts := []string{"--from", "earliest", "--exit-at-end", "--filter", `{"operationType":"insert"}`}
	all := positions(t, run(append(inserts, "--output", "json")...))
	if len(all) != 5 {
		t.Fatalf("%d positions", len(all))
	}
	for what, c := range map[string]struct {
		args []string
		want string
	}{
		"behind a position":     {[]string{"--from", all[2], "--exit-at-end", "--output", "raw"}, "{\"_id\":3,\"n\":3}\n{\"_id\":4,\"n\":4}\n"},
		"up to a position":      {[]string{"--from", all[0], "--until", all[2], "--output", "raw"}, "{\"_id\":1,\"n\":1}\n{\"_id\":2,\"n\":2}\n"},
		"a count":               {[]string{"--from", all[0], "--count", "1", "--output", "raw"}, "{\"_id\":1,\"n\":1}\n"},
		"a filter":              {append(inserts[:3:3], "--filter", `{"fullDocument.n":{"$gt":3}}`, "--output", "raw"), "{\"_id\":4,\"n\":4}\n"},
		"canonical":             {[]string{"--from", all[3], "--exit-at-end", "--output", "raw", "--canonical"}, "{\"_id\":{\"$numberInt\":\"4\"},\"n\":{\"$numberLong\":\"4\"}}\n"},
		"up to a time":          {[]string{"--from", "-1h", "--until", "-30m", "--output", "raw"}, ""},
		"nothing behind latest": {[]string{"--exit-at-end"}, ""},
	} {
		if got := run(c.args...); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", what, got, c.want)
		}
	}
}

func TestADurableTailOfADatabaseGoesOnAndDoesNotFollowItself(t *testing.T) {
	t.Parallel()
	d, coll := set(t)
	db := coll.Database().Name()
	args := []string{"tail", db, "--durable", "audit", "--exit-at-end", "--output", "raw", "--filter", `{"operationType":{"$ne":"create"}}`}
	mustInsert(t, coll, bson.D{{Key: "_id", Value: 1}})
	if out, stderr, code := capstan(t, d.URI, append(args, "--from", "earliest")...); code != 0 || out != "{\"_id\":1}\n" {
		t.Fatalf("code %d, %q\n%s", code, out, stderr)
	}
	mustInsert(t, coll, bson.D{{Key: "_id", Value: 2}})
	for _, want := range []string{"{\"_id\":2}\n", ""} {
		if out, stderr, code := capstan(t, d.URI, args...); code != 0 || out != want {
			t.Fatalf("code %d, %q, want %q\n%s", code, out, want, stderr)
		}
	}
}

func TestATailWaitsForWhatDoesNotExistYet(t *testing.T) {
	t.Parallel()
	d, coll := set(t)
	db := coll.Database()
	whole := start(t, d.URI, nil, "tail", db.Name())
	ordinary := start(t, d.URI, nil, "tail", db.Name()+".orders")
	capped := start(t, d.URI, nil, "tail", db.Name()+".log", "--output", "raw")
	eventually(t, "they wait", func() bool {
		return strings.Contains(whole.stderr.String(), "does not exist yet") && strings.Contains(ordinary.stderr.String(), "waiting") &&
			strings.Contains(capped.stderr.String(), "waiting")
	})
	mustInsert(t, coll, bson.D{{Key: "_id", Value: "first"}})
	shown(t, ordinary, "\tinsert\t"+db.Name()+".orders\tfirst")
	mustInsert(t, coll, bson.D{{Key: "_id", Value: "second"}})
	shown(t, ordinary, "\tinsert\t"+db.Name()+".orders\tsecond")
	if err := db.CreateCollection(t.Context(), "log", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20)); err != nil {
		t.Fatal(err)
	}
	mustInsert(t, db.Collection("log"), bson.D{{Key: "_id", Value: "m"}, {Key: "data", Value: "hello"}})
	eventually(t, "the message of the stream", func() bool { return capped.stdout.String() == "hello\n" })
	// The database may have been opened behind the first insert: it did not exist, and latest is latest.
	shown(t, whole, "\tinsert\t"+db.Name()+".log\tm")
}

func TestATailSaysWhatItCannotFollow(t *testing.T) {
	t.Parallel()
	d, coll := set(t)
	db := coll.Database()
	mustInsert(t, coll, bson.D{{Key: "_id", Value: 1}})
	if err := db.CreateView(t.Context(), "v", "orders", mongo.Pipeline{}); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateCollection(t.Context(), "ts", options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t"))); err != nil {
		t.Fatal(err)
	}
	alone := mongotest.Standalone(t)
	for _, c := range []struct {
		uri  string
		args []string
		code int
		want string
	}{
		{d.URI, []string{db.Name() + ".v"}, 1, "is a view"},
		{d.URI, []string{db.Name() + ".ts"}, 1, "is a timeseries"},
		{d.URI, []string{db.Name() + ".orders", "--subject", "a.b"}, 2, "--subject is for streams"},
		{d.URI, []string{db.Name() + ".orders", "--visibility", "local"}, 2, "--visibility local is for streams"},
		{d.URI, []string{"*", "--durable", "x"}, 2, "--durable stores the position in the database"},
		{d.URI, []string{db.Name() + ".orders", "--from", "1764532800.7-692c9e80a1b2c3d4e5f60718"}, 2, "is the position of a message"},
		{alone.URI, []string{db.Name()}, 1, "no member of a replica set"},
	} {
		_, stderr, code := capstan(t, c.uri, append([]string{"tail"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: code %d, want %d with %q\n%s", c.args, code, c.code, c.want, stderr)
		}
	}
}

func TestTheWholeClusterIsFollowedByAStar(t *testing.T) {
	t.Parallel()
	d, coll := set(t)
	p := start(t, d.URI, nil, "tail", "*", "--from", "-1m", "--filter", fmt.Sprintf(`{"ns.db":%q,"operationType":"rename"}`, coll.Database().Name()))
	mustInsert(t, coll, bson.D{{Key: "_id", Value: 1}})
	n := coll.Database().Name()
	if err := coll.Database().Client().Database("admin").RunCommand(t.Context(), bson.D{{Key: "renameCollection", Value: n + ".orders"}, {Key: "to", Value: n + ".old"}}).Err(); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`\trename\t` + regexp.QuoteMeta(n) + `\.orders\t-\tto ` + regexp.QuoteMeta(n) + `\.old\n`)
	eventually(t, "the rename is printed", func() bool { return line.MatchString(p.stdout.String()) })
}

func TestLostHistoryHasTheCodeOfLostMessages(t *testing.T) {
	t.Parallel()
	if got := exitCode(fmt.Errorf("x: %w", &tailer.HistoryLostError{})); got != exitLost {
		t.Errorf("got %d", got)
	}
}
