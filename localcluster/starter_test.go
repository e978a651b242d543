package localcluster

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestNoServerOutlivesItsStarterEvenByKill9(t *testing.T) {
	owner, dir := startElsewhere(t, t.TempDir())
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	first := c.Members()[0]
	if _, err := c.Kill(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	// Another process asks for the start, yet the member is the owner's child and ends with it.
	second, err := c.Start(t.Context(), "m0")
	if err != nil || second.PID == first.PID || second.Addr != first.Addr {
		t.Fatalf("%+v came back as %+v, %v", first, second, err)
	}
	insert(t, c.URI(), 1)
	if _, err := c.Freeze(t.Context(), "m0"); err != nil { // the hardest to be rid of
		t.Fatal(err)
	}
	if err := owner.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, c)
}

func TestAnOwnersClusterCanBeTakenDownByAnotherProcess(t *testing.T) {
	owner, dir := startElsewhere(t, "")
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	down(t, c)
	gone(t, c)
	if err := owner.Wait(); err != nil { // it noticed, by Done
		t.Errorf("the owner ended with %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary directory is still there: %v", err)
	}
}

func TestADetachedClusterOutlivesItsStarterAndIsControlledByAnyone(t *testing.T) {
	owner, dir := startElsewhere(t, "", "detach")
	if err := owner.Wait(); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { down(t, c) })
	insert(t, c.URI(), 1)
	if _, err := Start(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrRunning) {
		t.Errorf("a start in a running directory: %v", err)
	}
	sweep(t.Context(), os.TempDir())
	if !c.Members()[0].Running() {
		t.Fatal("swept although it is detached")
	}
	if _, err := c.Stop(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(t.Context(), "m0"); err != nil {
		t.Fatal(err)
	}
	if n := count(t, c.URI()); n != 1 {
		t.Errorf("%d documents, want 1", n)
	}
	down(t, c)
	gone(t, c)
	if _, err := Open(dir); !errors.Is(err, ErrNotFound) {
		t.Errorf("open afterwards: %v", err)
	}
}
