package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/record"
)

// Load is as Memory.Load; further errors: *CorruptError and the server's. It reads what a majority has,
// and at least what the last Save through the same Mongo stored. For a moment after an election it may
// be older than what another process stored; Acquire and Save, which compare and set, do not mind.
func (m *Mongo) Load(ctx context.Context, name string) (record.Checkpoint, error) {
	var cp record.Checkpoint
	err := m.reading(ctx, "load checkpoint "+name, func(ctx context.Context) (err error) {
		var found bool
		cp, found, err = m.find(ctx, name)
		if err == nil && !found {
			err = ErrNotFound
		}
		return err
	})
	if err != nil {
		return record.Checkpoint{}, fmt.Errorf("load checkpoint %q: %w", name, err)
	}
	return cp, nil
}

// List is as Memory.List, with one difference: where documents cannot be read it returns the others
// together with their *CorruptErrors. Further errors: the server's.
func (m *Mongo) List(ctx context.Context) ([]record.Checkpoint, error) {
	var list []record.Checkpoint
	var damaged []error
	err := m.reading(ctx, "list checkpoints", func(ctx context.Context) error {
		list, damaged = nil, nil
		cursor, err := m.coll.Find(ctx, bson.D{}, options.Find().SetSort(byID))
		if err != nil {
			return err
		}
		var docs []bson.Raw
		if err := cursor.All(ctx, &docs); err != nil {
			return err
		}
		for _, doc := range docs {
			cp, err := m.decode(doc)
			if err != nil {
				damaged = append(damaged, err)
				continue // reported below, together with what can be read
			}
			list = append(list, cp)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	return list, errors.Join(damaged...)
}

var byID = bson.D{{Key: "_id", Value: 1}}

// Delete is as Memory.Delete; further errors: the server's.
func (m *Mongo) Delete(ctx context.Context, name string) error {
	again := false
	err := m.writing(ctx, func(ctx context.Context) error {
		return m.doer.Do(ctx, "delete checkpoint "+name, func(ctx context.Context) error {
			res, err := m.coll.DeleteOne(ctx, byName(name))
			if err == nil && res.DeletedCount == 0 && !again {
				return ErrNotFound
			}
			again = true // none left: an earlier attempt, whose answer was lost, removed it
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("delete checkpoint %q: %w", name, err)
	}
	return nil
}

// reading repeats read until it succeeds, fails for good, or the call's time is over.
func (m *Mongo) reading(ctx context.Context, name string, read func(ctx context.Context) error) error {
	return m.session(ctx, func(ctx context.Context) error { return m.doer.DoRead(ctx, name, read) })
}
