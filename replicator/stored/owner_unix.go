//go:build unix

package stored

import (
	"errors"
	"syscall"
)

// gone reports whether there is certainly no process pid on this machine.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
