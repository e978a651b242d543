package tailer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// ErrNotFound says that the stream does not exist (Config.Wait is FailIfMissing).
var ErrNotFound = errors.New("stream not found (create it with: capstan stream create)")

// GapError ends a stream whose policy is StopOnGap: messages were lost to this reader, or the stream
// was created anew. A reader that starts again behind Gap.After with the marks it has, and the policy
// ReportGaps, goes on behind the gap.
type GapError struct {
	Namespace string
	Gap       record.Gap
}

func (e *GapError) Error() string { return fmt.Sprintf("tail %s: %s", e.Namespace, e.Gap.String()) }

// NotCappedError says that the namespace cannot be tailed.
type NotCappedError struct {
	Namespace string
	// Kind is what it is instead: "collection", "view" or "timeseries".
	Kind string
}

func (e *NotCappedError) Error() string {
	if strings.HasSuffix(e.Namespace, ".capstan_checkpoints") { // nobody is told to drop those
		return e.Namespace + " holds the positions that readers and producers stored, and cannot be tailed: choose another name"
	}
	if e.Kind == "collection" {
		return fmt.Sprintf("%s is a collection that is not capped, so it cannot be tailed: choose another name, or drop or rename it and create a stream in its place "+
			"(an insert into a missing collection creates one that is not capped), or convert it with the command convertToCapped", e.Namespace)
	}
	return fmt.Sprintf("%s is a %s, and only a capped collection can be tailed: name another stream", e.Namespace, e.Kind)
}

// RenamedError says that the stream that was tailed has another name now. Its position holds there:
// tail the new name with the same Start.
type RenamedError struct {
	// Namespace is the old name, To the new one, both "database.collection".
	Namespace, To string
}

func (e *RenamedError) Error() string {
	return fmt.Sprintf("%s was renamed to %s: tail that name from the same position", e.Namespace, e.To)
}

// OutageError says that no command succeeded for longer than Config.MaxOutage.
type OutageError struct {
	Namespace string
	// For is how long the outage lasted when it was given up, Attempts how often it was tried.
	For      time.Duration
	Attempts int
	// Err is the last failure.
	Err error
}

func (e *OutageError) Error() string {
	return fmt.Sprintf("tail %s: no server answered for %s (attempts: %d): %v", e.Namespace, e.For.Round(time.Millisecond), e.Attempts, e.Err)
}

// Unwrap returns the last failure.
func (e *OutageError) Unwrap() error { return e.Err }

// The ends of one tail that are no failures of the server. None of them leaves the package.
var (
	errEnd        = errors.New("end of data")
	errMoved      = errors.New("another member takes the writes")
	errNotPrimary = errors.New("the member is no primary")
	errWatchdog   = errors.New("the server did not answer in time")
	errReread     = errors.New("a hole: read again without the bound")
	errAnchorGone = errors.New("the position went away while it was looked for")
	errEmpty      = errors.New("the stream is empty")
	errMissing    = errors.New("the stream does not exist")
	errExhausted  = errors.New("the server ended the cursor")
	errStillborn  = errors.New("the tail was opened in the instant of the first message, and is dead")
)

// reason returns a few constant words for err, for logs and metrics.
func reason(err error) string {
	for _, known := range []error{errMoved, errNotPrimary, errWatchdog, errReread, errAnchorGone, errEmpty, errMissing, errExhausted, errStillborn, errInvalidated, errOneByOne, errNotYet, errPromoted} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if e := mongoerr.Classify(err).Event; e != "" {
		return e
	}
	return "an error"
}
