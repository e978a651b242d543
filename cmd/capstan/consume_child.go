package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// maxAnswer bounds a line that a child answers.
	maxAnswer = 64 << 10
	// childGrace is how long a child may take to end after its standard input was closed, and again
	// after it was asked by SIGTERM.
	childGrace = 3 * time.Second
	// pipeDelay is how long the pipes of a child that ended may be held open by what it left behind.
	pipeDelay = time.Second
)

// childPool is a handler that asks long-running children, one message at a time each. Safe for
// concurrent use; at most as many calls as there are children make progress.
type childPool struct {
	env     *environ
	command string
	format  format
	idle    chan *childSlot // has a place for each
	all     []*childSlot
}

// childSlot is the place of one child: it outlives the processes. Whoever took it from idle owns it.
type childSlot struct {
	child *child // nil: not running
	tries *retry.Loop
	last  error // why the last one ended
	line  []byte
}

func newChildPool(env *environ, command string, f format, n int) *childPool {
	p := &childPool{env: env, command: command, format: f, idle: make(chan *childSlot, n)}
	for range n {
		s := &childSlot{tries: retry.New(retry.Policy{Initial: 100 * time.Millisecond, Max: 5 * time.Second})}
		p.all = append(p.all, s)
		p.idle <- s
	}
	return p
}

// Handle hands r to a child and waits for its answer.
func (p *childPool) Handle(ctx context.Context, r record.Record) error {
	var s *childSlot
	select {
	case s = <-p.idle:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { p.idle <- s }()
	if err := p.ensure(ctx, s); err != nil {
		return err
	}
	var err error
	if s.line, err = p.format(s.line[:0], r); err != nil {
		return consumer.Permanent(err)
	}
	answer, err := s.child.ask(ctx, s.line)
	if err != nil {
		return p.broken(s, err)
	}
	verb, rest, _ := strings.Cut(answer, " ")
	switch verb {
	case "ok":
		if rest != "" && rest != r.Position.String() {
			return p.broken(s, fmt.Errorf("program answered %q to message %s: its answers and the messages are out of step", answer, r.Position))
		}
		s.tries.Progress()
		return nil
	case "error":
		s.tries.Progress() // it works, and says so
		return errors.New(rest)
	case "reject":
		s.tries.Progress()
		return consumer.Permanent(errors.New(rest))
	}
	return p.broken(s, fmt.Errorf("program answered %q, want ok, error TEXT or reject TEXT", answer))
}

// ensure starts the slot's child if there is none, with back-off if the last one ended by itself.
func (p *childPool) ensure(ctx context.Context, s *childSlot) error {
	if s.child != nil && !s.child.running() {
		s.last = s.child.why()
		s.child = nil
	}
	if s.child != nil {
		return nil
	}
	if s.last != nil {
		if err := s.tries.Wait(ctx, s.last); err != nil {
			return err
		}
	}
	c, err := startChild(p.env, p.command)
	if err != nil {
		s.last = err
		return err
	}
	s.child = c
	return nil
}

// broken ends a child that cannot be talked to any more; the next message starts another.
func (p *childPool) broken(s *childSlot, err error) error {
	s.child.kill()
	<-s.child.done
	s.child, s.last = nil, err
	return err
}

// close ends the children: first by closing their standard input, then by SIGTERM, then by SIGKILL;
// at once after the second signal. It is called when no Handle runs any more.
func (p *childPool) close() {
	var wg sync.WaitGroup
	for _, s := range p.all {
		if s.child != nil {
			wg.Go(func() { s.child.end(p.env.stop.hard) })
		}
	}
	wg.Wait()
}

// child is one running program, in a process group of its own so that the terminal's Ctrl-C reaches
// capstan only, which drains.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan string   // unbuffered: an answer is taken when one is wanted
	quit    chan struct{} // closed by kill
	done    chan struct{} // closed when the process is reaped; err is set before
	err     error

	mu     sync.Mutex
	reaped bool // its process id may be another's
	killed bool
}

func startChild(env *environ, command string) (*child, error) {
	// No context ends it: it is asked to end by closing its input, and killed by kill.
	c := &child{cmd: exec.CommandContext(context.Background(), "sh", "-c", command), answers: make(chan string), quit: make(chan struct{}), done: make(chan struct{})}
	ownGroup(c.cmd)
	c.cmd.Stderr = env.stderr
	c.cmd.WaitDelay = pipeDelay
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %q: %w", command, err)
	}
	go c.read(out)
	return c, nil
}

// read passes the answers on, and reaps the child when it closes its output or is to end.
func (c *child) read(out io.Reader) {
	defer close(c.done)
	lines := bufio.NewReaderSize(out, maxAnswer)
	for c.pass(lines) {
	}
	c.kill() // an output that is closed, or talks nonsense, is the end
	err := c.cmd.Wait()
	c.mu.Lock()
	c.reaped = true
	c.mu.Unlock()
	c.err = errors.New("program ended before it answered")
	if err != nil {
		c.err = fmt.Errorf("program ended before it answered: %w", err)
	}
}

// pass hands one line over. false: there is none, it is too long, or nobody will want it.
func (c *child) pass(lines *bufio.Reader) bool {
	text, err := lines.ReadSlice('\n')
	if err != nil {
		return false
	}
	select {
	case c.answers <- string(bytes.TrimRight(text, "\r\n")):
		return true
	case <-c.quit:
		return false
	}
}

// ask writes a line and waits for the answer. An error means that the child is of no use any more.
func (c *child) ask(ctx context.Context, line []byte) (string, error) {
	select {
	case a := <-c.answers:
		return "", fmt.Errorf("program answered %q although no message was open", a)
	default:
	}
	defer context.AfterFunc(ctx, c.kill)() // a child that hangs, also one that does not read
	if _, err := c.in.Write(line); err != nil {
		<-c.done
		return "", c.reason(ctx)
	}
	select {
	case a := <-c.answers:
		return a, nil
	case <-c.done:
		return "", c.reason(ctx)
	}
}

func (c *child) reason(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("program was killed: %w", context.Cause(ctx))
	}
	return c.err
}

func (c *child) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// why says why the child ended. Only for one that is not running.
func (c *child) why() error { return c.err }

// kill ends the child and everything in its process group at once. It may be called again.
func (c *child) kill() {
	c.mu.Lock()
	if !c.killed {
		c.killed = true
		close(c.quit)
	}
	c.mu.Unlock()
	c.signal(os.Kill)
}

func (c *child) signal(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		signalGroup(c.cmd.Process, s)
	}
}

// end lets the child end, and sees to it.
func (c *child) end(hard <-chan struct{}) {
	_ = c.in.Close() // the sign that no more will come
	for _, next := range []func(){c.terminate, c.kill} {
		t := time.NewTimer(childGrace)
		select {
		case <-c.done:
			t.Stop()
			return
		case <-c.answers: // nobody asked
			t.Stop()
			c.kill()
		case <-hard:
			t.Stop()
			c.kill()
		case <-t.C:
			next()
		}
	}
	<-c.done
}

func (c *child) terminate() { c.signal(terminateSignal) }

// messageRunner is a handler that runs the program anew for every message. Safe for concurrent use.
type messageRunner struct {
	env     *environ
	command string
	format  format
}

// Handle runs the program with r on its standard input; exit code 0 is success.
func (m *messageRunner) Handle(ctx context.Context, r record.Record) error {
	line, err := m.format(nil, r)
	if err != nil {
		return consumer.Permanent(err)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", m.command)
	ownGroup(cmd)
	cmd.Cancel = func() error {
		signalGroup(cmd.Process, os.Kill)
		return nil
	}
	cmd.WaitDelay = pipeDelay
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(line), m.env.stdout, m.env.stderr
	err = cmd.Run()
	if err != nil && readerGone(m.env.stdout) {
		// Its output had nowhere to go, whatever it made of that: not the message's fault (I2).
		return consumer.Stop(&stdoutError{syscall.EPIPE})
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("program was killed: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("program failed: %w", err)
	}
	return nil
}
