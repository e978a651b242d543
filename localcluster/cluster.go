// Package localcluster starts real MongoDB servers on this machine, one or a replica set of three,
// and breaks them on purpose: kill, freeze, stop, step down.
//
// It promises that Start returns only when a primary accepts majority writes, that no server
// outlives the process that started it (even by kill -9) unless Config.Detach asks for that, and
// that a signal never reaches a process that is not a mongod on the cluster's own data directory.
// It does not promise durability, security or speed: it is for tests, demonstrations and
// experiments. Servers listen on the loopback interface only.
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
