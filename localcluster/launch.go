package localcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
)

// Ports are chosen at random from a range below Linux's range for outgoing connections (32768 and
// up, see ip(7)). A port that the kernel hands out for "port 0" lies inside of that range, and any
// outgoing connection may take it while its member is down; the member could not come back then.
const (
	firstPort = 20000
	lastPort  = 32767
)

// portAttempts bounds the tries to find a port that nobody takes between our look and the server's bind.
const portAttempts = 20

// portPatience is how long a restart waits for its own old port.
const portPatience = 10 * time.Second

// quiesce is the time between a member's step-down and its end after SIGTERM.
const quiesce = time.Second

// exitPortTaken is mongod's exit code when it cannot bind its port (EXIT_NET_ERROR), as seen on 6.0.5.
const exitPortTaken = 48

var errPortTaken = errors.New("port is taken by another program")

// startMember starts the member with the given index and returns when it listens. A member without
// a port gets one; a standalone whose old port is taken gets a new one; a member of a set cannot
// move, as the set's configuration names its port.
func (c *Cluster) startMember(ctx context.Context, index int) error {
	c.mu.Lock()
	m, fixed := c.st.Members[index], c.st.Set != "" && c.st.Members[index].Port != 0
	c.mu.Unlock()
	if fixed {
		return c.restartMember(ctx, m)
	}
	var err error
	for range portAttempts {
		if m.Port == 0 {
			if m.Port, err = c.claimPort(ctx, index); err != nil {
				return err
			}
		}
		if err = c.launch(ctx, m); err == nil {
			return c.saveState() // another process may look for the new port
		}
		if !errors.Is(err, errPortTaken) {
			return err
		}
		m.Port = 0
	}
	return err
}

func (c *Cluster) saveState() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st.save(c.dir)
}

// restartMember starts a member on the port that it had before, and waits a little for that port.
func (c *Cluster) restartMember(ctx context.Context, m memberState) error {
	patience, cancel := context.WithTimeout(ctx, portPatience)
	defer cancel()
	loop := retry.New(retry.Policy{Initial: 100 * time.Millisecond, Max: 500 * time.Millisecond})
	for {
		err := c.launch(ctx, m)
		if !errors.Is(err, errPortTaken) {
			return err
		}
		if loop.Wait(patience, nil) != nil {
			return err
		}
	}
}

// claimPort picks a port that is free now and that no other member of this cluster has.
func (c *Cluster) claimPort(ctx context.Context, index int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st.Network != nil { // nobody else is on the member's machine
		c.st.Members[index].Port = networkPort
		return networkPort, nil
	}
	var lc net.ListenConfig
	var last error
next:
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		for _, m := range c.st.Members {
			if m.Port == port {
				continue next
			}
		}
		l, err := lc.Listen(ctx, "tcp", memberState{Port: port}.addr())
		if err != nil {
			last = err
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		c.st.Members[index].Port = port
		return port, nil
	}
	return 0, fmt.Errorf("find a free port: %w", last)
}

// args returns the command line of a member.
func (st state) args(dir string, m Member, host string, port int) []string {
	host = cmp.Or(host, loopback)
	args := []string{
		"--dbpath", m.dbpath(), // in this form and order: processes are recognised by it
		"--port", strconv.Itoa(port),
		"--bind_ip", strings.Join(slices.Compact([]string{loopback, host}), ","), "--nounixsocket",
		"--logpath", m.Log(), "--logappend",
		"--wiredTigerCacheSizeGB", strconv.FormatFloat(float64(st.CacheMB)/1024, 'f', 2, 64),
	}
	if st.Set != "" {
		args = append(args, "--replSet", st.Set, "--oplogSize", strconv.Itoa(st.OplogMB))
	}
	if st.User != "" {
		if st.Set != "" {
			args = append(args, "--keyFile", filepath.Join(dir, keyFile))
		} else {
			args = append(args, "--auth")
		}
	}
	if st.TLS {
		args = append(args, "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", filepath.Join(dir, serverFile),
			"--tlsCAFile", filepath.Join(dir, caFile), "--tlsAllowConnectionsWithoutCertificates")
	}
	if !st.ServerDefaults {
		// Once a second the server records its own diagnostics: on a small machine that costs more
		// than an idle stream.
		args = append(args, "--setParameter", "diagnosticDataCollectionEnabled=false")
		if st.Set != "" {
			// A secondary that reads the oplog from a primary which falls silent (frozen, cut off)
			// notices after half an election timeout + 5 s, tries the same member once more (7 s), and
			// only then lets go; until then no majority write is acknowledged although the new primary
			// stands. With these two, 8 of 9 such outages took 2.6 to 3.8 s instead of 17 s.
			args = append(args, "--setParameter", "oplogNetworkTimeoutBufferSeconds=1",
				"--setParameter", "oplogFetcherSteadyStateMaxFetcherRestarts=0",
				// After SIGTERM and its step-down, a member waits 15 s more for its clients to go. They
				// are told at once and need milliseconds on one machine.
				"--setParameter", "shutdownTimeoutMillisForSignaledShutdown="+strconv.FormatInt(quiesce.Milliseconds(), 10))
		}
	}
	return append(args, st.ExtraArgs...)
}

// launch starts one server and returns when it listens on its port. That is read from its own log:
// a connection that succeeds could have reached another program which took the port first.
func (c *Cluster) launch(ctx context.Context, ms memberState) error {
	m := c.member(ms)
	if m.Running() {
		return nil
	}
	if err := os.MkdirAll(m.dbpath(), 0o700); err != nil {
		return err
	}
	out, err := os.Create(m.out())
	if err != nil {
		return err
	}
	defer out.Close()
	offset := fileSize(m.Log())
	child, err := c.spawnMember(ctx, m, ms, out)
	if err != nil {
		return fmt.Errorf("start %s: %w", m.Name, err)
	}
	err = waitFor(ctx, m.Name+" to listen", func() error {
		if !child.running() || logHas(m.Log(), offset, logListening) {
			return nil
		}
		return errors.New("it does not listen yet")
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w; %s", err, quoteLog(m.Log(), offset, m.out()))
	case child.running():
		c.log.Debug().Str("member", m.Name).Int("port", ms.Port).Int("pid", child.cmd.Process.Pid).Msg("member listens")
		return nil
	case child.exitCode() == exitPortTaken:
		return fmt.Errorf("start %s: %w: %d", m.Name, errPortTaken, ms.Port)
	}
	return fmt.Errorf("start %s: mongod ended with %q; %s", m.Name, child.cmd.ProcessState, quoteLog(m.Log(), offset, m.out()))
}

func (c *Cluster) spawnMember(ctx context.Context, m Member, ms memberState, out *os.File) (*child, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return nil, errors.New("the cluster is down")
	}
	// The server outlives the call that starts it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.st.Mongod, c.st.args(c.dir, m, ms.Host, ms.Port)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.Dir, out, out
	cmd.SysProcAttr = processAttr(c.st.Detach)
	var namespace string
	if c.st.Network != nil {
		namespace = c.st.Network.namespace(m.Name)
	}
	child, err := c.spawn.start(cmd, namespace)
	if err == nil {
		c.children = append(c.children, child)
	}
	return child, err
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// quoteLogs returns the last words of all members.
func (c *Cluster) quoteLogs() string {
	var s string
	for _, m := range c.Members() {
		s += fmt.Sprintf("%s (%s): %s\n", m.Name, m.Addr, quoteLog(m.Log(), 0, m.out()))
	}
	return s
}
