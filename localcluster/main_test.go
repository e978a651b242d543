package localcluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// helperVar makes the test binary play the program that starts a cluster; its value is a list of
// words: a directory ("" for a temporary one) and options.
const helperVar = "CAPSTAN_TEST_STARTER"

func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(helperVar); ok {
		os.Exit(starter(strings.Split(spec, ",")))
	}
	goleak.VerifyTestMain(m)
}

// starter starts a cluster, says where, and waits to be killed, or leaves at once when it detaches.
func starter(spec []string) int {
	cfg := Config{Dir: spec[0], OplogMB: 200}
	for _, o := range spec[1:] {
		switch o {
		case "detach":
			cfg.Detach = true
		case "set":
			cfg.Members = 3
		case "network":
			cfg.Network, cfg.DiskMB = true, MinDiskMB
		}
	}
	c, err := Start(context.Background(), cfg)
	if err == nil && cfg.Network {
		_, err = c.Machine(context.Background(), "app")
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println(c.Dir())
	if !cfg.Detach {
		<-c.Done()
	}
	return 0
}

// startElsewhere runs starter in another process and returns the cluster's directory. The process is
// killed and waited for when the test ends, if it still lives.
func startElsewhere(t *testing.T, spec ...string) (*exec.Cmd, string) {
	t.Helper()
	needsMongod(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperVar+"="+strings.Join(spec, ","))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error:") {
		t.Fatalf("starter said %q, %v", line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// needsMongod skips the test on a machine without mongod, and fails it in CI.
func needsMongod(t *testing.T) {
	t.Helper()
	if _, err := Find(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("needs a real MongoDB: ", err)
	}
}

// start starts a cluster that is taken down when the test ends.
func start(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	needsMongod(t)
	if cfg.OplogMB == 0 {
		cfg.OplogMB = 200
	}
	began := time.Now()
	c, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d members writable after %v", len(c.Members()), time.Since(began).Round(10*time.Millisecond))
	t.Cleanup(func() { down(t, c) })
	return c
}

func down(t *testing.T, c *Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Down(ctx); err != nil {
		t.Error(err)
	}
}

// eventually polls until ok, for a minute: other programs may keep the machine busy.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
