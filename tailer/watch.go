package tailer

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/topology"
	"go.mongodb.org/mongo-driver/v2/event"
)

// member knows on which member of the deployment the present session runs its commands, and ends the
// session when another one takes the writes: after a stepdown the server says nothing, and a tail that
// stays reads on a secondary, whose order differs and whose wake-ups are missed.
//
// The driver does not say on which member a cursor is; its command monitor does. Safe for concurrent
// use.
type member struct {
	primary topology.Primary

	mu     sync.Mutex
	addr   string // of the session's last command; "" before the first
	follow bool   // false behind a mongos, or on a direct connection: there is nowhere to go
	end    context.CancelCauseFunc
}

// monitor returns the monitor to set on the client; events are handed on to next, and names of commands
// to sent; both may be nil.
func (m *member) monitor(next *event.CommandMonitor, sent func(string)) *event.CommandMonitor {
	mon := event.CommandMonitor{}
	if next != nil {
		mon = *next
	}
	after := mon.Started
	mon.Started = func(ctx context.Context, e *event.CommandStartedEvent) {
		addr, _, _ := strings.Cut(e.ConnectionID, "[")
		m.started(addr)
		call(sent, e.CommandName)
		if after != nil {
			after(ctx, e)
		}
	}
	return &mon
}

// session begins one, in which the topology is followed: its context ends when another member takes the writes. end ends it, waits for what
// follows the topology, and returns why it ended, given its error: a move, of which moved (if not nil) is told, is errMoved.
func (m *member) session(ctx context.Context, follow bool, moved func(from, to string)) (sctx context.Context, end func(error) error) {
	sctx, cancel := context.WithCancelCause(ctx)
	m.begin(cancel, follow)
	var watch sync.WaitGroup
	watch.Go(func() { m.watch(sctx) })
	return sctx, func(err error) error {
		// A command that was cut because the primary moved says "cancelled": the cause says why.
		if errors.Is(context.Cause(sctx), errMoved) && (errors.Is(err, context.Canceled) || errors.Is(err, errMoved) || mongoerr.Classify(err).Network) {
			to, _ := m.primary.Current()
			if moved != nil {
				moved(m.at(), to)
			}
			err = errMoved
		}
		m.finish()
		cancel(nil)
		watch.Wait()
		return err
	}
}

// begin starts a session that end can end. follow is what setFollow was told last: already the first
// command of the session may be waiting for a primary that is silent.
func (m *member) begin(end context.CancelCauseFunc, follow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addr, m.follow, m.end = "", follow, end
}

// finish ends the session: the commands that clean up behind it run where they must.
func (m *member) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end = nil
}

// started notes that a command of this session goes to addr.
func (m *member) started(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end == nil {
		return
	}
	if m.follow && m.addr != "" && addr != m.addr {
		// The commands of one session belong to one member: the cursor would be on another one than the
		// look-ups before it.
		m.end(errMoved)
	}
	m.addr = addr
}

// setFollow says whether this deployment has a primary that can change.
func (m *member) setFollow(on bool) {
	m.mu.Lock()
	m.follow = on
	m.mu.Unlock()
	if on {
		addr, _ := m.primary.Current()
		m.moved(addr)
	}
}

// at returns the address of the member of the session, "" while it is not known.
func (m *member) at() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.addr
}

// watch follows the topology until ctx ends.
func (m *member) watch(ctx context.Context) {
	for {
		addr, changed := m.primary.Current()
		m.moved(addr)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// moved ends the session if the primary is at another address than the session. While no primary is
// known, the session stays where it is.
func (m *member) moved(primary string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end != nil && m.follow && primary != "" && m.addr != "" && m.addr != primary {
		m.end(errMoved)
	}
}
