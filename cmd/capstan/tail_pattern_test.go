package main

import (
	"strings"
	"testing"
)

// A pattern would be waited for for ever, as a collection of that name.
func TestTailRefusesPatterns(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"shop.*":       "follow the database: capstan tail shop, or all of them: capstan tail '*'",
		"shop.order_*": `capstan tail shop, with --filter on "ns.coll"`,
		"*.*":          "follow all databases: capstan tail '*'",
		"*.audit":      `capstan tail '*', with --filter on "ns.coll"`,
		"sho*":         "follow all databases: capstan tail '*'",
	} {
		_, stderr, code := capstan(t, "mongodb://127.0.0.1:1", "tail", name)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d: %s", name, code, stderr)
		}
	}
}
