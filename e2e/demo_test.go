package e2e

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/latency"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func TestTheDemoLosesNothingAndShowsIt(t *testing.T) {
	mongotest.Mongod(t)
	dir := t.TempDir()
	var out bytes.Buffer
	p := start(t, "", nil, &out, "demo", "--count", "12000", "--rate", "400", "--standalone-count", "1000", "--standalone-rate", "500", "--out", dir)
	p.wait(t)
	t.Logf("%s\n%s", p.stderr.String(), out.String())
	for _, want := range []string{"kill -9", "SIGSTOP", "is started again", "is thawed", "seed "} {
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("%q is missing on standard error", want)
		}
	}
	for _, want := range []string{`(?m)^  acknowledged +12,000 +1,000`, `(?m)^  lost +0 +0$`, `(?m)^  duplicated +0 +0$`, `(?m)^  in the stream +12,000 +1,000`, `(?m)^  m\d killed: outage +[\d.]+ m?s`, `(?m)^  m\d frozen: outage +[\d.]+ m?s`, `(?m)^    m\d frozen +[\d,]+ `, `(?m)^    between +[\d,]+ `, `(?m)^PASSED`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%q is missing on standard output", want)
		}
	}
	for name, n := range map[string]int{"replica-set": 12000, "standalone": 1000} {
		f, err := os.Open(filepath.Join(dir, name+".csv"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if samples, err := latency.Read(f); err != nil || len(samples) != n {
			t.Errorf("%s: %d samples, %v", name, len(samples), err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, name+".png")); err != nil || !bytes.HasPrefix(b, []byte("\x89PNG")) {
			t.Errorf("%s: no picture: %v", name, err)
		}
	}
	gone(t, p)
}

// A load that is over before the killed primary is back leaves no room for the freeze: that is said, and
// the rest is judged.
func TestADemoTooShortForTheFreezeSaysSo(t *testing.T) {
	mongotest.Mongod(t)
	var out bytes.Buffer
	p := start(t, "", nil, &out, "demo", "--count", "600", "--rate", "200", "--standalone-count", "0", "--out", t.TempDir())
	p.wait(t)
	for _, want := range []string{`(?m)^  m\d killed: outage `, `(?m)^No primary was frozen: `, `(?m)^  lost +0$`, `(?m)^PASSED`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%q is missing on standard output:\n%s\n%s", want, p.stderr.String(), out.String())
		}
	}
	gone(t, p)
}

// gone waits until no server that p has named answers.
func gone(t *testing.T, p *process) {
	t.Helper()
	addrs := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(p.stderr.String(), -1)
	if len(addrs) == 0 {
		t.Fatalf("no server is named in:\n%s", p.stderr.String())
	}
	for _, addr := range addrs {
		eventually(t, "the end of "+addr, func() bool {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		})
	}
}

// I7: whoever stops the demo, once or twice, finds no server left behind.
func TestAnInterruptedDemoLeavesNoServer(t *testing.T) {
	mongotest.Mongod(t)
	for name, signals := range map[string]int{"once": 1, "twice": 2} {
		t.Run(name, func(t *testing.T) {
			p := start(t, "", nil, nil, "demo", "--count", "100000", "--rate", "500", "--out", t.TempDir())
			eventually(t, "messages on their way", func() bool { return strings.Contains(p.stderr.String(), "a second:") || !p.running() })
			for range signals {
				if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
				time.Sleep(50 * time.Millisecond)
			}
			select {
			case <-p.ended:
			case <-time.After(patience):
				t.Fatalf("it does not end:\n%s", p.stderr.String())
			}
			if code := p.cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("exit code %d, want 130; it said:\n%s", code, p.stderr.String())
			}
			gone(t, p)
		})
	}
}
