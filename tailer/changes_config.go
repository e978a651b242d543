package tailer

import (
	"fmt"
	"regexp"
	"time"

	"github.com/rs/zerolog"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// InvalidatePolicy says what happens behind an invalidate event: the collection that was watched was
// dropped or renamed, or the database was dropped.
type InvalidatePolicy uint8

// The policies.
const (
	// GoOn opens the change stream again behind the event: what is created under the old name is seen.
	GoOn InvalidatePolicy = iota
	// StopOnInvalidate ends the stream with an *InvalidatedError, after the event was delivered.
	StopOnInvalidate
)

// ChangesConfig holds the settings of a Changes. The zero ChangesConfig is valid: it delivers every
// event that comes after the first Next, and goes on behind an invalidate event.
type ChangesConfig struct {
	// Start says where to begin. Latest: what is written after the opening (on a secondary: what that member gets after it). After: behind Position, which
	// holds a resume token (record.TokenOf), or where it has no ID, behind its TS; Marks and Fingerprint
	// mean nothing here. AtTime: the first event in the second of Time or later. Earliest: as far back as
	// the oplog goes, for which the user must be able to read local.oplog.rs.
	Start record.Start
	// Pipeline narrows the events on the server: stages of $match only, as anything else could change the
	// token or make an event too large. Deletes carry no document, and a document that leaves a filter on
	// fullDocument gives no event.
	Pipeline []bson.D
	// Namespaces, if not "", is a regular expression (of RE2 and PCRE) on full names, "db.coll", that fits every namespace whose events
	// Pipeline lets pass, by the namespace itself or by that of a rename's other side. A stream that is far behind
	// looks through the oplog for those in windows, so that its position moves where nothing fits; without it,
	// for those of what is watched. For this the user must be able to read local.oplog.rs; else the server looks alone.
	Namespaces string
	// Expanded asks for the events of create, createIndexes, dropIndexes and modify too, and for the UUID
	// of the collection in each event (showExpandedEvents).
	Expanded bool
	// Await is how long the server holds an idle getMore: 0 means DefaultAwait; otherwise MinAwait to
	// MaxAwait, cut to whole milliseconds.
	Await time.Duration
	// AttemptTimeout bounds every command, and every getMore beyond its Await: when it passes, the
	// cursor counts as dead and the stream opens again, with more patience while that is what ends every
	// attempt. 0 means DefaultAttemptTimeout.
	AttemptTimeout time.Duration
	// ConnectTimeout bounds the first connection. 0 means DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// MaxOutage bounds one outage after the first connection: when no command succeeded for so long,
	// the stream ends with an *OutageError. 0 means for ever.
	MaxOutage time.Duration
	// BatchSize is the most events in one batch. 0 means as many as make about DefaultBatchBytes.
	BatchSize int
	// Progress is the least time between two records of KindProgress, which are sent when the server has
	// looked at more than it sent: nothing matched, or nothing happened here. 0 means that none are sent.
	Progress time.Duration
	// UntilEnd makes Next return io.EOF when everything that had been written at the opening has been
	// passed, and is known to a majority.
	UntilEnd bool
	// OnInvalidate says what happens behind an invalidate event. The zero value is GoOn.
	OnInvalidate InvalidatePolicy
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
	// Hooks are called on events; OnGap and OnWait never are. Every one may be nil.
	Hooks Hooks

	// blow are stages behind Pipeline, for tests that need an event which is too large.
	blow []bson.D
	// skimAll looks through the oplog however short it is, for tests; skimNever is its opposite.
	skimAll, skimNever bool
}

func (c ChangesConfig) withDefaults() ChangesConfig {
	if c.Await == 0 {
		c.Await = DefaultAwait
	}
	c.Await = c.Await.Truncate(time.Millisecond)
	if c.AttemptTimeout == 0 {
		c.AttemptTimeout = DefaultAttemptTimeout
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	return c
}

func (c ChangesConfig) validate() error {
	switch {
	case c.Await < MinAwait || c.Await > MaxAwait:
		return fmt.Errorf("tailer: Await is %s, want %s to %s", c.Await, MinAwait, MaxAwait)
	case c.AttemptTimeout < MinAwait:
		return fmt.Errorf("tailer: AttemptTimeout is %s, want at least %s", c.AttemptTimeout, MinAwait)
	case c.ConnectTimeout < 0 || c.MaxOutage < 0 || c.Progress < 0:
		return fmt.Errorf("tailer: ConnectTimeout, MaxOutage and Progress must not be negative")
	case c.BatchSize < 0 || c.BatchSize > 1_000_000:
		return fmt.Errorf("tailer: BatchSize is %d, want 0 to 1000000", c.BatchSize)
	case c.OnInvalidate > StopOnInvalidate:
		return fmt.Errorf("tailer: OnInvalidate has an unknown value")
	case c.Start.Where > record.AtTime:
		return fmt.Errorf("tailer: Start.Where is %d, want one of record's constants", c.Start.Where)
	case c.Start.Where == record.AtTime && (c.Start.Time.Unix() < 0 || c.Start.Time.Unix() > 1<<32-1):
		return fmt.Errorf("tailer: Start.Time is %s, outside of what a BSON Timestamp holds", c.Start.Time)
	}
	if _, ok := record.TokenOf(c.Start.Position); c.Start.Where == record.After && !ok && !c.Start.Position.ID.IsZero() {
		return fmt.Errorf("tailer: Start.Position %s is that of a message and not of a change stream: "+
			"begin at its time, %d.%d-", c.Start.Position, c.Start.Position.TS.T, c.Start.Position.TS.I)
	}
	if _, err := regexp.Compile(c.Namespaces); err != nil {
		return fmt.Errorf("tailer: Namespaces: %w", err)
	}
	for i, stage := range c.Pipeline {
		if len(stage) != 1 || stage[0].Key != "$match" {
			return fmt.Errorf("tailer: stage %d of Pipeline is %v: only $match is possible, "+
				"as anything else could change the token or make an event too large", i, stage)
		}
	}
	return nil
}
