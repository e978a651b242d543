package faultnet

import (
	"context"
	"fmt"
	"net"
)

// Switchboard is a dialer that reaches each of several servers through a proxy of its own. It is for
// clients that learn the addresses of servers from one another, as those of a replica set do: the
// addresses stay, and every connection goes through. Safe for concurrent use.
type Switchboard struct {
	proxies map[string]*Proxy
}

// Connect starts a proxy to each target ("host:port"). The context bounds the start alone. Whoever
// called it calls Close.
func Connect(ctx context.Context, targets ...string) (*Switchboard, error) {
	b := &Switchboard{proxies: make(map[string]*Proxy, len(targets))}
	for _, target := range targets {
		p, err := Listen(ctx, target)
		if err != nil {
			_ = b.Close()
			return nil, err
		}
		b.proxies[target] = p
	}
	return b, nil
}

// DialContext connects to the proxy to addr, which must be one of the targets, as net.Dialer does.
func (b *Switchboard) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	p, ok := b.proxies[addr]
	if !ok {
		return nil, fmt.Errorf("dial %s: no proxy to it", addr)
	}
	return new(net.Dialer).DialContext(ctx, network, p.Addr())
}

// To returns the proxy to target, nil if there is none.
func (b *Switchboard) To(target string) *Proxy { return b.proxies[target] }

// Heal ends every fault of every proxy.
func (b *Switchboard) Heal() {
	for _, p := range b.proxies {
		p.Heal()
	}
}

// Close closes every proxy. It is idempotent and returns nil.
func (b *Switchboard) Close() error {
	for _, p := range b.proxies {
		_ = p.Close() // returns nil
	}
	return nil
}
