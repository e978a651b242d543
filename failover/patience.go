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
// A member that is silent gets no more time. Two things lengthen the deadline: round trips to that member as the
// driver's monitor has measured them, which it does on a connection of its own; and that a member which let
// an attempt run out has then answered something (its disk is slow, or the majority). So what a silent
// fault costs does not change: an election cuts attempts short in any case. The zero value is ready. Safe for
// concurrent use.
type patience struct {
	used atomic.Bool // whether anything below is set; nearly always false

	mu sync.Mutex
	// late is the member at which the last attempt ran out, "" once it has answered.
	late string
	// who is given more time: AttemptTimeout << steps, until a while after last.
	who   string
	steps int
	last  time.Time
	// trips are the round trips that matter, by member.
	trips map[string]time.Duration
}

const (
	// tripsPerAttempt is how many round trips an attempt may need on top: of client and primary, and of the
	// primary and its secondary, which fetches and then reports.
	tripsPerAttempt = 4
	// leastTrip is the least round trip that lengthens a deadline.
	leastTrip = 20 * time.Millisecond
)

// measured notes the round trip to addr.
func (p *patience) measured(addr string, trip time.Duration) {
	if trip < leastTrip {
		if !p.used.Load() {
			return
		}
		trip = 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trips == nil {
		p.trips = make(map[string]time.Duration)
	}
	p.trips[addr] = trip
	p.used.Store(true)
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

// timeout returns the deadline of an attempt at addr.
func (p *patience) timeout(base time.Duration, addr string) time.Duration {
	if !p.used.Load() || addr == "" {
		return base
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d := base + tripsPerAttempt*p.trips[addr]
	if addr == p.who && time.Since(p.last) < patienceFor {
		d = max(d, base<<p.steps)
	}
	return min(d, base<<maxPatience)
}

// attemptTimeout is the deadline of an attempt that goes to the primary.
func (l *Layer) attemptTimeout() time.Duration {
	return l.patience.timeout(l.cfg.AttemptTimeout, l.primary.Addr())
}
