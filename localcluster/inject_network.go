package localcluster

import (
	"context"
	"fmt"
	"strings"
)

// beginBlackhole drops what the member is sent on its port, what it answers, what it sends to other
// members and what these answer. No end of a connection learns of it.
func (c *Cluster) beginBlackhole(ctx context.Context, i *Injection) error {
	return i.cut(ctx, c.blackhole(i.member))
}

func (c *Cluster) blackhole(m Member) filter {
	drops := []string{fmt.Sprintf("tcp dport %d", networkPort), fmt.Sprintf("tcp sport %d", networkPort)}
	return filter{namespace: c.network().namespace(m.Name), in: drops, out: drops}
}

// beginLinkDown takes the member's own end of its link down, as when a cable is pulled.
func (c *Cluster) beginLinkDown(ctx context.Context, i *Injection) error {
	namespace := c.network().namespace(i.member.Name)
	set := func(ctx context.Context, to string) error {
		_, err := runIn(ctx, namespace, "", "ip", "link", "set", link, to)
		return err
	}
	i.undoes(func(ctx context.Context) error { return set(ctx, "up") })
	return i.takes(func() error { return set(ctx, "down") })
}

// beginClientCut cuts the client machines off from the member, and from nothing else. The set does
// not notice.
func (c *Cluster) beginClientCut(ctx context.Context, i *Injection) error {
	return i.cut(ctx, between(c.network().namespace(i.member.Name), addresses(i.o.Clients)))
}

// beginIsolate leaves the member and the client machines on one side and the other members on the
// other one. It is done on the other side, where two filters do it for any number of clients.
func (c *Cluster) beginIsolate(ctx context.Context, i *Injection) error {
	c.mu.Lock()
	members, n := c.st.Members, c.st.Network
	c.mu.Unlock()
	this := addresses(i.o.Clients)
	var filters []filter
	for _, m := range members {
		if m.Name == i.member.Name {
			this = append(this, m.Host)
		}
	}
	for _, m := range members {
		if m.Name != i.member.Name {
			filters = append(filters, between(n.namespace(m.Name), this))
		}
	}
	return i.cut(ctx, filters...)
}

// beginOneWayOut lets the member hear and not be heard; beginOneWayIn is the reverse.
func (c *Cluster) beginOneWayOut(ctx context.Context, i *Injection) error {
	return i.cut(ctx, filter{namespace: c.network().namespace(i.member.Name), out: []string{"meta l4proto tcp"}})
}

func (c *Cluster) beginOneWayIn(ctx context.Context, i *Injection) error {
	return i.cut(ctx, filter{namespace: c.network().namespace(i.member.Name), in: []string{"meta l4proto tcp"}})
}

// between drops everything between the owner of a namespace and some addresses.
func between(namespace string, addrs []string) filter {
	set := "{ " + strings.Join(addrs, ", ") + " }"
	return filter{namespace: namespace, in: []string{"ip saddr " + set}, out: []string{"ip daddr " + set}}
}

func addresses(machines []*Machine) []string {
	addrs := make([]string, len(machines))
	for i, m := range machines {
		addrs[i] = m.addr
	}
	return addrs
}
