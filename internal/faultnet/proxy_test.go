package faultnet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must happen; brief is how long a test listens to silence.
const (
	patience = 30 * time.Second
	brief    = 100 * time.Millisecond
)

// echo starts a server that sends back what it gets, and a proxy to it. got receives the number of
// bytes of each read of the server, end what ended each of its connections.
func echo(t *testing.T) (p *Proxy, got chan int, end chan error) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got, end = make(chan int, 10_000), make(chan error, 100)
	serve := func(c net.Conn) {
		defer c.Close()
		buf := make([]byte, 1<<10)
		for {
			n, err := c.Read(buf)
			got <- n
			if _, werr := c.Write(buf[:n]); err == nil {
				err = werr
			}
			if err != nil {
				end <- err
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	p, err = Listen(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Close()
		_ = l.Close()
	})
	return p, got, end
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// say sends what and checks that it comes back.
func say(t *testing.T, c net.Conn, what string) {
	t.Helper()
	send(t, c, what)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, len(what))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != what {
		t.Fatalf("got %q, %v; want %q", buf, err, what)
	}
}

func send(t *testing.T, c net.Conn, what string) {
	t.Helper()
	if _, err := io.WriteString(c, what); err != nil {
		t.Fatal(err)
	}
}

// quiet checks that nothing comes, and nothing ends.
func quiet(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(brief))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %d bytes, %v; want silence", n, err)
	}
}

// dead checks that the connection is reset.
func dead(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Fatalf("got %d bytes, %v; want a reset", n, err)
	}
}

// refused checks that a new connection is reset, be it while it is made.
func refused(t *testing.T, p *Proxy) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Addr())
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	dead(t, c)
}

func TestBytesPassUnchangedBothWays(t *testing.T) {
	p, _, end := echo(t)
	c := dial(t, p)
	say(t, c, strings.Repeat("0123456789", 10_000))
	_ = c.Close()
	select {
	case <-end: // an end passes, too
	case <-time.After(patience):
		t.Fatal("the server never saw the end")
	}
}

func TestABlackHoleSwallowsAndClosesNothing(t *testing.T) {
	p, got, end := echo(t)
	used, idle, closing := dial(t, p), dial(t, p), dial(t, p)
	for _, c := range []net.Conn{used, idle, closing} {
		say(t, c, "a")
		<-got
	}
	p.BlackHole()
	send(t, used, "lost")
	_ = closing.Close()
	quiet(t, used)
	born := dial(t, p)
	send(t, born, "lost, too")
	quiet(t, born)
	if len(got) != 0 || len(end) != 0 {
		t.Fatalf("the server saw %d reads and %d ends", len(got), len(end))
	}
	if n := p.Swallowed(); n != 13 {
		t.Errorf("%d bytes swallowed, want 13", n)
	}
	p.Heal()
	dead(t, used) // bytes are missing in it
	dead(t, born)
	say(t, idle, "b") // lost nothing
	say(t, dial(t, p), "c")
}

func TestSwallowedRepliesReachTheServerOnly(t *testing.T) {
	p, got, _ := echo(t)
	c := dial(t, p)
	say(t, c, "a")
	<-got
	p.SwallowReplies()
	send(t, c, "bc")
	select {
	case n := <-got:
		if n != 2 {
			t.Fatalf("the server got %d bytes", n)
		}
	case <-time.After(patience):
		t.Fatal("the server got nothing")
	}
	quiet(t, c)
	p.Heal()
	dead(t, c)
}

func TestSilenceFallsInTheMiddleOfWhatIsSent(t *testing.T) {
	p, got, _ := echo(t)
	c := dial(t, p)
	const n = 10_000
	p.SilenceAfter(n)
	go func() { _, _ = c.Write(bytes.Repeat([]byte("x"), 10*n)) }()
	for sum := 0; sum < n; {
		select {
		case k := <-got:
			sum += k
		case <-time.After(patience):
			t.Fatalf("the server got %d bytes, want %d", sum, n)
		}
	}
	time.Sleep(brief)
	if len(got) != 0 {
		t.Error("more than that arrived")
	}
	p.Heal()
	say(t, dial(t, p), "again")
}

func TestACutResetsEveryConnectionUntilItHeals(t *testing.T) {
	p, got, end := echo(t)
	c := dial(t, p)
	say(t, c, "a")
	<-got
	p.Cut()
	dead(t, c)
	select {
	case <-end: // the server's side, too
	case <-time.After(patience):
		t.Fatal("the server's side is still open")
	}
	refused(t, p)
	p.Heal()
	say(t, dial(t, p), "b")
}

func TestAServerThatIsNotThereResetsTheClient(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Listen(ctx, "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	cancel() // bounds the start alone
	refused(t, p)
	p.BlackHole()
	quiet(t, dial(t, p))
	for range 2 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASwitchboardReachesEachServerThroughAProxyOfItsOwn(t *testing.T) {
	a, _, _ := echo(t)
	b, _, _ := echo(t)
	board, err := Connect(t.Context(), a.Addr(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer board.Close()
	to := func(p *Proxy) net.Conn {
		c, err := board.DialContext(t.Context(), "tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	board.To(a.Addr()).BlackHole()
	silent, spoken := to(a), to(b)
	send(t, silent, "lost")
	say(t, spoken, "a")
	quiet(t, silent)
	board.Heal()
	say(t, to(a), "b")
	say(t, spoken, "c")
	if _, err := board.DialContext(t.Context(), "tcp", "127.0.0.1:1"); err == nil || board.To("127.0.0.1:1") != nil {
		t.Error("a target that was not named is reached")
	}
}
