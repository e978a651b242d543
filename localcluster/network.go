package localcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"
)

// ErrNeedsNetwork says that something needs a cluster with a network of its own, Config.Network, or
// that this machine cannot give one; the error that wraps it says what to do.
var ErrNeedsNetwork = errors.New("needs a cluster with a network of its own")

// Addresses inside a cluster's network. The range is kept for tests of network devices (RFC 2544)
// and exists in no other network; every cluster has all of it, as clusters cannot see each other.
const (
	networkPort   = 27017
	hubAddress    = "198.18.0.1"
	memberAddress = "198.18.0.%d" // from firstMember
	firstMember   = 11
	firstMachine  = 101
	lastMachine   = 254
	prefixLength  = "/24"
	// bridgeMAC is fixed: by itself a bridge takes that of a link, and another one when that link leaves.
	bridgeMAC = "02:00:c6:12:00:01"
)

// Names inside the namespaces.
const (
	namespacePrefix = "capstan-"
	bridge          = "br0"  // in the hub
	link            = "eth0" // in every other namespace; its other end in the hub is named like its owner
)

// networkDir records which directory a network belongs to, for whoever finds its namespaces after a
// crash. Like the namespaces themselves it does not outlive the machine's run.
const networkDir = "/run/capstan"

// getNetwork is the command that provides what a network needs.
const getNetwork = "sudo apt-get install -y iproute2 nftables (or scripts/get-network, as root)"

// network names the namespaces of one cluster. Each member and each client machine is in one of its
// own; one more, the hub, holds the bridge between them. Nothing at all is made in the namespace of
// the host, so that nothing can leak into it and deleting the namespaces undoes everything.
type network struct {
	ID string `json:"id"`
}

func newNetwork() *network { return &network{ID: randomHex(4)} }

func (n *network) prefix() string                 { return namespacePrefix + n.ID + "-" }
func (n *network) hub() string                    { return n.prefix() + "hub" }
func (n *network) namespace(member string) string { return n.prefix() + member }
func (n *network) machine(name string) string     { return n.prefix() + machineLink(name) }
func (n *network) record() string                 { return filepath.Join(networkDir, n.ID) }

// CheckNetwork returns nil if this process can start a cluster with Config.Network. Otherwise the
// error wraps ErrNeedsNetwork and says what is missing and how to get it.
func CheckNetwork() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: that takes root (sudo) on Linux", ErrNeedsNetwork)
	}
	var path string
	for _, tool := range []string{"ip", "nft"} {
		var err error
		if path, err = exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w: %s is missing, run: %s", ErrNeedsNetwork, tool, getNetwork)
		}
	}
	if err := tryNamespace(path); err != nil {
		return fmt.Errorf("%w: this computer has what it takes, but does not let this process: %w", ErrNeedsNetwork, err)
	}
	return nil
}

// build makes the namespaces of the hub and the members of st and connects them.
func (n *network) build(ctx context.Context, dir string, st state) error {
	// First of all the record: namespaces without one belong to nobody.
	if err := n.register(dir); err != nil {
		return fmt.Errorf("record network: %w", err)
	}
	add := "netns add " + n.hub() + "\n"
	for _, m := range st.Members {
		add += "netns add " + n.namespace(m.Name) + "\n"
	}
	if _, err := runIn(ctx, "", add, "ip", "-batch", "-"); err != nil {
		return fmt.Errorf("make network: %w", err)
	}
	hub := "link set lo up\nlink add " + bridge + " address " + bridgeMAC + " type bridge\n" +
		"addr add " + hubAddress + prefixLength + " dev " + bridge + "\nlink set " + bridge + " up\n"
	for _, m := range st.Members {
		hub += n.plug(m.Name, n.namespace(m.Name))
	}
	if _, err := runIn(ctx, n.hub(), hub, "ip", "-batch", "-"); err != nil {
		return fmt.Errorf("make network: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range st.Members {
		g.Go(func() error { return n.address(ctx, n.namespace(m.Name), m.Host) })
	}
	return g.Wait()
}

// register makes the record, all at once: one without an owner would be taken for left over.
func (n *network) register(dir string) error {
	if err := os.MkdirAll(networkDir, 0o700); err != nil {
		return err
	}
	record, err := os.MkdirTemp(networkDir, ".new-")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(record, ownerFile), []byte(dir), 0o600); err != nil {
		return err
	}
	return os.Rename(record, n.record())
}

// plug returns the lines for ip that connect a namespace to the bridge; they are run in the hub.
func (n *network) plug(name, namespace string) string {
	return "link add " + name + " type veth peer name " + link + " netns " + namespace + "\n" +
		"link set " + name + " master " + bridge + "\nlink set " + name + " up\n"
}

// address gives a namespace that is plugged in its address.
func (n *network) address(ctx context.Context, namespace, host string) error {
	lines := "link set lo up\naddr add " + host + prefixLength + " dev " + link + "\nlink set " + link + " up\n"
	if _, err := runIn(ctx, namespace, lines, "ip", "-batch", "-"); err != nil {
		return fmt.Errorf("make network: %w", err)
	}
	return nil
}

// rejoin puts a member's link back on the bridge after a delay. Idempotent.
func (n *network) rejoin(ctx context.Context, name string) error {
	lines := "link del " + name + "-near\nlink set " + name + " arp on\nlink set " + name + " master " + bridge + "\n"
	// -force goes on after a link that is not there; what matters is checked.
	_, ferr := runIn(ctx, n.hub(), lines, "ip", "-force", "-batch", "-")
	out, err := runIn(ctx, n.hub(), "", "ip", "-o", "link", "show", "master", bridge)
	if err != nil {
		return err
	}
	if !strings.Contains(out, " "+name+"@") {
		return fmt.Errorf("put %s back on the bridge: %w", name, ferr)
	}
	return nil
}

// spaces returns the names of the network's namespaces that exist.
func (n *network) spaces() ([]string, error) {
	if n == nil {
		return nil, nil
	}
	all, err := namespaces()
	var ours []string
	for _, name := range all {
		if strings.HasPrefix(name, n.prefix()) {
			ours = append(ours, name)
		}
	}
	return ours, err
}

// remove deletes all namespaces, with the links, addresses and rules in them, and then the record.
// Idempotent; nil is no network.
func (n *network) remove(ctx context.Context) error {
	if n == nil {
		return nil
	}
	names, err := n.spaces()
	if err != nil {
		return fmt.Errorf("remove network: %w", err)
	}
	var del strings.Builder
	for _, name := range names {
		del.WriteString("netns del " + name + "\n")
	}
	if len(names) > 0 {
		// Somebody else may be at it as well: what counts is that they are gone.
		_, derr := runIn(ctx, "", del.String(), "ip", "-force", "-batch", "-")
		if left, err := n.spaces(); err != nil || len(left) > 0 {
			return fmt.Errorf("remove network: %w", errors.Join(derr, err))
		}
	}
	if err := os.RemoveAll(n.record()); err != nil {
		return fmt.Errorf("remove network's record: %w", err)
	}
	return nil
}

// spaceDialer opens connections from inside a namespace.
type spaceDialer struct{ namespace string }

var _ options.ContextDialer = spaceDialer{}

// DialContext implements options.ContextDialer.
func (d spaceDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return dialIn(ctx, d.namespace, network, address)
}

// Dialer returns what a client of this process needs to reach the servers at the addresses in URI:
// options.Client().ApplyURI(c.URI()).SetDialer(c.Dialer()). With Config.Network it opens the connections
// in the hub, beside the members and all client machines; faults of a member hit these connections
// as well. Otherwise it is a plain net.Dialer. It takes IP addresses only, with Config.Network.
func (c *Cluster) Dialer() options.ContextDialer {
	if n := c.network(); n != nil {
		return spaceDialer{namespace: n.hub()}
	}
	return &net.Dialer{}
}

// network is nil for a cluster on the loopback interface.
func (c *Cluster) network() *network {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st.Network
}
