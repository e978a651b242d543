package localcluster

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"
)

// Defaults and limits of Config.
const (
	DefaultMembers = 1
	// DefaultCacheMB is also the least that mongod accepts (0.25 GB).
	DefaultCacheMB = 256
	// DefaultOplogMB bounds the disk that a replica set takes; mongod's own default is 5 % of the disk.
	DefaultOplogMB = 1024
	// MinDiskMB is the least for a member's disk: the journal takes 100 MB at a time.
	MinDiskMB = 512
	// DefaultStartTimeout is generous: three members on two busy cores were writable after 3 to 8 s.
	DefaultStartTimeout = 2 * time.Minute
)

// Config says what to start. The zero Config is a standalone server in a temporary directory.
type Config struct {
	// Members is 1 (a standalone server, see Set) or 3 (a replica set of three voting data members);
	// 0 means DefaultMembers.
	Members int
	// Dir holds data, logs, keys and the state file. It is made if it is missing and kept by Down. ""
	// means a temporary directory that Down removes.
	Dir string
	// Mongod is the path of the binary; "" means what Find finds.
	Mongod string
	// Auth makes the servers demand credentials and creates a root user, whose credentials URI carries.
	Auth bool
	// TLS makes the servers demand TLS, with a certificate authority of their own; URI names its file.
	TLS bool
	// ServerDefaults keeps MongoDB's own election and replication timing (an outage of 11 to 25 s
	// after a lost primary) instead of the fast settings of this package (1.4 to 2.5 s).
	ServerDefaults bool
	// Detach lets the servers outlive the process that starts them; Open attaches to them again.
	Detach bool
	// CacheMB is the storage cache of each member; 0 means DefaultCacheMB, which is the least.
	CacheMB int
	// OplogMB is the size of each member's oplog in a replica set; 0 means DefaultOplogMB, and a
	// quarter of DiskMB if that is set.
	OplogMB int
	// ExtraArgs are given to every mongod last, for instance "--setParameter", "enableTestCommands=1".
	ExtraArgs []string
	// StartTimeout bounds Start together with its context; 0 means DefaultStartTimeout.
	StartTimeout time.Duration
	// Network gives the cluster a network of its own: every member is on a machine of its own, a network
	// namespace, joined by a bridge, and links can be cut (see Inject). Needs Linux and root, see
	// CheckNetwork. Clients in this process use Dialer; other programs run on a Machine.
	Network bool
	// DiskMB gives each member a disk of that size, in memory, so that it can be full; its data end with
	// the cluster then, also in a Dir that is kept. Needs Linux and root. 0 means the disk of this computer.
	DiskMB int
	// Set is the name of the replica set; "" means a random one, which no other program can take for its own. With one member, a name makes
	// it a replica set of one, which has an oplog, instead of a standalone server.
	Set string
	// Label says what the cluster is for. Temporary finds clusters by it, so that a command line tool
	// does not take a running test's cluster for its own. "" is a label, too.
	Label string
	// Logger receives starts, faults and stops; the zero Logger is silent.
	Logger zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Members == 0 {
		c.Members = DefaultMembers
	}
	if c.CacheMB == 0 {
		c.CacheMB = DefaultCacheMB
	}
	if c.OplogMB == 0 && c.DiskMB > 0 {
		c.OplogMB = max(1, c.DiskMB/4) // the disk is to be filled by the fault
	}
	if c.OplogMB == 0 {
		c.OplogMB = DefaultOplogMB
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = DefaultStartTimeout
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Members != 1 && c.Members != 3:
		return fmt.Errorf("localcluster: Members is %d: must be 1 or 3", c.Members)
	case c.CacheMB < DefaultCacheMB:
		return fmt.Errorf("localcluster: CacheMB is %d: mongod needs at least %d", c.CacheMB, DefaultCacheMB)
	case c.OplogMB < 1:
		return fmt.Errorf("localcluster: OplogMB is %d: must be positive", c.OplogMB)
	case c.DiskMB != 0 && c.DiskMB < MinDiskMB:
		return fmt.Errorf("localcluster: DiskMB is %d: mongod needs at least %d", c.DiskMB, MinDiskMB)
	case c.StartTimeout < 0:
		return fmt.Errorf("localcluster: StartTimeout is %v: must be positive", c.StartTimeout)
	}
	return nil
}
