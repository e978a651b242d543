// Package faultnet is a TCP proxy for tests that stands between a client and a server and breaks the
// network between them: silence in both directions or in one, and connections that are reset.
//
// It promises that no byte arrives damaged or out of order: what a fault swallowed never arrives, and
// a connection that lost bytes is reset when the network heals, as by a router that has forgotten it.
// While it is silent it tells neither side that the other has closed. It does not model delay,
// bandwidth, or half-closed connections: the end of one direction ends both.
package faultnet

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// chunk is how much one read takes: small enough that SilenceAfter stops in the middle of a command.
const chunk = 4 << 10

// mode is what the network does at present.
type mode uint8

const (
	healthy   mode = iota
	oneWay         // what the server sends is swallowed
	blackHole      // everything is swallowed
	cut            // nothing is connected
)

// Proxy forwards connections to one address. Safe for concurrent use. Whoever called Listen calls
// Close.
type Proxy struct {
	listener net.Listener
	target   string
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu.
	mode    mode
	quota   int64 // bytes to the server until the black hole opens; negative: it does not
	swallow int64
	links   map[*link]struct{}
	closed  bool
}

// Listen starts a proxy to target ("host:port") on a free port of the loopback interface. The context
// bounds the start alone. It dials target anew for every connection, so target need not be up yet.
func Listen(ctx context.Context, target string) (*Proxy, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for a proxy to %s: %w", target, err)
	}
	p := &Proxy{listener: l, target: target, quota: -1, links: make(map[*link]struct{})}
	// Connections outlive this call: they end with Close.
	ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.running.Go(func() { p.serve(ctx) })
	return p, nil
}

// Addr returns the address that clients connect to, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// BlackHole swallows everything that either side sends from now on. Nothing is closed, and new
// connections are accepted and silent.
func (p *Proxy) BlackHole() { p.set(blackHole, -1) }

// SilenceAfter opens the black hole when n more bytes have reached the server, over all connections:
// in the middle of a command that is longer. Until then everything passes.
func (p *Proxy) SilenceAfter(n int64) { p.set(healthy, n) }

// SwallowReplies swallows what the server sends from now on; what clients send still arrives.
func (p *Proxy) SwallowReplies() { p.set(oneWay, -1) }

// Cut resets all connections, and new ones as they come.
func (p *Proxy) Cut() { p.set(cut, -1) }

// Heal ends every fault. Connections that lost bytes, or an end, are reset; the others go on.
func (p *Proxy) Heal() { p.set(healthy, -1) }

// Swallowed returns how many bytes were swallowed up to now.
func (p *Proxy) Swallowed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallow
}

// Close resets all connections and waits for the proxy's goroutines. It is idempotent and returns nil.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.reset()
	}
	p.mu.Unlock()
	p.cancel()
	_ = p.listener.Close() // the second time it is closed already
	p.running.Wait()
	return nil
}

func (p *Proxy) set(m mode, quota int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.quota = m, quota
	for l := range p.links {
		if m == cut || l.broken && m == healthy {
			l.reset()
			delete(p.links, l)
		}
	}
}

// serve accepts connections until the listener closes.
func (p *Proxy) serve(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{client: client}
		if !p.add(l) {
			l.reset()
			continue
		}
		p.running.Go(func() { p.connect(ctx, l) })
	}
}

// add makes l known, unless the proxy takes no connections.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.mode == cut {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

// connect dials the server for l and forwards until either side ends.
func (p *Proxy) connect(ctx context.Context, l *link) {
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		p.ended(l)
		return
	}
	if !p.attach(l, server) {
		_ = server.Close()
		return
	}
	p.running.Go(func() { p.pump(l, l.client, server, true) })
	p.pump(l, server, l.client, false)
}

// attach gives l its server side, unless l was reset meanwhile.
func (p *Proxy) attach(l *link, server net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.links[l]; !ok || p.closed {
		return false
	}
	l.server = server
	return true
}

// pump forwards from one side of l to the other until one of them ends.
func (p *Proxy) pump(l *link, from, to net.Conn, toServer bool) {
	defer p.ended(l)
	buf := make([]byte, chunk)
	for {
		n, err := from.Read(buf)
		if pass := p.passes(l, n, toServer); pass > 0 {
			if _, err := to.Write(buf[:pass]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passes returns how many of the n bytes that were read on l pass now, and counts the others. One
// byte that is swallowed breaks the link: nothing may pass behind it.
func (p *Proxy) passes(l *link, n int, toServer bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	pass := n
	if toServer && p.quota >= 0 && p.mode == healthy {
		pass = int(min(p.quota, int64(n)))
		p.quota -= int64(pass)
		if pass < n {
			p.mode, p.quota = blackHole, -1
		}
	} else if p.mode == blackHole || p.mode == oneWay && !toServer {
		pass = 0
	}
	if pass < n {
		l.broken = true
		p.swallow += int64(n - pass)
	}
	return pass
}

// ended closes both sides of l after one of them ended; a silent network does not pass that on, so
// there it waits for Heal.
func (p *Proxy) ended(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (p.mode == blackHole || p.mode == oneWay) && !p.closed {
		l.broken = true
		return
	}
	l.reset()
	delete(p.links, l)
}

// link is one connection of a client and its other half. Guarded by the Proxy's mu, except that
// client never changes.
type link struct {
	client net.Conn
	server net.Conn // nil until it is dialled
	broken bool     // it lost bytes, or an end: Heal resets it
}

// reset closes both sides at once, without a polite end.
func (l *link) reset() {
	for _, c := range []net.Conn{l.client, l.server} {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // RST instead of FIN; it fails only on a closed connection
			_ = t.Close()
		}
	}
}
