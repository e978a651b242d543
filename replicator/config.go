package replicator

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// Defaults and limits of Config.
const (
	// DefaultWorkers: on two cores four writers neither speed a server up nor slow it down much (measured on mongod 6.0.5), and
	// hide the time that a round trip and a majority take.
	DefaultWorkers = 4
	// DefaultReaders is how many ranges are copied at the same time.
	DefaultReaders = 2
	// DefaultWindow is how many documents one read of the copy looks at. What a killed copy repeats is one window per range.
	DefaultWindow = 2000
	// FilteredWindow is DefaultWindow where a filter drops documents: what is looked at need not be sent.
	FilteredWindow = 20_000
	// DefaultBatch is the most changes that are applied together. What is there is taken: under light load a change is applied at once.
	DefaultBatch = 4000
	// DefaultSaveEvery is how often the checkpoint is stored while it moves.
	DefaultSaveEvery = time.Second
	// DefaultClockEvery is how often the source is asked where it is, for the lag.
	DefaultClockEvery = time.Second
	// DefaultMaxLetters is how many dead letters a route may have before it fails.
	DefaultMaxLetters = 1000
	// MaxWorkers and MaxReaders bound Config.
	MaxWorkers = 64
	MaxReaders = 64
)

// Existing says what happens to what a destination holds when a route begins.
type Existing string

// The policies.
const (
	// RefuseExisting ends a route with ErrNotEmpty that would write to a collection that has documents.
	RefuseExisting Existing = "refuse"
	// MergeExisting compares with what is there: what differs is replaced, and what the source does not have is removed.
	MergeExisting Existing = "merge"
	// DropExisting drops the collections first.
	DropExisting Existing = "drop"
)

// OnLost says what happens when the source's oplog no longer reaches back to the checkpoint.
type OnLost string

// The policies.
const (
	// StopOnLost leaves the route in PhaseLostHistory, and Run returns *LostError.
	StopOnLost OnLost = "stop"
	// ResyncOnLost copies again, comparing, once per run.
	ResyncOnLost OnLost = "resync"
)

// Config configures a Link. The zero Config is valid: it replicates everything into an empty destination and follows it.
type Config struct {
	// Scope says which namespaces, documents and names. The zero Config is everything.
	Scope scope.Config
	// Owner names this process in the state; "" means a random name. It should be of use to a person who looks for it.
	Owner string
	// TakeOver takes a route from a process that seems to be alive.
	TakeOver bool
	// Existing says what happens to what the destination holds already. "" means RefuseExisting.
	Existing Existing
	// OnLost is used when the position is lost. "" means StopOnLost. A copy that takes longer than the source's oplog reaches back
	// is begun again by itself, once, whatever this says.
	OnLost OnLost
	// Until ends Run by itself: "" never, UntilCopied when the copy is done, UntilLive when the destination has caught up with what the
	// source had at that time, UntilFinalized after a Finalize at that moment.
	Until Until
	// Paused starts the route paused.
	Paused bool
	// Resync begins with a resync, also where the stored state was made with another scope or another source.
	Resync bool
	// Stay makes Run wait for Resync or Resume where it would otherwise return because the route is lost or failed: for daemons,
	// in which somebody may look at it and act. Whoever took the route over ends Run all the same.
	Stay bool
	// Shared lets other routes write to the same collections; then their documents must differ in _id. Nothing is removed from such a
	// destination but by a delete at the source: neither what a resync does not find there, nor a collection that another route has too.
	Shared bool
	// KeepTTL lets TTL indexes expire documents at the destination too, instead of being held back until Finalize.
	KeepTTL bool
	// Workers is how many appliers write at the same time, Readers how many ranges are copied at the same time. 0 means
	// DefaultWorkers and DefaultReaders.
	Workers, Readers int
	// Window is how many documents one read of the copy looks at; 0 means DefaultWindow, or FilteredWindow where there is a filter.
	Window int
	// Batch is the most changes that are applied together; 0 means DefaultBatch.
	Batch int
	// SaveEvery is how often the checkpoint is stored while it moves, ClockEvery how often the source is asked for its clock. 0 means
	// DefaultSaveEvery and DefaultClockEvery.
	SaveEvery, ClockEvery time.Duration
	// MaxLetters is how many dead letters the route may have before it fails; 0 means DefaultMaxLetters, negative none.
	MaxLetters int
	// Passes reports whether an error of the Source, Target, Store or Letters may be gone after a while; then the route waits and tries again.
	// Any other ends it, unless it is Passing. nil: none passes but those that say so.
	Passes func(error) bool
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
	// Hooks are called on events; every one may be nil.
	Hooks Hooks
}

// Until says when Run ends by itself.
type Until string

// The ends.
const (
	UntilStopped Until = ""
	UntilCopied  Until = "copied"
	UntilLive    Until = "live"
	// UntilFinalized is UntilLive and then Finalize.
	UntilFinalized Until = "finalized"
)

// Hooks observe a Link. They are called synchronously by its goroutines, several at the same time, and must be fast.
type Hooks struct {
	// OnPhase is called when the phase changes.
	OnPhase func(Phase)
	// OnCopied is called after documents of a copy are written.
	OnCopied func(scanned, written, bytes int64)
	// OnApplied is called after a batch of changes is applied: how many changes of each op were in it, and how far its last one
	// was behind the clock of this machine.
	OnApplied func(ops map[string]int, behind time.Duration)
	// OnLetter is called when a document is set aside.
	OnLetter func(Letter)
	// OnSaved is called when the checkpoint is stored.
	OnSaved func(record.Position)
	// OnRetry is called when the route tries again after an error that may pass.
	OnRetry func(error)
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Workers, DefaultWorkers)
	def(&c.Readers, DefaultReaders)
	def(&c.Batch, DefaultBatch)
	def(&c.MaxLetters, DefaultMaxLetters)
	if c.Window == 0 {
		c.Window = DefaultWindow
		if len(c.Scope.Filters) > 0 {
			c.Window = FilteredWindow
		}
	}
	if c.SaveEvery == 0 {
		c.SaveEvery = DefaultSaveEvery
	}
	if c.ClockEvery == 0 {
		c.ClockEvery = DefaultClockEvery
	}
	if c.Existing == "" {
		c.Existing = RefuseExisting
	}
	if c.OnLost == "" {
		c.OnLost = StopOnLost
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Workers < 1 || c.Workers > MaxWorkers:
		return fmt.Errorf("field Workers is %d; it must be 1 to %d", c.Workers, MaxWorkers)
	case c.Readers < 1 || c.Readers > MaxReaders:
		return fmt.Errorf("field Readers is %d; it must be 1 to %d", c.Readers, MaxReaders)
	case c.Window < 1:
		return fmt.Errorf("field Window is %d; it must be positive", c.Window)
	case c.Batch < 1:
		return fmt.Errorf("field Batch is %d; it must be positive", c.Batch)
	case c.SaveEvery < 0 || c.ClockEvery < 0:
		return fmt.Errorf("fields SaveEvery and ClockEvery must not be negative")
	case c.Existing != RefuseExisting && c.Existing != MergeExisting && c.Existing != DropExisting:
		return fmt.Errorf("field Existing is %q; it must be refuse, merge or drop", c.Existing)
	case c.OnLost != StopOnLost && c.OnLost != ResyncOnLost:
		return fmt.Errorf("field OnLost is %q; it must be stop or resync", c.OnLost)
	case c.Until != UntilStopped && c.Until != UntilCopied && c.Until != UntilLive && c.Until != UntilFinalized:
		return fmt.Errorf("field Until is %q; it must be empty, copied, live or finalized", c.Until)
	}
	return nil
}
