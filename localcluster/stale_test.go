package localcluster

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAStoppedDirectoryStartsAgainWithItsData(t *testing.T) {
	dir := t.TempDir()
	c := start(t, Config{Dir: dir})
	insert(t, c.URI(), 1)
	if _, err := Start(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second start in the directory: %v", err)
	}
	down(t, c)
	if _, err := Start(t.Context(), Config{Dir: dir, Members: 3}); err == nil || !strings.Contains(err.Error(), "members 1 and not 3") {
		t.Errorf("a start with other members: %v", err)
	}
	c = start(t, Config{Dir: dir})
	if n := count(t, c.URI()); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}
}

// The set is the harder case: its configuration names the ports.
func TestAReplicaSetStartsAgainAfterItsOwnerAndAllMembersWereKilled(t *testing.T) {
	dir := t.TempDir()
	owner, _ := startElsewhere(t, dir, "set")
	opened, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	insert(t, opened.URI(), 1)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, opened)
	lock, err := os.ReadFile(filepath.Join(dir, "m0", "data", "mongod.lock"))
	if err != nil || len(lock) == 0 {
		t.Fatalf("mongod.lock is %q, %v; the test wants a stale one", lock, err)
	}
	c := start(t, Config{Dir: dir, Members: 3})
	if n := count(t, c.URI()); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}
}

// gone waits until no member of the cluster has a process.
func gone(t *testing.T, c *Cluster) {
	t.Helper()
	eventually(t, "the end of every member", func() bool {
		for _, m := range c.Members() {
			if m.Running() {
				return false
			}
		}
		return true
	})
}

func TestAPidThatBelongsToAnotherProgramNowIsNeverSignalled(t *testing.T) {
	dir := t.TempDir()
	other := exec.CommandContext(t.Context(), "sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = other.Wait(); close(ended) }()
	t.Cleanup(func() { _ = other.Process.Kill(); <-ended })

	c := start(t, Config{Dir: dir})
	insert(t, c.URI(), 1)
	if _, err := c.Kill(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(dir, "m0", "data", "mongod.lock")
	if err := os.WriteFile(lock, []byte(strconv.Itoa(other.Process.Pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m := c.Members()[0]; m.Running() {
		t.Errorf("another program counts as the member: %+v", m)
	}
	if _, err := c.Kill(t.Context(), "m0"); !errors.Is(err, errGone) {
		t.Errorf("kill: %v", err)
	}
	if _, err := c.Freeze(t.Context(), "m0"); !errors.Is(err, errGone) {
		t.Errorf("freeze: %v", err)
	}
	down(t, c)
	c = start(t, Config{Dir: dir}) // and the stale file is no obstacle
	if n := count(t, c.URI()); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}
	select {
	case <-ended:
		t.Error("the other program was killed")
	default:
	}
}

func TestAPortTakenByAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	c := start(t, Config{Dir: dir})
	addr := c.Members()[0].Addr
	insert(t, c.URI(), 1)
	if _, err := c.Kill(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	l := listen(t, addr)
	t.Run("makes a standalone move", func(t *testing.T) {
		m, err := c.Start(t.Context(), "m0")
		if err != nil || m.Addr == addr {
			t.Fatalf("%+v, %v", m, err)
		}
		if n := count(t, c.URI()); n != 1 {
			t.Errorf("%d documents, want 1", n)
		}
		opened, err := Open(dir)
		if err != nil || opened.URI() != c.URI() {
			t.Errorf("others see %v, %v", opened, err)
		}
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Run("is said of a set's member, which cannot move", func(t *testing.T) {
		if _, err := c.Kill(t.Context(), "m0"); err != nil {
			t.Fatal(err)
		}
		l := listen(t, c.Members()[0].Addr)
		defer l.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := c.restartMember(ctx, c.st.Members[0]); !errors.Is(err, errPortTaken) {
			t.Errorf("restart: %v", err)
		}
	})
}

func TestAnAbandonedTemporaryDirectoryIsSweptByTheNextStart(t *testing.T) {
	owner, dir := startElsewhere(t, "")
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	gone(t, opened)
	_ = owner.Wait()
	sweep(t.Context(), filepath.Dir(dir))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func TestAFailedStartQuotesTheServerAndLeavesNothing(t *testing.T) {
	needsMongod(t)
	t.Setenv("TMPDIR", t.TempDir())
	script := filepath.Join(t.TempDir(), "mongod")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho 'error while loading shared libraries: libcurl.so.4' >&2\nexit 127\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{ExtraArgs: []string{"--noSuchOption"}}, "noSuchOption"},
		{Config{Members: 3, ExtraArgs: []string{"--setParameter", "noSuchParameter=1"}}, "noSuchParameter"},
		{Config{Mongod: script}, "libcurl.so.4"},
		{Config{Mongod: "/nonexistent/mongod"}, "no such file"},
	} {
		c, err := Start(t.Context(), tc.cfg)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v; want %q", tc.cfg.ExtraArgs, err, tc.want)
		}
		if c != nil {
			down(t, c)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, Config{Members: 3}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a start without enough time: %v", err)
	}
	if left := temporaries(os.TempDir()); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
