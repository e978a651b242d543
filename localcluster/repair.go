package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Repair removes what clusters have left whose owner died before it could clean up (kill -9): servers,
// temporary directories, network namespaces, disks. It says what it did, a sentence each; nothing that
// belongs to a living or a detached cluster is touched. The next Start does the same, as far as it is
// concerned. Network namespaces and disks take root.
func Repair(ctx context.Context) ([]string, error) {
	dirs := temporaries(os.TempDir())
	networks, nerr := records()
	for _, n := range networks {
		if dir := n.owner(); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	disks, derr := mountedDisks()
	for _, dbpath := range disks {
		dirs = append(dirs, filepath.Dir(filepath.Dir(dbpath))) // DIR/m0/data
	}
	slices.Sort(dirs)
	var did []string
	errs := []error{nerr, derr}
	for _, dir := range slices.Compact(dirs) {
		done, err := reclaim(ctx, dir)
		did, errs = append(did, done...), append(errs, err)
	}
	done, err := reclaimNetworks(ctx)
	return append(did, done...), errors.Join(append(errs, err)...)
}

// sweep removes temporary directories whose owner died before it could.
func sweep(ctx context.Context, tmp string) {
	for _, dir := range temporaries(tmp) {
		_, _ = reclaim(ctx, dir) // best effort: the next start tries again
	}
}

// reclaim removes what the cluster in dir has left if its owner is dead. The lock tells: the kernel
// frees it with its holder. A directory is looked at only once it has a state file: the owner has held
// the lock since before then, and is not disturbed while it makes the directory.
func reclaim(ctx context.Context, dir string) (did []string, err error) {
	if _, err := loadState(dir); isNoState(err) {
		return nil, nil
	}
	lock, err := lockDir(dir, false)
	if errors.Is(err, ErrRunning) || errors.Is(err, os.ErrNotExist) {
		return nil, nil // in use, or being removed
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	st, err := loadState(dir) // again, now that nobody else writes it
	if err != nil || st.Detach {
		return nil, err
	}
	c := &Cluster{dir: dir, st: st}
	if slices.ContainsFunc(c.Members(), Member.Running) {
		did = append(did, "ended the servers in "+dir)
	}
	if err := c.clear(ctx, st); err != nil {
		return did, err
	}
	spaces, err := st.Network.spaces()
	if err != nil {
		return did, err
	}
	if len(spaces) > 0 {
		did = append(did, fmt.Sprintf("removed the network of the cluster in %s (%s)", dir, strings.Join(spaces, ", ")))
	}
	disks, err := mountedDisks()
	if err != nil {
		return did, err
	}
	for _, d := range disks {
		if strings.HasPrefix(d, dir+string(filepath.Separator)) {
			did = append(did, "removed the disk "+d)
		}
	}
	if err := c.undo(ctx); err != nil {
		return did, err
	}
	if st.Temporary {
		did = append(did, "removed the directory "+dir)
	}
	return did, c.removeTemporary()
}

// reclaimNetworks removes the namespaces that no cluster has a record of, and the networks whose
// cluster is gone or has another one by now.
func reclaimNetworks(ctx context.Context) (did []string, err error) {
	if os.Geteuid() != 0 {
		return nil, nil // it cannot read which networks have an owner, so it must not take any for abandoned
	}
	// In this order: a network's record is made before its namespaces.
	all, err := namespaces()
	if err != nil {
		return nil, err
	}
	networks, err := records()
	if err != nil {
		return nil, err
	}
	for _, name := range all {
		id, _, ok := strings.Cut(strings.TrimPrefix(name, namespacePrefix), "-")
		if !ok || !strings.HasPrefix(name, namespacePrefix) {
			continue
		}
		if n := (network{ID: id}); !slices.Contains(networks, n) {
			networks = append(networks, n)
		}
	}
	var errs []error
	for _, n := range networks {
		if n.alive() {
			continue
		}
		spaces, err := n.spaces()
		if err == nil {
			err = n.remove(ctx)
		}
		if err == nil && len(spaces) > 0 {
			did = append(did, fmt.Sprintf("removed a network that no cluster has (%s)", strings.Join(spaces, ", ")))
		}
		errs = append(errs, err)
	}
	return did, errors.Join(errs...)
}

// owner is the directory of the network's cluster, "" if there is no record.
func (n network) owner() string {
	b, err := os.ReadFile(filepath.Join(n.record(), ownerFile))
	if err != nil {
		return ""
	}
	return string(b)
}

// alive reports whether a cluster has this network, by its own word: whether its owner lives is for
// reclaim to say. A cluster's state names its network before there is a record of it.
func (n network) alive() bool {
	dir := n.owner()
	if dir == "" {
		return false
	}
	st, err := loadState(dir)
	return err == nil && st.Network != nil && *st.Network == n || err != nil && !isNoState(err)
}

// records lists the networks of this computer that have a record.
func records() ([]network, error) {
	entries, err := os.ReadDir(networkDir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil, nil // there has been none, or it is not for us to see
	}
	var networks []network
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") { // being made
			networks = append(networks, network{ID: e.Name()})
		}
	}
	return networks, err
}

// Repair ends all faults that are in force in this cluster, whoever injected them: rules and delays
// go, links come up, frozen members go on, fillers go, and members that do not run are started, also
// those that were stopped on purpose. It says what it did, a sentence each. A fault of steps goes on
// in the process that injected it.
func (c *Cluster) Repair(ctx context.Context) (did []string, err error) {
	if n := c.network(); n != nil {
		if did, err = n.heal(ctx, c.Members()); err != nil {
			return did, fmt.Errorf("repair cluster in %s: %w", c.dir, err)
		}
	}
	for _, m := range c.Members() {
		if err := os.Remove(filepath.Join(m.dbpath(), filler)); err == nil {
			did = append(did, "emptied the disk of "+m.Name)
		}
		switch {
		case m.Frozen:
			if _, err := c.Thaw(ctx, m.Name); err != nil {
				return did, err
			}
			did = append(did, "thawed "+m.Name)
		case !m.Running():
			if _, err := c.Start(ctx, m.Name); err != nil {
				return did, err
			}
			did = append(did, "started "+m.Name)
		}
	}
	return did, nil
}

// heal ends all faults of the network.
func (n *network) heal(ctx context.Context, members []Member) (did []string, err error) {
	spaces, err := n.spaces()
	if err != nil {
		return nil, err
	}
	for _, s := range spaces {
		rules, err := runIn(ctx, s, "", "nft", "list", "tables")
		if err != nil {
			return did, err
		}
		if strings.TrimSpace(rules) == "" {
			continue
		}
		if err := nft(ctx, s, "flush ruleset\n"); err != nil { // all in there is ours
			return did, err
		}
		did = append(did, "removed the rules in "+s)
	}
	links, err := runIn(ctx, n.hub(), "", "ip", "-o", "link", "show")
	if err != nil {
		return did, err
	}
	for _, m := range members {
		if strings.Contains(links, " "+m.Name+"-near@") {
			if err := n.rejoin(ctx, m.Name); err != nil {
				return did, err
			}
			did = append(did, "removed the delay of "+m.Name)
		}
		space := n.namespace(m.Name)
		down, err := runIn(ctx, space, "", "ip", "-o", "link", "show", "dev", link)
		if err != nil {
			return did, err
		}
		if up := strings.Contains(down, ",UP"); up {
			continue
		}
		if _, err := runIn(ctx, space, "", "ip", "link", "set", link, "up"); err != nil {
			return did, err
		}
		did = append(did, "took the link of "+m.Name+" up")
	}
	return did, nil
}
