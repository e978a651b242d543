package record_test

import (
	"errors"
	"testing"

	"github.com/seed-12ef14e5/capstan/record"
)

func TestANamespaceIsSplitAtItsFirstDot(t *testing.T) {
	for text, want := range map[string]record.Namespace{
		"shop.orders":       {DB: "shop", Coll: "orders"},
		"shop.orders.2026":  {DB: "shop", Coll: "orders.2026"},
		"shop.system.views": {DB: "shop", Coll: "system.views"},
	} {
		got, err := record.ParseNamespace(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "shop", "shop.", ".orders"} {
		if _, err := record.ParseNamespace(text); !errors.Is(err, record.ErrBadNamespace) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
