package localcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// ErrNeedsDisk says that a fault needs disks of the members' own, Config.DiskMB.
var ErrNeedsDisk = errors.New("needs members with disks of their own")

// DefaultLoss is the share of packets that the fault "loss" drops.
const DefaultLoss = 0.2

// DefaultDelay is what the fault "delay" adds to each direction.
const DefaultDelay = 200 * time.Millisecond

// DefaultFlaps is how often the fault "flap" cuts and heals.
const DefaultFlaps = 20

// Fault describes a way to break a cluster.
type Fault struct {
	// Name is what Inject takes.
	Name string
	// Text says in one line what happens.
	Text string
	// Network: it needs Config.Network. Disk: it needs Config.DiskMB. Set: it needs three members.
	Network, Disk, Set bool
	// Clients: it needs FaultOptions.Clients.
	Clients bool
	// Self: it goes on by itself until Done, "stepdown" for no time; all others stay as they are until Heal.
	Self bool
	// Who is the member it hits if FaultOptions.Who is "".
	Who string
}

// faultKind is a fault with what does it. begin returns when the fault is in force and leaves what
// undoes it in the Injection.
type faultKind struct {
	Fault
	begin func(c *Cluster, ctx context.Context, i *Injection) error
}

// Faults returns all faults, always in the same order.
func Faults() []Fault {
	kinds := faultKinds()
	faults := make([]Fault, len(kinds))
	for i, k := range kinds {
		faults[i] = k.Fault
	}
	return faults
}

// FaultOptions says how a fault hits. The zero FaultOptions hit the primary with the defaults.
type FaultOptions struct {
	// Who is a member's name, "primary" or "secondary"; a role is waited for. "" means Fault.Who.
	Who string
	// Clients are the machines that a fault between clients and servers is about.
	Clients []*Machine
	// Loss is the share of packets that "loss" drops, in each direction; 0 means DefaultLoss.
	Loss float64
	// Delay is what "delay" adds, in each direction; 0 means DefaultDelay.
	Delay time.Duration
	// Flaps is how often "flap" cuts and heals; 0 means DefaultFlaps.
	Flaps int
}

func (o FaultOptions) withDefaults() FaultOptions {
	if o.Loss == 0 {
		o.Loss = DefaultLoss
	}
	if o.Delay == 0 {
		o.Delay = DefaultDelay
	}
	if o.Flaps == 0 {
		o.Flaps = DefaultFlaps
	}
	return o
}

func (o FaultOptions) validate() error {
	switch {
	case o.Loss < 0 || o.Loss > 1:
		return fmt.Errorf("localcluster: Loss is %v: must be between 0 and 1", o.Loss)
	case o.Delay < 0 || o.Delay > time.Minute:
		return fmt.Errorf("localcluster: Delay is %v: must be between 0 and a minute", o.Delay)
	case o.Flaps < 0:
		return fmt.Errorf("localcluster: Flaps is %d: must be positive", o.Flaps)
	}
	return nil
}

// Injection is a fault in force. Safe for concurrent use.
type Injection struct {
	c      *Cluster
	fault  Fault
	o      FaultOptions
	member Member

	before, after time.Time // around the step that took effect

	done chan struct{} // closed when a fault of steps has taken its last one, and else by Heal
	stop func()        // ends a fault of steps and waits for that; nil for others; guarded by c.mu

	mu   sync.Mutex
	undo []func(context.Context) error // in the order in which it was done
	err  error                         // of a fault of steps
}

// Inject makes a fault happen and returns when it is in force; ctx bounds that only. name is one of
// Faults. Several faults may be in force at once. If it fails, it has undone what it had begun. The
// error wraps ErrNeedsNetwork or ErrNeedsDisk if this cluster cannot have that fault.
func (c *Cluster) Inject(ctx context.Context, name string, o FaultOptions) (*Injection, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	kinds := faultKinds()
	k := slices.IndexFunc(kinds, func(k faultKind) bool { return k.Name == name })
	if k < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, k.Name)
		}
		return nil, fmt.Errorf("inject fault: %q is not one of %s", name, strings.Join(names, ", "))
	}
	kind := kinds[k]
	if err := c.allows(kind.Fault, o); err != nil {
		return nil, fmt.Errorf("inject %s: %w", name, err)
	}
	i := &Injection{c: c, fault: kind.Fault, o: o, done: make(chan struct{})}
	who := kind.Who
	if o.Who != "" {
		who = o.Who
	}
	var err error
	if i.member, _, err = c.resolve(ctx, who); err != nil {
		return nil, fmt.Errorf("inject %s: %w", name, err)
	}
	if err := c.hold(i); err != nil {
		return nil, fmt.Errorf("inject %s: %w", name, err)
	}
	if err := kind.begin(c, ctx, i); err != nil {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultStartTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("inject %s into %s: %w", name, i.member.Name, err), i.Heal(bounded))
	}
	c.log.Info().Str("fault", name).Str("member", i.member.Name).Dur("within", i.after.Sub(i.before)).Msg("fault injected")
	return i, nil
}

// allows says why this cluster cannot have a fault.
func (c *Cluster) allows(f Fault, o FaultOptions) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.Network && c.st.Network == nil:
		return fmt.Errorf("%w: start it as root with Config.Network (sudo capstan cluster up --network)", ErrNeedsNetwork)
	case f.Disk && c.st.DiskMB == 0:
		return fmt.Errorf("%w: start it as root with Config.DiskMB (sudo capstan cluster up --disk-mb)", ErrNeedsDisk)
	case f.Set && len(c.st.Members) == 1:
		return errors.New("needs a set of three members")
	case f.Clients && len(o.Clients) == 0:
		return errors.New("needs the client machines that it is about (FaultOptions.Clients)")
	}
	return nil
}

// hold keeps an injection for Down, which must end its steps before it stops the servers.
func (c *Cluster) hold(i *Injection) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return errors.New("the cluster is down")
	}
	c.injections = append(c.injections, i)
	return nil
}

func (c *Cluster) isDown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

// Fault returns what is in force.
func (i *Injection) Fault() Fault { return i.fault }

// Member returns the member that is hit, as it was just before: of "majority-down" the one that is left,
// of "rolling-restart" the first.
func (i *Injection) Member() Member { return i.member }

// At returns the moment at which the fault took effect, give or take Within: the middle of the one
// step that brought it about. A fault that takes several steps counts from its first one.
func (i *Injection) At() time.Time { return i.before.Add(i.Within()) }

// Within is half of the time that the step took: the error of At.
func (i *Injection) Within() time.Duration { return i.after.Sub(i.before) / 2 }

// Done returns a channel that is closed when a fault with Fault.Self has taken its last step, and for any other fault when Heal has ended.
func (i *Injection) Done() <-chan struct{} { return i.done }

// Err returns what ended the steps of a fault early, once Done is closed. nil: all were taken, or Heal
// ended them.
func (i *Injection) Err() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// Heal undoes the fault: rules go, links come up, frozen members go on, stopped ones are started. It
// returns when the processes run, which is before the set has recovered: see AwaitHealthy.
// Idempotent; what failed is tried again by the next call. After Down there is nothing to do.
func (i *Injection) Heal(ctx context.Context) error {
	i.c.mu.Lock()
	stop := i.stop
	i.c.mu.Unlock()
	if stop != nil {
		stop()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.c.isDown() {
		i.undo = nil // it went with the servers and the network
	}
	for len(i.undo) > 0 {
		last := len(i.undo) - 1
		if err := i.undo[last](ctx); err != nil {
			return fmt.Errorf("heal %s of %s: %w", i.fault.Name, i.member.Name, err)
		}
		i.undo = i.undo[:last]
	}
	i.c.mu.Lock()
	defer i.c.mu.Unlock()
	if n := slices.Index(i.c.injections, i); n >= 0 {
		i.c.injections = slices.Delete(i.c.injections, n, n+1)
		if stop == nil {
			close(i.done)
		}
		i.c.log.Info().Str("fault", i.fault.Name).Str("member", i.member.Name).Msg("fault healed")
	}
	return nil
}

// takes notes when the fault took effect: while step ran. The first step counts.
func (i *Injection) takes(step func() error) error {
	before := time.Now()
	err := step()
	if i.before.IsZero() && err == nil {
		i.before, i.after = before, time.Now()
	}
	return err
}

// undoes leaves a step that Heal takes.
func (i *Injection) undoes(step func(context.Context) error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.undo = append(i.undo, step)
}

// steps lets do go on after Inject has returned, until it is done or Heal or Down ends it.
func (i *Injection) steps(ctx context.Context, do func(context.Context) error) error {
	i.c.mu.Lock()
	defer i.c.mu.Unlock()
	if i.c.down {
		return errors.New("the cluster is down")
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx)) // ctx bounds the beginning only
	i.stop = func() {
		cancel()
		<-i.done
	}
	go func() {
		defer close(i.done)
		defer cancel()
		err := do(life)
		i.mu.Lock()
		defer i.mu.Unlock()
		if life.Err() == nil {
			i.err = err
		}
	}()
	return nil
}
