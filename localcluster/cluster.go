// Package localcluster starts real MongoDB servers on this machine, one or a replica set of three,
// and breaks them on purpose: it kills, freezes and stops them, cuts, slows and thins out what they
// say to each other and to clients, and fills their disks (Inject; Faults lists all).
//
// It promises that Start returns only when a primary accepts majority writes, that no server
// outlives the process that started it (even by kill -9) unless Config.Detach asks for that, and
// that a signal never reaches a process that is not a mongod on the cluster's own data directory.
// It does not promise durability, security or speed: it is for tests, demonstrations and
// experiments. Servers listen on the loopback interface only, or in a network of their own.
//
// # Networks
//
// Processes on the loopback interface cannot be cut off from each other as computers can. With
// Config.Network (Linux, root) every member is in a network namespace of its own, and so is every
// client machine (Machine); one more namespace, the hub, holds the bridge between them. In the host's
// own namespace nothing is made: no bridge, no address, no rule. So no packet can leak, all
// clusters use the same addresses (198.18.0.0/24, from the range that RFC 2544 keeps for tests), and
// removing the namespaces undoes everything. Config.DiskMB gives each member a disk in memory.
//
// This process reaches the servers by dialers that open their sockets inside a namespace: Dialer and
// Machine.Dialer. What the cluster itself asks a member, it asks over the loopback interface of the
// member's namespace, which no fault cuts, so that Status tells the truth of a member that nobody else
// can reach.
//
// Down removes it all. What an owner leaves that was killed is removed by Repair and by the next Start
// of such a cluster: namespaces are named after their cluster (capstan-ID-hub, -m0, -c-NAME),
// /run/capstan/ID tells its directory, and the lock there tells whether the owner lives.
package localcluster

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rs/zerolog"
)

// ErrRunning says that the servers of a directory already run; Open attaches to them.
var ErrRunning = errors.New("a cluster already runs in this directory")

// ErrNotFound says that a directory holds no cluster.
var ErrNotFound = errors.New("no cluster in this directory")

// Cluster is a set of servers in one directory. Safe for concurrent use. Whoever started it calls
// Down.
type Cluster struct {
	dir string
	log zerolog.Logger

	// owner: this process started the servers and they end with it. lock and control are set then.
	owner   bool
	lock    *os.File
	control *controlServer
	spawn   *spawner

	done chan struct{} // closed by Down

	mu       sync.Mutex
	st       state
	children []*child // all that this process has started, ended ones too
	down     bool
	// injections are the faults in force that this process has injected.
	injections []*Injection
}

// Open attaches to the cluster in dir that another process started, or that was started detached.
// It does no network I/O. The error wraps ErrNotFound if dir holds no cluster; that its servers do
// not run is no error.
func Open(dir string) (*Cluster, error) {
	dir, err := realDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open cluster: %w: %w", ErrNotFound, err)
	}
	st, err := loadState(dir)
	if isNoState(err) {
		return nil, fmt.Errorf("open cluster in %s: %w", dir, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return &Cluster{dir: dir, st: st, done: make(chan struct{}), spawn: newSpawner(false)}, nil
}

// realDir makes dir absolute and free of links: it becomes part of the servers' command lines, by
// which they are found again.
func realDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// URI returns the connection string of the cluster, with credentials and TLS options where it has
// them. It is a secret then, if only of this machine.
func (c *Cluster) URI() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	params := url.Values{}
	if c.st.Set != "" {
		params.Set("replicaSet", c.st.Set)
	}
	return c.st.uri(c.dir, c.st.Members, params)
}

// MemberURI returns a connection string for one member alone, by name.
func (c *Cluster) MemberURI(name string) (string, error) {
	m, err := c.memberState(name)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st.uri(c.dir, []memberState{m}, url.Values{"directConnection": {"true"}}), nil
}

func (c *Cluster) memberState(name string) (memberState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.st.Members {
		if m.Name == name {
			return m, nil
		}
	}
	return memberState{}, fmt.Errorf("no member %q in this cluster", name)
}

// Dir returns the absolute path of the cluster's directory.
func (c *Cluster) Dir() string { return c.dir }

// Done returns a channel that is closed once the cluster is down, also when another process asked
// for that.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Members returns the members and the state of their processes; their Role is "". It asks the
// kernel only and does not block on a silent server.
func (c *Cluster) Members() []Member {
	c.mu.Lock()
	states := slices.Clone(c.st.Members)
	c.mu.Unlock()
	members := make([]Member, len(states))
	for i, s := range states {
		members[i] = c.member(s)
	}
	return members
}

// member looks at the process of one member.
func (c *Cluster) member(s memberState) Member {
	m := Member{Name: s.Name, Addr: s.addr(), Dir: filepath.Join(c.dir, s.Name)}
	if srv, err := findServer(m.dbpath()); err == nil {
		m.PID, m.Frozen = srv.proc.Pid, srv.frozen()
		srv.release()
	}
	return m
}
