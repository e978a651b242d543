package scope

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

func compiled(t interface{ Fatal(...any) }, c Config) *Set {
	s, err := Compile(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ns(t interface{ Fatal(...any) }, name string) record.Namespace {
	n, err := record.ParseNamespace(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAPatternSelectsWhatItSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		include, exclude string
		yes, no          string
	}{
		{"", "", "a.b shop.x.y", "admin.x local.x config.x capstan.x shop.system.views"},
		{"shop.*", "", "shop.a shop.a.b shop.A", "shop2.a myshop.a sho.a"},
		{"shop", "", "shop.a shop.a.b", "shop2.a"},
		{"shop.order_*", "", "shop.order_ shop.order_1 shop.order_a.b", "shop.orders shop.xorder_1"},
		{"*.audit", "", "a.audit b.audit", "a.audits a.x.audit a.b"},
		{"*.*audit", "", "a.audit a.x.audit", "a.audits"},
		{"s*p.a", "", "sp.a shop.a", "shop.b shops.a"},
		{"shop.a.b", "", "shop.a.b", "shop.aXb shop.a"},
		{"shop.a+(b)[c]", "", "shop.a+(b)[c]", "shop.aa(b)[c]"},
		{"shop.*", "shop.tmp* *.x", "shop.a shop.atmp", "shop.tmp shop.tmp1 shop.x"},
		{"", "shop", "a.b", "shop.a"},
		{"admin.* capstan.*", "", "", "admin.x capstan.x"},
		{"*a*b*.c", "", "ab.c xaxbx.c", "ba.c"},
	} {
		s := compiled(t, Config{Include: strings.Fields(c.include), Exclude: strings.Fields(c.exclude)})
		for _, name := range strings.Fields(c.yes) {
			if !s.Matches(ns(t, name)) {
				t.Errorf("include %q exclude %q leaves out %s", c.include, c.exclude, name)
			}
		}
		for _, name := range strings.Fields(c.no) {
			if s.Matches(ns(t, name)) {
				t.Errorf("include %q exclude %q selects %s", c.include, c.exclude, name)
			}
		}
	}
	s := compiled(t, Config{Include: []string{"shop.my orders/\"x\""}})
	if !s.Matches(record.Namespace{DB: "shop", Coll: "my orders/\"x\""}) {
		t.Error("a collection may have blanks, quotes and slashes in its name")
	}
}

func TestWhatIsNoPatternIsRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []Config{
		{Include: []string{""}}, {Include: []string{".a"}}, {Include: []string{"a."}}, {Include: []string{"a b.c"}}, {Include: []string{"a.$cmd"}},
		{Exclude: []string{"a/b.c"}}, {Include: []string{"a.b\x00"}},
		{Include: []string{"a..b"}}, {Include: []string{"a.b."}}, {Exclude: []string{"a.*."}}, {Include: []string{"a..*"}},
		{Rename: []Rename{{"a..b", "c.d"}}}, {Rename: []Rename{{"a.b", "c..d"}}}, {Rename: []Rename{{"a.b", "c.d."}}}, {Rename: []Rename{{"a..*", "c..*"}}},
		{Rename: []Rename{{"a", "b"}}}, {Rename: []Rename{{"a.*", "b.c"}}}, {Rename: []Rename{{"a.b", "c.*"}}}, {Rename: []Rename{{"a*.b", "c.d"}}},
		{Rename: []Rename{{"a.b", "c d.e"}}}, {Rename: []Rename{{"a.b*", "c.d*"}}}, {Rename: []Rename{{"a.b", "admin.d"}}}, {Rename: []Rename{{"a.b", "c.system.views"}}},
		{Filters: []Filter{{Pattern: "", Query: bson.Raw{5, 0, 0, 0, 0}}}},
	} {
		if _, err := Compile(bad); !errors.Is(err, ErrBadPattern) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
	for _, bad := range []Config{
		{Rename: []Rename{{"a.b", "capstan.d"}}}, {Rename: []Rename{{"a.*", "capstan.*"}}},
		{Filters: []Filter{{Pattern: "a.b"}}}, {Filters: []Filter{{Pattern: "a.b", Query: bson.Raw{6, 0, 0, 0, 0}}}},
	} {
		if _, err := Compile(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestTheFirstRenameAndTheFirstFilterCount(t *testing.T) {
	t.Parallel()
	one, two := bson.Raw("\x05\x00\x00\x00\x00"), bson.Raw("\x08\x00\x00\x00\x0aa\x00\x00")
	s := compiled(t, Config{
		Rename:  []Rename{{"shop.orders", "x.y"}, {"shop.*", "copy.*"}, {"shop.a", "never.b"}, {"b.*", "copy.*"}},
		Filters: []Filter{{"shop.orders", one}, {"shop.*", two}, {"shop.a", one}},
	})
	for from, to := range map[string]string{"shop.orders": "x.y", "shop.a": "copy.a", "shop.a.b": "copy.a.b", "other.a": "other.a", "shop2.a": "shop2.a"} {
		if got := s.Target(ns(t, from)).String(); got != to {
			t.Errorf("%s becomes %s, want %s", from, got, to)
		}
		if !slices.Contains(s.Origins(ns(t, to)), ns(t, from)) {
			t.Errorf("%s does not come from %s, but %v", to, from, s.Origins(ns(t, to)))
		}
	}
	if got := s.Origins(ns(t, "shop.a")); len(got) != 0 {
		t.Errorf("nothing writes to shop.a, but %v", got)
	}
	if got := s.Origins(ns(t, "copy.z")); fmt.Sprint(got) != "[copy.z shop.z b.z]" {
		t.Errorf("copy.z comes from %v", got)
	}
	for name, want := range map[string]bson.Raw{"shop.orders": one, "shop.a": two, "other.a": nil} {
		if got := s.Filter(ns(t, name)); string(got) != string(want) {
			t.Errorf("the filter of %s is %v", name, got)
		}
	}
	if !s.Filtered() || compiled(t, Config{}).Filtered() {
		t.Error("Filtered is wrong")
	}
}

func TestTheOnlyDatabaseIsKnown(t *testing.T) {
	t.Parallel()
	for include, want := range map[string]string{"": "", "shop.*": "shop", "shop": "shop", "shop.a shop.b*": "shop", "shop.a b.a": "", "s*.a": "", "*": ""} {
		if got := compiled(t, Config{Include: strings.Fields(include)}).Database(); got != want {
			t.Errorf("%q: %q, want %q", include, got, want)
		}
	}
}

func TestTheFingerprintTellsSetsApartAndIgnoresOrderWhereItMeansNothing(t *testing.T) {
	t.Parallel()
	print := func(c Config) string { return compiled(t, c).Fingerprint() }
	doc := bson.Raw("\x05\x00\x00\x00\x00")
	same := [][2]Config{
		{{Include: []string{"a.b", "c.d"}}, {Include: []string{"c.d", "a.b", "a.b"}}},
		{{}, {Include: []string{}}},
	}
	for _, c := range same {
		if print(c[0]) != print(c[1]) {
			t.Errorf("%+v and %+v mean the same", c[0], c[1])
		}
	}
	seen := map[string]Config{}
	for _, c := range []Config{
		{}, {Include: []string{"a.b"}}, {Exclude: []string{"a.b"}}, {Include: []string{"a.b", "c.d"}}, {Include: []string{"a.b\" \"c.d"}},
		{Rename: []Rename{{"a.b", "c.d"}}}, {Rename: []Rename{{"c.d", "a.b"}}}, {Rename: []Rename{{"a.*", "c.*"}, {"a.b", "c.d"}}}, {Rename: []Rename{{"a.b", "c.d"}, {"a.*", "c.*"}}},
		{Filters: []Filter{{"a.b", doc}}}, {Filters: []Filter{{"a.c", doc}}},
		{Filters: []Filter{{"a.b", bson.Raw("\x08\x00\x00\x00\x0aa\x00\x00")}}},
	} {
		if other, twice := seen[print(c)]; twice {
			t.Errorf("%+v and %+v have one fingerprint", c, other)
		}
		seen[print(c)] = c
	}
}

// names are all the databases and collections of the properties below.
var (
	dbNames   = []string{"a", "b", "ab", "ba"}
	collNames = []string{"x", "y", "xy", "yx", "xxy"}
)

func universe() []record.Namespace {
	var all []record.Namespace
	for _, db := range dbNames {
		for _, coll := range collNames {
			all = append(all, record.Namespace{DB: db, Coll: coll})
		}
	}
	return all
}

func drawConfig(t *rapid.T, label string, stars bool) Config {
	part := func(names, patterns []string) *rapid.Generator[string] {
		if stars {
			names = append(slices.Clone(names), patterns...)
		}
		return rapid.SampledFrom(names)
	}
	dbs, colls := part(dbNames, []string{"*", "a*", "*b", "*a*"}), part(collNames, []string{"*", "x*", "*y", "*x*y", "x*x*"})
	pattern := rapid.Custom(func(t *rapid.T) string { return dbs.Draw(t, "db") + "." + colls.Draw(t, "coll") })
	least := 0
	if !stars {
		least = 1 // an empty Include is *.*
	}
	c := Config{
		Include: rapid.SliceOfN(pattern, least, 3).Draw(t, label+" include"),
		Exclude: rapid.SliceOfN(pattern, 0, 2).Draw(t, label+" exclude"),
	}
	name := rapid.SampledFrom(universe())
	for range rapid.IntRange(0, 3).Draw(t, label+" renames") {
		from, to := name.Draw(t, "from"), name.Draw(t, "to")
		r := Rename{from.String(), to.String()}
		if rapid.Bool().Draw(t, "whole") {
			r = Rename{from.DB + ".*", to.DB + ".*"}
		}
		c.Rename = append(c.Rename, r)
	}
	return c
}

// TestOverlapNeverMissesAndIsExactForNames compares with a search through all names.
func TestOverlapNeverMissesAndIsExactForNames(t *testing.T) {
	t.Parallel()
	for _, stars := range []bool{false, true} {
		rapid.Check(t, func(t *rapid.T) {
			a, b := compiled(t, drawConfig(t, "a", stars)), compiled(t, drawConfig(t, "b", stars))
			written := make(map[record.Namespace]bool)
			for _, n := range universe() {
				if a.Matches(n) {
					written[a.Target(n)] = true
				}
			}
			real := false
			for _, n := range universe() {
				real = real || b.Matches(n) && written[b.Target(n)]
			}
			name, got := Overlap(a, b)
			if real && !got || !stars && got != real || got != (name != "") {
				t.Fatalf("Overlap says %v (%s), a search through all names %v", got, name, real)
			}
			if _, back := Overlap(b, a); back != got {
				t.Fatal("Overlap is not symmetric")
			}
		})
	}
}

// TestMeetsIsRight compares with a search through all short texts.
func TestMeetsIsRight(t *testing.T) {
	t.Parallel()
	var texts []string
	for n := range 5 {
		for i := range 1 << n {
			texts = append(texts, strings.NewReplacer("0", "a", "1", "b").Replace(fmt.Sprintf("%0*b", n, i))[:n])
		}
	}
	pattern := rapid.StringOfN(rapid.SampledFrom([]rune("ab*")), 0, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		p, q := pattern.Draw(t, "p"), pattern.Draw(t, "q")
		re := func(s string) *regexp.Regexp { return regexp.MustCompile(`^` + glob(s) + `$`) }
		a, b := re(p), re(q)
		want := slices.ContainsFunc(texts, func(s string) bool { return a.MatchString(s) && b.MatchString(s) })
		// A common text may need more letters than these have: both patterns' letters together at most.
		if letters := len(strings.ReplaceAll(p+q, "*", "")); !want && letters > 4 {
			return
		}
		if got := meets(p, q); got != want {
			t.Fatalf("meets(%q, %q) is %v", p, q, got)
		}
	})
	// Many stars take no time.
	if many := strings.Repeat("*a", 100); meets(many+"b", many+"c") {
		t.Error("two patterns with different ends meet")
	}
}

func TestOriginsAreExactlyWhatTargetMaps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := compiled(t, drawConfig(t, "s", true))
		for _, to := range universe() {
			var want []string
			for _, from := range universe() {
				if s.Matches(from) && s.Target(from) == to {
					want = append(want, from.String())
				}
			}
			var got []string
			for _, from := range s.Origins(to) {
				got = append(got, from.String())
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("%s comes from %v, want %v", to, got, want)
			}
		}
	})
}

func TestAWholeDatabaseIsKnownAsOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config Config
		want   bool
	}{
		{Config{Include: []string{"shop"}}, true},
		{Config{Include: []string{"shop.*", "shop.orders"}}, true},
		{Config{Include: []string{"shop.orders"}}, false},
		{Config{Include: []string{"shop.*"}, Exclude: []string{"shop.x"}}, false},
		{Config{Include: []string{"shop.*", "other.*"}}, false},
		{Config{Include: []string{"shop*.*"}}, false},
		{Config{}, false},
	} {
		set, err := Compile(c.config)
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Whole(); got != c.want {
			t.Errorf("%+v: got %v", c.config, got)
		}
	}
}
