package archtest

import (
	"slices"
	"strings"
	"testing"
)

const driver = "go.mongodb.org/mongo-driver/v2/"

// may says what a package imports beyond the standard library. A name that ends in "/..." stands for
// everything below it.
type may struct {
	ours   []string // folders of this project
	others []string // import paths of other modules
	why    string   // the reason, printed when something else is imported
}

var (
	bsonOnly = []string{driver + "bson"}
	allBSON  = []string{driver + "bson", driver + "x/bsonx/bsoncore"}
	mongo    = append([]string{driver + "mongo", driver + "mongo/options", driver + "mongo/readpref", driver + "mongo/readconcern", driver + "mongo/writeconcern", driver + "event"}, allBSON...)
	zerolog  = []string{"github.com/rs/zerolog"}
	errgroup = []string{"golang.org/x/sync/errgroup"}
)

func join(lists ...[]string) []string { return slices.Concat(lists...) }

// table is the direction of the imports: words at the bottom, roles above them, wiring on top.
// Every package of the project has a row.
var table = map[string]may{
	"record": {nil, bsonOnly, "it is the shared vocabulary, a leaf: the standard library and bson only"},

	"internal/archtest":   {nil, nil, "it only reads source"},
	"internal/retry":      {nil, []string{"github.com/cenkalti/backoff/v4"}, "it wraps one library"},
	"internal/topology":   {nil, []string{driver + "event"}, "it only listens to the driver's events"},
	"internal/mongoerr":   {[]string{"record"}, append([]string{driver + "x/mongo/driver", driver + "x/mongo/driver/topology", driver + "x/mongo/driver/auth", driver + "x/bsonx/bsoncore"}, mongo...), "it knows errors and nothing else"},
	"internal/history":    {[]string{"record"}, bsonOnly, "the oracle judges values; it must not share code with what it judges"},
	"internal/latency":    {nil, []string{"github.com/HdrHistogram/hdrhistogram-go"}, "samples in, percentiles out"},
	"internal/plot":       {nil, []string{"gonum.org/v1/plot/...", "golang.org/x/image/..."}, "numbers in, a picture out"},
	"internal/pace":       {nil, []string{"golang.org/x/sys/unix"}, "it waits, and knows nothing of what for"},
	"internal/lockedfile": {[]string{"internal/retry"}, []string{"golang.org/x/sys/unix"}, "it replaces a file and knows nothing of what is in it"},
	"internal/wire":       {nil, allBSON, "it moves commands over the driver's connections and knows no role"},
	"internal/match":      {nil, allBSON, "a matcher sees documents only"},
	"internal/config":     {[]string{"etc", "scope", "internal/match"}, join(mongo, []string{"go.yaml.in/yaml/v3", driver + "x/mongo/driver/connstring"}), "settings come from flags, environment and files, not from roles"},
	"internal/logging":    {nil, zerolog, "it builds a logger and nothing else"},
	"internal/faultnet":   {nil, nil, "it moves bytes and knows no protocol: the standard library only"},
	"internal/mongotest":  {[]string{"localcluster"}, join(mongo, []string{"go.uber.org/goleak"}), "it hands out servers to tests of every package, so it may know no role"},

	"producer":                  {[]string{"record", "internal/retry"}, join(bsonOnly, zerolog, errgroup), "a producer talks to a Writer, never to the driver"},
	"consumer":                  {[]string{"record", "internal/retry"}, join(bsonOnly, zerolog, errgroup), "a consumer talks to a Source and a Checkpointer, never to the driver"},
	"scope":                     {[]string{"record"}, bsonOnly, "patterns and names; it knows no server"},
	"replicator":                {[]string{"record", "scope", "internal/match", "internal/retry"}, join(bsonOnly, zerolog, errgroup), "the logic of routes talks to a Source, a Target and a Store, never to the driver"},
	"replicator/mongodb":        {[]string{"record", "scope", "replicator", "replicator/stored", "failover", "tailer", "stream", "checkpoint", "internal/mongoerr", "internal/topology"}, join(mongo, zerolog, errgroup), "it is MongoDB for the replicator: it wires the roles that read and write there (for stream routes also those that create a stream and keep a checkpoint), and knows no logic of routes"},
	"replicator/stored":         {[]string{"record", "replicator"}, bsonOnly, "the one form in which stores of routes keep a state; it knows no place to keep it in"},
	"replicator/statefile":      {[]string{"record", "replicator", "replicator/stored", "internal/lockedfile"}, bsonOnly, "a store of routes in a file needs no server"},
	"replicator/fidelity":       {nil, allBSON, "a table of documents, for tests of every package"},
	"etc":                       {nil, nil, "files for an installation, and nothing that reads them"},
	"internal/daemon":           {[]string{"record", "replicator", "internal/retry"}, zerolog, "it runs links, whoever made them; it knows neither MongoDB nor HTTP"},
	"internal/systemd":          {nil, []string{"golang.org/x/sys/unix"}, "datagrams to the service manager and nothing else"},
	"internal/admin":            {[]string{"replicator", "internal/config", "internal/daemon"}, zerolog, "it shows the daemon and passes verbs on; it knows neither MongoDB nor metrics"},
	"verify":                    {[]string{"record", "scope", "internal/mongoerr", "internal/retry"}, join(mongo, zerolog, errgroup), "it judges both sides and must not share code with what made them equal"},
	"internal/metrics":          {[]string{"..."}, []string{"github.com/prometheus/client_golang/..."}, "it turns the hooks and states of roles into metrics"},
	"stream":                    {[]string{"record", "internal/mongoerr", "internal/retry"}, join(mongo, zerolog), "roles do not import each other"},
	"failover":                  {[]string{"record", "internal/mongoerr", "internal/retry", "internal/topology", "internal/wire"}, join(mongo, zerolog, []string{driver + "x/mongo/driver", driver + "x/mongo/driver/description", driver + "x/mongo/driver/topology", driver + "x/mongo/driver/xoptions"}), "roles do not import each other; it chooses servers, for which the driver has no stable API (failover/avoid.go only)"},
	"tailer":                    {[]string{"record", "internal/mongoerr", "internal/retry", "internal/topology", "internal/wire"}, join(mongo, zerolog), "roles do not import each other"},
	"tailer/memory":             {[]string{"record"}, bsonOnly, "an in-memory source needs no server"},
	"tailer/sourcetest":         {[]string{"record"}, bsonOnly, "the suite judges any source"},
	"checkpoint":                {[]string{"record", "internal/lockedfile", "internal/mongoerr"}, join(mongo, zerolog), "roles do not import each other"},
	"checkpoint/checkpointtest": {[]string{"record"}, bsonOnly, "the suite judges any store"},
	"localcluster":              {[]string{"internal/retry", "internal/mongoerr"}, join(mongo, zerolog, errgroup, []string{"golang.org/x/sys/unix"}), "it runs servers and knows no role"},

	"experiment":                      {[]string{"..."}, []string{"..."}, "it wires everything"},
	"experiment/outage":               {[]string{"..."}, []string{"..."}, "it wires everything"},
	"experiment/replication":          {[]string{"..."}, []string{"..."}, "it wires everything"},
	"experiment/replication/workload": {[]string{"internal/mongoerr", "internal/pace"}, join(mongo, zerolog, errgroup), "it changes databases and knows nobody who follows"},
	"experiment/results":              {nil, nil, "rows in, files out"},
	"experiment/raw":                  {nil, bsonOnly, "the ideal client is a socket, BSON and OP_MSG, nothing else"},
	"cmd/capstan":                     {[]string{"..."}, []string{"..."}, "it wires everything"},
	"e2e":                             {[]string{"..."}, []string{"..."}, "it wires everything"},
}

// nobody may be imported by anyone: they wire.
var nobody = []string{"cmd/capstan", "e2e"}

func allowed(list []string, path string) bool {
	return slices.ContainsFunc(list, func(a string) bool {
		if a == "..." {
			return true
		}
		if base, ok := strings.CutSuffix(a, "/..."); ok {
			return path == base || strings.HasPrefix(path, base+"/")
		}
		return path == a
	})
}

func TestImportsPointOneWay(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue // tests wire what they judge
		}
		row, ok := table[s.pkg]
		if !ok {
			t.Errorf("%s: package %s has no row in the table of imports: add one with its reason", s.path, s.pkg)
			continue
		}
		for _, path := range s.imports() {
			if why := verdict(s.pkg, row, path); why != "" {
				t.Errorf("%s: %s", s.path, why)
			}
		}
	}
}

// verdict returns "" or a sentence that says why pkg may not import path.
func verdict(pkg string, row may, path string) string {
	if ours, ok := strings.CutPrefix(path, module+"/"); ok {
		if slices.Contains(nobody, ours) {
			return pkg + " may not import " + ours + ": nobody imports what wires"
		}
		if !allowed(row.ours, ours) {
			return pkg + " may not import " + ours + ": " + row.why
		}
		return ""
	}
	if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	if !allowed(row.others, path) {
		return pkg + " may not import " + path + ": " + row.why
	}
	return ""
}

func TestAForbiddenImportIsNamedWithItsReason(t *testing.T) {
	for _, c := range []struct{ pkg, path, want string }{
		{"producer", driver + "mongo", "producer may not import " + driver + "mongo: a producer talks to a Writer, never to the driver"},
		{"record", "github.com/rs/zerolog", "record may not import github.com/rs/zerolog: it is the shared vocabulary, a leaf: the standard library and bson only"},
		{"tailer", module + "/failover", "tailer may not import failover: roles do not import each other"},
		{"experiment", module + "/cmd/capstan", "experiment may not import cmd/capstan: nobody imports what wires"},
		{"tailer", "context", ""},
	} {
		if got := verdict(c.pkg, table[c.pkg], c.path); got != c.want {
			t.Errorf("got %q\nwant %q", got, c.want)
		}
	}
}

func TestMongoPackagesStayOutOfTheirTestsWhereTheyStayOutOfTheCode(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg != "record" && s.pkg != "internal/match" {
			continue
		}
		for _, path := range s.imports() {
			if s.pkg == "record" && strings.HasPrefix(path, driver+"mongo") {
				t.Errorf("%s imports %s: the vocabulary is tested without a server", s.path, path)
			}
		}
	}
}
