package verify_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/verify"
)

func decimal(t *testing.T, s string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	do(t, err)
	return d
}

// TestEveryKindOfChangedDocumentIsFoundWithItsPlace plants one change in each document, and one document that is the same.
func TestEveryKindOfChangedDocumentIsFoundWithItsPlace(t *testing.T) {
	t.Parallel()
	nan := math.Float64frombits
	type d = bson.D
	for name, c := range map[string]struct {
		source, target any
		path           string // what is said of it
	}{
		"value":               {1, 2, `a: source {"$numberInt":"1"}, target {"$numberInt":"2"}`},
		"type only":           {int32(5), int64(5), `a: source {"$numberInt":"5"}, target {"$numberLong":"5"}`},
		"integer to double":   {int32(5), 5.0, `a: source {"$numberInt":"5"}, target {"$numberDouble":"5.0"}`},
		"trailing zero":       {decimal(t, "1.1"), decimal(t, "1.10"), `a: source {"$numberDecimal":"1.1"}, target {"$numberDecimal":"1.10"}`},
		"minus zero":          {0.0, math.Copysign(0, -1), `a: source {"$numberDouble":"0.0"}, target {"$numberDouble":"-0.0"}`},
		"payload of NaN":      {nan(0x7ff8000000000001), nan(0x7ff8000000000002), `a: source {"$numberDouble":"NaN"}, target {"$numberDouble":"NaN"} (from byte 0`},
		"order in a document": {d{{Key: "x", Value: 1}, {Key: "y", Value: 2}}, d{{Key: "y", Value: 2}, {Key: "x", Value: 1}}, `a: source x y, target y x (another order of fields)`},
		"null and nothing":    {nil, d{}, `a: source null, target {}`},
		"string and symbol":   {"s", bson.Symbol("s"), `a: source "s", target {"$symbol":"s"}`},
		"invalid text":        {"a\xff", "a\xfe", `(from byte 5`},
		"binary subtype":      {bson.Binary{Data: []byte("x")}, bson.Binary{Data: []byte("x"), Subtype: 5}, `a: source {"$binary"`},
		"deep in an array":    {bson.A{1, d{{Key: "b", Value: bson.A{1, 2}}}}, bson.A{1, d{{Key: "b", Value: bson.A{1, 3}}}}, `a.1.b.1: source {"$numberInt":"2"}`},
		"array shortened":     {bson.A{1, 2}, bson.A{1}, `a.1: source {"$numberInt":"2"}, target (none)`},
		"array to document":   {bson.A{1}, d{{Key: "0", Value: 1}}, `a: source [{"$numberInt":"1"}], target {"0":{"$numberInt":"1"}}`},
		"millisecond":         {time.UnixMilli(1), time.UnixMilli(2), `a: source {"$date"`},
		"long text":           {strings.Repeat("x", 5000), strings.Repeat("x", 4999) + "y", `(from byte 5003`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			insert(t, "c", numbered(300), s.source, s.target)
			insert(t, "c", []any{d{{Key: "_id", Value: "planted"}, {Key: "a", Value: c.source}}}, s.source)
			insert(t, "c", []any{d{{Key: "_id", Value: "planted"}, {Key: "a", Value: c.target}}}, s.target)
			rep := s.run(t, s.config())
			expect(t, rep, `different "planted"`)
			var b strings.Builder
			do(t, rep.Write(&b))
			if !strings.Contains(b.String(), c.path) || len(rep.Namespaces[0].Differences[0].Paths) != 1 {
				t.Errorf("it says\n%swant %s", b.String(), c.path)
			}
		})
	}
}

func TestFieldsThatAreGoneNewOrInAnotherOrderAreNamed(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	insert(t, "c", []any{
		bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}, {Key: "b", Value: 2}},
		bson.D{{Key: "_id", Value: 2}, {Key: "a", Value: 1}, {Key: "gone", Value: 2}},
		bson.D{{Key: "_id", Value: 7}, {Key: "a", Value: 1}},
	}, s.source)
	insert(t, "c", []any{
		bson.D{{Key: "_id", Value: 1}, {Key: "b", Value: 2}, {Key: "a", Value: 1}},
		bson.D{{Key: "_id", Value: 2}, {Key: "new", Value: 3}, {Key: "a", Value: 1}},
		bson.D{{Key: "_id", Value: 7.0}, {Key: "a", Value: 1}},
	}, s.target)
	rep := s.run(t, s.config())
	expect(t, rep, `different {"$numberInt":"1"}`, `different {"$numberInt":"2"}`, `different {"$numberInt":"7"}`)
	var b strings.Builder
	do(t, rep.Write(&b))
	for _, want := range []string{
		"(document): source _id a b, target _id b a (another order of fields)",
		`gone: source {"$numberInt":"2"}, target (none)`,
		`new: source (none), target {"$numberInt":"3"}`,
		`_id: source {"$numberInt":"7"}, target {"$numberDouble":"7.0"}`, // one _id to the server, and no pair of missing and extra
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %s:\n%s", want, b.String())
		}
	}
}

func index(t testing.TB, c *mongo.Collection, keys any, o *options.IndexOptionsBuilder) {
	t.Helper()
	_, err := c.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: keys, Options: o})
	do(t, err)
}

func TestIndexesAreComparedInEveryProperty(t *testing.T) {
	t.Parallel()
	a1 := bson.D{{Key: "a", Value: 1}}
	named := func() *options.IndexOptionsBuilder { return options.Index().SetName("i") }
	for name, c := range map[string]struct {
		source, target func(*testing.T, *mongo.Collection)
		want           []string
	}{
		"missing":   {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, nil, []string{"index i: is missing at the target"}},
		"extra":     {nil, func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, []string{"index i: is extra at the target"}},
		"equal":     {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, func(t *testing.T, c *mongo.Collection) { index(t, c, bson.D{{Key: "a", Value: 1.0}}, named()) }, nil},
		"unique":    {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named().SetUnique(true)) }, func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, []string{"index i: its unique differs"}},
		"sparse":    {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named().SetSparse(true)) }, []string{"index i: its sparse differs"}},
		"hidden":    {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named().SetHidden(true)) }, []string{"index i: its hidden differs"}},
		"direction": {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, func(t *testing.T, c *mongo.Collection) { index(t, c, bson.D{{Key: "a", Value: -1}}, named()) }, []string{"index i: its key differs"}},
		"order": {func(t *testing.T, c *mongo.Collection) {
			index(t, c, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}, named())
		}, func(t *testing.T, c *mongo.Collection) {
			index(t, c, bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 1}}, named())
		}, []string{"index i: its key differs"}},
		"partial": {func(t *testing.T, c *mongo.Collection) {
			index(t, c, a1, named().SetPartialFilterExpression(bson.D{{Key: "a", Value: 1}}))
		}, func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, []string{"index i: its partialFilterExpression differs"}},
		"collation": {func(t *testing.T, c *mongo.Collection) {
			index(t, c, a1, named().SetCollation(&options.Collation{Locale: "en"}))
		}, func(t *testing.T, c *mongo.Collection) {
			index(t, c, a1, named().SetCollation(&options.Collation{Locale: "de"}))
		}, []string{"index i: its collation differs"}},
		"time": {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named().SetExpireAfterSeconds(60)) }, func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named().SetExpireAfterSeconds(61)) }, []string{"index i: its expireAfterSeconds differs"}},
		"held back": {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named().SetExpireAfterSeconds(60)) }, func(t *testing.T, c *mongo.Collection) {
			index(t, c, a1, named().SetExpireAfterSeconds(verify.HeldBackTTL))
		}, []string{"note: index i: its expireAfterSeconds is held back at the target"}},
		"no TTL": {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, func(t *testing.T, c *mongo.Collection) {
			index(t, c, a1, named().SetExpireAfterSeconds(verify.HeldBackTTL))
		}, []string{"index i: its expireAfterSeconds differs"}},
		"wildcard": {func(t *testing.T, c *mongo.Collection) {
			index(t, c, bson.D{{Key: "$**", Value: 1}}, named().SetWildcardProjection(bson.D{{Key: "a", Value: 1}}))
		}, func(t *testing.T, c *mongo.Collection) {
			index(t, c, bson.D{{Key: "$**", Value: 1}}, named().SetWildcardProjection(bson.D{{Key: "b", Value: 1}}))
		}, []string{"index i: its wildcardProjection differs"}},
		"text": {func(t *testing.T, c *mongo.Collection) {
			index(t, c, bson.D{{Key: "a", Value: "text"}}, named().SetWeights(bson.D{{Key: "a", Value: 2}}))
		}, func(t *testing.T, c *mongo.Collection) { index(t, c, bson.D{{Key: "a", Value: "text"}}, named()) }, []string{"index i: its weights differs"}},
		"other name": {func(t *testing.T, c *mongo.Collection) { index(t, c, a1, named()) }, func(t *testing.T, c *mongo.Collection) { index(t, c, a1, options.Index().SetName("j")) }, []string{"index i: is missing at the target", "index j: is extra at the target"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			insert(t, "c", numbered(1), s.source, s.target)
			if c.source != nil {
				c.source(t, s.source.Collection("c"))
			}
			if c.target != nil {
				c.target(t, s.target.Collection("c"))
			}
			expect(t, s.run(t, s.config()), c.want...)
			cfg := s.config()
			cfg.NoIndexes = true
			expect(t, s.run(t, cfg))
			if name == "held back" {
				cfg = s.config()
				cfg.StrictTTL = true
				expect(t, s.run(t, cfg), "index i: its expireAfterSeconds differs")
			}
		})
	}
}

func TestOptionsOfCollectionsAreCompared(t *testing.T) {
	t.Parallel()
	create := func(more ...bson.E) bson.D { return append(bson.D{{Key: "create", Value: "c"}}, more...) }
	capped := func(size, n int) bson.D {
		return create(bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: size}, bson.E{Key: "max", Value: n})
	}
	validator := func(typ string) bson.E {
		return bson.E{Key: "validator", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$type", Value: typ}}}}}
	}
	clustered := bson.E{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: byID}, {Key: "unique", Value: true}}}
	collation := func(locale string, strength int) bson.E {
		return bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: locale}, {Key: "strength", Value: strength}}}
	}
	view := func(stage int) bson.D {
		return bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "a", Value: stage}}}}}}}
	}
	for name, c := range map[string]struct {
		source, target []bson.D
		want           []string
	}{
		"capped size":       {[]bson.D{capped(1<<20, 100)}, []bson.D{capped(1<<21, 100)}, []string{"option size: differs"}},
		"capped max":        {[]bson.D{capped(1<<20, 100)}, []bson.D{capped(1<<20, 101)}, []string{"option max: differs"}},
		"capped":            {[]bson.D{capped(1<<20, 100)}, []bson.D{create()}, []string{"option capped: differs", "option max: differs", "option size: differs"}},
		"validator":         {[]bson.D{create(validator("int"))}, []bson.D{create(validator("long"))}, []string{"option validator: differs"}},
		"no validator":      {[]bson.D{create(validator("int"))}, []bson.D{create()}, []string{"option validator: differs"}},
		"validation level":  {[]bson.D{create(validator("int"))}, []bson.D{create(validator("int"), bson.E{Key: "validationLevel", Value: "moderate"})}, []string{"option validationLevel: differs"}},
		"level implied":     {[]bson.D{create(validator("int"))}, []bson.D{create(validator("int"), bson.E{Key: "validationLevel", Value: "strict"})}, nil},
		"clustered":         {[]bson.D{create(clustered)}, []bson.D{create()}, []string{"option clusteredIndex: differs"}},
		"both clustered":    {[]bson.D{create(clustered)}, []bson.D{create(clustered)}, nil},
		"collation":         {[]bson.D{create(collation("en", 2))}, []bson.D{create(collation("en", 1))}, []string{"option collation: differs"}},
		"images":            {[]bson.D{create(bson.E{Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: true}}})}, []bson.D{create()}, []string{"note: option changeStreamPreAndPostImages: differs"}},
		"view":              {[]bson.D{create(), view(1)}, []bson.D{create(), view(1)}, nil},
		"view's pipeline":   {[]bson.D{create(), view(1)}, []bson.D{create(), view(2)}, []string{"v option pipeline: differs"}},
		"missing view":      {[]bson.D{create(), view(1)}, []bson.D{create()}, []string{"v collection : is missing at the target"}},
		"a view's place":    {[]bson.D{create(), view(1)}, []bson.D{create(), {{Key: "create", Value: "v"}}}, []string{"v collection : is a view at the source and a collection at the target"}},
		"missing, no data":  {[]bson.D{create()}, nil, []string{"collection : is missing at the target"}},
		"extra, no data":    {nil, []bson.D{create()}, []string{"collection : is extra at the target: the source has none"}},
		"time-series count": {[]bson.D{create(bson.E{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}}})}, []bson.D{create(bson.E{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}}})}, []string{"note: collection : is a time-series: its measurements are counted and not compared"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			for _, cmd := range c.source {
				command(t, s.source, cmd)
			}
			for _, cmd := range c.target {
				command(t, s.target, cmd)
			}
			cfg := s.config()
			cfg.NoIndexes = true // an index has the collation of its collection, too
			expect(t, s.run(t, cfg), c.want...)
		})
	}
}

var byID = bson.D{{Key: "_id", Value: 1}}

func TestWholeCollectionsThatAreMissingOrExtraAreCountedByDocument(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	insert(t, "a", numbered(250), s.source)
	insert(t, "b", numbered(130), s.target)
	insert(t, "c", numbered(1), s.source, s.target)
	cfg := s.config()
	cfg.MaxDifferences = -1
	rep := s.run(t, cfg)
	expect(t, rep, "a collection : is missing at the target", "b collection : is extra at the target: the source has none")
	if a, b := rep.Namespaces[0], rep.Namespaces[1]; a.Missing != 250 || b.Extra != 130 {
		t.Errorf("got %+v and %+v", a, b)
	}
}

func TestOnlyWhatTheScopeSelectsIsCompared(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	insert(t, "orders", []any{
		bson.D{{Key: "_id", Value: 1}, {Key: "region", Value: "eu"}}, bson.D{{Key: "_id", Value: 2}, {Key: "region", Value: "us"}},
	}, s.source)
	insert(t, "orders_eu", []any{bson.D{{Key: "_id", Value: 1}, {Key: "region", Value: "eu"}}, bson.D{{Key: "_id", Value: 3}, {Key: "region", Value: "us"}}}, s.target)
	insert(t, "left_out", numbered(3), s.source)
	insert(t, "not_ours", numbered(3), s.target)
	cfg := s.config()
	name := s.source.Name()
	cfg.Scope.Include = []string{name + ".orders"}
	cfg.Scope.Rename = append(cfg.Scope.Rename, cfg.Scope.Rename[0])
	cfg.Scope.Rename[0].From, cfg.Scope.Rename[0].To = name+".orders", s.target.Name()+".orders_eu"
	cfg.Scope.Filters = append(cfg.Scope.Filters, filter(t, "*.*", bson.D{{Key: "region", Value: "eu"}}))
	rep := s.run(t, cfg)
	// What the filter drops and the target has all the same is extra.
	expect(t, rep, `extra {"$numberInt":"3"}`)
	if n := rep.Namespaces[0]; n.SourceDocuments != 1 || n.Equal != 1 {
		t.Errorf("got %+v", n)
	}
}
