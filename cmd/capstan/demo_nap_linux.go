package main

import (
	"syscall"
	"time"
)

// nap sleeps in the kernel, which is exact to some 60 µs, whatever the Go scheduler does. It may end
// early on a signal.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&ts, nil) // EINTR: a little early is no harm
}
