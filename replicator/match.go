package replicator

import (
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/match"
)

// matchers compiles filters, once each.
type matchers struct {
	mu       sync.Mutex
	compiled map[string]*match.Matcher // nil: only the server can say
}

// of returns the matcher of a filter, or nil if the package match does not know all of its operators: then the server is asked.
func (m *matchers) of(filter bson.Raw) *match.Matcher {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.compiled[string(filter)]
	if !ok {
		c, _ = match.Compile(filter) // an error means the server's turn
		m.compiled[string(filter)] = c
	}
	return c
}

// collated reports whether options are those of a collection with a collation, under which two _ids that differ may be one.
func collated(options bson.Raw) bool {
	c, ok := options.Lookup("collation").DocumentOK()
	if !ok {
		return false
	}
	locale, _ := c.Lookup("locale").StringValueOK()
	return locale != "simple"
}
