package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"
)

// Listen opens the listener for an address: HOST:PORT, or unix:PATH. A socket file that nobody serves any more is replaced; one that
// somebody serves is an error. The file can be used by its owner and group.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		ln, err := lc.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, fmt.Errorf("open the admin listener: %w", err)
		}
		return ln, nil
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, fmt.Errorf("open the admin listener: %w", err)
	}
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the admin listener: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("open the admin listener: %w", err), ln.Close())
	}
	return ln, nil
}

// removeStale removes a socket that a killed process left behind.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s is no socket; it is left alone", path)
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("%s is served by another process", path), conn.Close())
	}
	return os.Remove(path)
}
