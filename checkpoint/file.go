package checkpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/lockedfile"
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
	file *lockedfile.File

	unsure unsure
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
	return &File{path: path, file: lockedfile.New(path, cfg.LockWait)}, nil
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

// read returns what the file holds. It needs no lock: see lockedfile.Read.
func (f *File) read(ctx context.Context) (map[string]record.Checkpoint, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := lockedfile.Read(f.path)
	if err != nil {
		return nil, fmt.Errorf("read checkpoint file: %w", err)
	}
	return f.entries(b)
}

// entries returns those of a file's content; none if there is no file. A file of zero bytes
// is no empty store: something cut it off.
func (f *File) entries(b []byte) (map[string]record.Checkpoint, error) {
	if b == nil {
		return map[string]record.Checkpoint{}, nil
	}
	entries, err := decodeFile(b)
	if err != nil {
		return nil, &CorruptError{Path: f.path, Err: err}
	}
	return entries, nil
}

// change runs edit on the entries under the lock and writes them back if it returns nil.
func (f *File) change(ctx context.Context, edit func(map[string]record.Checkpoint) error) error {
	return f.file.Change(ctx, func(old []byte) ([]byte, error) {
		entries, err := f.entries(old)
		if err != nil {
			return nil, err
		}
		if err := edit(entries); err != nil {
			return nil, err
		}
		return encodeFile(entries)
	})
}
