package localcluster

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Timing of the fault "flap": a cut that an election follows and one that hardly lets it end.
const (
	flapCut  = 1500 * time.Millisecond
	flapHeal = 1500 * time.Millisecond
)

// beginBlackhole drops what the member is sent on its port, what it answers, what it sends to other
// members and what these answer. No end of a connection learns of it.
func (c *Cluster) beginBlackhole(ctx context.Context, i *Injection) error {
	_, err := i.cut(ctx, c.blackhole(i.member))
	return err
}

func (c *Cluster) blackhole(m Member) table {
	drops := []string{fmt.Sprintf("tcp dport %d", networkPort), fmt.Sprintf("tcp sport %d", networkPort)}
	return filter(c.network().namespace(m.Name), drops, drops)
}

// beginFlap cuts the member off and lets it back, again and again.
func (c *Cluster) beginFlap(ctx context.Context, i *Injection) error {
	ts, err := i.cut(ctx, c.blackhole(i.member))
	if err != nil {
		return err
	}
	return i.steps(ctx, func(ctx context.Context) error {
		for n := range i.o.Flaps {
			if n > 0 {
				if err := ts.install(ctx); err != nil {
					return err
				}
			}
			if err := pause(ctx, flapCut); err != nil {
				return err
			}
			if err := ts.remove(ctx); err != nil {
				return err
			}
			if err := pause(ctx, flapHeal); err != nil {
				return err
			}
		}
		return nil
	})
}

// pause waits for d, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// beginLoss drops packets at random, at the receiving end, as a bad line does: dropped by the sender's
// own filter, a packet would be sent again at once. What the member sends is received in the hub.
func (c *Cluster) beginLoss(ctx context.Context, i *Injection) error {
	const parts = 1_000_000
	drop := fmt.Sprintf("numgen random mod %d < %d", parts, int(i.o.Loss*parts))
	n := c.network()
	_, err := i.cut(ctx, filter(n.namespace(i.member.Name), []string{drop}, nil), table{namespace: n.hub(), family: "netdev",
		body: fmt.Sprintf("\tchain ingress {\n\t\ttype filter hook ingress device %q priority 0; policy accept;\n\t\t%s drop\n\t}\n", i.member.Name, drop)})
	return err
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
	_, err := i.cut(ctx, between(c.network().namespace(i.member.Name), addresses(i.o.Clients)))
	return err
}

// beginIsolate leaves the member and the client machines on one side and the other members on the
// other one. It is done on the other side, where two filters do it for any number of clients.
func (c *Cluster) beginIsolate(ctx context.Context, i *Injection) error {
	c.mu.Lock()
	members, n := c.st.Members, c.st.Network
	c.mu.Unlock()
	this := addresses(i.o.Clients)
	var filters []table
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
	_, err := i.cut(ctx, filters...)
	return err
}

// beginOneWayOut lets the member hear and not be heard; beginOneWayIn is the reverse.
func (c *Cluster) beginOneWayOut(ctx context.Context, i *Injection) error {
	_, err := i.cut(ctx, filter(c.network().namespace(i.member.Name), nil, []string{"meta l4proto tcp"}))
	return err
}

func (c *Cluster) beginOneWayIn(ctx context.Context, i *Injection) error {
	_, err := i.cut(ctx, filter(c.network().namespace(i.member.Name), []string{"meta l4proto tcp"}, nil))
	return err
}

// between drops everything between the owner of a namespace and some addresses.
func between(namespace string, addrs []string) table {
	set := "{ " + strings.Join(addrs, ", ") + " }"
	return filter(namespace, []string{"ip saddr " + set}, []string{"ip daddr " + set})
}

func addresses(machines []*Machine) []string {
	addrs := make([]string, len(machines))
	for i, m := range machines {
		addrs[i] = m.addr
	}
	return addrs
}
