package pace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Waiter waits until moments, one at a time: it is for one goroutine. Make it with New; Close it.
type Waiter struct {
	timer *os.File
	buf   [8]byte
}

// New returns a Waiter. The error is that of the kernel, which has no file descriptor left.
func New() (*Waiter, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	return &Waiter{timer: os.NewFile(uintptr(fd), "timer")}, nil
}

// Close ends the Waiter. It may be called at any time, and ends a wait with ErrClosed.
func (w *Waiter) Close() error { return w.timer.Close() }

func (w *Waiter) sleep(ctx context.Context, d time.Duration) error {
	if ctx.Done() != nil && d > time.Millisecond { // a shorter one is over before it can be missed
		stop := context.AfterFunc(ctx, func() { _ = w.timer.SetReadDeadline(time.Unix(1, 0)) })
		defer func() {
			if !stop() {
				_ = w.timer.SetReadDeadline(time.Time{})
			}
		}()
	}
	raw, err := w.timer.SyscallConn()
	if err != nil {
		return closed(err)
	}
	var set error
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := raw.Control(func(fd uintptr) { set = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil {
		return closed(err)
	}
	if set != nil {
		return set
	}
	_, err = w.timer.Read(w.buf[:])
	return closed(err)
}

func closed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return ErrClosed
	}
	return err
}
