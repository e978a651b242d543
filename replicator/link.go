package replicator

import (
	"context"
	"errors"
	"fmt"
)

// ErrNotRunning says that a Link is asked for something that only a running one can do.
var ErrNotRunning = errors.New("the route is not running")

// LostError says that the source's oplog no longer reaches back to the checkpoint: a resync is needed.
type LostError struct {
	Route string
	Err   error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("route %q: its position is lost, and changes with it: resync it: %v", e.Route, e.Err)
}

// Unwrap returns the source's error.
func (e *LostError) Unwrap() error { return e.Err }

// Link replicates one source to one destination. Status and the control methods are safe for concurrent use; Run is called once.
type Link struct {
	cfg Config
}

// New returns a Link for the route of that name. It does no I/O. Errors: a name that is empty, or a Config that is out of range.
func New(route string, source Source, target Target, store Store, letters Letters, cfg Config) (*Link, error) {
	return &Link{cfg: cfg}, nil
}

// Run replicates until ctx ends (nil, after a last checkpoint), Config.Until is reached (nil), or it cannot go on: *LostError,
// *BusyError, *MismatchError, ErrNotEmpty, *record.FencedError, or what the servers refuse for good.
func (l *Link) Run(ctx context.Context) error { return nil }

// Status returns where the link is. It does not block.
func (l *Link) Status() Status { return Status{} }

// Pause stops reading and applying after what is in progress, and remembers that; it returns when that is so.
func (l *Link) Pause(ctx context.Context) error { return nil }

// Resume ends a pause.
func (l *Link) Resume(ctx context.Context) error { return nil }

// Resync copies everything again, comparing with what is there, while the destination stays readable. It is the way on from
// lost-history. It returns when the copy has begun.
func (l *Link) Resync(ctx context.Context) error { return nil }

// Finalize ends the route for good: it pauses, applies what the source had when it was called, gives TTL indexes their expiry back, and
// makes the state finalized. It refuses before the route is live: the destination would be incomplete.
func (l *Link) Finalize(ctx context.Context) error { return nil }

// Retry applies the dead letters again, by the present versions of their documents, and returns how many are gone and how many are left.
func (l *Link) Retry(ctx context.Context) (done, left int64, err error) { return 0, 0, nil }
