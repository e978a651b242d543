package localcluster

import (
	"context"
	"errors"
	"os"
	"slices"
)

// beginKill ends the member by SIGKILL; healing starts it again.
func (c *Cluster) beginKill(ctx context.Context, i *Injection) error {
	return c.signalled(i, i.member, func(s *server) error {
		if err := i.takes(func() error { return s.signal(os.Kill) }); err != nil {
			return err
		}
		return s.wait(ctx)
	})
}

// beginTerm asks the member to end and does not wait for it: a primary hands over first.
func (c *Cluster) beginTerm(_ context.Context, i *Injection) error {
	return c.signalled(i, i.member, func(s *server) error {
		return i.takes(func() error { return s.signal(sigTerminate) })
	})
}

// signalled does something that ends a member; healing waits for the end and starts it again.
func (c *Cluster) signalled(i *Injection, m Member, do func(*server) error) error {
	srv, err := findServer(m.dbpath())
	if err != nil {
		return err
	}
	i.undoes(func(ctx context.Context) error {
		if err := srv.wait(ctx); err != nil {
			return err
		}
		srv.release()
		_, err = c.Start(ctx, m.Name)
		return err
	})
	return do(srv)
}

// beginMajorityDown kills all members but one, at once.
func (c *Cluster) beginMajorityDown(ctx context.Context, i *Injection) error {
	others := slices.DeleteFunc(c.Members(), func(m Member) bool { return m.Name == i.member.Name || !m.Running() })
	return i.takes(func() error {
		return each(others, func(m Member) error {
			return c.signalled(i, m, func(s *server) error {
				if err := s.signal(os.Kill); err != nil {
					return err
				}
				return s.wait(ctx)
			})
		})
	})
}

// beginRollingRestart restarts one member after the other, as an upgrade does, the primary last. Each
// time it waits until all is well again.
func (c *Cluster) beginRollingRestart(ctx context.Context, i *Injection) error {
	restarted := map[string]bool{}
	stop := func(ctx context.Context) (Member, error) {
		m, err := c.nextToRestart(ctx, restarted)
		if err != nil {
			return m, err
		}
		restarted[m.Name] = true
		return m, c.signalled(i, m, func(s *server) error {
			return i.takes(s.terminate)
		})
	}
	m, err := stop(ctx)
	if err != nil {
		return err
	}
	i.member = m
	return i.steps(ctx, func(ctx context.Context) error {
		for {
			if err := c.restarted(ctx, m); err != nil {
				return err
			}
			if len(restarted) == len(c.Members()) {
				return nil
			}
			if m, err = stop(ctx); err != nil {
				return err
			}
		}
	})
}

// nextToRestart is a member that has not been restarted, the primary only if it is the last.
func (c *Cluster) nextToRestart(ctx context.Context, restarted map[string]bool) (Member, error) {
	left := slices.DeleteFunc(c.Status(ctx), func(m Member) bool { return restarted[m.Name] })
	if k := slices.IndexFunc(left, func(m Member) bool { return m.Role == RoleSecondary }); k >= 0 {
		return left[k], nil
	}
	if len(left) != 1 {
		return Member{}, errors.New("no secondary is in service: " + describe(left))
	}
	return left[0], nil
}

// restarted starts a member that was told to end, once it has, and waits until all is well.
func (c *Cluster) restarted(ctx context.Context, m Member) error {
	err := waitFor(ctx, "end of "+m.Name, func() error {
		srv, err := findServer(m.dbpath())
		if errors.Is(err, errGone) {
			return nil
		}
		if err == nil {
			srv.release()
			err = errors.New("it still runs")
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := c.Start(ctx, m.Name); err != nil {
		return err
	}
	return c.AwaitHealthy(ctx)
}

func (c *Cluster) beginStepDown(ctx context.Context, i *Injection) error {
	err := i.takes(func() error {
		_, err := c.StepDown(ctx, i.member.Name)
		return err
	})
	if err != nil {
		return err
	}
	return i.steps(ctx, func(context.Context) error { return nil }) // there is nothing to hold
}

func (c *Cluster) beginFreeze(ctx context.Context, i *Injection) error {
	name := i.member.Name
	i.undoes(func(ctx context.Context) error {
		_, err := c.Thaw(ctx, name)
		return err
	})
	return i.takes(func() error {
		_, err := c.Freeze(ctx, name)
		return err
	})
}
