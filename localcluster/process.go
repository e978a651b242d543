package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
)

// poll is how we wait for things that send no event: a port, a log line, the end of a process that
// is not our child.
var poll = retry.Policy{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond}

// errGone says that a member has no process.
var errGone = errors.New("not running")

// spawner starts processes from one OS thread that lives as long as the spawner. That matters
// because of the parent-death signal, which makes the kernel kill the servers when their starter
// dies, even by kill -9: the kernel means the *thread* that forked, and Go moves goroutines between
// threads and ends threads that it does not need. Without the lock, a server would be killed at some
// random moment because an idle thread of its starter ended.
type spawner struct {
	requests chan spawnRequest // nil: start from any thread
	wg       sync.WaitGroup
}

type spawnRequest struct {
	cmd       *exec.Cmd
	namespace string // "": the host's
	done      chan error
}

// newSpawner makes a spawner. Detached servers need no locked thread.
func newSpawner(locked bool) *spawner {
	if !locked {
		return &spawner{}
	}
	s := &spawner{requests: make(chan spawnRequest)} // unbuffered: start waits for the answer anyway
	s.wg.Go(func() {
		// Never unlocked: the thread ends with the goroutine, that is when close is called and all
		// children are dead.
		runtime.LockOSThread()
		for r := range s.requests {
			// Not back home afterwards: this thread does nothing but start servers.
			var err error
			if r.namespace != "" {
				err = enterNamespace(r.namespace)
			}
			if err == nil {
				err = r.cmd.Start()
			}
			r.done <- err
		}
	})
	return s
}

// start starts cmd, in a network namespace if one is named, and reaps it when it ends. It must not be called after close.
func (s *spawner) start(cmd *exec.Cmd, namespace string) (*child, error) {
	if err := s.fork(cmd, namespace); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, ended: make(chan struct{})}
	s.wg.Go(func() {
		c.err = cmd.Wait()
		close(c.ended)
	})
	return c, nil
}

func (s *spawner) fork(cmd *exec.Cmd, namespace string) error {
	if s.requests == nil && namespace == "" {
		return cmd.Start()
	}
	if s.requests == nil {
		return inNamespace(namespace, cmd.Start)
	}
	r := spawnRequest{cmd: cmd, namespace: namespace, done: make(chan error, 1)}
	s.requests <- r
	return <-r.done
}

// close ends the thread and waits for all children, which the caller must have killed.
func (s *spawner) close() {
	if s.requests != nil {
		close(s.requests)
	}
	s.wg.Wait()
}

// child is a server that this process started.
type child struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has been reaped
	err   error         // valid once ended is closed
}

func (c *child) running() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// exitCode is -1 while it runs or when a signal ended it.
func (c *child) exitCode() int {
	if c.running() {
		return -1
	}
	if e, ok := errors.AsType[*exec.ExitError](c.err); ok {
		return e.ExitCode()
	}
	return 0
}

// server is a handle on the live mongod that serves a data directory, started by whomever. The
// handle is opened before the process is looked at, so the kernel guarantees that a signal reaches
// that very process or nobody, however soon its pid is used again.
type server struct {
	proc   *os.Process
	dbpath string
	born   string // when the process started; with its pid this names a process for good
}

// findServer returns the mongod that runs on dbpath, or errGone. The pid comes from the lock file
// that mongod itself writes; the file stays behind when mongod is killed, so the pid may belong to
// any program by now. It is believed only if that program was started with this very dbpath.
func findServer(dbpath string) (*server, error) {
	b, err := os.ReadFile(filepath.Join(dbpath, "mongod.lock"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, errGone
		}
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return nil, errGone // emptied by a clean shutdown
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, errGone
	}
	_, born := processStat(pid)
	s := &server{proc: p, dbpath: dbpath, born: born}
	if !s.running() {
		s.release()
		return nil, errGone
	}
	return s, nil
}

// running reports whether the process lives and serves dbpath. A zombie has no command line any
// more and counts as dead.
func (s *server) running() bool { return processServes(s.proc.Pid, s.dbpath) }

func (s *server) signal(sig os.Signal) error {
	if err := s.proc.Signal(sig); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return errGone
		}
		return fmt.Errorf("send %v to process %d: %w", sig, s.proc.Pid, err)
	}
	return nil
}

// wait returns nil when the process has ended and let go of its port and files.
func (s *server) wait(ctx context.Context) error {
	return waitFor(ctx, "end of process "+strconv.Itoa(s.proc.Pid), func() error {
		if processEnded(s.proc.Pid, s.born) {
			return nil
		}
		return errors.New("it still runs")
	})
}

func (s *server) frozen() bool {
	state, _ := processStat(s.proc.Pid)
	return state == stateFrozen
}

// kill ends the process and waits for that, also when ctx has ended.
func (s *server) kill(ctx context.Context) error {
	if err := s.signal(os.Kill); err != nil {
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	return s.wait(ctx)
}

// release frees the handle; the process is left alone.
func (s *server) release() { _ = s.proc.Release() }

// waitFor polls until ready returns nil; when ctx ends first, the error has the last reason that
// ready gave, not what the end of ctx itself did to it.
func waitFor(ctx context.Context, what string, ready func() error) error {
	loop := retry.New(poll)
	var last error
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if err := loop.Wait(ctx, last); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
}
