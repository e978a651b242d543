package mongodb_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// quiet servers do nothing by themselves that a counter of operations would show.
var quiet = []string{"--setParameter", "disableLogicalSessionCacheRefresh=true", "--setParameter", "ttlMonitorEnabled=false"}

func compile(t testing.TB, c scope.Config) *scope.Set {
	t.Helper()
	set, err := scope.Compile(c)
	must(t, err)
	return set
}

// makeHazards fills db with one collection for each thing that a preflight must see.
func makeHazards(t testing.TB, db *mongo.Database) {
	t.Helper()
	ctx := t.Context()
	create := func(name string, o *options.CreateCollectionOptionsBuilder) {
		must(t, db.CreateCollection(ctx, name, o))
	}
	index := func(coll string, m mongo.IndexModel) {
		_, err := db.Collection(coll).Indexes().CreateOne(ctx, m)
		must(t, err)
	}
	insert := func(coll string, docs ...any) {
		_, err := db.Collection(coll).InsertMany(ctx, docs)
		must(t, err)
	}
	fill(t, db.Collection("plain"), 2000, 100)
	create("times", options.CreateCollection().SetTimeSeriesOptions(options.TimeSeries().SetTimeField("t")))
	must(t, db.CreateView(ctx, "view", "excluded", mongo.Pipeline{}))
	create("excluded", options.CreateCollection())
	create("log", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20))
	create("clustered", variants["clustered"])
	create("valid", options.CreateCollection().SetValidator(bson.D{{Key: "x", Value: bson.D{{Key: "$gte", Value: 0}}}}))
	create("collated", variants["collation"])
	create("images", options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}}))
	index("unique", mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true).SetName("u_1")})
	index("ttl", mongo.IndexModel{Keys: bson.D{{Key: "at", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(3600).SetName("at_1")})
	insert("mixed", bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: "one"}}, bson.D{{Key: "_id", Value: nil}})
	insert("onetype", bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2.5}}, bson.D{{Key: "_id", Value: int64(3)}})
	insert("odd", bson.D{{Key: "_id", Value: 1}, {Key: "$dollar", Value: 1}}, bson.D{{Key: "_id", Value: 2}, {Key: "a.dot", Value: 1}}, bson.D{{Key: "_id", Value: 3}, {Key: "", Value: 1}},
		bson.D{{Key: "_id", Value: 4}, {Key: "inner", Value: bson.D{{Key: "$in.side", Value: 1}}}})
	insert("large", bson.D{{Key: "_id", Value: 1}, {Key: "pad", Value: string(make([]byte, 15<<20))}})
	insert("geo", bson.D{{Key: "_id", Value: 1}})
	insert("same1", bson.D{{Key: "_id", Value: 1}})
	insert("same2", bson.D{{Key: "_id", Value: 1}})
	insert("there", bson.D{{Key: "_id", Value: 1}})
	insert("empty_there", bson.D{{Key: "_id", Value: 1}})
	insert(strings.Repeat("n", 190), bson.D{{Key: "_id", Value: 1}})
}

// state is all that a preflight must not change: content, names and the counters of writes of every server.
func state(t testing.TB, d *mongotest.Deployment) map[string]string {
	t.Helper()
	ctx := t.Context()
	out := map[string]string{}
	client, err := mongo.Connect(d.Options())
	must(t, err)
	defer func() { must(t, client.Disconnect(ctx)) }()
	dbs, err := client.ListDatabaseNames(ctx, bson.D{})
	must(t, err)
	for _, db := range dbs {
		if db == "local" || db == "config" {
			continue
		}
		hash, err := client.Database(db).RunCommand(ctx, bson.D{{Key: "dbHash", Value: 1}}).Raw()
		must(t, err)
		out["hash of "+db] = hash.Lookup("md5").String()
		cur, err := client.Database(db).ListCollections(ctx, bson.D{})
		must(t, err)
		var colls []bson.Raw
		must(t, cur.All(ctx, &colls))
		var names []string
		for _, c := range colls {
			names = append(names, c.String())
		}
		slices.Sort(names)
		out["collections of "+db] = strings.Join(names, "\n")
	}
	for _, m := range d.Cluster.Members() {
		uri, err := d.Cluster.MemberURI(m.Name)
		must(t, err)
		member, err := mongo.Connect(options.Client().ApplyURI(uri))
		must(t, err)
		status, err := member.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Raw()
		must(t, err)
		for _, op := range []string{"insert", "update", "delete"} {
			out[m.Name+" "+op] = status.Lookup("opcounters", op).String()
		}
		must(t, member.Disconnect(ctx))
	}
	return out
}

func TestAPreflightNamesEachHazardAndChangesNothing(t *testing.T) {
	t.Parallel()
	from := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: quiet})
	to := mongotest.Own(t, localcluster.Config{Members: 3, ExtraArgs: quiet})
	ctx := t.Context()
	admin := from.DB(t).Client()
	db := admin.Database("shop")
	makeHazards(t, db)
	must(t, admin.Database("Upper").CreateCollection(ctx, "c"))
	must(t, admin.Database("clash").CreateCollection(ctx, "c"))
	dst := to.DB(t).Client()
	_, err := dst.Database("shop").Collection("there").InsertOne(ctx, bson.D{{Key: "_id", Value: 7}})
	must(t, err)
	must(t, dst.Database("shop").CreateCollection(ctx, "empty_there"))
	must(t, dst.Database("CLASH").CreateCollection(ctx, "c"))
	src := newSource(t, from.Options(), mongodb.SourceConfig{})
	long := strings.Repeat("n", 190)
	set := compile(t, scope.Config{
		Exclude: []string{"shop.excluded"},
		Rename: []scope.Rename{
			{From: "shop.same2", To: "shop.same1"}, {From: "shop." + long, To: strings.Repeat("d", 60) + "." + long + "12345"}, {From: "Upper.*", To: "SHOP.*"},
		},
		Filters: []scope.Filter{
			{Pattern: "shop.geo", Query: raw(t, bson.D{{Key: "x", Value: bson.D{{Key: "$nonsense", Value: 1}}}})},
			{Pattern: "shop.log", Query: raw(t, bson.D{{Key: "x", Value: 1}})},
		},
	})
	fromBefore, toBefore := state(t, from), state(t, to)
	r, err := mongodb.Preflight(ctx, src, to.Options(), set, mongodb.PreflightConfig{})
	must(t, err)
	for name, was := range map[*mongotest.Deployment]map[string]string{from: fromBefore, to: toBefore} {
		is := state(t, name)
		for k, v := range was {
			if is[k] != v {
				t.Errorf("a preflight changed %s: from %.300s to %.300s", k, v, is[k])
			}
		}
		if len(is) != len(was) {
			t.Errorf("a preflight made databases: %v", is)
		}
	}
	const note, warning, blocker, ok = mongodb.SeverityNote, mongodb.SeverityWarning, mongodb.SeverityBlocker, mongodb.SeverityOK
	for _, want := range []mongodb.Finding{
		{Severity: warning, Code: mongodb.CodeTimeseries, Namespace: "shop.times"},
		{Severity: note, Code: mongodb.CodeView, Namespace: "shop.view"},
		{Severity: warning, Code: mongodb.CodeViewSource, Namespace: "shop.view"},
		{Severity: note, Code: mongodb.CodeCapped, Namespace: "shop.log"},
		{Severity: warning, Code: mongodb.CodeCappedFilter, Namespace: "shop.log"},
		{Severity: note, Code: mongodb.CodeClustered, Namespace: "shop.clustered"},
		{Severity: note, Code: mongodb.CodeValidator, Namespace: "shop.valid"},
		{Severity: note, Code: mongodb.CodeCollation, Namespace: "shop.collated"},
		{Severity: note, Code: mongodb.CodePreImages, Namespace: "shop.images"},
		{Severity: note, Code: mongodb.CodeUniqueIndex, Namespace: "shop.unique"},
		{Severity: note, Code: mongodb.CodeTTLIndex, Namespace: "shop.ttl"},
		{Severity: note, Code: mongodb.CodeMixedIDs, Namespace: "shop.mixed"},
		{Severity: note, Code: mongodb.CodeFieldNames, Namespace: "shop.odd"},
		{Severity: warning, Code: mongodb.CodeLargeDocuments, Namespace: "shop.large"},
		{Severity: blocker, Code: mongodb.CodeFilter, Namespace: "shop.geo"},
		{Severity: ok, Code: mongodb.CodeFilter, Namespace: "shop.log"},
		{Severity: blocker, Code: mongodb.CodeNameLength, Namespace: "shop." + long},
		{Severity: blocker, Code: mongodb.CodeNameCollision, Namespace: "shop.same2"},
		{Severity: blocker, Code: mongodb.CodeDatabaseCase, Namespace: "clash.c"},
		{Severity: blocker, Code: mongodb.CodeNotEmpty, Namespace: "shop.there"},
		{Severity: note, Code: mongodb.CodeExists, Namespace: "shop.empty_there"},
		{Severity: ok, Code: mongodb.CodeSource},
		{Severity: ok, Code: mongodb.CodeTarget},
		{Severity: ok, Code: mongodb.CodeDisk},
	} {
		if !slices.ContainsFunc(r.Findings, func(f mongodb.Finding) bool {
			return f.Severity == want.Severity && f.Code == want.Code && f.Namespace == want.Namespace && f.Text != ""
		}) {
			t.Errorf("there is no finding %s %s about %q", want.Severity, want.Code, want.Namespace)
		}
	}
	for _, f := range r.Findings {
		t.Logf("%-8s %-18s %.40s: %.250s [%s]", f.Severity, f.Code, f.Namespace, f.Text, f.Do)
		if f.Namespace == "shop.plain" || f.Namespace == "shop.onetype" {
			t.Errorf("a collection without a hazard has the finding %+v", f)
		}
		if f.Severity == blocker && f.Do == "" {
			t.Errorf("%s says not what to do", f.Code)
		}
	}
	if !r.Has(mongodb.CodeDatabaseCase) || !r.Blocked() || r.Findings[0].Severity != blocker {
		t.Error("the report is not in order")
	}
	if r.Collections < 15 || r.Documents < 2000 || r.Bytes < 15<<20 || r.ReadRate <= 0 || r.CopyTime <= 0 || r.Source.SetID == r.Target.SetID {
		t.Errorf("the report says %+v", r)
	}
	if !slices.ContainsFunc(r.Findings, func(f mongodb.Finding) bool {
		return f.Code == mongodb.CodeOplogWindow && strings.Contains(f.Text, "MB/s (measured on a sample)")
	}) {
		t.Error("the oplog's window is not compared with the copy, with the rate that was assumed")
	}
	// What one lets the route do is no blocker.
	for _, existing := range []replicator.Existing{replicator.MergeExisting, replicator.DropExisting} {
		r, err := mongodb.Preflight(ctx, src, to.Options(), compile(t, scope.Config{Include: []string{"shop.there", "shop.ttl"}}), mongodb.PreflightConfig{Existing: existing, KeepTTL: true})
		must(t, err)
		if r.Blocked() || !r.Has(mongodb.CodeNotEmpty) {
			t.Errorf("%s: %+v", existing, r.Findings)
		}
	}
}

func TestAPreflightRefusesARouteThatReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	fill(t, db.Collection("a"), 10, 10)
	src := newSource(t, d.Options(), mongodb.SourceConfig{})
	in := db.Name()
	for _, c := range []struct {
		scope scope.Config
		code  string
	}{
		{scope.Config{Include: []string{in + ".*"}}, mongodb.CodeLoop},
		{scope.Config{Include: []string{in + ".*"}, Rename: []scope.Rename{{From: in + ".a", To: in + ".b"}}}, mongodb.CodeLoop},
		{scope.Config{Include: []string{in + ".a"}, Rename: []scope.Rename{{From: in + ".a", To: in + ".b"}}}, mongodb.CodeSameDeployment},
		{scope.Config{Include: []string{in + ".nothing*"}}, mongodb.CodeNothing},
	} {
		r, err := mongodb.Preflight(t.Context(), src, d.Options(), compile(t, c.scope), mongodb.PreflightConfig{})
		must(t, err)
		if !r.Has(c.code) || r.Blocked() != (c.code == mongodb.CodeLoop) {
			t.Errorf("%+v: want %s, have %+v", c.scope, c.code, r.Findings)
		}
	}
	// Without a destination the source alone is looked at.
	r, err := mongodb.Preflight(t.Context(), src, nil, compile(t, scope.Config{Include: []string{in}}), mongodb.PreflightConfig{})
	must(t, err)
	if r.Target.Version != "" || r.Blocked() {
		t.Errorf("%+v", r)
	}
}

func TestAPreflightTellsStandalonesAndOldCompatibility(t *testing.T) {
	t.Parallel()
	alone, d := mongotest.Standalone(t), mongotest.ReplicaSet(t)
	fill(t, alone.DB(t).Collection("c"), 10, 10)
	src := newSource(t, alone.Options(), mongodb.SourceConfig{})
	r, err := mongodb.Preflight(t.Context(), src, d.Options(), setOf(t), mongodb.PreflightConfig{})
	must(t, err)
	if !r.Has(mongodb.CodeNoReplicaSet) || !r.Blocked() {
		t.Errorf("a standalone source: %+v", r.Findings)
	}
	db := d.DB(t)
	fill(t, db.Collection("c"), 10, 10)
	src = newSource(t, d.Options(), mongodb.SourceConfig{})
	r, err = mongodb.Preflight(t.Context(), src, alone.Options(), setOf(t, db.Name()), mongodb.PreflightConfig{})
	must(t, err)
	if !r.Has(mongodb.CodeTargetStandalone) || r.Blocked() {
		t.Errorf("a standalone destination: %+v", r.Findings)
	}
	old := mongotest.Own(t, localcluster.Config{Members: 3})
	must(t, old.DB(t).Client().Database("admin").RunCommand(t.Context(), bson.D{{Key: "setFeatureCompatibilityVersion", Value: "5.0"}}).Err())
	r, err = mongodb.Preflight(t.Context(), newSource(t, old.Options(), mongodb.SourceConfig{}), nil, setOf(t), mongodb.PreflightConfig{})
	must(t, err)
	if !r.Has(mongodb.CodeFCV) || !r.Blocked() {
		t.Errorf("an old compatibility version: %+v", r.Findings)
	}
}

func TestAPreflightNamesPermissionsThatAreMissing(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 3, Auth: true})
	ctx := t.Context()
	db := d.DB(t)
	fill(t, db.Collection("c"), 100, 10)
	user := func(name string, roles ...any) *options.ClientOptions {
		must(t, db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: "p"}, {Key: "roles", Value: append(bson.A{}, roles...)},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 3}}}}).Err())
		u, err := url.Parse(d.URI)
		must(t, err)
		u.User = url.UserPassword(name, "p")
		return options.Client().ApplyURI(u.String())
	}
	on := func(role, db string) bson.D { return bson.D{{Key: "role", Value: role}, {Key: "db", Value: db}} }
	reader := user("reader", on("read", db.Name()))
	writer := user("writer", on("readWrite", "copy"), on("dbAdmin", "copy"), on("readWrite", scope.Own), on("dbAdmin", scope.Own))
	nobody := user("nobody")
	root := d.Options()
	set := compile(t, scope.Config{Include: []string{db.Name()}, Rename: []scope.Rename{{From: db.Name() + ".*", To: "copy.*"}}})
	severity := func(from, to *options.ClientOptions) (worst mongodb.Severity, texts string) {
		t.Helper()
		r, err := mongodb.Preflight(ctx, newSource(t, from, mongodb.SourceConfig{}), to, set, mongodb.PreflightConfig{})
		must(t, err)
		for _, f := range r.Findings {
			if f.Code == mongodb.CodePermission {
				if worst == "" {
					worst = f.Severity
				}
				texts += f.Text + ": " + f.Do + "\n"
			}
		}
		return worst, texts
	}
	if s, text := severity(root, root); s != mongodb.SeverityOK {
		t.Errorf("root: %s %s", s, text)
	}
	if s, text := severity(reader, writer); s != mongodb.SeverityWarning || !strings.Contains(text, "read on the database local") || !strings.Contains(text, "may write to capstan, copy") {
		t.Errorf("enough to work: %s %s", s, text)
	}
	if s, text := severity(root, reader); s != mongodb.SeverityBlocker || !strings.Contains(text, "insert") || !strings.Contains(text, "grant the destination's user the role readWrite on the database copy") {
		t.Errorf("a destination's user who may only read: %s %s", s, text)
	}
	if s, text := severity(nobody, root); s != mongodb.SeverityBlocker || !strings.Contains(text, "grant the source's user") {
		t.Errorf("a source's user without a role: %s %s", s, text)
	}
	u, err := url.Parse(d.URI)
	must(t, err)
	u.User = nil
	if s, text := severity(root, options.Client().ApplyURI(u.String())); s != mongodb.SeverityBlocker || !strings.Contains(text, "demands a login") {
		t.Errorf("a destination without a login: %s %s", s, text)
	}
}

func TestAPreflightOfALargeCollectionLooksAtASampleAndSaysSo(t *testing.T) {
	t.Parallel()
	d, db := database(t)
	coll := db.Collection("c")
	fill(t, coll, 30_000, 10)
	_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "the only string"}})
	must(t, err)
	odd := db.Collection("odd")
	for part := range 6 {
		docs := make([]any, 5000)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: part*5000 + i}, {Key: "a.b", Value: 1}}
		}
		_, err := odd.InsertMany(t.Context(), docs)
		must(t, err)
	}
	r, err := mongodb.Preflight(t.Context(), newSource(t, d.Options(), mongodb.SourceConfig{}), nil, setOf(t, db.Name()), mongodb.PreflightConfig{})
	must(t, err)
	if !r.Has(mongodb.CodeMixedIDs) {
		t.Errorf("one _id of 30001 is of another type, and is not seen: %+v", r.Findings)
	}
	if !slices.ContainsFunc(r.Findings, func(f mongodb.Finding) bool {
		return f.Code == mongodb.CodeFieldNames && strings.Contains(f.Text, "in a sample of 1000 of about 30000 documents")
	}) {
		t.Errorf("%+v", r.Findings)
	}
}
