package checkpointtest_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/checkpoint/checkpointtest"
	"github.com/seed-12ef14e5/capstan/record"
)

var (
	errMissing = errors.New("missing")
	errOther   = errors.New("shop.orders is not shop.returns")
	errBadName = errors.New("bad name")
)

// faults are the mistakes that a store can make. The zero value makes none.
type faults struct {
	fencesNobody, fencesByOwnerOnly, fencesByRevisionOnly, savesTwice bool
	acquireForgets, restartForgets, aliases, dropsMarks, truncatesMarks,
	mixesStreams, keepsEmpty, ignoresContext, missingIsEmpty, setKeepsRevision, deleteKeeps, unordered, takesAnyName bool
}

// store is a correct store until a fault is switched on.
type store struct {
	faults
	mu      sync.Mutex
	entries map[string]record.Checkpoint
}

func (s *store) copy(cp record.Checkpoint) record.Checkpoint {
	if s.aliases {
		return cp
	}
	return cp.Clone()
}

func (s *store) enter(ctx context.Context) (leave func(), err error) {
	s.mu.Lock()
	if err := ctx.Err(); err != nil && !s.ignoresContext {
		s.mu.Unlock()
		return nil, err
	}
	return s.mu.Unlock, nil
}

func (s *store) bad(name string) bool {
	return !s.takesAnyName && (name == "" || len(name) > 512 || name[len(name)-1] == 0 || name[0] == 0xff)
}

func (s *store) Acquire(ctx context.Context, name, stream, owner string) (record.Checkpoint, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return record.Checkpoint{}, err
	}
	defer leave()
	cur := s.entries[name]
	if s.bad(name) || (owner == "" && !s.takesAnyName) {
		return record.Checkpoint{}, errBadName
	}
	if cur.Stream != "" && stream != "" && cur.Stream != stream {
		if (!cur.IsZero() || s.keepsEmpty) && !s.mixesStreams {
			return record.Checkpoint{}, errOther
		}
		cur.Fingerprint = ""
	}
	if s.acquireForgets {
		cur = record.Checkpoint{Revision: cur.Revision}
	}
	cur.Name, cur.Owner, cur.Stream = name, owner, cmp.Or(stream, cur.Stream)
	cur.Revision++
	cur.Updated = time.Now()
	s.entries[name] = s.copy(cur)
	return s.copy(cur), nil
}

func (s *store) Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return record.Checkpoint{}, err
	}
	defer leave()
	cur, found := s.entries[cp.Name]
	fenced := !found || (cur.Owner != cp.Owner && !s.fencesByRevisionOnly) || (cur.Revision != cp.Revision && !s.fencesByOwnerOnly)
	if s.savesTwice && found && cur.Owner == cp.Owner && cur.Revision == cp.Revision+1 {
		fenced = false
	}
	if fenced && !s.fencesNobody {
		return record.Checkpoint{}, &record.FencedError{Name: cp.Name, Owner: cur.Owner, Revision: cur.Revision}
	}
	cp.Stream = cmp.Or(cp.Stream, cur.Stream)
	cp.Revision++
	cp.Updated = time.Now()
	cp = s.copy(cp)
	switch {
	case s.dropsMarks:
		cp.Marks = nil
	case s.truncatesMarks && len(cp.Marks) > 1000:
		cp.Marks = map[string]int64{"the last": 1}
	}
	s.entries[cp.Name] = cp
	return s.copy(cp), nil
}

func (s *store) Load(ctx context.Context, name string) (record.Checkpoint, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return record.Checkpoint{}, err
	}
	defer leave()
	cp, ok := s.entries[name]
	if !ok && !s.missingIsEmpty {
		return record.Checkpoint{}, errMissing
	}
	return s.copy(cp), nil
}

func (s *store) List(ctx context.Context) ([]record.Checkpoint, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	list := []record.Checkpoint{}
	for _, cp := range s.entries {
		list = append(list, s.copy(cp))
	}
	slices.SortFunc(list, func(a, b record.Checkpoint) int { return cmp.Compare(a.Name, b.Name) })
	if s.unordered {
		slices.Reverse(list)
	}
	return list, nil
}

func (s *store) Set(ctx context.Context, cp record.Checkpoint) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if s.bad(cp.Name) {
		return errBadName
	}
	cur := s.entries[cp.Name]
	cp.Stream, cp.Owner, cp.Revision = cmp.Or(cp.Stream, cur.Stream), cmp.Or(cp.Owner, "hand"), cur.Revision+1
	if s.setKeepsRevision {
		cp.Owner, cp.Revision = cur.Owner, cur.Revision
	}
	s.entries[cp.Name] = s.copy(cp)
	return nil
}

func (s *store) Delete(ctx context.Context, name string) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if _, ok := s.entries[name]; !ok && !s.missingIsEmpty {
		return errMissing
	}
	if !s.deleteKeeps {
		delete(s.entries, name)
	}
	return nil
}

func factory(f faults) checkpointtest.Factory {
	return checkpointtest.Factory{
		New: func(checkpointtest.TB) func() checkpointtest.Store {
			s := &store{faults: f, entries: map[string]record.Checkpoint{}}
			return func() checkpointtest.Store {
				if f.restartForgets {
					return &store{faults: f, entries: map[string]record.Checkpoint{}}
				}
				return s
			}
		},
		NotFound:    errMissing,
		OtherStream: func(err error) bool { return errors.Is(err, errOther) },
	}
}

func TestSuiteAcceptsACorrectStore(t *testing.T) {
	t.Parallel()
	checkpointtest.Run(t, factory(faults{}))
	if broken := checkpointtest.Broken(t, factory(faults{})); len(broken) > 0 {
		t.Errorf("a correct store breaks %q", broken)
	}
}

func TestSuiteFindsEveryBrokenStore(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]faults{
		"fences nobody":                {fencesNobody: true},
		"fences by owner only":         {fencesByOwnerOnly: true},
		"fences by revision only":      {fencesByRevisionOnly: true},
		"takes one revision twice":     {savesTwice: true},
		"forgets at acquire":           {acquireForgets: true},
		"forgets at restart":           {restartForgets: true},
		"hands out its own maps":       {aliases: true},
		"drops marks":                  {dropsMarks: true},
		"truncates many marks":         {truncatesMarks: true},
		"mixes streams":                {mixesStreams: true},
		"keeps an empty name":          {keepsEmpty: true},
		"ignores the context":          {ignoresContext: true},
		"takes a missing one as empty": {missingIsEmpty: true},
		"set does not fence":           {setKeepsRevision: true},
		"delete does nothing":          {deleteKeeps: true},
		"lists in any order":           {unordered: true},
		"takes any name":               {takesAnyName: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if broken := checkpointtest.Broken(t, factory(f)); len(broken) == 0 {
				t.Error("the suite accepts this store")
			}
		})
	}
}
