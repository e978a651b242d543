package outage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// Times of a trial.
const (
	// readyPatience is how long the clients may take to begin.
	readyPatience = 45 * time.Second
	// settle is how long all work before the fault, at least; up to settleMore is added at random, so that
	// the fault meets heartbeats and ticks at any phase.
	settle     = 1500 * time.Millisecond
	settleMore = time.Second
	// afterwards is how long they go on once they have recovered: another failure would show.
	afterwards = time.Second
	// holdMost bounds a fault with the fast profile, holdMostSlow with the default one. A plain client without
	// a deadline hung 67 s in a black hole (facts of mongod 6.0.5 with driver v2.10.0).
	holdMost     = 40 * time.Second
	holdMostSlow = 90 * time.Second
	// healPatience is how long a set may take to be whole again.
	healPatience = 3 * time.Minute
	// followPatience is how long the tails may take to deliver what is stored.
	followPatience = 30 * time.Second
	// flaps is how often a flapping link is cut and healed, 1.5 s each.
	flaps = 5
	// tick is how often the engine looks.
	tick = 20 * time.Millisecond
)

// tryout is a trial that is being made.
type tryout struct {
	*lane
	spec    spec
	trial   *Trial
	name    string // of the writers in this trial
	journal *journal
	clients map[Role]*process
	tail    *follower
	consume *follower
	// offset is the wall clock's time at Moment 0, for the servers' logs.
	offset time.Time
	// logs are the sizes of the members' logs when the trial began.
	logs map[string]int64
}

// try makes one trial, and leaves the set whole.
func (l *lane) try(ctx context.Context, s spec) (*Trial, error) {
	t := &tryout{lane: l, spec: s, journal: newJournal(), clients: make(map[Role]*process),
		name:   fmt.Sprintf("%s-%s-%d", s.plan.name, s.profile, s.number),
		trial:  &Trial{Number: s.number, Fault: s.plan.name, Profile: string(s.profile), Seed: s.seed, Lane: l.number},
		offset: time.Now().Add(-Now().Sub(0))}
	if s.control != nil {
		t.trial.Control, t.name = string(s.control.role), "control-"+s.control.name+"-"+t.name
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := t.run(ctx)
	t.stopAll()
	if err != nil {
		return nil, err
	}
	Analyse(t.trial)
	return t.trial, nil
}

func (t *tryout) run(ctx context.Context) error {
	t.logs = make(map[string]int64)
	for _, m := range t.cluster.Members() {
		if info, err := os.Stat(m.Log()); err == nil {
			t.logs[m.Name] = info.Size()
		}
	}
	if err := t.startClients(ctx); err != nil {
		return err
	}
	probing, stopProbing := context.WithCancel(ctx)
	probed := make(chan struct{})
	go func() {
		defer close(probed)
		ProbeMembers(probing, t.addrs(), t.cluster.Dialer(), func(e Event) {
			e.Role = Cluster
			t.journal.add(e)
		})
	}()
	defer func() {
		stopProbing()
		<-probed
	}()
	if err := t.await(ctx, "the clients", readyPatience, func() bool { return t.journal.isReady(t.roles()...) }); err != nil {
		return err
	}
	t.trial.Begun = Now()
	rng := rand.New(rand.NewPCG(t.spec.seed, 1))
	if err := pace.Sleep(ctx, settle+time.Duration(rng.Int64N(int64(settleMore)))); err != nil {
		return err
	}
	if err := t.breakAndHeal(ctx); err != nil {
		return err
	}
	// Everybody goes on for a moment on the whole set, and then stops writing.
	if err := t.await(ctx, "writes after healing", healPatience, func() bool { return t.acknowledgedSince(t.trial.Healed) }); err != nil {
		return err
	}
	if err := pace.Sleep(ctx, afterwards/2); err != nil {
		return err
	}
	t.stopWriters()
	stopProbing()
	<-probed
	return t.settleUp(ctx)
}

// breakAndHeal injects the fault, holds it as its plan says, and undoes it.
func (t *tryout) breakAndHeal(ctx context.Context) error {
	t.trial.Load = loadAverage()
	fault, err := t.cluster.Inject(ctx, t.spec.plan.name, localcluster.FaultOptions{Clients: t.lane.clients(), Flaps: flaps})
	if err != nil {
		return err
	}
	t.trial.At = Now().Add(-time.Since(fault.At()))
	t.trial.Victim = fault.Member().Name
	held := t.hold(ctx, fault)
	// The fault is undone whatever happened: the set is needed for the next trial.
	healing, cancel := context.WithTimeout(context.WithoutCancel(ctx), healPatience)
	defer cancel()
	err = fault.Heal(healing)
	t.trial.Healed = Now()
	if err := errors.Join(held, err); err != nil {
		return err
	}
	if err := t.cluster.AwaitHealthy(healing); err != nil {
		return err
	}
	for _, m := range t.cluster.Status(healing) {
		if m.Role == localcluster.RolePrimary {
			t.trial.New = m.Name
		}
	}
	return nil
}

// hold waits for as long as the fault is to be in force.
func (t *tryout) hold(ctx context.Context, fault *localcluster.Injection) error {
	p, least, most := t.spec.plan, t.spec.plan.fast, holdMost
	if t.spec.profile == failover.ProfileDefault {
		least, most = p.slow, holdMostSlow
	}
	until := func() bool { return !p.recovers || t.acknowledgedSince(t.trial.At) }
	if c := t.spec.control; c != nil {
		least, most, until = c.hold, holdMostSlow, func() bool { return t.controlShown() }
	}
	if p.ends {
		select {
		case <-fault.Done():
			if err := fault.Err(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := pace.Sleep(ctx, least-Now().Sub(t.trial.At)); err != nil {
		return err
	}
	// That they do not recover is a result, not an error.
	for !until() && Now().Sub(t.trial.At) < most {
		if err := pace.Sleep(ctx, tick); err != nil {
			return err
		}
		if err := t.someoneDied(); err != nil {
			return err
		}
	}
	if p.recovers && t.spec.control == nil {
		return pace.Sleep(ctx, afterwards)
	}
	return nil
}

// acknowledgedSince reports whether all who write were acknowledged something that they began after m.
func (t *tryout) acknowledgedSince(m Moment) bool {
	if c := t.spec.control; c != nil {
		return t.journal.okSince(c.role, m)
	}
	return t.journal.okSince(Writer, m) && t.journal.okSince(Prober, m)
}

// controlShown reports whether a control has shown what it is to show: the plain client's call has
// returned; or the side that the w: 1 client is cut off from has written.
func (t *tryout) controlShown() bool {
	switch t.spec.control.role {
	case Plain:
		return t.journal.okSince(Plain, t.trial.At)
	case One:
		return t.journal.okSince(Cluster, t.trial.At.Add(t.spec.control.hold/2))
	}
	return true
}

// roles are those whose processes run in this trial and must be ready.
func (t *tryout) roles() []Role {
	if c := t.spec.control; c != nil {
		return []Role{c.role}
	}
	return []Role{Writer, Reader, Prober, Plain, Members}
}

func (t *tryout) addrs() []string {
	var all []string
	for _, m := range t.cluster.Members() {
		all = append(all, m.Addr)
	}
	return all
}

// startClients starts all processes of the trial.
func (t *tryout) startClients(ctx context.Context) (err error) {
	if t.spec.control == nil {
		if t.tail, err = startTail(ctx, t.on(otherMachine)); err != nil {
			return err
		}
		if t.consume, err = startConsume(ctx, t.on(otherMachine)); err != nil {
			return err
		}
	}
	for _, r := range t.roles() {
		machine := otherMachine
		switch r {
		case Writer:
			machine = writerMachine
		case Reader:
			machine = readerMachine
		}
		name := t.name
		if r == Plain {
			name += "-plain" // its documents are not judged
		}
		args := []string{"bench", "failover-client", string(r), "--profile", string(t.profile), "--name", name,
			"--seed", strconv.FormatUint(t.spec.seed, 10), "--output", "json"}
		t.clients[r], err = startProcess(ctx, string(r), func(ctx context.Context) *exec.Cmd { return t.on(machine)(ctx, args...) }, t.journal.line, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// await polls until ready, or for patience. A client that ends by itself is an error at once.
func (t *tryout) await(ctx context.Context, what string, patience time.Duration, ready func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%w: %s within %s", errWaited, what, patience))
	defer cancel()
	for !ready() {
		if err := t.someoneDied(); err != nil {
			return err
		}
		if err := pace.Sleep(ctx, tick); err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

var errWaited = errors.New("waited in vain for")

func (t *tryout) someoneDied() error {
	for _, p := range t.clients {
		if err := p.dead(); err != nil {
			return err
		}
	}
	for _, f := range []*follower{t.tail, t.consume} {
		if f != nil {
			if err := f.dead(); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopWriters ends all clients but those that follow the stream.
func (t *tryout) stopWriters() {
	for _, p := range t.clients {
		p.stop() // all at once, then wait
	}
	for r, p := range t.clients {
		p.end()
		delete(t.clients, r)
	}
}

func (t *tryout) stopAll() {
	t.stopWriters()
	for _, f := range []*follower{t.tail, t.consume} {
		if f != nil {
			f.end()
		}
	}
	t.tail, t.consume = nil, nil
}

// loadAverage is the machine's one-minute load average, 0 if it is not known.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	word, _, _ := strings.Cut(string(b), " ")
	load, _ := strconv.ParseFloat(word, 64) // 0 if it is no number
	return load
}
