package localcluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/retry"
)

// tempPrefix names temporary directories, so that abandoned ones can be found.
const tempPrefix = "capstan-cluster-"

// lockPatience is how long a start waits for an owner that is on its way out.
const lockPatience = 5 * time.Second

// Start starts the servers and returns when a primary accepts majority writes and every member is
// in service. ctx bounds the start only. A directory that holds a cluster which does not run is
// started again with its data. If Start fails, nothing is left running, and the error quotes the
// servers' logs. Errors wrap ErrNoMongod, ErrRunning.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Mongod == "" {
		path, err := Find()
		if err != nil {
			return nil, err
		}
		cfg.Mongod = path
	}
	if cfg.Network {
		if err := CheckNetwork(); err != nil {
			return nil, fmt.Errorf("start cluster: %w", err)
		}
	}
	if cfg.DiskMB > 0 && (runtime.GOOS != "linux" || os.Geteuid() != 0) {
		return nil, fmt.Errorf("start cluster: %w: that takes root (sudo) on Linux", ErrNeedsDisk)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.StartTimeout)
	defer cancel()
	c, err := prepare(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	if err := c.bringUp(ctx); err != nil {
		// The caller's context may be what ended, and the servers must go all the same.
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start cluster in %s: %w", c.dir, err), c.abandon(down))
	}
	if cfg.Detach {
		// From here on the servers belong to nobody, and the next process may work on the directory.
		return c, c.lock.Close()
	}
	return c, nil
}

// prepare makes or takes over the directory; nothing runs yet when it returns.
func prepare(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{log: cfg.Logger.With().Str("component", "localcluster").Logger(), done: make(chan struct{}), owner: !cfg.Detach}
	temporary := cfg.Dir == ""
	if temporary {
		sweep(ctx, os.TempDir())
		dir, err := os.MkdirTemp("", tempPrefix)
		if err != nil {
			return nil, err
		}
		cfg.Dir = dir
	} else if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if cfg.Network {
		_, _ = reclaimNetworks(ctx) // best effort: what is left over is in nobody's way
	}
	var err error
	if c.dir, err = realDir(cfg.Dir); err != nil {
		return nil, err
	}
	if c.lock, err = takeLock(ctx, c.dir); err != nil {
		return nil, err
	}
	if err := c.adopt(ctx, cfg, temporary); err != nil {
		err = errors.Join(err, c.lock.Close())
		if temporary {
			err = errors.Join(err, os.RemoveAll(c.dir))
		}
		return nil, err
	}
	c.spawn = newSpawner(c.owner)
	return c, nil
}

// takeLock takes the directory's lock. An owner that was killed a moment ago may still hold it: its
// servers end together with it, not after it. So it is waited for if no server runs.
func takeLock(ctx context.Context, dir string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	loop := retry.New(poll)
	for {
		lock, err := lockDir(dir, true)
		if err == nil || !errors.Is(err, ErrRunning) {
			return lock, err
		}
		st, serr := loadState(dir)
		if serr == nil && slices.ContainsFunc((&Cluster{dir: dir, st: st}).Members(), Member.Running) || loop.Wait(ctx, err) != nil {
			return nil, err
		}
	}
}

// adopt fills c.st, from the directory if a cluster lived there before.
func (c *Cluster) adopt(ctx context.Context, cfg Config, temporary bool) error {
	st, err := loadState(c.dir)
	switch {
	case isNoState(err):
		st = freshState(cfg)
	case err != nil:
		return err
	default:
		if err := c.clear(ctx, st); err != nil {
			return err
		}
		if err := st.matches(cfg); err != nil {
			return err
		}
		// What a killed owner has left is in an unknown state.
		if err := (&Cluster{dir: c.dir, st: st}).undo(ctx); err != nil {
			return err
		}
	}
	if cfg.Network {
		st.Network = newNetwork()
	}
	st.Mongod, st.ExtraArgs = cfg.Mongod, cfg.ExtraArgs
	st.CacheMB, st.OplogMB, st.DiskMB = cfg.CacheMB, cfg.OplogMB, cfg.DiskMB
	st.Detach, st.Temporary, st.Label = cfg.Detach, temporary, cfg.Label
	st.Control, st.ControlToken = "", ""
	c.st = st
	if st.User != "" && st.Set != "" {
		if err := writeKeyFile(c.dir); err != nil {
			return err
		}
	}
	if st.TLS {
		if err := writeCertificates(c.dir, st.Members); err != nil {
			return err
		}
	}
	return st.save(c.dir)
}

// clear deals with servers that still run in a directory whose lock is free: those of a detached
// cluster are in use, any others have lost their owner.
func (c *Cluster) clear(ctx context.Context, st state) error {
	for _, m := range st.Members {
		srv, err := findServer(filepath.Join(c.dir, m.Name, "data"))
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return err
		}
		defer srv.release()
		pid := srv.proc.Pid
		if st.Detach {
			return fmt.Errorf("%w: process %d", ErrRunning, pid)
		}
		c.log.Warn().Str("member", m.Name).Int("pid", pid).Msg("killing a server whose owner is gone")
		if err := srv.kill(ctx); err != nil {
			return err
		}
	}
	return nil
}

func freshState(cfg Config) state {
	st := state{Version: stateVersion, TLS: cfg.TLS, ServerDefaults: cfg.ServerDefaults}
	for i := range cfg.Members {
		m := memberState{Name: fmt.Sprintf("m%d", i)}
		if cfg.Network {
			m.Host, m.Port = fmt.Sprintf(memberAddress, firstMember+i), networkPort
		}
		st.Members = append(st.Members, m)
	}
	if cfg.Members > 1 || cfg.Set != "" {
		st.Set = cmp.Or(cfg.Set, "capstan-"+randomHex(3))
	}
	if cfg.Auth {
		st.User, st.Password = rootUser, randomHex(16)
	}
	return st
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, see crypto/rand
	return hex.EncodeToString(b)
}

// bringUp starts the servers and waits until they can be used.
func (c *Cluster) bringUp(ctx context.Context) error {
	if c.owner {
		if err := c.listenForOthers(ctx); err != nil {
			return err
		}
		if err := c.saveState(); err != nil { // members that keep their ports save nothing
			return err
		}
	}
	if err := c.makeGround(ctx); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for i := range c.st.Members {
		g.Go(func() error { return c.startMember(gctx, i) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c.mu.Lock()
	st := c.st
	c.mu.Unlock()
	if err := c.form(ctx, st); err != nil {
		return fmt.Errorf("%w\n%s", err, c.quoteLogs())
	}
	c.log.Info().Str("dir", c.dir).Int("members", len(st.Members)).Msg("cluster started")
	return nil
}

// makeGround makes what the servers run on, where it is not this computer's own.
func (c *Cluster) makeGround(ctx context.Context) error {
	c.mu.Lock()
	st := c.st
	c.mu.Unlock()
	if st.Network != nil {
		began := time.Now()
		if err := st.Network.build(ctx, c.dir, st); err != nil {
			return err
		}
		c.log.Debug().Str("network", st.Network.ID).Dur("took", time.Since(began)).Msg("network made")
	}
	if st.DiskMB > 0 {
		for _, m := range c.Members() {
			if err := mountDisk(m.dbpath(), st.DiskMB); err != nil {
				return err
			}
		}
	}
	return nil
}

// abandon removes what a failed start has left. The directory of a cluster that was there before is kept.
func (c *Cluster) abandon(ctx context.Context) error {
	if c.owner {
		return c.Down(ctx)
	}
	err := c.stopAll(ctx)
	c.spawn.close()
	return errors.Join(err, c.undo(ctx), c.removeTemporary(), c.lock.Close())
}

// temporaries lists the temporary directories in tmp that hold a cluster of this user.
func temporaries(tmp string) []string {
	var dirs []string
	matches, _ := filepath.Glob(filepath.Join(tmp, tempPrefix+"*")) // the pattern is valid
	for _, dir := range matches {
		dir, err := realDir(dir)
		if err != nil {
			continue
		}
		// Another user's state cannot be read.
		if st, err := loadState(dir); err == nil && st.Temporary {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Temporary returns the directories of this user's clusters that were started with Config.Dir "" and
// the given Config.Label, whether their servers run or not.
func Temporary(label string) []string {
	return slices.DeleteFunc(temporaries(os.TempDir()), func(dir string) bool {
		st, err := loadState(dir)
		return err != nil || st.Label != label
	})
}
