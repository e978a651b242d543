package replicator

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// trim drops, for a resync, the indexes of the destination that the source does not have, or has otherwise: a unique one would
// refuse documents, and none is made anew while it is there. Of a shared route they may be another's.
func (l *Link) trim(ctx context.Context, found, existing []Collection) error {
	if l.cfg.Shared {
		return nil
	}
	for _, e := range existing {
		i := slices.IndexFunc(found, func(c Collection) bool { return l.set.Target(c.Name) == e.Name })
		if i < 0 || e.Kind != KindCollection || found[i].Kind != KindCollection {
			continue // dropped as a whole, or no index of its own
		}
		var extra bson.A
		for _, spec := range e.Indexes {
			name, _ := spec.Lookup("name").StringValueOK()
			if name != "_id_" && !slices.ContainsFunc(found[i].Indexes, func(s bson.Raw) bool { return sameIndex(s, spec) }) {
				extra = append(extra, spec)
			}
		}
		if len(extra) == 0 {
			continue
		}
		description, err := bson.Marshal(bson.D{{Key: "indexes", Value: extra}})
		if err != nil {
			return fmt.Errorf("describe the indexes of %s: %w", e.Name, err)
		}
		if err := l.change(ctx, DDL{Op: "dropIndexes", Collection: e.Name, Description: description}); err != nil {
			return err
		}
	}
	return nil
}

// sameIndex compares all of two indexes but what is held back, and what says nothing.
func sameIndex(a, b bson.Raw) bool {
	essence := func(spec bson.Raw) map[string][]byte {
		elems, err := spec.Elements()
		if err != nil {
			return nil
		}
		m := make(map[string][]byte, len(elems))
		for _, e := range elems {
			switch e.Key() {
			case "v", "ns", "expireAfterSeconds", "background":
			default:
				m[e.Key()] = e.Value().Value
			}
		}
		return m
	}
	x, y := essence(a), essence(b)
	if len(x) != len(y) {
		return false
	}
	for k, v := range x {
		if w, ok := y[k]; !ok || !bytes.Equal(v, w) {
			return false
		}
	}
	return true
}

// unused notes the parts of the scope that fit nothing at the source: a misspelt filter would let through what it was to hold back.
func (l *Link) unused(ctx context.Context, found []Collection) {
	if len(found) == 0 {
		l.note("nothing at the source is selected: it has no collection that --include fits and --exclude leaves; what is created later takes part")
	}
	if len(l.set.Unused(names(found))) == 0 {
		return
	}
	texts, err := Unused(ctx, l.source, l.set)
	if err != nil {
		l.log.Debug().Err(err).Msg("the source's collections cannot be listed, so parts of the scope that fit nothing go unnoticed")
	}
	for _, text := range texts {
		l.note(text + " fits no collection that the source has now: is it misspelt?")
	}
}

// Unused returns a text for each part of a scope that fits no collection that the source has: see scope.Set.Unused. It lists the one
// database that takes part, or all.
func Unused(ctx context.Context, source Source, set *scope.Set) ([]string, error) {
	var wide scope.Config
	if db := set.Database(); db != "" {
		wide.Include = []string{db}
	}
	all, err := scope.Compile(wide)
	if err != nil {
		return nil, err
	}
	found, err := source.Collections(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list the source's collections: %w", err)
	}
	return set.Unused(names(found)), nil
}

func names(list []Collection) []record.Namespace {
	out := make([]record.Namespace, len(list))
	for i, c := range list {
		out[i] = c.Name
	}
	return out
}
