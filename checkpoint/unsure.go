package checkpoint

import (
	"sync"

	"github.com/seed-12ef14e5/capstan/record"
)

// unsure remembers the saves whose outcome a store could not find out before its call ended. The
// caller still holds the revision from before; if one of them was stored after all, the next Save
// finds a higher revision and must not take it for another process's. Without this memory a
// consumer would fence itself after a time-out. Safe for concurrent use; one span per name.
type unsure struct {
	mu    sync.Mutex
	spans map[string]span
}

// span says that owner's checkpoint of revision from may be stored under any revision up to to.
type span struct {
	owner    string
	from, to int64
}

// note says that cp may be stored under revision landed.
func (u *unsure) note(cp record.Checkpoint, landed int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.spans == nil {
		u.spans = map[string]span{}
	}
	s := u.spans[cp.Name]
	if s.owner != cp.Owner || s.from != cp.Revision {
		s = span{owner: cp.Owner, from: cp.Revision}
	}
	s.to = max(s.to, landed)
	u.spans[cp.Name] = s
}

// ours reports whether what is stored now may be an earlier save of the holder of cp.
func (u *unsure) ours(cp, stored record.Checkpoint) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, ok := u.spans[cp.Name]
	return ok && s.owner == cp.Owner && stored.Owner == cp.Owner && s.from == cp.Revision &&
		s.from < stored.Revision && stored.Revision <= s.to
}

// settled forgets the name: its outcome is known.
func (u *unsure) settled(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.spans, name)
}
