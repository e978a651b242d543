package failover

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"
)

// Defaults and limits of Config.
const (
	// DefaultAttemptTimeout: an attempt on a healthy set takes milliseconds. Two seconds let a loaded
	// one finish, and are about what an election at electionTimeoutMillis 1000 takes anyway.
	DefaultAttemptTimeout = 2 * time.Second
	// DefaultBudget is an operator's patience and not an election's length (25 s at most with MongoDB's own
	// settings, measured on mongod 6.0.5): until then someone may restart a host or mend a cable. On a stream that
	// rolls over faster, the eviction rule ends a call earlier.
	DefaultBudget = 5 * time.Minute
	// MinAttemptTimeout is the least that Config accepts: below it, busy machines time out when idle.
	MinAttemptTimeout = 50 * time.Millisecond
)

// WriteConcern says when a document counts as written.
type WriteConcern uint8

// The write concerns.
const (
	// Majority: when most members of the replica set have it, so that no election takes it away. On a
	// standalone server, where there is no majority, as One.
	Majority WriteConcern = iota
	// One: when the primary has it. An election can take an acknowledged message away, so I1 does not
	// hold; for measuring, and for tests that must see the loss.
	One
)

// Config configures a Layer. The zero Config is valid.
type Config struct {
	// Profile is the set of settings that the fields below have unless they are set; "" means
	// ProfileDefault. Choose it by the settings of the replica set: see Profile.Settings.
	Profile Profile
	// AttemptTimeout bounds one attempt, and one read that resolves an unknown outcome: finding the
	// server, connecting, sending, waiting for the majority. 0 means the profile's; the least is
	// MinAttemptTimeout. It is also how long a silent member goes unnoticed.
	AttemptTimeout time.Duration
	// Budget bounds one call, whatever its context says. 0 means timeoutMS of the connection string, or else the
	// profile's. It must be at least AttemptTimeout, and should be shorter than what a stream retains.
	Budget time.Duration
	// WriteConcern is Majority unless set.
	WriteConcern WriteConcern
	// Journal makes the primary, or a standalone server, flush its journal before it acknowledges. (A
	// replica set's majority does so already, unless it was configured not to.)
	Journal bool
	// Plain sends every command through the driver. Otherwise inserts share a connection that is held for
	// them (package internal/wire), which saves most of what a small insert costs the client; that is
	// left out by itself over TLS, with compression, with a command monitor, and with a pool of less than four.
	Plain bool
	// Logger gets one line when an outage begins and one when it ends. The zero Logger is silent.
	Logger zerolog.Logger
	// Hooks are called synchronously and must be fast.
	Hooks Hooks
}

// Hooks observe a Layer. Nil funcs are skipped. They are called by the goroutine that is inside
// the call, so calls that run at the same time call them at the same time.
type Hooks struct {
	// OnAttempt is called after every attempt, whatever came of it.
	OnAttempt func(Attempt)
	// OnRetry is called before the wait that follows a failed attempt.
	OnRetry func(Retry)
	// OnOutage is called when a writer or reader makes progress again, or gives up.
	OnOutage func(Outage)
}

// Kind says what an attempt is.
type Kind string

// The kinds of attempts.
const (
	KindInsert  Kind = "insert"  // an insert command
	KindResolve Kind = "resolve" // a read that finds out what became of an insert, or prepares for that
	KindRead    Kind = "read"    // a read for the caller
	KindStep    Kind = "step"    // a step of Do
)

// Attempt is one command that was sent, or that could not be; for Read, Do and DoRead one run of their
// function.
type Attempt struct {
	Kind Kind
	// Name is the collection ("database.collection"), or what the caller of Read, Do or DoRead called it.
	Name string
	// Member is the address of the server that it went to: "" if none was found, and for Do and DoRead.
	Member string
	// Start and Took say when, and for how long.
	Start time.Time
	Took  time.Duration
	// Timeout is what it was given: Config.AttemptTimeout, or more where the member is slow and answers.
	Timeout time.Duration
	// Documents is the number of documents in an insert, else 0.
	Documents int
	// Err is nil if the server did all of it.
	Err error
}

// Retry says why a call tries again.
type Retry struct {
	// Name is as in Attempt.
	Name string
	// Attempt counts the failed attempts since the last progress: 1, 2, 3 …
	Attempt int
	// Event says in a few words what happened; Code is the server's error code, 0 if it did not answer.
	Event string
	Code  int
	// Unknown is true if messages may have been written by the failed attempt.
	Unknown bool
	Err     error
}

// Outage is a time in which a writer had no acknowledgement although it asked for one.
type Outage struct {
	// Start is when the first attempt that failed was begun; Took runs to the next acknowledgement.
	Start time.Time
	Took  time.Duration
	// Attempts is the number of failed attempts in it.
	Attempts int
	// Err is nil if the writer recovered, else what it gave up with.
	Err error
}

func (c Config) withDefaults() Config {
	s := c.Profile.Settings()
	if c.AttemptTimeout == 0 {
		c.AttemptTimeout = s.AttemptTimeout
	}
	if c.Budget == 0 {
		c.Budget = max(s.Budget, c.AttemptTimeout)
	}
	return c
}

func (c Config) validate() error {
	if err := c.Profile.validate(); err != nil {
		return err
	}
	switch {
	case c.AttemptTimeout < MinAttemptTimeout:
		return fmt.Errorf("field AttemptTimeout is %v; it must be at least %v", c.AttemptTimeout, MinAttemptTimeout)
	case c.Budget < c.AttemptTimeout:
		return fmt.Errorf("field Budget is %v; it must be at least AttemptTimeout (%v)", c.Budget, c.AttemptTimeout)
	case c.WriteConcern > One:
		return fmt.Errorf("field WriteConcern is %d; it must be Majority or One", c.WriteConcern)
	}
	return nil
}

func (h Hooks) attempt(a Attempt) {
	if h.OnAttempt != nil {
		h.OnAttempt(a)
	}
}

func (h Hooks) retry(r Retry) {
	if h.OnRetry != nil {
		h.OnRetry(r)
	}
}

func (h Hooks) outage(o Outage) {
	if h.OnOutage != nil {
		h.OnOutage(o)
	}
}
