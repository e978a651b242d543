//go:build unix

package localcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Signals of the faults.
const (
	sigFreeze    = syscall.SIGSTOP
	sigThaw      = syscall.SIGCONT
	sigTerminate = syscall.SIGTERM
)

// lockDir takes the directory's lock for this process, or says that another has it. The kernel
// frees it when the holder dies, so it cannot go stale; closing the file frees it too. Servers do
// not inherit it: Go opens files close-on-exec. Only the owner makes the file (create): in a
// directory that is just being removed, a new file would make the removal fail.
func lockDir(dir string, create bool) (*os.File, error) {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrRunning
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}
