package failover

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/xoptions"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// avoidFor is how long a member is avoided after an attempt that ended by its deadline there. The driver
// itself goes on picking a silent member until its monitor notices, 37 s with its defaults (measured
// on mongod 6.0.5); with this layer's, about 2.5 s, and never if the member answers its monitor while its
// disk does not answer anyone.
const avoidFor = 10 * time.Second

// avoided are the members that let an attempt time out lately. The zero value is ready. Safe for
// concurrent use.
type avoided struct {
	count atomic.Int32 // of until; nearly always 0

	mu    sync.Mutex
	until map[string]time.Time
}

func (a *avoided) add(addr string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.until == nil {
		a.until = make(map[string]time.Time)
	}
	a.until[addr] = time.Now().Add(avoidFor)
	a.count.Store(int32(len(a.until)))
}

// forget ends the avoidance of a member that has answered.
func (a *avoided) forget(addr string) {
	if a.count.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.until, addr)
	a.count.Store(int32(len(a.until)))
}

func (a *avoided) has(addr string) bool {
	if a.count.Load() == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	until, ok := a.until[addr]
	if ok && !time.Now().Before(until) {
		delete(a.until, addr)
		a.count.Store(int32(len(a.until)))
		return false
	}
	return ok
}

// back forgets the members that the driver's monitor had lost and hears from again.
func (a *avoided) back(e *event.TopologyDescriptionChangedEvent) {
	if a.count.Load() == 0 {
		return
	}
	lost := make(map[string]bool)
	for _, s := range e.PreviousDescription.Servers {
		lost[s.Addr.String()] = s.Kind == "Unknown"
	}
	for _, s := range e.NewDescription.Servers {
		if s.Kind != "Unknown" && lost[s.Addr.String()] {
			a.forget(s.Addr.String())
		}
	}
}

// deployment is the driver's own knowledge of the servers, from which those to be avoided are left out. It
// also notes which member an attempt was given. (The driver has no hook for this but its Deployment: a
// client per member, chosen from the topology events, would double its selection, monitors and pools.)
type deployment struct {
	*topology.Topology
	avoided  *avoided
	patience *patience
}

// choose makes a client with opts leave out the members to be avoided, and tell p of its round trips. The topology
// is what the driver would make for the same options, but for a clock by which heartbeats pass the cluster's time on;
// commands do that anyway.
func choose(opts *options.ClientOptions, a *avoided, p *patience) error {
	cfg, err := topology.NewConfig(opts, nil)
	if err != nil {
		return err
	}
	t, err := topology.New(cfg)
	if err != nil {
		return err
	}
	return xoptions.SetInternalClientOptions(opts, "deployment", &deployment{Topology: t, avoided: a, patience: p})
}

// SelectServer implements driver.Deployment.
func (d *deployment) SelectServer(ctx context.Context, selector description.ServerSelector) (driver.Server, error) {
	s, err := d.Topology.SelectServer(ctx, &avoiding{selector, d.avoided})
	if selected, ok := s.(*topology.SelectedServer); ok && err == nil {
		addr := selected.Description().Addr.String()
		if k := selected.Server.Description().Kind; k == description.ServerKindRSPrimary || k == description.ServerKindStandalone {
			d.patience.measures(addr, s.RTTMonitor())
		}
		if to, ok := ctx.Value(memberKey{}).(*member); ok {
			to.addr.Store(&addr)
		}
	}
	return s, err
}

// avoiding selects among the members that are not to be avoided, and among all where that leaves none: a
// write goes to the primary whatever it did before.
type avoiding struct {
	description.ServerSelector
	avoided *avoided
}

// SelectServer implements description.ServerSelector.
func (s *avoiding) SelectServer(t description.Topology, candidates []description.Server) ([]description.Server, error) {
	if s.avoided.count.Load() > 0 {
		rest := make([]description.Server, 0, len(candidates))
		for _, c := range candidates {
			if !s.avoided.has(c.Addr.String()) {
				rest = append(rest, c)
			}
		}
		if len(rest) < len(candidates) && len(rest) > 0 {
			if chosen, err := s.ServerSelector.SelectServer(t, rest); err == nil && len(chosen) > 0 {
				return chosen, nil
			}
		}
	}
	return s.ServerSelector.SelectServer(t, candidates)
}

// member is where an attempt went, once that is decided.
type member struct{ addr atomic.Pointer[string] }

type memberKey struct{}

func (m *member) String() string {
	if addr := m.addr.Load(); addr != nil {
		return *addr
	}
	return ""
}

// learn notes what an attempt says about the member that it went to: one that timed out is avoided for a while, and
// if it then answers, it is slow and not silent. The context is not asked, as the driver may notice the deadline
// before its timer does; an attempt that the end of a call cut short says nothing.
func (l *Layer) learn(a Attempt) {
	switch {
	case a.Member == "":
	case a.Err == nil:
		l.avoided.forget(a.Member)
		l.patience.answered(a.Member, l.slow(a.Took))
	case a.Took >= max(a.Timeout, l.cfg.AttemptTimeout)*3/4 && mongoerr.Classify(a.Err).Timeout:
		l.avoided.add(a.Member)
		l.patience.ranOut(a.Member)
	case mongoerr.Classify(a.Err).Code != 0:
		l.patience.answered(a.Member, l.slow(a.Took))
	}
}

// tried is what attempt does at its end, for a command that went over a line.
func (l *Layer) tried(a Attempt) {
	a.Took = time.Since(a.Start)
	l.learn(a)
	l.cfg.Hooks.attempt(a)
}

// slow reports whether an answer took a good part of an attempt's deadline.
func (l *Layer) slow(took time.Duration) bool { return took > l.cfg.AttemptTimeout/2 }
