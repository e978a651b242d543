package failover

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxPatience is how often the deadline of an attempt may double: to eight times Config.AttemptTimeout.
	maxPatience = 3
	// patienceFor is how long a longer deadline outlasts the last sign that it is needed.
	patienceFor = 10 * time.Second
)

// patience gives the attempts at a primary that answers late a longer deadline. Without it a set that is
// only slow (200 ms of delay on a primary's link make a majority write take 800) would be asked again
// and again with a deadline that it cannot meet, for ever.
//
// A member that is silent gets no more time: the deadline doubles only when a member that let an attempt
// run out has then answered something. So what a silent fault costs does not change: an election cuts
// attempts short in any case. The zero value is ready. Safe for concurrent use.
type patience struct {
	used atomic.Bool // whether anything below is set; nearly always false

	mu sync.Mutex
	// late is the member at which the last attempt ran out, "" once it has answered.
	late string
	// who is given more time: AttemptTimeout << steps, until a while after last.
	who   string
	steps int
	last  time.Time
}

// ranOut notes an attempt at addr that ended by its deadline.
func (p *patience) ranOut(addr string) {
	if addr == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = addr
	p.used.Store(true)
}

// answered notes that addr has answered an attempt, with whatever; slowly says that this took a good part of
// the deadline.
func (p *patience) answered(addr string, slowly bool) {
	if !p.used.Load() || addr == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case addr == p.late:
		if p.who != addr || time.Since(p.last) >= patienceFor {
			p.who, p.steps = addr, 0
		}
		p.late, p.steps, p.last = "", min(p.steps+1, maxPatience), time.Now()
	case addr == p.who && slowly:
		p.last = time.Now()
	}
}

// doublings returns how often the deadline of an attempt at addr is doubled.
func (p *patience) doublings(addr string) int {
	if !p.used.Load() || addr == "" {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr != p.who || time.Since(p.last) >= patienceFor {
		return 0
	}
	return p.steps
}

// attemptTimeout is the deadline of an attempt that goes to the primary.
func (l *Layer) attemptTimeout() time.Duration {
	return l.cfg.AttemptTimeout << l.patience.doublings(l.primary.Addr())
}
