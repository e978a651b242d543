//go:build linux

package localcluster

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestARollingRestartRestartsEveryMemberAndTheSetSurvivesALostMajority(t *testing.T) {
	t.Parallel()
	c := start(t, Config{Members: 3})
	awaitHealthy(t, c)
	before := c.Status(t.Context())
	i := inject(t, c, "rolling-restart", FaultOptions{})
	select {
	case <-i.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("not done within two minutes")
	}
	if err := i.Err(); err != nil {
		t.Fatal(err)
	}
	for n, m := range c.Members() {
		if !m.Running() || m.PID == before[n].PID {
			t.Errorf("%+v was %+v", m, before[n])
		}
	}
	heal(t, i)
	awaitHealthy(t, c)

	i = inject(t, c, "majority-down", FaultOptions{})
	for _, m := range c.Members() {
		if m.Running() != (m.Name == i.Member().Name) {
			t.Errorf("with only %s left: %+v", i.Member().Name, m)
		}
	}
	eventually(t, "the primary to give up", func() bool { _, err := c.primary(t.Context()); return errors.Is(err, errNoRole) })
	heal(t, i)
	awaitHealthy(t, c)

	i = inject(t, c, "rolling-restart", FaultOptions{})
	heal(t, i) // in the middle
	awaitHealthy(t, c)
	i = inject(t, c, "rolling-restart", FaultOptions{})
	down(t, c) // also in the middle
	heal(t, i) // and there is nothing to heal then
}

func TestAFullDiskEndsTheMemberAndHealingBringsItBack(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	c := start(t, Config{Members: 3, Network: true, DiskMB: MinDiskMB})
	awaitHealthy(t, c)
	i := inject(t, c, "disk-full", FaultOptions{})
	p := i.Member()
	m := machine(t, c, "app")
	eventually(t, "the end of the member", func() bool {
		now := c.Members()
		return !now[slices.IndexFunc(now, func(m Member) bool { return m.Name == p.Name })].Running()
	})
	heal(t, i)
	awaitHealthy(t, c)

	i = inject(t, c, "flap", FaultOptions{Flaps: 2})
	select {
	case <-i.Done():
	case <-time.After(time.Minute):
		t.Fatal("not done within a minute")
	}
	heal(t, i)
	(&world{Cluster: c, t: t, machines: []*Machine{m}}).whole("flap done")
	awaitHealthy(t, c)

	i = inject(t, c, "flap", FaultOptions{})
	down(t, c) // while it goes on
	<-i.Done()
	for _, m := range c.Members() {
		if mounted(t, m.dbpath()) {
			t.Errorf("%s is still mounted", m.dbpath())
		}
	}
}

// mounted reports whether a file system begins at path.
func mounted(t *testing.T, path string) bool {
	t.Helper()
	var here, above unix.Stat_t
	if unix.Stat(path, &here) != nil {
		return false
	}
	if err := unix.Stat(filepath.Dir(path), &above); err != nil {
		t.Fatal(err)
	}
	return here.Dev != above.Dev
}
