package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// stopGrace is what a server gets to end by itself before it is killed: it flushes its data, and a
// primary hands over first.
const stopGrace = 20 * time.Second

// killTimeout bounds the wait for a killed process; only the kernel's work is left then.
const killTimeout = 20 * time.Second

// Down stops all servers, frozen ones too, and removes the directory if Start made it. In a
// directory that is kept, servers may stop cleanly until ctx ends and are killed then; journalled
// data survive either way, and Start can start the cluster again. In a process that only opened the
// cluster, Down asks its owner. Idempotent.
func (c *Cluster) Down(ctx context.Context) error {
	c.mu.Lock()
	if c.down {
		c.mu.Unlock()
		select { // perhaps another goroutine is still at it
		case <-c.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.down = true // from here on no member is started
	remote := !c.owner && c.st.Control != ""
	c.mu.Unlock()
	defer close(c.done)
	c.endSteps()
	var err error
	switch {
	case c.owner:
		err = c.downOwned(ctx)
	case remote:
		err = c.downRemote(ctx)
	default:
		err = c.downDetached(ctx)
	}
	if err != nil {
		return fmt.Errorf("stop cluster in %s: %w", c.dir, err)
	}
	c.log.Info().Str("dir", c.dir).Msg("cluster stopped")
	return nil
}

// downOwned: first nobody may ask for a start any more, then the servers end, then the thread that
// they depend on, then the lock that keeps others out of the directory; it goes last.
func (c *Cluster) downOwned(ctx context.Context) error {
	if c.control != nil {
		c.control.close()
	}
	err := c.stopAll(ctx)
	c.spawn.close()
	return errors.Join(err, c.undo(ctx), c.removeTemporary(), c.lock.Close())
}

func (c *Cluster) downDetached(ctx context.Context) error {
	lock, err := lockDir(c.dir, true)
	if err != nil {
		return err // somebody starts it at this moment
	}
	err = c.stopAll(ctx)
	c.spawn.close()
	return errors.Join(err, c.undo(ctx), c.removeTemporary(), lock.Close())
}

// endSteps ends the faults that go on by themselves, so that they do not break or start anything
// from here on. What faults have done goes with the servers and the network.
func (c *Cluster) endSteps() {
	c.mu.Lock()
	var stops []func()
	for _, i := range c.injections {
		if i.stop != nil {
			stops = append(stops, i.stop)
		}
	}
	c.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// undo removes what the cluster has made outside of its directory. It is done also when ctx has
// ended, as nobody would do it later.
func (c *Cluster) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	return errors.Join(c.network().remove(ctx), c.unmountDisks())
}

// downRemote asks the owner, and waits for it to let go of the directory. If there is no owner any
// more, its servers are gone with it, or are stopped from here.
func (c *Cluster) downRemote(ctx context.Context) error {
	asked := c.request(ctx, request{Op: opDown})
	if asked != nil {
		if err := c.downDetached(ctx); err != nil {
			return errors.Join(fmt.Errorf("ask its owner: %w", asked), err)
		}
		return nil
	}
	return waitFor(ctx, "its owner", func() error {
		lock, err := lockDir(c.dir, false)
		if errors.Is(err, os.ErrNotExist) {
			return nil // it was a temporary directory
		}
		if err != nil {
			return err
		}
		return lock.Close()
	})
}

func (c *Cluster) removeTemporary() error {
	if !c.st.Temporary {
		return nil
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove directory: %w", err)
	}
	return nil
}

// stopAll ends all servers: those of a temporary cluster at once, others cleanly if they can before
// ctx or stopGrace ends.
func (c *Cluster) stopAll(ctx context.Context) error {
	c.mu.Lock()
	temporary, children := c.st.Temporary, c.children
	c.mu.Unlock()
	var g errgroup.Group
	for _, m := range c.Members() {
		g.Go(func() error {
			srv, err := findServer(m.dbpath())
			if errors.Is(err, errGone) {
				return nil
			}
			if err != nil {
				return err
			}
			defer srv.release()
			if !temporary {
				grace, cancel := context.WithTimeout(ctx, stopGrace)
				defer cancel()
				if srv.terminate() == nil && srv.wait(grace) == nil {
					return nil
				}
			}
			return srv.kill(ctx)
		})
	}
	err := g.Wait()
	// A child that was caught before it wrote its lock file. The spawner waits for its end.
	for _, ch := range children {
		if ch.running() {
			_ = ch.cmd.Process.Kill() // it may have ended meanwhile
		}
	}
	return err
}

// filler is the file that fills a member's disk.
const filler = "capstan-filler"

// unmountDisks ends the disks of the members, and their data.
func (c *Cluster) unmountDisks() error {
	if c.st.DiskMB == 0 {
		return nil
	}
	var errs []error
	for _, m := range c.Members() {
		errs = append(errs, unmountDisk(m.dbpath()))
	}
	return errors.Join(errs...)
}
