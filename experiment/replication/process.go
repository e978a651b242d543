package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopPatience is how long a process may take to end after it was asked to; then it is killed.
const stopPatience = 30 * time.Second

// process is a child. It ends with Kill or Stop, or by itself. Safe for concurrent use.
type process struct {
	cmd   *exec.Cmd
	began time.Time
	ended chan struct{}
	err   error // once ended is closed

	cpu time.Duration // user and system, once ended is closed
}

// startProcess starts a program whose output goes to out, which must outlive it.
func startProcess(ctx context.Context, out io.Writer, stdout io.Writer, program string, args ...string) (*process, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...) // it is ended by Kill and Stop, and not in the middle of what these judge
	cmd.Stdout, cmd.Stderr = stdout, out
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	p := &process{cmd: cmd, began: time.Now(), ended: make(chan struct{})}
	go func() { // ends with the process, for which every owner waits
		defer close(p.ended)
		p.err = cmd.Wait()
		p.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}()
	return p, nil
}

// kill ends the process by SIGKILL, as a crash would, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// stop asks the process to end as Ctrl-C does and waits. The error says how it ended, if not well.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("interrupt process: %w", err)
	}
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	select {
	case <-p.ended:
		return p.err
	case <-patience.C:
		p.kill()
		return fmt.Errorf("the process did not end within %s of an interrupt", stopPatience)
	}
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// exitCode is the exit code of a process that has ended, -1 of one that was killed.
func (p *process) exitCode() int { return p.cmd.ProcessState.ExitCode() }

// memoryEvery is how often the most resident memory is read: the kernel forgets it with the process.
const memoryEvery = 50 * time.Millisecond

// watchMemory returns the most resident memory of the process, in bytes, when it has ended. The resource usage of a child would
// count its parent's memory at the time of the fork.
func (p *process) watchMemory() int64 {
	tick := time.NewTicker(memoryEvery)
	defer tick.Stop()
	var most int64
	for {
		most = max(most, use(p.cmd.Process.Pid).rss)
		select {
		case <-p.ended:
			return most
		case <-tick.C:
		}
	}
}
