// Package wire sends many commands of one kind over a connection of the MongoDB driver's without going
// through the driver each time.
//
// The driver dials, encrypts and authenticates connections, chooses servers, pools and monitors. Its price is some
// 90 µs of work per command on a 2 GHz core (as much as the server needs for a small insert), mostly for
// what does not change from one insert into a stream, or one getMore of a tail, to the next. A Line saves
// that: one ordinary command of the driver's is held open on its connection, and while it is, further
// commands of its kind go over the same connection, in its session. To the driver the whole is one
// command that takes its time.
//
// Only clean successes stay inside. The first reply that is anything else, and the first failure of the
// network, is handed to the driver as the outcome of the command that it waits for: so errors, the state
// of servers and pools, and cancellation are what they would be without this package.
//
// A Line comes about only where the driver's messages can be read: not over TLS, and not compressed.
package wire

import (
	"bytes"
	"context"
	"crypto/rand"
	"net"
	"sync"
	"sync/atomic"
)

// Contexter dials; it is the driver's options.ContextDialer.
type Contexter interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Dialer dials the driver's connections, and lets Hold find the one that a command was sent on. Set it
// with ClientOptions.SetDialer. Safe for concurrent use.
type Dialer struct {
	base    Contexter
	waiting atomic.Int32 // lines that have no connection yet

	mu    sync.Mutex
	lines map[string]*Line // by token
}

// NewDialer returns a Dialer over base; nil means net.Dialer.
func NewDialer(base Contexter) *Dialer {
	if base == nil {
		base = &net.Dialer{}
	}
	return &Dialer{base: base, lines: make(map[string]*Line)}
}

// DialContext implements options.ContextDialer.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	nc, err := d.base.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: nc, dialer: d}, nil
}

// expect registers a line that will be found by the token in a command.
func (d *Dialer) expect(l *Line) (token string) {
	token = "capstan-" + rand.Text()
	d.mu.Lock()
	d.lines[token] = l
	d.mu.Unlock()
	d.waiting.Add(1)
	return token
}

// forget ends the search for a line.
func (d *Dialer) forget(token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.lines[token]; ok {
		delete(d.lines, token)
		d.waiting.Add(-1)
	}
}

// match returns the line whose token is in a message that the driver sends, nil if there is none.
func (d *Dialer) match(message []byte) *Line {
	d.mu.Lock()
	defer d.mu.Unlock()
	for token, l := range d.lines {
		if bytes.Contains(message, []byte(token)) {
			delete(d.lines, token)
			d.waiting.Add(-1)
			return l
		}
	}
	return nil
}

// conn is one connection of the driver's.
type conn struct {
	net.Conn
	dialer *Dialer
	line   atomic.Pointer[Line] // that holds it
	rest   []byte               // of a reply that the line gave back; the driver's reader owns it
}

// Write sends what the driver sends, and looks whether it is the command of a line.
func (c *conn) Write(b []byte) (int, error) {
	if c.dialer.waiting.Load() > 0 {
		if l := c.dialer.match(b); l != nil && l.bind(c, b) {
			c.line.Store(l)
		}
	}
	return c.Conn.Write(b)
}

// Read gives the driver what the server sends, or what a line gives back when it ends.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		l := c.line.Load()
		if l == nil {
			return c.Conn.Read(p)
		}
		reply, err := l.hold()
		c.line.Store(nil)
		if err != nil {
			return 0, err
		}
		c.rest = reply
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Close closes the connection; a line that holds it ends.
func (c *conn) Close() error {
	if l := c.line.Load(); l != nil {
		l.giveBack(nil, net.ErrClosed)
	}
	return c.Conn.Close()
}
