package outage

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stopPatience is how long a process may take to end after SIGTERM; then it is killed.
	stopPatience = 10 * time.Second
	// saidKeep bounds what is kept of a process's last words.
	saidKeep = 4 << 10
)

// process is a client process of a trial. Its output is read as it comes.
type process struct {
	name string
	cmd  *exec.Cmd
	stop context.CancelFunc

	readers sync.WaitGroup
	ended   chan struct{}
	err     error // valid once ended is closed

	mu   sync.Mutex
	said []byte
}

// startProcess starts what command makes and hands each line of its standard output to line, and each of
// its standard error to errLine, which may be nil. It is sent SIGTERM when ctx ends or end is called.
func startProcess(ctx context.Context, name string, command func(context.Context) *exec.Cmd, line, errLine func([]byte)) (*process, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{name: name, cmd: command(ctx), stop: cancel, ended: make(chan struct{})}
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopPatience
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open output of %s: %w", name, err)
	}
	errOut, err := p.cmd.StderrPipe()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open output of %s: %w", name, err)
	}
	if err := p.cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.readers.Go(func() { eachLine(out, line) })
	p.readers.Go(func() {
		eachLine(errOut, func(b []byte) {
			p.keep(b)
			if errLine != nil {
				errLine(b)
			}
		})
	})
	go func() {
		defer close(p.ended)
		p.readers.Wait() // before Wait, which closes the pipes
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

func eachLine(r io.Reader, f func([]byte)) {
	lines := bufio.NewReader(r)
	for {
		b, err := lines.ReadBytes('\n')
		if err != nil {
			return // the process has ended, or was cut off in the middle of a line
		}
		f(b)
	}
}

// keep remembers the last words.
func (p *process) keep(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said = append(p.said, b...); len(p.said) > saidKeep {
		p.said = p.said[len(p.said)-saidKeep:]
	}
}

func (p *process) lastWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.TrimSpace(string(bytes.ToValidUTF8(p.said, nil)))
}

// end stops the process and waits for it.
func (p *process) end() {
	p.stop()
	<-p.ended
}

// dead reports whether the process has ended, which it must not by itself, and why.
func (p *process) dead() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended by itself: %w: %s", p.name, errors.Join(p.err, errEnded), p.lastWords())
	default:
		return nil
	}
}

var errEnded = errors.New("it should have gone on")

// journal collects the events of all clients of a trial. Safe for concurrent use.
type journal struct {
	mu     sync.Mutex
	events []Event
	ready  map[Role]bool
	// lastOK is when each role's last acknowledged write began, and when it ended.
	lastOK map[Role]Event
}

func newJournal() *journal {
	return &journal{ready: make(map[Role]bool), lastOK: make(map[Role]Event)}
}

func (j *journal) add(e Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case e.Kind == KindReady:
		j.ready[e.Role] = true
	case e.OK && (e.Kind == KindWrite || e.Kind == KindProbe):
		if e.Start >= j.lastOK[e.Role].Start {
			j.lastOK[e.Role] = e
		}
	}
	j.events = append(j.events, e)
}

// line adds a line of a client's output.
func (j *journal) line(b []byte) {
	var e Event
	if json.Unmarshal(b, &e) == nil && e.Kind != "" {
		j.add(e)
	}
}

// isReady reports whether all roles are.
func (j *journal) isReady(roles ...Role) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range roles {
		if !j.ready[r] {
			return false
		}
	}
	return true
}

// okSince reports whether a write of role that began at or after m was acknowledged.
func (j *journal) okSince(r Role, m Moment) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lastOK[r].Kind != "" && j.lastOK[r].Start >= m
}

func (j *journal) all() []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]Event(nil), j.events...)
}
