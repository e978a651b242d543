package localcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// netnsDir is where ip(8) keeps its named network namespaces, as bind mounts.
const netnsDir = "/run/netns"

// inNamespace runs fn on a thread that is in the named network namespace, and waits for it. Sockets
// that fn makes and processes that it starts belong to that namespace for good. fn must not start a
// goroutine that makes some: it would run on another thread.
func inNamespace(name string, fn func() error) error {
	// A goroutine of its own, because a thread that does not get back home must end: it ends with
	// the goroutine that has locked it.
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			result <- err
			return
		}
		defer home.Close()
		if err = enterNamespace(name); err == nil {
			err = fn()
		}
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// enterNamespace moves the current thread, which the caller has locked, into a namespace.
func enterNamespace(name string) error {
	f, err := os.Open(filepath.Join(netnsDir, name))
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return nil
}

// dialIn opens a connection from inside a namespace. The thread stays there while the connection is
// being made: the net package makes its socket in the calling goroutine, as long as the address is
// an IP literal.
func dialIn(ctx context.Context, name, network, address string) (conn net.Conn, err error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) == nil {
		return nil, fmt.Errorf("dial %s: names are not looked up inside a cluster's network, give an IP address", address)
	}
	err = inNamespace(name, func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// runIn runs a program inside a namespace ("" is the host's) and returns what it printed.
func runIn(ctx context.Context, name, stdin, prog string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, prog, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	// Not stopped by a Ctrl-C in the terminal: half a set of rules would be worse than a moment's wait.
	cmd.SysProcAttr = processAttr(true)
	start := cmd.Start
	if name != "" {
		start = func() error { return inNamespace(name, cmd.Start) }
	}
	err := start()
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("run %s %s in %q: %w: %s", prog, strings.Join(args, " "), name, errors.Join(context.Cause(ctx), err),
			strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// tryNamespace makes a network namespace and a table in it, for a moment: root in a container often may
// not, and some kernels have no tables.
func tryNamespace(nft string) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread and its namespace end here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("make a network namespace (a container without CAP_SYS_ADMIN?): %w", err)
			return
		}
		// Without a context: it takes some milliseconds and waits for nobody.
		table := newTables(filter("", nil, []string{"tcp dport 1"}))
		cmd := exec.Cmd{Path: nft, Args: []string{"nft", "-f", "-"}, Stdin: strings.NewReader(table.program(table.list[0]))}
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("make a table by nft: %w: %s", err, bytes.TrimSpace(out))
		}
		result <- err
	}()
	return <-result
}

// namespaces lists the named network namespaces of this machine.
func namespaces() ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}
