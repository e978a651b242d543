package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ownerFile holds the directory of the cluster, in the record of its network.
const ownerFile = "owner"

var machineName = regexp.MustCompile(`^[a-z0-9-]{1,8}$`)

// machineLink is the name of a machine in its namespace's name and of its link in the hub.
func machineLink(name string) string { return "c-" + name }

// Machine is a client's computer in the network of a cluster: a network namespace with an address of
// its own, from which every member can be reached, and which faults can cut off. It lives until
// Down. Safe for concurrent use.
type Machine struct {
	name, addr, namespace string
}

// Machine returns the client machine of that name, and makes it if there is none: 1 to 8 of a-z, 0-9
// and "-". Any process that may Open the cluster finds the same machine by the same name. The error
// wraps ErrNeedsNetwork if the cluster has no network of its own.
func (c *Cluster) Machine(ctx context.Context, name string) (*Machine, error) {
	n := c.network()
	if n == nil {
		return nil, fmt.Errorf("make client machine: %w: start it with Config.Network (capstan cluster up --network)", ErrNeedsNetwork)
	}
	if !machineName.MatchString(name) {
		return nil, fmt.Errorf("make client machine: the name %q is not 1 to 8 of a-z, 0-9 and -", name)
	}
	m, err := n.addMachine(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("make client machine %s: %w", name, err)
	}
	return m, nil
}

// Machines returns the names of the client machines that have been made, sorted. It is empty for a cluster
// without a network of its own.
func (c *Cluster) Machines() ([]string, error) {
	n := c.network()
	if n == nil {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(n.record(), machineLink("*")))
	if err != nil {
		return nil, fmt.Errorf("list client machines: %w", err)
	}
	for i, f := range files {
		files[i] = strings.TrimPrefix(filepath.Base(f), machineLink(""))
	}
	return files, nil
}

// addMachine finds or makes a machine. The file of a machine in the record holds its address and is
// written last, so that a machine which has one is complete. The lock keeps two processes from
// making the same machine, or two with one address.
func (n *network) addMachine(ctx context.Context, name string) (*Machine, error) {
	lock, err := n.lockRecord(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	m := &Machine{name: name, namespace: n.machine(name)}
	file := filepath.Join(n.record(), machineLink(name))
	addr, err := os.ReadFile(file)
	if err == nil {
		m.addr = string(addr)
		return m, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if m.addr, err = n.freeAddress(); err != nil {
		return nil, err
	}
	names, err := n.spaces()
	if err != nil {
		return nil, err
	}
	lines := "netns add " + m.namespace + "\n"
	if slices.Contains(names, m.namespace) { // left by a maker that did not finish
		lines = "netns del " + m.namespace + "\n" + lines
	}
	if _, err := runIn(ctx, "", lines, "ip", "-batch", "-"); err != nil {
		return nil, err
	}
	if _, err := runIn(ctx, n.hub(), n.plug(machineLink(name), m.namespace), "ip", "-batch", "-"); err != nil {
		return nil, err
	}
	if err := n.address(ctx, m.namespace, m.addr); err != nil {
		return nil, err
	}
	return m, os.WriteFile(file, []byte(m.addr), 0o600)
}

// lockRecord waits for the record's lock. Machines are made in some 20 ms.
func (n *network) lockRecord(ctx context.Context) (lock *os.File, err error) {
	werr := waitFor(ctx, "the network's record", func() error {
		if lock, err = lockDir(n.record(), true); errors.Is(err, ErrRunning) {
			return errors.New("another process makes a machine")
		}
		return nil
	})
	switch {
	case werr != nil:
		return nil, werr
	case errors.Is(err, os.ErrNotExist):
		return nil, errors.New("the cluster is down")
	}
	return lock, err
}

// freeAddress returns an address that no machine has.
func (n *network) freeAddress() (string, error) {
	files, err := filepath.Glob(filepath.Join(n.record(), machineLink("*")))
	if err != nil {
		return "", err
	}
	var taken []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		taken = append(taken, string(b))
	}
	for i := firstMachine; i <= lastMachine; i++ {
		if addr := fmt.Sprintf(memberAddress, i); !slices.Contains(taken, addr) {
			return addr, nil
		}
	}
	return "", fmt.Errorf("no address is left: there are %d machines", len(files))
}

// Name returns the name that it was made by.
func (m *Machine) Name() string { return m.name }

// Addr returns its IP address.
func (m *Machine) Addr() string { return m.addr }

// Dialer opens connections of this process from that machine, to IP addresses only:
// options.Client().ApplyURI(c.URI()).SetDialer(m.Dialer()).
func (m *Machine) Dialer() options.ContextDialer { return spaceDialer{namespace: m.namespace} }

// Command returns a command that runs a program on that machine, as exec.CommandContext does on this
// one; its process is the program itself. It sees the files of this computer.
func (m *Machine) Command(ctx context.Context, prog string, args ...string) *exec.Cmd {
	// Looked up here, because ip would report a missing program by an exit code of its own.
	if path, err := exec.LookPath(prog); err == nil && !strings.Contains(prog, "/") {
		prog = path
	}
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", m.namespace, prog}, args...)...)
}
