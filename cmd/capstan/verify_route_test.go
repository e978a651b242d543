package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// routesFile writes a configuration of the daemon.
func routesFile(t *testing.T, routes string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capstan.yaml")
	if err := os.WriteFile(path, []byte("routes:\n"+routes), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVerifyComparesTheSidesOfARouteOfTheDaemon(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	source, target := d.DB(t), d.DB(t)
	for i := range 20 {
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
	route := func(name, filters string) string {
		return fmt.Sprintf(`- {name: %s, shared: true, source: {uri: '%s'}, include: [%s.*], rename: [{from: %s.*, to: %s.*}]%s,
   targets: [{name: berlin, uri: '%s'}]}
`, name, d.URI, source.Name(), source.Name(), target.Name(), filters, d.URI)
	}
	file := routesFile(t, route("eu", `, filters: [{namespace: '*.*', query: '{"region": "eu"}'}]`)+route("all", ""))
	for name, want := range map[string]struct {
		code int
		text string
	}{
		"eu":         {exitOK, "verify: equal: 1 collection, 10 documents\n"},
		"eu/berlin":  {exitOK, "verify: equal: 1 collection, 10 documents\n"},
		"all/berlin": {exitDifference, "10 equal, 10 missing\n"},
	} {
		stdout, stderr, code := capstan(t, "", "verify", "--idle", "--route", name, "-c", file)
		if code != want.code || !strings.Contains(stdout, want.text) {
			t.Errorf("%s: code %d:\n%s%s", name, code, stdout, stderr)
		}
	}
}

func TestVerifySaysWhatIsWrongWithARoute(t *testing.T) {
	t.Parallel()
	file := routesFile(t, `- {name: orders, source: {uri: 'mongodb://a'}, include: [shop.orders], targets: [{name: berlin, uri: 'mongodb://b'}, {name: paris, uri: 'mongodb://c'}]}
- {name: people, source: {uri: 'mongodb://a'}, include: [shop.people], targets: [{uri: 'mongodb://b'}]}
`)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--route and --include are both given", []string{"--route", "people", "-c", file, "--include", "shop.*"}},
		{"--route and --source-uri are both given", []string{"--route", "people", "-c", file, "--source-uri", "mongodb://u:hunter2@x"}},
		{"has no such route; did you mean people?", []string{"--route", "poeple", "-c", file}},
		{"has no such route; did you mean orders/paris?", []string{"--route", "orders/parsi", "-c", file}},
		{"has no such route; it has orders/berlin, orders/paris, people", []string{"--route", "something", "-c", file}},
		{"--route orders has several targets; name one: orders/berlin, orders/paris", []string{"--route", "orders", "-c", file}},
		{"has no routes", []string{"--route", "people", "-c", routesFile(t, "")}},
		{"--route needs the configuration file of capstan serve: -c capstan.yaml", []string{"--route", "people"}},
	} {
		_, stderr, code := capstan(t, "", append([]string{"verify"}, c.args...)...)
		if code != exitUsage || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "hunter2") {
			t.Errorf("%q: code %d, want %q in:\n%s", c.args, code, c.want, stderr)
		}
	}
	_, stderr, code := capstan(t, "", "verify", "--route", "people", "-c", filepath.Join(t.TempDir(), "none.yaml"))
	if code != exitConfig {
		t.Errorf("a file that does not exist: code %d:\n%s", code, stderr)
	}
}

// A route of a stream gives each message a new ts: that is no difference.
func TestVerifyComparesAStreamOfTheDaemon(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	source, target := d.DB(t), d.DB(t)
	ns := source.Name() + ".events"
	if _, stderr, code := capstan(t, d.URI, "stream", "create", ns); code != exitOK {
		t.Fatal(stderr)
	}
	p := start(t, d.URI, strings.NewReader("one\ntwo\nthree\n"), "produce", ns)
	if p.code(t) != exitOK {
		t.Fatal(p.stderr.String())
	}
	if _, stderr, code := capstan(t, "", "replicate", "--source-uri", d.URI, "--target-uri", d.URI, "--name", ns, "--stream", ns,
		"--rename", source.Name()+"="+target.Name(), "--until", "live"); code != exitOK {
		t.Fatal(stderr)
	}
	file := routesFile(t, fmt.Sprintf(`- {name: events, source: {uri: '%s'}, stream: %s, rename: [{from: %s.*, to: %s.*}], targets: [{uri: '%s'}]}
`, d.URI, ns, source.Name(), target.Name(), d.URI))
	stdout, stderr, code := capstan(t, "", "verify", "--idle", "--route", "events", "-c", file)
	if code != exitOK || !strings.Contains(stdout, "verify: equal: 1 collection") {
		t.Errorf("code %d:\n%s%s", code, stdout, stderr)
	}
	// Without the route, the flag is named.
	stdout, stderr, code = capstan(t, "", "verify", "--idle", "--source-uri", d.URI, "--target-uri", d.URI, "--include", ns,
		"--rename", source.Name()+"="+target.Name())
	if code != exitDifference || !strings.Contains(stdout, "note: collection has 3 messages different in ts alone: a stream route makes ts anew: compare with --new-timestamps") {
		t.Errorf("code %d:\n%s%s", code, stdout, stderr)
	}
}
