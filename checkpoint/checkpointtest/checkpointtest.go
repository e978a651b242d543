// Package checkpointtest is the suite that every checkpoint store passes. It judges fencing, that a
// checkpoint never goes back, what survives a restart, and the calls for people. It knows the
// stores' interface only, so a store of another package can be judged too.
package checkpointtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// Store is what the suite judges: what a consumer needs (Acquire, Save) and what people need.
type Store interface {
	Acquire(ctx context.Context, name, stream, owner string) (record.Checkpoint, error)
	Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error)
	Load(ctx context.Context, name string) (record.Checkpoint, error)
	List(ctx context.Context) ([]record.Checkpoint, error)
	Set(ctx context.Context, cp record.Checkpoint) error
	Delete(ctx context.Context, name string) error
}

// Factory makes stores for one test.
type Factory struct {
	// New returns a function that opens a store over one new, empty place: every call of that function
	// is a process that starts anew over the same data.
	New func(t TB) (open func() Store)
	// NotFound is the sentinel for a name that is not stored.
	NotFound error
	// OtherStream reports whether an error says that a name belongs to another stream.
	OtherStream func(error) bool
}

// TB is the part of testing.TB that the suite uses, so that a broken store can be judged without
// failing the test that judges it.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	TempDir() string
	Context() context.Context
}

// check is one promise.
type check struct {
	name string
	run  func(t TB, open func() Store, f Factory)
}

// Run judges a store. Every promise is a subtest, and they run in parallel.
func Run(t *testing.T, f Factory) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, f.New(t), f)
		})
	}
}

// Broken runs the suite without subtests and returns the names of the promises that the store
// breaks: it is how the suite itself is judged.
func Broken(t *testing.T, f Factory) []string {
	var broken []string
	for _, c := range checks {
		r := &recorder{TB: t}
		func() {
			defer func() {
				if p := recover(); p != nil && p != any(r) {
					r.Errorf("panic: %v", p) // a store that makes its caller panic is broken too
				}
			}()
			c.run(r, f.New(t), f)
		}()
		if len(r.failures) > 0 {
			t.Logf("%s: %s", c.name, r.failures[0])
			broken = append(broken, c.name)
		}
	}
	return broken
}

// recorder notes failures instead of failing. Fatalf leaves the check by a panic that Broken knows.
type recorder struct {
	TB
	mu       sync.Mutex
	failures []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(r)
}

const timeout = time.Minute

func within(t TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), timeout)
}

// position returns the n-th position of a stream.
func position(n int) record.Position {
	id := bson.ObjectID{11: byte(n), 10: byte(n >> 8), 9: byte(n >> 16)}
	return record.Position{TS: record.Timestamp{T: 1_700_000_000, I: uint32(n)}, ID: record.ObjectID(id)}
}

// at returns cp moved to the n-th position.
func at(cp record.Checkpoint, n int) record.Checkpoint {
	cp = cp.Clone()
	cp.Position = position(n)
	cp.Marks = map[string]int64{"orders.eu/7f3a": int64(n), "päckchen/$1": int64(2 * n)}
	cp.Fingerprint = "00112233445566778899aabbccddeeff"
	return cp
}

const stream = "shop.orders"

func mustAcquire(t TB, s Store, name, owner string) record.Checkpoint {
	t.Helper()
	ctx, cancel := within(t)
	defer cancel()
	cp, err := s.Acquire(ctx, name, stream, owner)
	if err != nil {
		t.Fatalf("Acquire(%q, %q): %v", name, owner, err)
	}
	if cp.Name != name || cp.Owner != owner || cp.Stream != stream || cp.Revision < 1 {
		t.Errorf("Acquire(%q, %q) = name %q, owner %q, stream %q, revision %d", name, owner, cp.Name, cp.Owner, cp.Stream, cp.Revision)
	}
	return cp
}

func mustSave(t TB, s Store, cp record.Checkpoint) record.Checkpoint {
	t.Helper()
	ctx, cancel := within(t)
	defer cancel()
	saved, err := s.Save(ctx, cp)
	if err != nil {
		t.Fatalf("Save(%q, revision %d): %v", cp.Name, cp.Revision, err)
	}
	if saved.Revision <= cp.Revision {
		t.Errorf("Save(revision %d) gives revision %d, want a higher one", cp.Revision, saved.Revision)
	}
	sameProgress(t, "what Save returns", saved, cp)
	return saved
}

func mustLoad(t TB, s Store, name string) record.Checkpoint {
	t.Helper()
	ctx, cancel := within(t)
	defer cancel()
	cp, err := s.Load(ctx, name)
	if err != nil {
		t.Fatalf("Load(%q): %v", name, err)
	}
	return cp
}

func mustBeFenced(t TB, s Store, cp record.Checkpoint, by string) {
	t.Helper()
	ctx, cancel := within(t)
	defer cancel()
	_, err := s.Save(ctx, cp)
	var fenced *record.FencedError
	if !errors.As(err, &fenced) {
		t.Errorf("Save by %q, revision %d: error %v, want a *record.FencedError", cp.Owner, cp.Revision, err)
		return
	}
	if fenced.Name != cp.Name || (by != "" && fenced.Owner != by) {
		t.Errorf("Save by %q is fenced on %q by %q, want %q by %q", cp.Owner, fenced.Name, fenced.Owner, cp.Name, by)
	}
}

// sameProgress compares what a consumer resumes from.
func sameProgress(t TB, what string, got, want record.Checkpoint) {
	t.Helper()
	switch {
	case got.Position != want.Position:
		t.Errorf("%s: position %s, want %s", what, got.Position, want.Position)
	case !maps.Equal(got.Marks, want.Marks):
		t.Errorf("%s: %d marks, want %d, or they differ", what, len(got.Marks), len(want.Marks))
	case got.Fingerprint != want.Fingerprint || got.Lines != want.Lines || got.Bytes != want.Bytes:
		t.Errorf("%s: fingerprint %q, lines %d, bytes %d, want %q, %d, %d", what,
			got.Fingerprint, got.Lines, got.Bytes, want.Fingerprint, want.Lines, want.Bytes)
	}
}
