package record

import (
	"errors"
	"fmt"
	"strings"
)

// ErrBadNamespace says that a text does not name a collection.
var ErrBadNamespace = errors.New("not a namespace (want DATABASE.COLLECTION)")

// Namespace names a collection, or with an empty Coll a database. It is comparable with ==.
type Namespace struct{ DB, Coll string }

// ParseNamespace reads "database.collection": the first dot separates, as a database's name has none. Errors wrap
// ErrBadNamespace.
func ParseNamespace(s string) (Namespace, error) {
	db, coll, ok := strings.Cut(s, ".")
	if !ok || db == "" || coll == "" {
		return Namespace{}, fmt.Errorf("%w: %q", ErrBadNamespace, s)
	}
	return Namespace{DB: db, Coll: coll}, nil
}

// IsZero reports whether n names nothing.
func (n Namespace) IsZero() bool { return n == Namespace{} }

// String returns "database.collection", or the database alone.
func (n Namespace) String() string {
	if n.Coll == "" {
		return n.DB
	}
	return n.DB + "." + n.Coll
}

// MarshalText is String.
func (n Namespace) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (n *Namespace) UnmarshalText(b []byte) error {
	n.DB, n.Coll, _ = strings.Cut(string(b), ".")
	return nil
}
