package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// exitConnect is the exit code of a capstan that found no server at its start. A supervisor would start it again.
const exitConnect = 4

// runner keeps one replicator process running, as a supervisor would, and kills it when asked to. Safe for concurrent use.
type runner struct {
	program string
	args    []string
	log     io.Writer

	mu       sync.Mutex
	p        *process // nil while it is down
	starts   int
	restarts int // after it could not connect
	failed   error
}

// start starts the process.
func (r *runner) start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.startLocked(ctx)
}

func (r *runner) startLocked(ctx context.Context) error {
	fmt.Fprintf(r.log, "---- %s: start\n", time.Now().UTC().Format(time.RFC3339Nano)) // a log without it is still a log
	p, err := startProcess(ctx, r.log, r.log, r.program, r.args...)
	if err != nil {
		return err
	}
	r.p = p
	r.starts++
	return nil
}

// kill ends the process by SIGKILL and starts it again after a while.
func (r *runner) kill(ctx context.Context, down time.Duration) error {
	r.mu.Lock()
	if r.p != nil {
		r.p.kill()
		r.p = nil
		fmt.Fprintf(r.log, "---- %s: kill -9\n", time.Now().UTC().Format(time.RFC3339Nano))
	}
	r.mu.Unlock()
	if err := pace.Sleep(ctx, down); err != nil {
		return err
	}
	return r.start(ctx)
}

// check starts a process again that could not connect, and returns an error if it ended for another reason.
func (r *runner) check(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return r.failed
	}
	if r.p == nil || r.p.running() {
		return nil
	}
	code := r.p.exitCode()
	r.p = nil
	if code != exitConnect {
		r.failed = fmt.Errorf("%w, with exit code %d", errEnded, code)
		return r.failed
	}
	r.restarts++
	return r.startLocked(ctx)
}

var errEnded = errors.New("the replicator ended by itself")

// watch checks until ctx ends or the process has failed.
func (r *runner) watch(ctx context.Context) error {
	for {
		if err := pace.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil // it was asked to end
		}
		if err := r.check(ctx); err != nil {
			return err
		}
	}
}

// stop ends the process as Ctrl-C does. It must end well.
func (r *runner) stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.p == nil {
		return r.failed
	}
	p := r.p
	r.p = nil
	if err := p.stop(); err != nil {
		return fmt.Errorf("stop the replicator: %w", err)
	}
	return nil
}

// abandon ends the process at once.
func (r *runner) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.p != nil {
		r.p.kill()
		r.p = nil
	}
}

// phaseOf is the phase of a route for a column of results.
func phaseOf(s replicator.State, err error) string {
	switch {
	case errors.Is(err, replicator.ErrNoRoute):
		return "starting"
	case err != nil:
		return "unknown"
	case s.Phase == "":
		return "starting"
	}
	return string(s.Phase)
}
