package verify

import (
	"cmp"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// Defaults and limits of Config.
const (
	// DefaultWorkers is how many ranges are compared at the same time.
	DefaultWorkers = 2
	// MaxWorkers bounds Config.Workers: each holds two windows.
	MaxWorkers = 16
	// DefaultWindow is how large a window becomes, per side and worker, in bytes: large replies cost least, and four of them are
	// little memory.
	DefaultWindow = 2 << 20
	// DefaultRange is about how many documents one range has; there are at most maxSpans.
	DefaultRange = 100_000
	// DefaultSettle is how long a document must have stayed different.
	DefaultSettle = 30 * time.Second
	// DefaultMaxDifferences is how many differing documents are listed.
	DefaultMaxDifferences = 1000
	// DefaultDiffs is of how many differing documents the fields are listed.
	DefaultDiffs = 10
	// DefaultAttemptTimeout bounds one command.
	DefaultAttemptTimeout = 15 * time.Second
	// DefaultPatience bounds an outage of one side.
	DefaultPatience = 5 * time.Minute
)

// Config configures a Verifier. The zero Config is valid: it compares everything, while a route may be working.
type Config struct {
	// Scope says which namespaces, documents and names. The zero Config is everything.
	Scope scope.Config
	// Quiet says that nothing writes to either side: what differs is looked at once more, and not for Settle.
	Quiet bool
	// Settle is how long a document of the source must have stayed as it is, without the target being equal, to count as
	// different; one that changes too often for that is reported as changing. 0 means DefaultSettle.
	Settle time.Duration
	// MaxDifferences is how many differing documents the report lists; all are counted. 0 means DefaultMaxDifferences,
	// negative none.
	MaxDifferences int
	// Diffs is of how many differing documents the report says what differs in them. 0 means DefaultDiffs, negative none.
	Diffs int
	// NoIndexes leaves out the indexes.
	NoIndexes bool
	// StrictTTL counts an index as different whose documents do not expire at the target because its expireAfterSeconds is
	// HeldBackTTL, which is how a route holds it back until it is finalized.
	StrictTTL bool
	// NewTimestamps says that a route of streams filled the target: in collections that are capped at both sides, the field "ts",
	// which the target's server makes anew, and the primer are not compared.
	NewTimestamps bool
	// Progress is a file that keeps how far a run is, so that the next one with the same scope goes on behind its last finished
	// window. It is removed when a run ends by itself. "": none.
	Progress string
	// Workers is how many ranges of documents are compared at the same time. 0 means DefaultWorkers.
	Workers int
	// Window is about how many bytes of one side are compared at a time, Range about how many documents are compared by one worker
	// before it takes other ones. 0 means DefaultWindow and DefaultRange.
	Window, Range int
	// AttemptTimeout bounds one command, Patience how long a side may not answer before the run fails. 0 means
	// DefaultAttemptTimeout and DefaultPatience.
	AttemptTimeout, Patience time.Duration
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
	// Hooks are called on events; every one may be nil.
	Hooks Hooks
}

// Hooks observe a Verifier. They are called synchronously by its goroutines, several at the same time, and must be fast.
type Hooks struct {
	// OnNamespace is called when the comparison of a namespace's documents begins: total is about how many documents the
	// source has, without regard to a filter.
	OnNamespace func(ns record.Namespace, total int64)
	// OnWindow is called when a window is compared: how many documents of the source were looked at, and their bytes.
	OnWindow func(ns record.Namespace, documents, bytes int64)
	// OnSettle is called while documents that differ wait to be looked at again, at least once before each wait: how many have no
	// verdict yet, and whether everything is read, so that only they are waited for (up to Config.Settle, twice that for documents
	// that go on changing).
	OnSettle func(documents int, read bool)
	// OnRetry is called when a command is tried again.
	OnRetry func(side string, err error)
}

func (c Config) withDefaults() Config {
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.Window = cmp.Or(c.Window, DefaultWindow)
	c.Range = cmp.Or(c.Range, DefaultRange)
	c.Settle = cmp.Or(c.Settle, DefaultSettle)
	c.MaxDifferences = max(cmp.Or(c.MaxDifferences, DefaultMaxDifferences), 0)
	c.Diffs = max(cmp.Or(c.Diffs, DefaultDiffs), 0)
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, DefaultAttemptTimeout)
	c.Patience = cmp.Or(c.Patience, DefaultPatience)
	return c
}

func (c Config) validate() error {
	switch {
	case c.Workers < 0 || c.Workers > MaxWorkers:
		return fmt.Errorf("verify: Workers %d is not between 1 and %d", c.Workers, MaxWorkers)
	case c.Window < 0 || c.Range < 0:
		return fmt.Errorf("verify: Window %d or Range %d is negative", c.Window, c.Range)
	case c.Settle < 0:
		return fmt.Errorf("verify: Settle %s is negative", c.Settle)
	case c.AttemptTimeout < 0, c.Patience < 0:
		return fmt.Errorf("verify: AttemptTimeout %s or Patience %s is negative", c.AttemptTimeout, c.Patience)
	}
	return nil
}
