package outage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/pace"
)

// Names of what the clients write to.
const (
	Database = "experiment"
	// Writes is the writer's collection, an ordinary one; each control has its own.
	Writes = "writes"
	// Messages is the prober's stream.
	Messages = "messages"
	// probes is where Members writes.
	probes = "probes"
)

// Roles are those that a person can run.
func Roles() []Role { return []Role{Writer, Reader, Prober, Plain, FreshID, One, Members} }

// Defaults of ClientConfig.
const (
	// poolSize is enough for a client with one call in flight, and small enough for a storm of connections to
	// show: at most so many and two may be opened in an outage.
	poolSize = 4
	// DefaultEvery is the headline's rate: once a second, as in the experiment of 2015.
	DefaultEvery = time.Second
	// ProbeEvery is the prober's, for resolution.
	ProbeEvery = 20 * time.Millisecond
	// PlainEvery is often enough that a call of the plain client is nearly always in flight or due.
	PlainEvery = 100 * time.Millisecond
)

// ClientConfig says what a client process does. Role and Options are required.
type ClientConfig struct {
	Role Role
	// Options are the connection's; each call returns a new value.
	Options func() *options.ClientOptions
	// Profile is that of the failover layer; "" means the default.
	Profile failover.Profile
	// Name is written into each document as "writer", and tells one trial's documents from another's.
	Name string
	// Every is the time between two calls; 0 means the role's own. A call that takes longer delays the
	// next, which then begins at once: there is never more than one in flight.
	Every time.Duration
	// Count ends the client after so many calls; 0 means never.
	Count int64
	// Seed makes the values.
	Seed uint64
	// Text writes lines for people instead of JSON.
	Text bool
	// Redact takes secrets out of the texts of errors (I10); nil leaves them as they are.
	Redact func(string) string
}

func (c ClientConfig) withDefaults() ClientConfig {
	if c.Every == 0 {
		switch c.Role {
		case Prober:
			c.Every = ProbeEvery
		case Plain, FreshID, One:
			c.Every = PlainEvery
		case Members:
			c.Every = probeEvery
		default:
			c.Every = DefaultEvery
		}
	}
	if c.Name == "" {
		c.Name = string(c.Role)
	}
	if c.Profile == "" {
		c.Profile = failover.ProfileDefault
	}
	return c
}

func (c ClientConfig) validate() error {
	switch {
	case !slices.Contains(Roles(), c.Role):
		return fmt.Errorf("role is %q; it must be one of %v", c.Role, Roles())
	case c.Options == nil:
		return errors.New("field Options is missing")
	case c.Every < 0:
		return fmt.Errorf("field Every is %v; it must be positive", c.Every)
	case c.Count < 0:
		return fmt.Errorf("field Count is %d; it must be positive, or 0 for no end", c.Count)
	}
	return nil
}

// RunClient is one client process: it writes an Event per line to out until ctx ends or Count calls are
// done, and returns nil then. The error is about cfg, or about out, which nobody reads any more, or says
// why the client could not begin.
func RunClient(ctx context.Context, cfg ClientConfig, out io.Writer) error {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("configure client: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &client{cfg: cfg, out: out, lost: cancel}
	var wg sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer wg.Wait()
	defer stop()
	wg.Go(func() { c.timer.run(watching) })
	work := map[Role]func(context.Context) error{
		Writer: c.writer, Reader: c.reader, Prober: c.prober,
		Plain: c.plain, FreshID: c.freshID, One: c.one, Members: c.members,
	}[cfg.Role]
	err := work(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errOutput) {
		return cause
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	c.emit(Event{Kind: KindEnd, Start: Now(), OK: true})
	return nil
}

// errOutput says that an event could not be written.
var errOutput = errors.New("write event")

// client is what all roles share. Safe for concurrent use.
type client struct {
	cfg   ClientConfig
	lost  context.CancelCauseFunc
	timer controlTimer
	conns atomic.Int64

	mu    sync.Mutex
	out   io.Writer
	ready bool
}

// emit writes an event.
func (c *client) emit(e Event) {
	if e.Role == "" {
		e.Role = c.cfg.Role
	}
	e.Conns = c.conns.Load()
	if c.cfg.Redact != nil && e.Err != "" {
		e.Err = c.cfg.Redact(e.Err)
	}
	var line []byte
	if c.cfg.Text {
		line = []byte(e.text(time.Now()))
	} else {
		b, err := json.Marshal(e)
		if err != nil {
			return // an Event is numbers and strings
		}
		line = append(b, '\n')
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(line) == 0 {
		return
	}
	if _, err := c.out.Write(line); err != nil {
		c.lost(fmt.Errorf("%w: %w", errOutput, err))
	}
}

// emitReady says once that the client is at work.
func (c *client) emitReady() {
	c.mu.Lock()
	first := !c.ready
	c.ready = true
	c.mu.Unlock()
	if first {
		c.emit(Event{Kind: KindReady, Start: Now(), OK: true})
	}
}

// options returns the connection's options with a count of the connections of its pools.
func (c *client) options() *options.ClientOptions {
	o := c.cfg.Options()
	o.SetAppName("capstan " + string(c.cfg.Role))
	if o.MaxPoolSize == nil {
		o.SetMaxPoolSize(poolSize)
	}
	return o.SetPoolMonitor(&event.PoolMonitor{Event: func(e *event.PoolEvent) {
		if e.Type == event.ConnectionCreated {
			c.conns.Add(1)
		}
	}})
}

// loop makes calls, one after the other, every c.cfg.Every, until ctx ends or Count is reached. A call that
// has succeeded makes the client ready.
func (c *client) loop(ctx context.Context, call func(ctx context.Context, seq int64) (ok bool)) error {
	due := time.Now()
	for seq := int64(1); c.cfg.Count == 0 || seq <= c.cfg.Count; seq++ {
		if err := pace.Sleep(ctx, time.Until(due)); err != nil {
			return nil
		}
		if call(ctx, seq) {
			c.emitReady()
		}
		if ctx.Err() != nil {
			return nil
		}
		due = due.Add(c.cfg.Every)
		if now := time.Now(); due.Before(now) {
			due = now // what was missed is missed: a burst would be another load
		}
	}
	return nil
}

// text is an event in words: the time of day, what was done, and what came of it.
func (e Event) text(now time.Time) string {
	at := now.Format("15:04:05.000")
	took := time.Duration(e.Took) * time.Microsecond
	switch {
	case e.Kind == KindReady:
		return "" // its first call has a line
	case e.Kind == KindEnd:
		return fmt.Sprintf("%s  %s has ended\n", at, e.Role)
	case e.Kind == KindTry && e.Found:
		return fmt.Sprintf("%s    an attempt found the document stored by an earlier one, after %.3f s; now it is compared\n", at, took.Seconds())
	case e.Kind == KindTry:
		return fmt.Sprintf("%s    an attempt failed after %.3f s: %s\n", at, took.Seconds(), e.Err)
	case e.Kind == KindRead && e.OK:
		if e.Seen == 0 {
			return fmt.Sprintf("%s  read: nothing is there yet   %.3f s, attempts: %d\n", at, took.Seconds(), e.Attempts)
		}
		return fmt.Sprintf("%s  read: newest is %d, %.1f s old   %.3f s, attempts: %d\n", at, e.Seen, float64(e.Stale)/1e6, took.Seconds(), e.Attempts)
	case e.Kind == KindRead:
		return fmt.Sprintf("%s  read FAILED after %.3f s, attempts: %d: %s\n", at, took.Seconds(), e.Attempts, e.Err)
	case e.Kind == KindProbe && e.OK:
		return fmt.Sprintf("%s  %s: a majority write was acknowledged   %.3f s\n", at, e.Member, took.Seconds())
	case e.Kind == KindProbe:
		return fmt.Sprintf("%s  %s: none   %.3f s: %s\n", at, e.Member, took.Seconds(), e.Err)
	case e.OK:
		s := fmt.Sprintf("%s  write %d: acknowledged   %.3f s, attempts: %d", at, e.Seq, took.Seconds(), e.Attempts)
		if e.Doubtful > 0 {
			s += fmt.Sprintf(" (of these %d with an outcome that was unknown at first)", e.Doubtful)
		}
		return s + "\n"
	}
	return fmt.Sprintf("%s  write %d: %s after %.3f s, attempts: %d: %s\n", at, e.Seq, e.Outcome, took.Seconds(), e.Attempts, e.Err)
}

// controlTimer measures how late a timer of this process is: what nobody but the machine is to blame for.
type controlTimer struct {
	mu   sync.Mutex
	late []lateness // the recent ones that matter
}

type lateness struct {
	at Moment
	by time.Duration
}

const (
	controlEvery = 10 * time.Millisecond
	// controlLeast is the least lateness that is kept, and controlKeep how many.
	controlLeast = 5 * time.Millisecond
	controlKeep  = 1000
)

func (t *controlTimer) run(ctx context.Context) {
	for {
		start := time.Now()
		if pace.Sleep(ctx, controlEvery) != nil {
			return
		}
		by := time.Since(start) - controlEvery
		if by < controlLeast {
			continue
		}
		t.mu.Lock()
		t.late = append(t.late, lateness{Now(), by})
		if len(t.late) > controlKeep {
			t.late = slices.Delete(t.late, 0, controlKeep/2)
		}
		t.mu.Unlock()
	}
}

// since returns the largest lateness since a moment, in microseconds.
func (t *controlTimer) since(m Moment) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var most time.Duration
	for i := len(t.late) - 1; i >= 0 && t.late[i].at >= m; i-- {
		most = max(most, t.late[i].by)
	}
	return most.Microseconds()
}
