package localcluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// awaitHealthy waits until the cluster is as before a fault, for at most two minutes.
func awaitHealthy(t *testing.T, c *Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.AwaitHealthy(ctx); err != nil {
		t.Fatal(err)
	}
}

// inject makes a fault happen, and checks when it says that it took effect.
func inject(t *testing.T, c *Cluster, name string, o FaultOptions) *Injection {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	before := time.Now()
	i, err := c.Inject(ctx, name, o)
	if err != nil {
		t.Fatal(err)
	}
	if at := i.At(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("%s took effect at %v, which is not during the call", name, at)
	}
	t.Logf("%s of %s, known to %v", name, i.Member().Name, i.Within())
	return i
}

func heal(t *testing.T, i *Injection) {
	t.Helper()
	for range 2 { // idempotent
		if err := i.Heal(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	<-i.Done()
}

func TestFaultsOfProcessesNeedNoNetwork(t *testing.T) {
	t.Parallel()
	c := start(t, Config{Members: 3})
	awaitHealthy(t, c)
	member := func(name string) Member {
		members := c.Members()
		return members[slices.IndexFunc(members, func(m Member) bool { return m.Name == name })]
	}
	for name, holds := range map[string]func(m Member) bool{
		"kill":   func(m Member) bool { return !m.Running() },
		"term":   func(m Member) bool { return true }, // it may take its time
		"freeze": func(m Member) bool { return m.Frozen },
	} {
		i := inject(t, c, name, FaultOptions{})
		if m := member(i.Member().Name); !holds(m) {
			t.Errorf("after %s: %+v", name, m)
		}
		eventually(t, "another primary after "+name, func() bool {
			p, err := c.primary(t.Context())
			return err == nil && p.Name != i.Member().Name
		})
		heal(t, i)
		if m := member(i.Member().Name); !m.Running() {
			t.Errorf("%s healed: %+v", name, m)
		}
		awaitHealthy(t, c)
	}
	killed := inject(t, c, "kill-secondary", FaultOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	if err := c.AwaitHealthy(ctx); err == nil || !strings.Contains(err.Error(), killed.Member().Name+" does not run") {
		t.Errorf("with %s killed the cluster is healthy: %v", killed.Member().Name, err)
	}
	cancel()
	heal(t, killed)
	awaitHealthy(t, c)
	i := inject(t, c, "stepdown", FaultOptions{})
	eventually(t, "another primary", func() bool {
		p, err := c.primary(t.Context())
		return err == nil && p.Name != i.Member().Name
	})
	heal(t, i)
	awaitHealthy(t, c)

	for _, f := range Faults() {
		_, err := c.Inject(t.Context(), f.Name, FaultOptions{Clients: []*Machine{{}}})
		switch {
		case f.Network:
			if !errors.Is(err, ErrNeedsNetwork) {
				t.Errorf("%s: %v", f.Name, err)
			}
		case f.Disk:
			if !errors.Is(err, ErrNeedsDisk) {
				t.Errorf("%s: %v", f.Name, err)
			}
		}
		if !f.Network && !f.Disk {
			break // that one is in force now, and Down does not mind
		}
	}
	if _, err := c.Machine(t.Context(), "app"); !errors.Is(err, ErrNeedsNetwork) {
		t.Errorf("a machine: %v", err)
	}
}

func TestAFaultIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	c := start(t, Config{})
	for want, try := range map[string]func() (*Injection, error){
		`"nosuch" is not one of kill, term`: func() (*Injection, error) { return c.Inject(t.Context(), "nosuch", FaultOptions{}) },
		`three members`:                     func() (*Injection, error) { return c.Inject(t.Context(), "stepdown", FaultOptions{}) },
		`"m7" is not one of`:                func() (*Injection, error) { return c.Inject(t.Context(), "kill", FaultOptions{Who: "m7"}) },
		`Loss is 2`:                         func() (*Injection, error) { return c.Inject(t.Context(), "loss", FaultOptions{Loss: 2}) },
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
