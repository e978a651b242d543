package failover

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Profile names a set of settings that belong together: how long the client waits, and which settings
// of the replica set it is made for. A short wait on a set that takes ten seconds to notice a dead
// primary gains nothing, and a long one on a fast set gives away what the set could do.
type Profile string

// The profiles.
const (
	// ProfileDefault is for a replica set with MongoDB's own settings.
	ProfileDefault Profile = "default"
	// ProfileFast is for a replica set that is configured to elect within a few seconds.
	ProfileFast Profile = "fast"
)

// Profiles returns the valid profiles.
func Profiles() []Profile { return []Profile{ProfileDefault, ProfileFast} }

// Settings are what a Profile stands for.
type Settings struct {
	// AttemptTimeout and Budget are what Config's fields of that name are unless they are set.
	AttemptTimeout time.Duration
	Budget         time.Duration
	// ConnectTimeout, ServerSelectionTimeout and HeartbeatInterval are options of the driver's client. The
	// first two follow Config.AttemptTimeout where that is longer or, for the second, shorter. None of them is
	// ever 0, which the driver takes for "no limit". HeartbeatInterval is the least that the driver accepts.
	ConnectTimeout         time.Duration
	ServerSelectionTimeout time.Duration
	HeartbeatInterval      time.Duration
	// Server says which settings of the replica set the profile is made for. The layer does not check them.
	Server ServerSettings
	// Outage says in a sentence or two how long writes are away when a primary fails, and why.
	Outage string
}

// ServerSettings are settings of a replica set.
type ServerSettings struct {
	// ElectionTimeout and HeartbeatInterval are electionTimeoutMillis and heartbeatIntervalMillis of the
	// set's configuration. The second is at most a quarter of the first: otherwise members stand for
	// election that need not.
	ElectionTimeout   time.Duration
	HeartbeatInterval time.Duration
	// OplogNetworkTimeoutBuffer and FetcherRestarts are the server parameters oplogNetworkTimeoutBufferSeconds
	// and oplogFetcherSteadyStateMaxFetcherRestarts: how long a secondary clings to a dead source, during
	// which the majority acknowledges nothing although a new primary is there.
	OplogNetworkTimeoutBuffer time.Duration
	FetcherRestarts           int
	// CatchUpTimeout is catchUpTimeoutMillis of the set's configuration: how long a new primary waits for a word
	// of every member, a silent one among them, before it takes writes. Negative: until that member counts as
	// down.
	CatchUpTimeout time.Duration
}

// heartbeatInterval is how often the client asks each server how it is, and the least that the driver
// accepts. A silent member is known as such after this plus the connect timeout.
const heartbeatInterval = 500 * time.Millisecond

// connectTimeout bounds making a connection, at least. It is not part of an attempt: the driver makes
// connections beside the calls that wait for them, and a call ends by its own deadline. Three round trips
// (TCP, hello, authentication) must fit on a link that is slow; with 500 ms, 200 ms of delay on the way
// to the primary were an outage for as long as they lasted.
const connectTimeout = 2 * time.Second

// Settings returns what p stands for; "" is ProfileDefault. An unknown profile has zero Settings, and New
// refuses it.
func (p Profile) Settings() Settings {
	switch p {
	case "", ProfileDefault:
		return Settings{
			AttemptTimeout: DefaultAttemptTimeout, Budget: DefaultBudget,
			ConnectTimeout: connectTimeout, ServerSelectionTimeout: DefaultAttemptTimeout, HeartbeatInterval: heartbeatInterval,
			Server: ServerSettings{ElectionTimeout: 10 * time.Second, HeartbeatInterval: 2 * time.Second, OplogNetworkTimeoutBuffer: 5 * time.Second, FetcherRestarts: 1, CatchUpTimeout: -1},
			Outage: "A step-down costs about 1 s, a primary that is killed 11 to 12 s, one that is frozen or cut off 12 to 25 s, mostly 18 s: " +
				"10 s until an election, and up to 7 s more in which the other secondary still reads from the dead member " +
				"(measured on mongod 6.0.5).",
		}
	case ProfileFast:
		const attempt = 500 * time.Millisecond
		return Settings{
			AttemptTimeout: attempt, Budget: DefaultBudget,
			ConnectTimeout: connectTimeout, ServerSelectionTimeout: attempt, HeartbeatInterval: heartbeatInterval,
			Server: ServerSettings{ElectionTimeout: time.Second, HeartbeatInterval: 250 * time.Millisecond, OplogNetworkTimeoutBuffer: time.Second, FetcherRestarts: 0, CatchUpTimeout: 250 * time.Millisecond},
			Outage: "A step-down costs about 0.7 s, a primary that is killed, frozen or cut off 1.4 to 2.5 s: 1 to 1.2 s until an " +
				"election, 0.3 s until the new primary takes writes, and up to 1 s until the other secondary has left the dead " +
				"member (measured on mongod 6.0.5). An overloaded machine multiplies this, and then elects without need.",
		}
	}
	return Settings{}
}

func (p Profile) validate() error {
	if p == "" || slices.Contains(Profiles(), p) {
		return nil
	}
	names := make([]string, 0, len(Profiles()))
	for _, p := range Profiles() {
		names = append(names, string(p))
	}
	return fmt.Errorf("field Profile is %q; it must be one of: %s", string(p), strings.Join(names, ", "))
}
