package main

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// clusterEnv gives clusters a temporary folder of this test's own. Whatever a failed test leaves
// running in it is taken down at the end.
func clusterEnv(t *testing.T) (mongod, tmp string) {
	t.Helper()
	mongod = mongotest.Mongod(t)
	tmp = t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, dir := range localcluster.Temporary(clusterLabel) {
			if c, err := localcluster.Open(dir); err == nil {
				t.Errorf("left running in %s: %v", dir, c.Down(ctx))
			}
		}
	})
	return mongod, tmp
}

func TestADetachedClusterByTheCommandLine(t *testing.T) {
	mongod, tmp := clusterEnv(t)
	// A script has no home, and so no cache to find a server in.
	scripts(t, "cluster", map[string]string{"TMPDIR": tmp, localcluster.MongodVar: mongod})
}

func TestAClusterWithANetworkByTheCommandLine(t *testing.T) {
	mongod, tmp := clusterEnv(t)
	if err := localcluster.CheckNetwork(); err != nil {
		if os.Getenv("CI") == "true" && os.Geteuid() == 0 && !errors.Is(err, fs.ErrPermission) {
			t.Fatal(err)
		}
		t.Skip("needs root on Linux, with ip and nft: ", err)
	}
	before, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").Output()
	if err != nil {
		t.Fatal(err)
	}
	scripts(t, "network", map[string]string{"TMPDIR": tmp, localcluster.MongodVar: mongod})
	if after, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").Output(); err != nil || string(after) != string(before) {
		t.Errorf("the computer's own rules were\n%s\nand are\n%s (%v)", before, after, err)
	}
}

func TestAForegroundClusterStaysUntilCtrlCAndCleansUp(t *testing.T) {
	_, tmp := clusterEnv(t)
	cmd := exec.CommandContext(t.Context(), capstanPath(t), "cluster", "up", "--members", "3", "--auth", "--tls")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("no connection string")
	}
	if u, err := url.Parse(lines.Text()); err != nil || u.User == nil || u.Query().Get("tls") != "true" {
		t.Errorf("connection string %q, %v", lines.Text(), err)
	}
	dirs := localcluster.Temporary(clusterLabel)
	if len(dirs) != 1 {
		t.Fatalf("clusters in %s: %v", tmp, dirs)
	}
	c, err := localcluster.Open(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Freeze(t.Context(), "primary"); err != nil { // Ctrl-C must not wait for it
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("more on standard output: %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil { // I7: stopped on request is success
		t.Errorf("ended with %v", err)
	}
	for _, m := range c.Members() {
		if m.Running() {
			t.Errorf("%+v still runs", m)
		}
	}
	if left := localcluster.Temporary(clusterLabel); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
