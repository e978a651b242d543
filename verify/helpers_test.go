package verify_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/scope"
	"github.com/seed-12ef14e5/capstan/verify"
)

// sides are two databases, which a route with a renamed database would keep equal: the source on the replica set, the
// target on the standalone server.
type sides struct {
	source, target *mongo.Database
	from, to       *mongotest.Deployment
}

func newSides(t testing.TB) sides {
	t.Helper()
	s := sides{from: mongotest.ReplicaSet(t), to: mongotest.Standalone(t)}
	s.source, s.target = s.from.DB(t), s.to.DB(t)
	return s
}

// config is the scope of the two databases.
func (s sides) config() verify.Config {
	return verify.Config{Quiet: true, Scope: scope.Config{
		Include: []string{s.source.Name() + ".*"},
		Rename:  []scope.Rename{{From: s.source.Name() + ".*", To: s.target.Name() + ".*"}},
	}}
}

func (s sides) run(t testing.TB, cfg verify.Config) verify.Report {
	t.Helper()
	v, err := verify.New(s.from.Options(), s.to.Options(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	rep, err := v.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// insert stores the same documents on the databases given, in order.
func insert(t testing.TB, coll string, docs []any, dbs ...*mongo.Database) {
	t.Helper()
	for _, db := range dbs {
		for part := range slices.Chunk(docs, 10_000) {
			if _, err := db.Collection(coll).InsertMany(t.Context(), part); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// found is a report in short lines, without the name of the only collection: what a test expects, sorted.
func found(rep verify.Report) []string {
	var lines []string
	for _, n := range rep.Namespaces {
		name := ""
		if len(rep.Namespaces) > 1 {
			name = n.Source.Coll + " "
		}
		for _, f := range n.Findings {
			note := ""
			if f.Note {
				note = "note: "
			}
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s%s%s %s: %s", name, note, f.About, f.Name, f.Text)))
		}
		for _, d := range n.Differences {
			lines = append(lines, fmt.Sprintf("%s%s %s", name, d.Kind, d.ID))
		}
	}
	slices.Sort(lines)
	return lines
}

func expect(t testing.TB, rep verify.Report, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := found(rep); !slices.Equal(got, want) {
		t.Errorf("found\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	equal := !slices.ContainsFunc(want, func(s string) bool { return !strings.Contains(s, "note: ") && !strings.Contains(s, "changing ") })
	if rep.Equal != equal {
		t.Errorf("Equal is %v, want %v", rep.Equal, equal)
	}
}

func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func command(t testing.TB, db *mongo.Database, cmd bson.D) {
	t.Helper()
	if err := db.RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
}

func filter(t testing.TB, pattern string, query bson.D) scope.Filter {
	t.Helper()
	raw, err := bson.Marshal(query)
	do(t, err)
	return scope.Filter{Pattern: pattern, Query: raw}
}
