package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/seed-12ef14e5/capstan/record"
)

// Memory keeps checkpoints in this process: for tests and for consumers that start anew on purpose.
// It never blocks. Safe for concurrent use.
type Memory struct {
	mu      sync.Mutex
	entries map[string]record.Checkpoint
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{entries: map[string]record.Checkpoint{}} }

// Acquire makes owner the holder of name and returns what is stored, with a new revision. A name that
// is new gives an empty checkpoint. The holder before, if any, is fenced. stream may be "": any;
// a name under which nothing has been done yet may be acquired for another stream than before.
// Errors: *OtherStreamError, ErrBadName, the context's.
func (m *Memory) Acquire(ctx context.Context, name, stream, owner string) (record.Checkpoint, error) {
	if err := checkAcquire(name, owner); err != nil {
		return record.Checkpoint{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return record.Checkpoint{}, err
	}
	next, err := takeOver(m.entries[name], name, stream, owner, clock())
	if err != nil {
		return record.Checkpoint{}, err
	}
	m.entries[name] = next
	return next.Clone(), nil
}

// Save stores cp if its owner and revision are the stored ones, and returns it with the next
// revision, which the next Save must carry. Errors: *record.FencedError, the context's; then
// nothing was changed.
func (m *Memory) Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return record.Checkpoint{}, err
	}
	cur, found := m.entries[cp.Name]
	next, err := replace(cur, found, cp, clock())
	if err != nil {
		return record.Checkpoint{}, err
	}
	m.entries[cp.Name] = next
	return next.Clone(), nil
}

// Load returns the checkpoint stored under name, or ErrNotFound. It takes nothing over.
func (m *Memory) Load(ctx context.Context, name string) (record.Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return record.Checkpoint{}, err
	}
	cp, ok := m.entries[name]
	if !ok {
		return record.Checkpoint{}, fmt.Errorf("load checkpoint %q: %w", name, ErrNotFound)
	}
	return cp.Clone(), nil
}

// List returns all checkpoints, ordered by name.
func (m *Memory) List(ctx context.Context) ([]record.Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return sorted(m.entries), nil
}

// Set stores cp whatever is stored under its name, for people: it fences the holder. An empty Stream
// keeps the stored one, an empty Owner becomes OwnerByHand; the revision of cp is ignored.
func (m *Memory) Set(ctx context.Context, cp record.Checkpoint) error {
	if err := checkName("name", cp.Name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	m.entries[cp.Name] = byHand(m.entries[cp.Name], cp, clock())
	return nil
}

// Delete removes the checkpoint stored under name, or returns ErrNotFound. A holder is fenced at its
// next Save.
func (m *Memory) Delete(ctx context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ok := m.entries[name]; !ok {
		return fmt.Errorf("delete checkpoint %q: %w", name, ErrNotFound)
	}
	delete(m.entries, name)
	return nil
}

func sorted(entries map[string]record.Checkpoint) []record.Checkpoint {
	out := make([]record.Checkpoint, 0, len(entries))
	for _, cp := range entries {
		out = append(out, cp.Clone())
	}
	slices.SortFunc(out, func(a, b record.Checkpoint) int { return strings.Compare(a.Name, b.Name) })
	return out
}
