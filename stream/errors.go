package stream

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotFound says that there is no collection of that name.
	ErrNotFound = errors.New("no such stream")
	// ErrBadName says that no collection can have that name.
	ErrBadName = errors.New("not a stream's name")
	// ErrNotOurs says that an empty collection was not primed because capstan did not create it.
	ErrNotOurs = errors.New("empty, and not created by capstan, so it is not written to: wait for its first message")
	// ErrGone says that the collection was dropped or created again meanwhile.
	ErrGone = errors.New("stream was dropped or created again meanwhile")
)

// CheckpointsName is the collection in which the capstan command keeps checkpoints. Nobody is told to
// convert or drop it.
const CheckpointsName = "capstan_checkpoints"

// KindError says that the name belongs to something that is no capped collection.
type KindError struct {
	// Namespace is "database.collection".
	Namespace string
	// Kind is "collection" (one that is not capped), "view" or "timeseries".
	Kind string
}

func (e *KindError) Error() string {
	const choose = "choose another name"
	switch e.Kind {
	case "timeseries":
		return e.Namespace + " is a time-series collection, and a stream is a capped collection: " + choose
	case "view":
		return e.Namespace + " is a view, and a stream is a capped collection: " + choose
	}
	_, name, _ := strings.Cut(e.Namespace, ".")
	if name == CheckpointsName {
		return e.Namespace + " holds the positions that readers and producers stored, and is no stream: " + choose
	}
	return fmt.Sprintf("%s is a collection that is not capped, and a stream is a capped one: %s, or convert it, which blocks its database meanwhile, "+
		"drops its indexes and keeps only its newest documents up to the size: db.runCommand({convertToCapped: %q, size: %d})", e.Namespace, choose, name, DefaultSize)
}

// PrivilegeError says that the user may not do what is needed.
type PrivilegeError struct {
	// Action is MongoDB's name of the privilege action that is missing, for instance "createCollection";
	// Resource is the database or the namespace that it is missing on.
	Action, Resource string
	Err              error
}

func (e *PrivilegeError) Error() string {
	return fmt.Sprintf("user lacks the privilege %s on %s (the role readWrite on its database has it): %v", e.Action, e.Resource, e.Err)
}

// Unwrap returns the server's answer.
func (e *PrivilegeError) Unwrap() error { return e.Err }

// maxNamespace is the most bytes of "database.collection" that a server takes.
const maxNamespace = 255

// CheckName returns nil, or an error that wraps ErrBadName if no stream of the database db can have the
// name. It does no I/O.
func CheckName(db, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrBadName)
	case strings.ContainsAny(name, "$\x00"):
		return fmt.Errorf("%w: %q contains \"$\" or NUL", ErrBadName, name)
	case strings.HasPrefix(name, "system."):
		return fmt.Errorf("%w: %q starts with \"system.\", which belongs to the server", ErrBadName, name)
	case strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, ".."):
		return fmt.Errorf("%w: %q has an empty part between dots", ErrBadName, name)
	case len(db)+1+len(name) > maxNamespace:
		return fmt.Errorf("%w: %s.%s is longer than %d bytes", ErrBadName, db, name, maxNamespace)
	}
	return nil
}
