package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// patience bounds every wait for something that must come: generous, as the machine may be loaded.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(handlerEnv) != "" {
		os.Exit(handlerMain(os.Stdin, os.Stdout, os.Stderr))
	}
	mongotest.Main(m)
}

// full reports whether the tests run at full size.
func full() bool { return os.Getenv("CAPSTAN_E2E_FULL") == "1" }

// sized returns small, or large at full size.
func sized[T any](small, large T) T {
	if full() {
		return large
	}
	return small
}

// seed returns a random generator whose seed is printed; CAPSTAN_E2E_SEED repeats a run.
func seed(t *testing.T) *rand.Rand {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("CAPSTAN_E2E_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d (CAPSTAN_E2E_SEED=%d repeats it)", s, s)
	return rand.New(rand.NewPCG(s, 0))
}

// binary builds capstan once per test binary. CAPSTAN_BIN names one that is built already.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("CAPSTAN_BIN"); path != "" {
		return filepath.Abs(path)
	}
	// Not t.TempDir, which ends with the first test. Renamed into place, as another run of this checkout may be
	// using it.
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	checkout := fnv.New32a()
	_, _ = checkout.Write([]byte(here)) // never fails
	path := filepath.Join(os.TempDir(), fmt.Sprintf("capstan-e2e-%d-%08x", os.Getuid(), checkout.Sum32()), "capstan")
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("go", "build", "-o", fresh, "../cmd/capstan")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build capstan: %w\n%s", err, out)
	}
	if err := os.Rename(fresh, path); err != nil {
		return "", err
	}
	return path, nil
})

// process is a running capstan.
type process struct {
	cmd    *exec.Cmd
	stderr lockedBuffer
	ended  chan struct{}
	err    error // once ended is closed
}

// start runs capstan with args. stdin may be nil; stdout nil discards. It is killed when the test ends.
func start(t *testing.T, uri string, stdin io.Reader, stdout io.Writer, args ...string) *process {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	// It is killed by the clean-up and not by the test's context, which ends before the clean-ups.
	p := &process{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), bin, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "CAPSTAN_URI="+uri)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, stdout, &p.stderr
	p.cmd.WaitDelay = 5 * time.Second // a grandchild may hold the pipes for a moment
	bind(p.cmd)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the process by SIGKILL and waits for its end. Its children are left alone, as a crash
// would leave them.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
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

// wait waits for the end and fails the test unless the exit code is 0.
func (p *process) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("%v does not end; it said:\n%s", p.cmd.Args[1:], p.stderr.String())
	}
	if p.err != nil {
		t.Fatalf("%v: %v; it said:\n%s", p.cmd.Args[1:], p.err, p.stderr.String())
	}
}

// stop asks the process to end, as Ctrl-C does, and waits.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	p.wait(t)
}

// lockedBuffer is written by a process and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// eventually polls until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %v in vain: %s", patience, what)
		}
	}
}

// reach waits until progress is at least n.
func reach(ctx context.Context, progress *atomic.Int64, n int64) bool {
	for progress.Load() < n {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	return true
}

// within returns a context that ends after patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
