package localcluster

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Operations that another process may ask of a cluster's owner.
const (
	opStart = "start"
	opDown  = "down"
)

// request is one line of JSON; the answer is one line too.
type request struct {
	Token  string `json:"token"`
	Op     string `json:"op"`
	Member string `json:"member,omitempty"`
}

type answer struct {
	Error string `json:"error,omitempty"`
}

// controlServer lets other processes ask the owner to start a member or to take the cluster down. Only the
// owner can do the first: a server ends with the process that started it. It listens on the
// loopback interface (a socket file's path would be too long in many temporary directories) and
// answers only those who can read the state file.
type controlServer struct {
	l     net.Listener
	token string
	wg    sync.WaitGroup
}

// listenForOthers starts the control server and puts its address into the state.
func (c *Cluster) listenForOthers(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for requests: %w", err)
	}
	s := &controlServer{l: l, token: randomHex(16)}
	c.control = s
	c.mu.Lock()
	c.st.Control, c.st.ControlToken = l.Addr().String(), s.token
	c.mu.Unlock()
	life := context.WithoutCancel(ctx) // ctx bounds the start only
	s.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.wg.Go(func() { c.serve(life, conn) })
			}
		}
	})
	return nil
}

// close ends the server and waits for requests that are being served.
func (s *controlServer) close() {
	_ = s.l.Close() // only what we opened: nothing to lose
	s.wg.Wait()
}

// serve answers one request. Whoever connects without the token gets no answer.
func (c *Cluster) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, DefaultStartTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var r request
	if conn.SetReadDeadline(time.Now().Add(askTimeout)) != nil || json.NewDecoder(conn).Decode(&r) != nil ||
		subtle.ConstantTimeCompare([]byte(r.Token), []byte(c.control.token)) != 1 {
		return
	}
	var a answer
	switch r.Op {
	case opStart:
		if _, err := c.Start(ctx, r.Member); err != nil {
			a.Error = err.Error()
		}
	case opDown:
		// Not waited for here: Down waits for this very request. Whoever asked waits for the
		// directory's lock.
		go func() { _ = c.Down(context.WithoutCancel(ctx)) }()
	default:
		a.Error = fmt.Sprintf("unknown operation %q", r.Op)
	}
	if conn.SetWriteDeadline(deadline) == nil {
		_ = json.NewEncoder(conn).Encode(a) // the other side may be gone
	}
}

// request asks the owner for something and waits for its answer.
func (c *Cluster) request(ctx context.Context, r request) error {
	c.mu.Lock()
	addr := c.st.Control
	r.Token = c.st.ControlToken
	c.mu.Unlock()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // unblocks the read
	defer stop()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	var a answer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return fmt.Errorf("read answer: %w", errors.Join(context.Cause(ctx), err))
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	return nil
}
