package systemd

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheManagerHearsEveryState(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = manager.Close() }()
	n, err := New(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	hear := func() string {
		t.Helper()
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1024)
		l, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:l])
	}
	for _, c := range []struct {
		send func() error
		want string
	}{
		{n.Ready, "READY=1"},
		{n.Stopping, "STOPPING=1"},
		{n.Watchdog, "WATCHDOG=1"},
		{func() error { return n.Status("a\nb") }, "STATUS=a b"},
	} {
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		if got := hear(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	var before, after int64
	if err := n.Reloading(); err != nil {
		t.Fatal(err)
	}
	_, usec, ok := strings.Cut(hear(), "RELOADING=1\nMONOTONIC_USEC=")
	before, err = strconv.ParseInt(usec, 10, 64)
	if !ok || err != nil || before <= 0 {
		t.Fatalf("got %q", usec)
	}
	if after = monotonic().Microseconds(); after < before || after-before > time.Minute.Microseconds() {
		t.Errorf("said %d, and now it is %d", before, after)
	}
}

func TestWithoutAManagerNothingHappens(t *testing.T) {
	t.Parallel()
	n, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	for _, send := range []func() error{n.Ready, n.Reloading, n.Stopping, n.Watchdog, n.Close} {
		if err := send(); err != nil {
			t.Error(err)
		}
	}
	if Watchdog("", "", 1) != 0 || Watchdog("30000000", "2", 1) != 0 || Watchdog("30000000", "1", 1) != 30*time.Second || Watchdog("2000", "", 1) != 2*time.Millisecond {
		t.Error("the watchdog's period is not read as sd_watchdog_enabled(3) says")
	}
}
