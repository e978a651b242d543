// Package systemd tells the service manager how the process is: ready, reloading, stopping, alive. Without a manager that wants to know
// it does nothing. It promises datagrams in the form of sd_notify(3), and no more: nobody answers.
package systemd

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Notifier sends states. The nil Notifier does nothing. Safe for concurrent use.
type Notifier struct{ conn *net.UnixConn }

// New returns a Notifier for the socket that NOTIFY_SOCKET names, nil if that is empty. An @ in front stands for the abstract
// namespace.
func New(socket string) (*Notifier, error) {
	if socket == "" {
		return nil, nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("open the notify socket: %w", err)
	}
	return &Notifier{conn}, nil
}

// Close closes the socket.
func (n *Notifier) Close() error {
	if n == nil {
		return nil
	}
	return n.conn.Close()
}

// sendTimeout bounds a send: the manager's queue may be full, and nothing here may wait for it.
const sendTimeout = time.Second

func (n *Notifier) send(lines ...string) error {
	if n == nil {
		return nil
	}
	if err := n.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	if _, err := n.conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Ready says that the service is up, or up again after Reloading.
func (n *Notifier) Ready() error { return n.send("READY=1") }

// Status says in one line what the service does.
func (n *Notifier) Status(line string) error {
	return n.send("STATUS=" + strings.ReplaceAll(line, "\n", " "))
}

// Reloading says that a reload has begun; Ready ends it. systemd 253 and later want the clock with it, to tell it from an earlier one.
func (n *Notifier) Reloading() error {
	return n.send("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(monotonic().Microseconds(), 10))
}

// Stopping says that the service ends.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

// Watchdog says that the service is alive.
func (n *Notifier) Watchdog() error { return n.send("WATCHDOG=1") }

// Watchdog returns how often the manager wants to hear that the process is alive, from WATCHDOG_USEC and WATCHDOG_PID; 0 if it does not.
func Watchdog(usec, pid string, self int) time.Duration {
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || pid != "" && pid != strconv.Itoa(self) {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}
