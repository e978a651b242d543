package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/verify"
)

func TestVerifyTellsEqualFromDifferentByItsExitCode(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	source, target := d.DB(t), d.DB(t)
	for i := range 300 {
		doc := bson.D{{Key: "_id", Value: i}, {Key: "region", Value: []string{"eu", "us"}[i%2]}}
		if _, err := source.Collection("orders").InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if _, err := target.Collection("orders").InsertOne(t.Context(), doc); err != nil {
				t.Fatal(err)
			}
		}
	}
	progress := filepath.Join(t.TempDir(), "state")
	args := []string{"verify", "--source-uri", d.URI, "--target-uri", d.URI, "--include", source.Name() + ".*", "--rename", source.Name() + "=" + target.Name(),
		"--idle", "--progress", progress}
	stdout, stderr, code := capstan(t, "", append(args, "--filter", `{"region":"eu"}`)...)
	if code != exitOK || !strings.HasSuffix(stdout, "verify: equal: 1 collection, 150 documents\n") {
		t.Errorf("code %d:\n%s%s", code, stdout, stderr)
	}
	if _, err := os.Stat(progress); err == nil {
		t.Error("the progress of a run that has ended is left over")
	}
	stdout, stderr, code = capstan(t, "", append(args, "--max-differences", "3")...)
	if code != exitDifference || !strings.Contains(stdout, "DIFFERENT, 150 equal, 150 missing\n") || strings.Count(stdout, "missing: ") != 3 ||
		!strings.Contains(stdout, "… and 147 more") || strings.Contains(stderr, "capstan:") {
		t.Errorf("code %d:\n%s%s", code, stdout, stderr)
	}
	stdout, stderr, code = capstan(t, "", args...)
	if code != exitDifference || strings.Count(stdout, "missing: ") != 20 || !strings.Contains(stdout, "… and 130 more (--max-differences)") ||
		!strings.Contains(stdout, "missing: {\"$numberInt\":\"1\"}\n  missing: {\"$numberInt\":\"3\"}\n") {
		t.Errorf("code %d:\n%s%s", code, stdout, stderr)
	}
	stdout, _, code = capstan(t, "", append(args, "--output", "json")...)
	var rep verify.Report
	if err := json.Unmarshal([]byte(stdout), &rep); err != nil || code != exitDifference {
		t.Fatalf("code %d, %v:\n%s", code, err, stdout)
	}
	if rep.Equal || rep.Namespaces[0].Missing != 150 || rep.Namespaces[0].Source.Coll != "orders" || len(rep.Namespaces[0].Differences) != 150 {
		t.Errorf("got %+v", rep)
	}
}

func TestVerifyOfNothingIsNoSuccess(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	_, stderr, code := capstan(t, "", "verify", "--source-uri", d.URI, "--target-uri", d.URI, "--include", "no_such_database.*")
	if code != exitFailed || !strings.Contains(stderr, "no collection of either side takes part") {
		t.Errorf("code %d: %s", code, stderr)
	}
}

// Who waits for --settle is told so.
func TestVerifySaysThatItWaits(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	source, target := d.DB(t), d.DB(t)
	for i := range 3 {
		if _, err := source.Collection("orders").InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	_, stderr, code := capstan(t, "", "verify", "--source-uri", d.URI, "--target-uri", d.URI, "--include", source.Name()+".*",
		"--rename", source.Name()+"="+target.Name(), "--settle", "8s")
	if code != exitDifference || !strings.Contains(stderr, "3 documents differ; waiting up to 8s for a live route (--settle, --idle)") {
		t.Errorf("code %d:\n%s", code, stderr)
	}
}

// Many differences are listed in an order, and of every kind some.
func TestVerifyListsEveryKind(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	source, target := d.DB(t), d.DB(t)
	for i := range 40 {
		doc := bson.D{{Key: "_id", Value: i}}
		if i >= 30 {
			doc = append(doc, bson.E{Key: "a", Value: 1})
			if _, err := target.Collection("orders").InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := source.Collection("orders").InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	stdout, _, code := capstan(t, "", "verify", "--source-uri", d.URI, "--target-uri", d.URI, "--include", source.Name()+".*",
		"--rename", source.Name()+"="+target.Name(), "--idle")
	last, first := strings.LastIndex(stdout, "  missing: "), strings.Index(stdout, "  different: ")
	if code != exitDifference || strings.Count(stdout, "  missing: ") != 10 || strings.Count(stdout, "  different: ") != 10 || last > first {
		t.Errorf("code %d:\n%s", code, stdout)
	}
}
