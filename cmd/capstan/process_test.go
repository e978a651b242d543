package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// patience is how long a test waits for what must come: the machine may be loaded.
const patience = time.Minute

// process is a running capstan.
type process struct {
	*exec.Cmd
	stdout, stderr buffer
	ended          chan struct{}
}

// buffer collects output while a test looks at it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, uri string, stdin io.Reader, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.CommandContext(context.Background(), capstanPath(t), args...), ended: make(chan struct{})}
	p.Env = append(os.Environ(), "CAPSTAN_URI="+uri)
	p.Stdin, p.Stdout, p.Stderr = stdin, &p.stdout, &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.Wait() // ProcessState says how
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
	return p
}

// code waits for the end and returns the exit code, -1 for a signal.
func (p *process) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("%v does not end; stderr:\n%s", p.Args, p.stderr.String())
		return 0
	}
}

func capstan(t *testing.T, uri string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := start(t, uri, nil, args...)
	code = p.code(t)
	return p.stdout.String(), p.stderr.String(), code
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("this did not happen: ", what)
		}
	}
}

// TestDurableProduceAddsExactlyWhatIsMissingAfterKills cites I7 and I1: kill -9 in the middle, three
// times, at places that are not chosen; then the stream holds every line once, in order.
func TestDurableProduceAddsExactlyWhatIsMissingAfterKills(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	name := d.DB(t).Name() + ".file"
	const lines = 60_000
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "{\"n\":%d}\n", i)
	}
	input := filepath.Join(t.TempDir(), "in.ndjson")
	if err := os.WriteFile(input, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		p := start(t, d.URI, nil, "produce", name, "--create", "--durable", "import", "--rate", "30000", input)
		// After the run has gone on for a while: where it is then is up to the machine.
		eventually(t, "the stream grows", func() bool {
			out, _, code := capstan(t, d.URI, "stream", "describe", name, "--output", "json")
			return code == 0 && !strings.Contains(out, `"messages":0,`) && newestSrc(out) != "" && count(out) > i*9_000
		})
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-p.ended
	}
	_, stderr, code := capstan(t, d.URI, "produce", name, "--durable", "import", input)
	if code != 0 {
		t.Fatalf("the last run ended with %d:\n%s", code, stderr)
	}
	out, stderr, code := capstan(t, d.URI, "tail", name, "--from", "earliest", "--exit-at-end", "--output", "raw")
	if code != 0 || out != text.String() {
		t.Errorf("code %d; the stream holds %d lines, want %d, each once and in order:\n%s", code, strings.Count(out, "\n"), lines, stderr)
	}
	_, stderr, code = capstan(t, d.URI, "produce", name, "--durable", "import", input)
	if code != 0 || !strings.Contains(stderr, "sent 0, acknowledged 0, rejected 0, existed 0") {
		t.Errorf("one run more, code %d:\n%s", code, stderr)
	}
	// The same name with other content is refused.
	if err := os.WriteFile(input, []byte(strings.Replace(text.String(), "1", "2", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code = capstan(t, d.URI, "produce", name, "--durable", "import", input); code != 1 || !strings.Contains(stderr, "lines have changed") {
		t.Errorf("a changed input, code %d:\n%s", code, stderr)
	}
}

func count(description string) (n int) {
	_, rest, _ := strings.Cut(description, `"messages":`)
	_, _ = fmt.Sscanf(rest, "%d", &n)
	return n
}

func newestSrc(description string) string {
	_, rest, _ := strings.Cut(description, `"newest":`)
	return rest
}

// TestAStopRequestDrainsAndTellsWhereToGoOn: the exit codes of signals.
func TestAStopRequestDrainsAndTellsWhereToGoOn(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	name := d.DB(t).Name() + ".s"
	if _, stderr, code := capstan(t, d.URI, "stream", "create", name); code != 0 {
		t.Fatal(stderr)
	}
	send := start(t, d.URI, strings.NewReader("one\ntwo\n"), "produce", name)
	if code := send.code(t); code != 0 {
		t.Fatal(send.stderr.String())
	}
	for _, c := range []struct {
		name   string
		args   []string
		signal syscall.Signal
		want   int
	}{
		{"an endless tail has done what it should", []string{"tail"}, syscall.SIGINT, 0},
		{"also by SIGTERM", []string{"tail"}, syscall.SIGTERM, 0},
		{"a tail with --count has not", []string{"tail", "--count", "5"}, syscall.SIGINT, exitInterrupt},
		{"nor by SIGTERM", []string{"tail", "--count", "5"}, syscall.SIGTERM, exitTerminated},
		{"a consumer has", []string{"consume", "--durable", "c", "--exec", "while read -r l; do echo seen >&2; echo ok; done"}, syscall.SIGTERM, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, d.URI, nil, append(c.args, name, "--from", "earliest")...)
			eventually(t, "both messages are there", func() bool {
				return strings.Count(p.stdout.String(), "\n") == 2 || strings.Count(p.stderr.String(), "seen") == 2
			})
			if err := p.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			if got := p.code(t); got != c.want {
				t.Errorf("code %d, want %d; stderr:\n%s", got, c.want, p.stderr.String())
			}
			if s := p.stderr.String(); !strings.Contains(s, "go on with --") {
				t.Errorf("no summary:\n%s", s)
			}
		})
	}
}

// TestAStoppedProducerSendsWhatItRead cites I7: Ctrl-C on an endless input loses nothing that was read.
func TestAStoppedProducerSendsWhatItRead(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	name := d.DB(t).Name() + ".s"
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	p := start(t, d.URI, r, "produce", name, "--create")
	_ = r.Close()
	if _, err := io.WriteString(w, strings.Repeat("x\n", 5000)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "messages arrive", func() bool {
		out, _, _ := capstan(t, d.URI, "stream", "describe", name, "--output", "json")
		return count(out) > 0
	})
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.code(t); code != 0 {
		t.Errorf("code %d:\n%s", code, p.stderr.String())
	}
	var sent, acked int
	_, summary, _ := strings.Cut(p.stderr.String(), name+": ")
	if _, err := fmt.Sscanf(summary, "sent %d, acknowledged %d,", &sent, &acked); err != nil || sent == 0 || sent != acked {
		t.Errorf("sent %d, acknowledged %d (%v):\n%s", sent, acked, err, p.stderr.String())
	}
}

// TestTheSecondSignalStopsAtOnce cites I8: a handler that hangs does not hold the process, and is killed.
func TestTheSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	name := d.DB(t).Name() + ".s"
	send := start(t, d.URI, strings.NewReader("one\n"), "produce", name, "--create")
	if code := send.code(t); code != 0 {
		t.Fatal(send.stderr.String())
	}
	pid := filepath.Join(t.TempDir(), "pid")
	p := start(t, d.URI, nil, "consume", name, "--durable", "c", "--from", "earliest", "--drain-timeout", "10m", "--handler-timeout", "10m",
		"--exec", "echo $$ > "+pid+"; read -r l; sleep 1000")
	var child int
	eventually(t, "the handler has the message", func() bool {
		b, err := os.ReadFile(pid)
		n, _ := fmt.Sscanf(string(b), "%d", &child)
		return err == nil && n == 1
	})
	time.Sleep(300 * time.Millisecond) // the message may still be on its way to the child; either way it hangs
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
		t.Fatalf("ended at the first signal with %d:\n%s", p.ProcessState.ExitCode(), p.stderr.String())
	case <-time.After(500 * time.Millisecond):
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.code(t); code != exitInterrupt {
		t.Errorf("code %d, want %d:\n%s", code, exitInterrupt, p.stderr.String())
	}
	if !strings.Contains(p.stderr.String(), "the message in hand comes again") {
		t.Errorf("the summary does not say what becomes of the message:\n%s", p.stderr.String())
	}
	eventually(t, "the child's process group is gone", func() bool {
		return errors.Is(syscall.Kill(-child, 0), syscall.ESRCH)
	})
}

// TestABarIsDrawnOnATerminalOnly looks at what a terminal and a pipe get.
func TestABarIsDrawnOnATerminalOnly(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	name := d.DB(t).Name() + ".s"
	input := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(input, []byte(strings.Repeat("x\n", 2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"produce", name, "--create", "--rate", "2000", input}
	cmd := exec.CommandContext(t.Context(), capstanPath(t), args...)
	cmd.Env = append(os.Environ(), "CAPSTAN_URI="+d.URI, "TERM=xterm")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 120})
	if err != nil {
		t.Fatal(err)
	}
	var shown buffer
	_, _ = io.Copy(&shown, terminal) // ends with EIO when the process does
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, shown.String())
	}
	if s := shown.String(); !strings.Contains(s, "%") || !strings.Contains(s, "acknowledged 2000, rejected 0, existed 0 in") {
		t.Errorf("no bar or no summary on the terminal: %q", s)
	}
	_, stderr, code := capstan(t, d.URI, args...)
	if code != 0 || strings.ContainsAny(stderr, "\x1b\r") || strings.Contains(stderr, "%") {
		t.Errorf("code %d, and the pipe got %q", code, stderr)
	}
}
