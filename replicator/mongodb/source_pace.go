package mongodb

import (
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// pace remembers how many documents of a collection fit into one command, where that is less than what is asked for:
// because an attempt's deadline passed, or because a reply held too few. The zero value is ready. Safe for
// concurrent use.
type pace struct {
	mu     sync.Mutex
	limits map[record.Namespace]int
}

// limit returns how many of want documents to ask for.
func (p *pace) limit(ns record.Namespace, want int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.limits[ns]; ok && n < want {
		return n
	}
	return want
}

// slower notes that n documents were too many.
func (p *pace) slower(ns record.Namespace, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limits == nil {
		p.limits = make(map[record.Namespace]int)
	}
	if had, ok := p.limits[ns]; !ok || n < 2*had {
		p.limits[ns] = max(1, n/2)
	}
}

// faster notes that a command for n documents was answered within took, of the time that an attempt has.
func (p *pace) faster(ns record.Namespace, n int, took, attempt time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	had, ok := p.limits[ns]
	if !ok || n < had || took > attempt/4 {
		return
	}
	if had *= 2; had > maxPace {
		delete(p.limits, ns)
		return
	}
	p.limits[ns] = had
}

// maxPace is where a limit is forgotten: more is never asked for at once.
const maxPace = 1 << 20

// tooMuch reports whether a command failed because its time ran out, so that a smaller one may succeed.
func tooMuch(err error) bool { return mongoerr.Classify(err).Timeout }
