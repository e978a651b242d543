package localcluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Names of the files in a cluster's directory.
const (
	stateFile  = "cluster.json"
	lockFile   = "owner.lock"
	keyFile    = "keyfile"
	caFile     = "ca.pem"
	serverFile = "server.pem"
)

// stateVersion changes when an older program could not read the file.
const stateVersion = 1

// state is what another process needs to work with a cluster, stored as JSON in its directory. It
// holds no pid: mongod itself keeps one in its lock file, and that is the one that cannot go stale
// unnoticed (see member processes in process.go).
type state struct {
	Version int `json:"version"`
	// Set is the replica set's name, "" for a standalone. It is random: ports are used again, and a
	// driver or member that meets a foreign server on a known port must not take it for one of its own.
	Set            string        `json:"set,omitempty"`
	Members        []memberState `json:"members"`
	Mongod         string        `json:"mongod"`
	User           string        `json:"user,omitempty"`
	Password       string        `json:"password,omitempty"`
	TLS            bool          `json:"tls,omitempty"`
	ServerDefaults bool          `json:"server_defaults,omitempty"`
	CacheMB        int           `json:"cache_mb"`
	OplogMB        int           `json:"oplog_mb"`
	ExtraArgs      []string      `json:"extra_args,omitempty"`
	// Network is nil for a cluster on the loopback interface.
	Network *network `json:"network,omitempty"`
	// DiskMB is the size of each member's disk in memory; 0 is a directory.
	DiskMB int  `json:"disk_mb,omitempty"`
	Detach bool `json:"detach,omitempty"`
	// Temporary: Start made the directory, so Down removes it.
	Temporary bool   `json:"temporary,omitempty"`
	Label     string `json:"label,omitempty"`
	// Control is where the owning process listens for requests of others; "" when detached.
	Control      string `json:"control,omitempty"`
	ControlToken string `json:"control_token,omitempty"`
}

type memberState struct {
	Name string `json:"name"`
	// Host is an address in the cluster's network; "" is the loopback interface of this computer.
	Host string `json:"host,omitempty"`
	Port int    `json:"port"`
}

// loopback is an address of this computer, and one in each namespace of a network.
const loopback = "127.0.0.1"

func (m memberState) addr() string {
	return net.JoinHostPort(cmp.Or(m.Host, loopback), strconv.Itoa(m.Port))
}

// loadState returns fs.ErrNotExist (wrapped) when dir holds no cluster.
func loadState(dir string) (state, error) {
	var st state
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(b, &st); err != nil {
		return st, fmt.Errorf("read %s: %w", filepath.Join(dir, stateFile), err)
	}
	if st.Version != stateVersion {
		return st, fmt.Errorf("read %s: version %d is not %d: made by another version of capstan",
			filepath.Join(dir, stateFile), st.Version, stateVersion)
	}
	return st, nil
}

// save replaces the state file as a whole, so that a reader never sees half of one. Only its owner
// may read it: it holds the root password.
func (st state) save(dir string) error {
	b, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("encode cluster state: %w", err)
	}
	f, err := os.CreateTemp(dir, stateFile+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write cluster state: %w", err)
	}
	_, werr := f.Write(append(b, '\n'))
	if err := errors.Join(werr, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write cluster state: %w", err), os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), filepath.Join(dir, stateFile))
}

// uri returns the connection string for the given members, with credentials and TLS options.
func (st state) uri(dir string, members []memberState, params url.Values) string {
	hosts := make([]string, len(members))
	for i, m := range members {
		hosts[i] = m.addr()
	}
	u := url.URL{Scheme: "mongodb", Host: strings.Join(hosts, ","), Path: "/"}
	q := url.Values{}
	for k, v := range params {
		q[k] = v
	}
	if st.User != "" {
		u.User = url.UserPassword(st.User, st.Password)
		q.Set("authSource", "admin")
	}
	if st.TLS {
		q.Set("tls", "true")
		q.Set("tlsCAFile", filepath.Join(dir, caFile))
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// matches reports how cfg differs from a cluster that already lives in its directory.
func (st state) matches(cfg Config) error {
	differs := func(what string, have, want any) error {
		return fmt.Errorf("the directory holds a cluster with %s %v and not %v: ask for the same, or use another directory", what, have, want)
	}
	switch {
	case len(st.Members) != cfg.Members:
		return differs("members", len(st.Members), cfg.Members)
	case (st.User != "") != cfg.Auth:
		return differs("auth", st.User != "", cfg.Auth)
	case st.TLS != cfg.TLS:
		return differs("tls", st.TLS, cfg.TLS)
	case st.ServerDefaults != cfg.ServerDefaults:
		return differs("server defaults", st.ServerDefaults, cfg.ServerDefaults)
	case (st.Network != nil) != cfg.Network:
		return differs("network", st.Network != nil, cfg.Network)
	case (st.DiskMB > 0) != (cfg.DiskMB > 0):
		return differs("disks in memory", st.DiskMB > 0, cfg.DiskMB > 0)
	case cfg.Set != "" && st.Set != cfg.Set:
		return differs("set", st.Set, cfg.Set)
	}
	return nil
}

func isNoState(err error) bool { return errors.Is(err, fs.ErrNotExist) }
