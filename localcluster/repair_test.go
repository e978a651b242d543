//go:build linux

package localcluster

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// nothingLeft checks that a cluster is gone without a trace outside of a directory that is kept.
func nothingLeft(t *testing.T, c *Cluster) {
	t.Helper()
	if spaces, err := c.network().spaces(); err != nil || len(spaces) > 0 {
		t.Errorf("namespaces left: %v, %v", spaces, err)
	}
	if _, err := os.Stat(c.network().record()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("record left: %v", err)
	}
	for _, m := range c.Members() {
		if m.Running() || mounted(t, m.dbpath()) {
			t.Errorf("%+v runs, or its disk is mounted", m)
		}
	}
}

func TestWhatAKilledOwnerLeavesIsRemovedByRepairAndByTheNextStart(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	before := hostNetwork(t)
	bystander := start(t, Config{Network: true})
	for _, tc := range []struct {
		name   string
		dir    string
		repair func(c *Cluster)
	}{
		{"repair of a directory that is kept", t.TempDir(), func(c *Cluster) {
			did, err := Repair(t.Context())
			if err != nil {
				t.Error(err)
			}
			for _, want := range []string{"removed the network of the cluster in " + c.dir, "removed the disk " + c.dir + "/m0/data"} {
				if !slices.ContainsFunc(did, func(s string) bool { return strings.Contains(s, want) }) {
					t.Errorf("%q is not in %q", want, did)
				}
			}
		}},
		{"the next start", "", func(*Cluster) { down(t, start(t, Config{Network: true})) }},
	} {
		owner, dir := startElsewhere(t, tc.dir, "network")
		c, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if did, err := Repair(t.Context()); err != nil || slices.ContainsFunc(did, func(s string) bool { return strings.Contains(s, dir) }) {
			t.Errorf("repair while the owner lives: %q, %v", did, err)
		}
		if m := c.Status(t.Context())[0]; m.Role != RoleStandalone {
			t.Fatalf("a living cluster's member is %+v", m)
		}
		if err := owner.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = owner.Wait()
		gone(t, c)
		if spaces, err := c.network().spaces(); err != nil || len(spaces) != 3 {
			t.Fatalf("namespaces of a killed owner: %v, %v; the test wants them left", spaces, err)
		}
		tc.repair(c)
		nothingLeft(t, c)
		if _, err := os.Stat(dir); (err == nil) != (tc.dir != "") {
			t.Errorf("%s: the directory: %v", tc.name, err)
		}
	}
	if m := bystander.Status(t.Context())[0]; m.Role != RoleStandalone {
		t.Errorf("a living cluster's member is %+v", m)
	}
	down(t, bystander)
	if after := hostNetwork(t); after != before {
		t.Errorf("the computer's own network was\n%s\nand is\n%s", before, after)
	}
}

func TestADirectoryWithANetworkStartsAgainAfterItsOwnerWasKilled(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	dir := t.TempDir()
	owner, _ := startElsewhere(t, dir, "network", "set")
	old, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	c := start(t, Config{Dir: dir, Members: 3, Network: true, DiskMB: MinDiskMB})
	if old.network().ID == c.network().ID {
		t.Error("the old network is used again")
	}
	nothingLeft(t, &Cluster{dir: "/nonexistent", st: old.st})
	awaitHealthy(t, c)
}

func TestNamespacesWithoutACluster(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	orphan := newNetwork()
	if _, err := runIn(t.Context(), "", "netns add "+orphan.hub()+"\n", "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	other := "not-" + orphan.hub()
	if _, err := runIn(t.Context(), "", "netns add "+other+"\n", "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "netns", "del", other).Run() })
	if _, err := Repair(t.Context()); err != nil {
		t.Error(err)
	}
	names, err := namespaces()
	if err != nil || slices.Contains(names, orphan.hub()) || !slices.Contains(names, other) {
		t.Errorf("namespaces after a repair: %v, %v", names, err)
	}
}

func TestAnotherProcessHealsTheFaultsOfALivingCluster(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	c := start(t, Config{Members: 3, Network: true, DiskMB: MinDiskMB})
	w := &world{Cluster: c, t: t, machines: []*Machine{machine(t, c, "a")}}
	other, err := Open(c.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var injected []*Injection
	for fault, who := range map[string]string{"loss": "m0", "client-cut": "m0", "link-down": "m1", "delay": "m2", "freeze": "m0", "kill": "m1"} {
		injected = append(injected, inject(t, c, fault, FaultOptions{Who: who, Clients: w.machines}))
	}
	did, err := other.Repair(t.Context())
	if err != nil || len(did) < 6 {
		t.Errorf("%q, %v", did, err)
	}
	w.whole("repaired")
	awaitHealthy(t, c)
	for _, i := range injected {
		heal(t, i) // has nothing left to do
	}
	if did, err := other.Repair(t.Context()); err != nil || len(did) > 0 {
		t.Errorf("with nothing to do: %q, %v", did, err)
	}
	if _, err := other.Machine(t.Context(), "late"); err != nil {
		t.Error(err)
	}
	began := time.Now()
	if err := other.Down(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("down in %v", time.Since(began).Round(time.Millisecond))
	nothingLeft(t, c)
}
