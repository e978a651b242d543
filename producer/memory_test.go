package producer

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// memory is a Writer that keeps what it is given, as a stream would: in order, each _id once. A func
// field decides about each batch before it is stored, for faults.
type memory struct {
	// before, if set, is asked about every batch: store the first n, then answer err. A nil err with
	// n == len(docs) stores all.
	before func(ctx context.Context, docs []bson.Raw) (n int, err error)

	mu      sync.Mutex
	stored  []record.Record
	batches []int
	ids     map[record.ID]bool
	busy    bool
}

func (m *memory) WriteBatch(ctx context.Context, docs []bson.Raw) (int, error) {
	m.mu.Lock()
	if m.busy {
		panic("two inserts in flight")
	}
	m.busy = true
	m.batches = append(m.batches, len(docs))
	m.mu.Unlock()
	n, err := len(docs), error(nil)
	if m.before != nil {
		n, err = m.before(ctx, docs)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
	if m.ids == nil {
		m.ids = map[record.ID]bool{}
	}
	for i, doc := range docs[:n] {
		r, decodeErr := record.Decode(slices.Clone(doc), record.Interner{})
		if decodeErr != nil {
			return i, decodeErr
		}
		if m.ids[r.Position.ID] {
			return i, &record.RejectedError{Index: i, ID: r.Position.ID, Err: record.ErrExists}
		}
		m.ids[r.Position.ID] = true
		m.stored = append(m.stored, r)
	}
	return n, err
}

func (m *memory) all() []record.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.stored)
}

var errServer = errors.New("server says no")

func idAtIndex(docs []bson.Raw, i int) record.ID {
	r, err := record.Decode(slices.Clone(docs[i]), record.Interner{})
	if err != nil {
		panic(err)
	}
	return r.Position.ID
}
