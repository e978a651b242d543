package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/lockedfile"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/stored"
)

const (
	// format is the first field of the file: a file without it is somebody else's and is never overwritten.
	format = "capstan routes"
	// version is the layout of content.
	version = 1
)

// content is the JSON document in a file. Sum guards against a changed byte that is still JSON: a damaged position would skip changes
// without a word.
type content struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Sum is the CRC-32C of Routes without white space, in hex.
	Sum string `json:"sum"`
	// Routes are in the order of their names, in Extended JSON.
	Routes json.RawMessage `json:"routes"`
}

// CorruptError says that a file is no file of routes: cut off, damaged, or of another version. It never counts as an empty one, as a
// route would then begin anew.
type CorruptError struct {
	Path string
	// Err is what is wrong with it.
	Err error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("the state file %s cannot be read: %v; nothing was changed: restore it from a copy, or move it away and let its routes begin anew",
		e.Path, e.Err)
}

// Unwrap returns what is wrong.
func (e *CorruptError) Unwrap() error { return e.Err }

func encode(routes map[string]stored.State) ([]byte, error) {
	list := make([]json.RawMessage, 0, len(routes))
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		one, err := bson.MarshalExtJSON(routes[name], true, false)
		if err != nil {
			return nil, fmt.Errorf("encode route %q: %w", name, err)
		}
		list = append(list, one)
	}
	body, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode routes: %w", err)
	}
	b, err := json.MarshalIndent(content{Format: format, Version: version, Sum: lockedfile.Sum(body), Routes: body}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode routes: %w", err)
	}
	return append(b, '\n'), nil
}

// decode returns the routes of a file's content. nil means that there is no file; a file of zero bytes was cut off.
func decode(b []byte) (map[string]stored.State, error) {
	routes := map[string]stored.State{}
	if b == nil {
		return routes, nil
	}
	if len(b) == 0 {
		return nil, errors.New("it is empty")
	}
	var c content
	if err := lockedfile.Decode(b, &c); err != nil {
		return nil, err
	}
	if c.Format != format {
		return nil, fmt.Errorf("its format is %q and not %q", c.Format, format)
	}
	if c.Version != version {
		return nil, fmt.Errorf("its version is %d and this capstan reads version %d only", c.Version, version)
	}
	if err := lockedfile.Check(c.Routes, c.Sum); err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := lockedfile.Decode(c.Routes, &list); err != nil {
		return nil, err
	}
	for i, one := range list {
		var s stored.State
		if err := bson.UnmarshalExtJSON(one, true, &s); err != nil {
			return nil, fmt.Errorf("routes[%d]: %w", i, err)
		}
		if _, err := s.Replicator(); err != nil {
			return nil, fmt.Errorf("routes[%d] (%q): %w", i, s.Route, err)
		}
		if _, twice := routes[s.Route]; twice {
			return nil, fmt.Errorf("route %q is there twice", s.Route)
		}
		routes[s.Route] = s
	}
	return routes, nil
}

// states returns the routes by name.
func states(routes map[string]stored.State) ([]replicator.State, error) {
	out := make([]replicator.State, 0, len(routes))
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		s, err := routes[name].Replicator()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}
