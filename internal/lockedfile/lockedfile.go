// Package lockedfile changes a small file as a whole, so that processes can share it and a crash never leaves half of it.
package lockedfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
)

// File is a file that is replaced as a whole. A change is written to a temporary file beside it, synced, renamed over it, and the
// directory is synced: after a crash or a power cut the file is the old one or the new one. A change holds an exclusive lock on
// PATH.lock (flock, so the lock dies with its process; the lock file stays). The file must be on a local file system, or on one whose
// flock works between machines.
//
// Safe for concurrent use. It holds nothing open between calls.
type File struct {
	path string
	wait time.Duration
	turn chan struct{} // holds one token: one change of this File at a time, waiting by context

	// Sys is what a test replaces, before use, to make a step of a write fail.
	Sys System
}

// System are the steps of a write.
type System struct {
	Write   func(f *os.File, b []byte) error
	Sync    func(f *os.File) error
	Rename  func(from, to string) error
	SyncDir func(dir string) error
}

// LockedError says that another process kept the lock for longer than a change may wait.
type LockedError struct {
	// Path is the lock's, Wait how long it was waited for.
	Path string
	Wait time.Duration
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("another process keeps %s locked for more than %s", e.Path, e.Wait)
}

// New returns the file at path, which need not exist; its directory must. A change waits for the lock for at most wait. It does
// no I/O.
func New(path string, wait time.Duration) *File {
	f := &File{path: path, wait: wait, turn: make(chan struct{}, 1), Sys: RealSystem()}
	f.turn <- struct{}{}
	return f
}

// Read returns what the file at path holds, nil if there is none. Renaming is atomic, so a reader needs no lock, and a person may read
// a file on a read-only mount. An empty file is not nil.
func Read(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// Change gives edit what the file holds (nil: there is none) and puts what it returns in its place, all under the lock. Errors: edit's,
// then nothing was changed; *LockedError; the context's; those of the file system. After one of the last the new content may be in place
// (when the directory could not be synced).
func (f *File) Change(ctx context.Context, edit func(old []byte) ([]byte, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-f.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { f.turn <- struct{}{} }()
	path, err := target(f.path)
	if err != nil {
		return err
	}
	unlock, err := f.lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	old, err := Read(path)
	if err != nil {
		return err
	}
	b, err := edit(old)
	if err != nil {
		return err
	}
	return f.replace(path, b)
}

// lock waits for the exclusive lock. flock cannot wait with a context, so it is tried repeatedly.
func (f *File) lock(ctx context.Context, path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.wait, &LockedError{Path: path, Wait: f.wait})
	defer cancel()
	tries := retry.New(retry.Policy{Initial: time.Millisecond, Max: 50 * time.Millisecond})
	for {
		unlock, err := TryLock(path)
		if unlock != nil || err != nil {
			return unlock, err
		}
		if err := tries.Wait(ctx, nil); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// replace puts b in the place of the file at path, so that a crash at any moment leaves the old
// content or the new one.
func (f *File) replace(path string, b []byte) error {
	// The name is fixed, as the lock is held: what a crash left behind is overwritten and not piled up.
	tmp, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("create temporary file: %w", err)
	}
	err = f.Sys.Write(tmp, b)
	if err == nil {
		err = f.Sys.Sync(tmp) // before the rename, or a power cut leaves the new name with no content
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // best effort: the next write truncates it anyway
		return fmt.Errorf("write %s: %w", tmp.Name(), err)
	}
	if err := f.Sys.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("replace checkpoint file: %w", err)
	}
	if err := f.Sys.SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("sync directory of %s: %w", path, err)
	}
	return nil
}

// target follows symbolic links: a rename would otherwise replace the link and leave the file.
func target(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if os.IsNotExist(err) {
		if _, lerr := os.Lstat(path); lerr == nil {
			return "", fmt.Errorf("%s is a symbolic link to nothing", path)
		}
		return path, nil
	}
	return real, err
}

// RealSystem are the steps as the operating system does them.
func RealSystem() System {
	return System{
		Write:  func(f *os.File, b []byte) error { _, err := f.Write(b); return err },
		Sync:   (*os.File).Sync,
		Rename: os.Rename,
		SyncDir: func(dir string) error {
			d, err := os.Open(dir)
			if err != nil {
				return err
			}
			err = d.Sync()
			if cerr := d.Close(); err == nil {
				err = cerr
			}
			return err
		},
	}
}
