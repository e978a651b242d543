package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
)

// DefaultLockWait is FileConfig.LockWait's default. A holder keeps the lock for one read and one
// write with two fsyncs, which take tens of milliseconds on a slow disk.
const DefaultLockWait = 10 * time.Second

// FileConfig configures a File. The zero value is valid.
type FileConfig struct {
	// LockWait is how long a call waits for another process that has the file locked, unless its context
	// ends first; 0 means DefaultLockWait.
	LockWait time.Duration
}

func (c FileConfig) withDefaults() FileConfig {
	if c.LockWait == 0 {
		c.LockWait = DefaultLockWait
	}
	return c
}

func (c FileConfig) validate() error {
	if c.LockWait < 0 {
		return fmt.Errorf("file checkpoints: LockWait is %s, it must not be negative", c.LockWait)
	}
	return nil
}

// File keeps the checkpoints of one machine in one JSON file: all names of one store, so that a
// person sees them together.
//
// A change is written to a temporary file beside it, synced, renamed over it, and the directory is
// synced: after a crash or a power cut the file is the old one or the new one. Every call reads the
// file anew under an exclusive lock on PATH.lock (flock, so the lock dies with its process; the lock
// file stays). Several processes may therefore share a file; two of them under one name fence each
// other like everywhere. The file must be on a local file system, or on one whose flock works between
// machines.
//
// Safe for concurrent use. It holds nothing open between calls, so there is nothing to close.
type File struct {
	path string
	cfg  FileConfig
	turn chan struct{} // holds one token: one call of this File at a time, waiting by context
	sys  fileSystem

	unsure unsure
}

// fileSystem is what a test replaces to make a step of a write fail.
type fileSystem struct {
	write   func(f *os.File, b []byte) error
	sync    func(f *os.File) error
	rename  func(from, to string) error
	syncDir func(dir string) error
}

// NewFile returns a store in the file at path, which need not exist; its directory must. It does no
// I/O. Errors: an empty path, or a Config that is out of range.
func NewFile(path string, cfg FileConfig) (*File, error) {
	if path == "" {
		return nil, fmt.Errorf("file checkpoints: the path is empty")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	f := &File{path: path, cfg: cfg, turn: make(chan struct{}, 1), sys: realFileSystem()}
	f.turn <- struct{}{}
	return f, nil
}

// Acquire is as Memory.Acquire; further errors: *CorruptError and those of the file system.
func (f *File) Acquire(ctx context.Context, name, stream, owner string) (record.Checkpoint, error) {
	if err := checkAcquire(name, owner); err != nil {
		return record.Checkpoint{}, err
	}
	var next record.Checkpoint
	err := f.change(ctx, func(entries map[string]record.Checkpoint) (err error) {
		next, err = takeOver(entries[name], name, stream, owner, clock())
		entries[name] = next
		return err
	})
	if err != nil {
		return record.Checkpoint{}, fmt.Errorf("acquire checkpoint %q: %w", name, err)
	}
	return next.Clone(), nil
}

// Save is as Memory.Save; further errors: *CorruptError and those of the file system. After one of
// the latter the file may hold the new checkpoint already (the directory could not be synced); the
// next Save with the same revision, through the same File, is then not fenced by its predecessor.
func (f *File) Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	var next record.Checkpoint
	edited := false
	err := f.change(ctx, func(entries map[string]record.Checkpoint) (err error) {
		cur, found := entries[cp.Name]
		mine := cp
		if found && f.unsure.ours(cp, cur) {
			mine.Revision = cur.Revision
		}
		next, err = replace(cur, found, mine, clock())
		entries[cp.Name] = next
		edited = err == nil
		return err
	})
	if err != nil {
		if edited {
			f.unsure.note(cp, next.Revision)
		}
		return record.Checkpoint{}, fmt.Errorf("save checkpoint %q: %w", cp.Name, err)
	}
	f.unsure.settled(cp.Name)
	return next.Clone(), nil
}

// Load is as Memory.Load; further errors as for Acquire.
func (f *File) Load(ctx context.Context, name string) (record.Checkpoint, error) {
	entries, err := f.read(ctx)
	if err != nil {
		return record.Checkpoint{}, fmt.Errorf("load checkpoint %q: %w", name, err)
	}
	cp, ok := entries[name]
	if !ok {
		return record.Checkpoint{}, fmt.Errorf("load checkpoint %q: %w", name, ErrNotFound)
	}
	return cp, nil
}

// List is as Memory.List; further errors as for Acquire.
func (f *File) List(ctx context.Context) ([]record.Checkpoint, error) {
	entries, err := f.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	return sorted(entries), nil
}

// Set is as Memory.Set; further errors as for Acquire.
func (f *File) Set(ctx context.Context, cp record.Checkpoint) error {
	if err := checkName("name", cp.Name); err != nil {
		return err
	}
	err := f.change(ctx, func(entries map[string]record.Checkpoint) error {
		entries[cp.Name] = byHand(entries[cp.Name], cp, clock())
		return nil
	})
	if err != nil {
		return fmt.Errorf("set checkpoint %q: %w", cp.Name, err)
	}
	return nil
}

// Delete is as Memory.Delete; further errors as for Acquire.
func (f *File) Delete(ctx context.Context, name string) error {
	err := f.change(ctx, func(entries map[string]record.Checkpoint) error {
		if _, ok := entries[name]; !ok {
			return ErrNotFound
		}
		delete(entries, name)
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete checkpoint %q: %w", name, err)
	}
	return nil
}

// read returns what the file holds. Renaming is atomic, so a reader needs no lock, and a person may
// list a file on a read-only mount.
func (f *File) read(ctx context.Context) (map[string]record.Checkpoint, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return readFile(f.path)
}

// change runs edit on the entries under the lock and writes them back if it returns nil.
func (f *File) change(ctx context.Context, edit func(map[string]record.Checkpoint) error) error {
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
	entries, err := readFile(path)
	if err != nil {
		return err
	}
	if err := edit(entries); err != nil {
		return err
	}
	b, err := encodeFile(entries)
	if err != nil {
		return err
	}
	return f.replace(path, b)
}

// lock waits for the exclusive lock. flock cannot wait with a context, so it is tried repeatedly.
func (f *File) lock(ctx context.Context, path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.cfg.LockWait,
		fmt.Errorf("another process keeps %s locked for more than %s", path, f.cfg.LockWait))
	defer cancel()
	tries := retry.New(retry.Policy{Initial: time.Millisecond, Max: 50 * time.Millisecond})
	for {
		unlock, err := tryLock(path)
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
	err = f.sys.write(tmp, b)
	if err == nil {
		err = f.sys.sync(tmp) // before the rename, or a power cut leaves the new name with no content
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // best effort: the next write truncates it anyway
		return fmt.Errorf("write %s: %w", tmp.Name(), err)
	}
	if err := f.sys.rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("replace checkpoint file: %w", err)
	}
	if err := f.sys.syncDir(filepath.Dir(path)); err != nil {
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

func realFileSystem() fileSystem {
	return fileSystem{
		write:  func(f *os.File, b []byte) error { _, err := f.Write(b); return err },
		sync:   (*os.File).Sync,
		rename: os.Rename,
		syncDir: func(dir string) error {
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
