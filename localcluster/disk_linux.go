package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sys/unix"
)

// diskSource is how our disks are called in the list of mounts.
const diskSource = "capstan-disk"

// mountedDisks lists the data directories that have disks of their own.
func mountedDisks() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var paths []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == diskSource {
			paths = append(paths, unescape.Replace(f[1]))
		}
	}
	return paths, nil
}

// mountDisk gives a data directory a disk of its own, in memory. Only the data: the log must be able
// to say that the disk is full.
func mountDisk(dbpath string, megabytes int) error {
	if err := os.MkdirAll(dbpath, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(diskSource, dbpath, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%dm,mode=0700", megabytes)); err != nil {
		return fmt.Errorf("mount a disk of %d MB on %s: %w", megabytes, dbpath, err)
	}
	return nil
}

// unmountDisk is idempotent. The directory is left at once even if somebody still looks into it.
func unmountDisk(dbpath string) error {
	for {
		err := unix.Unmount(dbpath, unix.MNT_DETACH)
		switch {
		case err == nil: // perhaps there is one below
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // no mount there
			return nil
		default:
			return fmt.Errorf("unmount %s: %w", dbpath, err)
		}
	}
}

// beginDiskFull fills the member's disk to the last block and has the server write to it. A mongod that cannot write its journal
// ends itself; healing starts it again.
func (c *Cluster) beginDiskFull(ctx context.Context, i *Injection) error {
	m := i.member
	ms, err := c.memberState(m.Name)
	if err != nil {
		return err
	}
	offset := fileSize(m.Log())
	i.undoes(func(ctx context.Context) error {
		if err := os.Remove(filepath.Join(m.dbpath(), filler)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		// One that has said its last words must not be taken for a healthy one.
		if logHas(m.Log(), offset, logFatal) {
			srv, err := findServer(m.dbpath())
			if err == nil {
				defer srv.release()
				err = srv.wait(ctx)
			}
			if err != nil && !errors.Is(err, errGone) {
				return err
			}
		}
		_, err := c.Start(ctx, m.Name)
		return err
	})
	if err := i.takes(func() error { return fill(m.dbpath()) }); err != nil {
		return err
	}
	// Its journal has room that is taken already, and its data are written once a minute: it would
	// notice at some time within that minute. A server that ends itself meanwhile answers nothing.
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var reply bson.Raw
	if err := c.command(ctx, ms, false, bson.D{{Key: "fsync", Value: 1}}, &reply); err != nil {
		c.log.Debug().Err(err).Str("member", m.Name).Msg("wrote to the full disk")
	}
	return nil
}

// fill takes all free space of the file system that dir is on, also what is freed meanwhile.
func fill(dir string) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, filler), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var size int64
	for {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
			return fmt.Errorf("look at the disk: %w", err)
		}
		free := int64(fs.Bavail) * fs.Bsize
		if free == 0 {
			return nil
		}
		// The server takes some meanwhile; then less is tried for.
		for ; free > 0; free /= 2 {
			err = unix.Fallocate(int(f.Fd()), 0, size, free)
			if err == nil {
				size += free
				break
			}
			if !errors.Is(err, unix.ENOSPC) {
				return fmt.Errorf("fill the disk: %w", err)
			}
		}
	}
}
