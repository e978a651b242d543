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
	trips atomic.Pointer[roundTrips] // of the primary, as far as it was selected
	used  atomic.Bool                // whether anything below is set; nearly always false

	mu sync.Mutex
	// late is the member at which the last attempt ran out, "" once it has answered.
	late string
	// who is given more time: AttemptTimeout << steps, until a while after last.
	who   string
	steps int
	last  time.Time
}

const (
	// tripsPerAttempt is how many round trips an attempt may need on top: two or three, of client and primary,
	// and of the primary and its secondary, which fetches and then reports; and more, as the monitor's average
	// follows a sudden delay slowly (a fifth of the difference with each sample).
	tripsPerAttempt = 8
	// leastTrip is the least round trip that lengthens a deadline.
	leastTrip = 20 * time.Millisecond
)

// roundTrips says how long a round trip to a member takes, as the driver's monitor measures it.
type roundTrips struct {
	addr    string
	monitor interface{ EWMA() time.Duration }
}

// measures notes whose monitor to ask about addr.
func (p *patience) measures(addr string, monitor interface{ EWMA() time.Duration }) {
	if t := p.trips.Load(); t == nil || t.addr != addr || t.monitor != monitor {
		p.trips.Store(&roundTrips{addr, monitor})
	}
}

// trip returns what matters of a round trip to addr: nothing, if it is as short as it should be.
func (p *patience) trip(addr string) time.Duration {
	if t := p.trips.Load(); t != nil && t.addr == addr {
		if d := t.monitor.EWMA(); d >= leastTrip {
			return d
		}
	}
	return 0
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
	if addr == "" {
		return base
	}
	d := base + tripsPerAttempt*p.trip(addr)
	if p.used.Load() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if addr == p.who && time.Since(p.last) < patienceFor {
			d = max(d, base<<p.steps)
		}
	}
	return min(d, base<<maxPatience)
}

// attemptTimeout is the deadline of an attempt that goes to the primary.
func (l *Layer) attemptTimeout() time.Duration {
	return l.patience.timeout(l.cfg.AttemptTimeout, l.primary.Addr())
}
