package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/seed-12ef14e5/capstan/replicator"
)

// load writes a file and loads it.
func load(t *testing.T, text string, env map[string]string) (Daemon, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capstan.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadDaemon(Input{
		Flag:   func(n string) (string, bool) { return path, n == "config" },
		Getenv: func(n string) string { return env[n] },
	})
}

// uncommented is the sample with its block about routes.
func uncommented() string {
	text := strings.Replace(Sample(), "routes: []", "routes:", 1)
	return regexp.MustCompile(`(?m)^#(  .*)$`).ReplaceAllString(text, " $1")
}

func TestTheSamplesRouteHoldsEveryKeyWithItsDefault(t *testing.T) {
	t.Parallel()
	full, err := load(t, uncommented(), nil)
	if err != nil {
		t.Fatal(err)
	}
	least, err := load(t, `routes:
- name: orders
  source: {uri: "mongodb://source.example/?replicaSet=rs0"}
  targets: [{uri: "mongodb://target.example/?replicaSet=rs1"}]
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprintf("%+v", full.Routes), fmt.Sprintf("%+v", least.Routes); a != b {
		t.Errorf("the sample says\n%s\nthe defaults are\n%s", a, b)
	}
	f, _ := parseAll([]byte(uncommented()), ".", os.Getenv)
	if len(f.Routes) != 1 {
		t.Fatal("no route in the sample")
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[file](), reflect.TypeFor[adminFile](), reflect.TypeFor[routeFile](), reflect.TypeFor[targetFile]()} {
		for i := range typ.NumField() {
			if key := typ.Field(i).Tag.Get("yaml"); !strings.Contains(uncommented(), key+":") {
				t.Errorf("the sample does not show %s", key)
			}
		}
	}
}

func TestTheDefaultsOfARouteAreTheReplicators(t *testing.T) {
	t.Parallel()
	for name, pair := range map[string][2]any{
		"workers":     {DefaultWorkers, replicator.DefaultWorkers},
		"readers":     {DefaultReaders, replicator.DefaultReaders},
		"batch":       {DefaultBatch, replicator.DefaultBatch},
		"save_every":  {DefaultSaveEvery, replicator.DefaultSaveEvery},
		"max_letters": {DefaultMaxLetters, replicator.DefaultMaxLetters},
		"existing":    {DefaultExisting, string(replicator.RefuseExisting)},
		"on_lost":     {DefaultOnLost, string(replicator.StopOnLost)},
		"parallel":    {maxParallel, min(replicator.MaxWorkers, replicator.MaxReaders)},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v here, %v there", name, pair[0], pair[1])
		}
	}
}

func TestEverythingThatIsWrongIsSaidAtOnceWithItsLine(t *testing.T) {
	t.Parallel()
	_, err := load(t, `drain_timeout: 30
admin:
  listen: 0.0.0.0:9477
  tokn: x
routes:
- name: a b
  source: {uri: mongodb://h}
  targets: [{uri: "http://u:hunter2@h"}]
  workers: 65
  save_every: soon
- name: ok
  source: {uri_file: /does/not/exist}
  include: ["sh op"]
  rename: [{from: a, to: b}]
  filters: [{namespace: shop.*, query: "{region:"}]
  targets: [{uri: "mongodb://${NOWHERE}"}, {uri: mongodb://h2}]
  shared: yes
  existing: overwrite
`, nil)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		`line 1: drain_timeout: "30" has no unit: write 30s`,
		"line 3: admin.listen: 0.0.0.0:9477 can be reached from other machines",
		"line 4: unknown key tokn (known here: listen, hosts, token, ",
		`line 6: routes[0].name: "a b" is no name`,
		"line 8: routes[0].targets[0].uri: a connection string starts with",
		"line 9: routes[0].workers: 65 is not 1 to 64",
		`line 10: routes[0].save_every: "soon" is not a duration`,
		"line 12: routes[1].source.uri_file: open /does/not/exist",
		"line 13: routes[1].include[0]: not a pattern",
		"line 14: routes[1].rename[0]: ",
		"line 15: routes[1].filters[0].query: not a query in Extended JSON",
		"line 16: routes[1].targets[0].uri: the environment variable NOWHERE is not set",
		"line 16: routes[1].targets[1]: a route with several targets needs a name for each",
		`line 17: routes[1].shared: "yes" is not true or false`,
		`line 18: routes[1].existing: "overwrite" is not one of refuse, merge, drop`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said", want)
		}
	}
	if strings.Contains(err.Error(), "hunter2") || t.Failed() {
		t.Errorf("got %v", err)
	}
}

func TestTwoRoutesWriteToOneCollectionOnlyIfBothSaySo(t *testing.T) {
	t.Parallel()
	const two = `routes:
- name: a
  source: {uri: mongodb://s1}
  include: [shop.*]
  targets: [{uri: "mongodb://u:p@T1:27017,t2/?replicaSet=rs"}]
  shared: %t
- name: b
  source: {uri: mongodb://s2}
  include: [other.orders]
  rename: [{from: other.orders, to: shop.orders}]
  targets: [{uri: "%s"}]
  shared: %t
`
	for _, c := range []struct {
		sharedA, sharedB bool
		target           string
		ok               bool
	}{
		{false, false, "mongodb://t1", false},
		{true, false, "mongodb://t1", false},
		{true, true, "mongodb://t1", true},
		{false, false, "mongodb://t3", true},
		{false, false, "mongodb://t1:27018", true},
	} {
		_, err := load(t, fmt.Sprintf(two, c.sharedA, c.target, c.sharedB), nil)
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil && !strings.Contains(err.Error(), "line 11: routes[1].targets[0]: routes a and b both write to") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestARouteDoesNotReplicateIntoItself(t *testing.T) {
	t.Parallel()
	text := `routes:
- name: a
  source: {uri: mongodb://s1}
  include: [shop.*]%s
  targets: [{uri: mongodb://s1}]
`
	if _, err := load(t, fmt.Sprintf(text, ""), nil); err == nil || !strings.Contains(err.Error(), "into itself") {
		t.Errorf("got %v", err)
	}
	if _, err := load(t, fmt.Sprintf(text, "\n  rename: [{from: shop.*, to: copy.*}]"), nil); err != nil {
		t.Errorf("a copy beside it: %v", err)
	}
	if _, err := load(t, "routes:\n- name: a\n  source: {uri: mongodb://s}\n  targets: [{uri: mongodb://t}]\n"+
		"- name: a\n  source: {uri: mongodb://s}\n  targets: [{uri: mongodb://t2}]\n", nil); err == nil || !strings.Contains(err.Error(), "is used by") {
		t.Errorf("one name twice: %v", err)
	}
}

func TestARouteForAStreamHasOnlyTheOptionsThatItCanKeep(t *testing.T) {
	t.Parallel()
	text := "routes:\n- name: a\n  source: {uri: mongodb://s}\n  targets: [{uri: mongodb://t}]\n  stream: events.log\n  rename: [{from: events.*, to: copy.*}]\n"
	d, err := load(t, text, nil)
	if err != nil || d.Routes[0].Stream != "events.log" {
		t.Fatalf("%+v, %v", d, err)
	}
	for line, want := range map[string]string{
		"  workers: 3\n":     "routes[0].workers: a route for a stream has no such option",
		"  existing: drop\n": "routes[0].existing: for a stream it is refuse or merge",
		"  include: [a.*]\n": "routes[0].stream: a route is for a stream, or has include",
		"- name: b\n  source: {uri: mongodb://s2}\n  targets: [{uri: mongodb://t}]\n  include: [copy.log]\n": "both write to",
	} {
		if _, err := load(t, text+line, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestEachSettingSaysWhereItIsFromAndHidesSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "uri")
	if err := os.WriteFile(secret, []byte("mongodb://me:hunter2@t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := load(t, `admin: {token: 0123456789abcdef}
drain_timeout: 1m
routes:
- name: a
  source: {uri: "mongodb://u:${PW}@s"}
  targets:
  - uri_file: `+secret+`
  workers: ${N}
  filters: [{namespace: a.*, query: '{"n": {"$gt": 1}}'}]
`, map[string]string{"PW": "hunter2", "N": "7", "CAPSTAN_ADMIN_LISTEN": "off", "CAPSTAN_PAUSED": "true"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range d.Settings() {
		source := regexp.MustCompile(`file \S*capstan.yaml`).ReplaceAllString(s.Source, "FILE")
		got[s.Key] = s.Value + " from " + strings.ReplaceAll(source, secret, "SECRET")
	}
	for key, want := range map[string]string{
		"admin.listen":             "off from env CAPSTAN_ADMIN_LISTEN",
		"admin.token":              "*** from FILE line 1",
		"admin.pprof":              "false from default",
		"drain_timeout":            "1m from FILE line 2",
		"restart_max":              "1m from default",
		"paused":                   "true from env CAPSTAN_PAUSED",
		"routes[0].source.uri":     "mongodb://u:***@s from FILE line 5",
		"routes[0].targets[0].uri": "mongodb://me:***@t from FILE line 7 SECRET",
		"routes[0].workers":        "7 from FILE line 8",
		"routes[0].readers":        "2 from default",
		"routes[0].filters":        `a.*: {"n": {"$gt": 1}} from FILE line 9`,
	} {
		if got[key] != want {
			t.Errorf("%s: got %q, want %q", key, got[key], want)
		}
	}
	if d.Routes[0].Source != "mongodb://u:hunter2@s" || d.Admin.Token != "0123456789abcdef" || !d.Paused {
		t.Errorf("got %+v", d)
	}
}

func TestAnyChangeOfARouteChangesItsFingerprintAndNothingElseDoes(t *testing.T) {
	t.Parallel()
	fingerprint := func(extra, target string) string {
		d, err := load(t, "routes:\n- name: a\n  source: {uri: mongodb://s}\n  targets: [{name: x, uri: mongodb://t}"+target+"]\n"+extra, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d.Routes[0].Fingerprint(d.Routes[0].Targets[0])
	}
	base := fingerprint("", "")
	if fingerprint("# a comment\ndrain_timeout: 1s\n", "") != base || fingerprint("", ", {name: y, uri: mongodb://t2}") != base {
		t.Error("a route is begun again for what does not concern it")
	}
	for _, extra := range []string{"  workers: 5\n", "  include: [a]\n", "  filters: [{namespace: a, query: '{x: 1}'}]\n", "  keep_ttl: true\n"} {
		if strings.Contains(extra, "{x") {
			extra = strings.Replace(extra, "{x: 1}", `{"x": 1}`, 1)
		}
		if fingerprint(extra, "") == base {
			t.Errorf("%q changes nothing", extra)
		}
	}
}

func TestWhatOnlyTheDaemonMayReadIsNoMatterForOtherCommands(t *testing.T) {
	t.Parallel()
	text := "uri: mongodb://h\nroutes:\n- name: a\n  source: {uri: \"${file:/run/credentials/capstan}\"}\n"
	if _, err := parse([]byte(text), ".", func(string) string { return "" }); err != nil {
		t.Error(err)
	}
}

func TestAnAliasBombIsRefused(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("a: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "b%d: &a%d [%s*a%d]\n", i, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 9), i)
	}
	b.WriteString("routes: *a9\n")
	if _, err := parse([]byte(b.String()), ".", func(string) string { return "" }); err == nil {
		t.Error("taken")
	}
}

func TestAddressesThatOtherMachinesReachAreKnown(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]bool{
		"127.0.0.1:1": false, "127.0.0.9:1": false, "[::1]:1": false, "localhost:1": false, "unix:/run/x": false, "off": false,
		"0.0.0.0:1": true, ":1": true, "[::]:1": true, "10.0.0.1:1": true, "db1:1": true, "localhost.example:1": true,
	} {
		if got, err := Reachable(listen); err != nil || got != want {
			t.Errorf("%s: %t, %v", listen, got, err)
		}
	}
	for _, bad := range []string{"", "127.0.0.1", "unix:", "1234"} {
		if _, err := Reachable(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestEverythingThatIsWrongIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	_, err := load(t, `log: {level: loud}
drain_timeout: 30
admin: {listen: "0.0.0.0:9477", token: short}
routes:
- {name: a, source: {uri: "mongodb://s"}, include: [shop.*], targets: [{uri: "mongodb://s"}]}
- {name: a, source: {uri: "mongodb://x"}, include: [shop.*], targets: [{uri: "mongodb://s"}]}
- {name: c, source: {uri: "mongodb://x"}, include: [shop.orders], targets: [{uri: "mongodb://s"}], filters: [{namespace: '*.*', query: '{"a": {"$nope": 1}}'}]}
- {name: d, source: {uri: "nonsense"}, include: [nothing], targets: [{}, {}]}
`, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`line 1: log.level: "loud" is not one of trace`,
		`line 2: drain_timeout: "30" has no unit`,
		"line 3: admin.listen: 0.0.0.0:9477 can be reached from other machines",
		"line 3: admin.token: a token has at least",
		"line 5: routes[0].targets[0]: route a would replicate shop.* into itself",
		"line 6: routes[1].targets[0]: the name a is used by routes[0].targets[0] already",
		"line 6: routes[1].targets[0]: routes a and a both write to shop.*",
		"line 7: routes[2].targets[0]: routes a and c both write to shop.orders",
		"line 7: routes[2].filters[0].query: ",
		"line 8: routes[3].source.uri: a connection string starts with",
		"line 8: routes[3].targets[1].uri: a connection string is missing",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "routes d and") || strings.Contains(err.Error(), "name d is") {
		t.Errorf("what is wrong by itself is compared with others:\n%v", err)
	}
}

func TestNamesOfFilesAreRelativeToTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token":  strings.Repeat("t", MinTokenBytes),
		"source": "mongodb://u:hunter2@s", "target": "mongodb://t", "one": "mongodb://one", "user": "me",
		"capstan.yaml": `uri_file: one
admin: {token_file: token}
routes:
- {name: a, source: {uri_file: source}, include: ['${file:user}.*'], targets: [{uri_file: ./target}]}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := Input{Flag: func(n string) (string, bool) { return filepath.Join(dir, "capstan.yaml"), n == "config" }}
	d, err := LoadDaemon(in)
	if err != nil {
		t.Fatal(err)
	}
	if r := d.Routes[0]; r.Source != "mongodb://u:hunter2@s" || r.Targets[0].URI != "mongodb://t" || r.Scope.Include[0] != "me.*" {
		t.Errorf("got %+v", r)
	}
	if len(d.Admin.Token) != MinTokenBytes {
		t.Error("no token")
	}
	if a, tokenErr, err := LoadAdmin(in); err != nil || tokenErr != nil || a.Token != d.Admin.Token {
		t.Error("a client finds no token", tokenErr, err)
	}
	if s, err := Load(in); err != nil || s.URI.Text != "mongodb://one" {
		t.Error(s.URI.Text, err)
	}
}
