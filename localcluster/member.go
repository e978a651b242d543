package localcluster

import (
	"path/filepath"
)

// Roles that a Member can have.
const (
	RolePrimary    = "primary"
	RoleSecondary  = "secondary"
	RoleStandalone = "standalone"
	// RoleNone: the member does not run, does not answer, or is neither primary nor secondary.
	RoleNone = "none"
)

// Member describes one server of a cluster at one moment.
type Member struct {
	// Name is "m0", "m1", "m2".
	Name string `json:"name"`
	// Addr is "127.0.0.1:port", and with Config.Network the address in the cluster's network. A member keeps
	// it when it is restarted.
	Addr string `json:"addr"`
	// Dir holds its data and its log, mongod.log.
	Dir string `json:"dir"`
	// PID is 0 when it does not run.
	PID int `json:"pid"`
	// Frozen: stopped by SIGSTOP. The kernel still accepts connections for it.
	Frozen bool `json:"frozen"`
	// Role is what the member said of itself; only Status asks, elsewhere it is "".
	Role string `json:"role,omitempty"`
}

// Running reports whether the member has a process, frozen or not.
func (m Member) Running() bool { return m.PID != 0 }

// Log returns the path of the member's log file.
func (m Member) Log() string { return filepath.Join(m.Dir, "mongod.log") }

func (m Member) dbpath() string { return filepath.Join(m.Dir, "data") }

// out receives what mongod writes before it opens its log: a missing library, a bad option.
func (m Member) out() string { return filepath.Join(m.Dir, "mongod.out") }
