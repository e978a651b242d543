package scope_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// What fits no namespace of the source is named, as it was written; what fits one is not, excluded or not.
func TestUnusedNamesWhatFitsNothing(t *testing.T) {
	t.Parallel()
	names := []record.Namespace{{DB: "shop", Coll: "orders"}, {DB: "shop", Coll: "order.lines"}, {DB: "t", Coll: "u"}, {DB: "admin", Coll: "x"}}
	all := bson.Raw{5, 0, 0, 0, 0}
	for _, c := range []struct {
		name  string
		c     scope.Config
		names []record.Namespace
		want  []string
	}{
		{"nothing is asked for", scope.Config{}, names, nil},
		{"all is used", scope.Config{
			Include: []string{"shop", "t.*", "*.order*"}, Exclude: []string{"shop.order.*"},
			Rename:  []scope.Rename{{From: "shop.orders", To: "a.b"}, {From: "t.*", To: "t2.*"}},
			Filters: []scope.Filter{{Pattern: "*.*", Query: all}, {Pattern: "shop.order.lines", Query: all}},
		}, names, nil},
		{"some is misspelt", scope.Config{
			Include: []string{"shop.*", "shopp.*", "tt"}, Exclude: []string{"t.u", "t.uu"},
			Rename:  []scope.Rename{{From: "tt.*", To: "t2.*"}, {From: "shop.orders", To: "a.b"}, {From: "shop.order", To: "a.c"}},
			Filters: []scope.Filter{{Pattern: "t.uu", Query: all}, {Pattern: "t.u", Query: all}},
		}, names, []string{"include shopp.*", "include tt", "exclude t.uu", "rename tt.* to t2.*", "rename shop.order to a.c", "filter of t.uu"}},
		{"what never takes part", scope.Config{Include: []string{"admin.*"}}, names, []string{"include admin.*"}},
		{"an empty source", scope.Config{Include: []string{"*.*"}}, nil, []string{"include *.*"}},
	} {
		s, err := scope.Compile(c.c)
		if err != nil {
			t.Fatal(c.name, err)
		}
		if got := s.Unused(c.names); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if names[3].DB != "admin" {
		t.Error("the caller's names were changed")
	}
}
