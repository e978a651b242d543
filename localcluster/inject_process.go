package localcluster

import (
	"context"
	"os"
)

// beginKill ends the member by SIGKILL; healing starts it again.
func (c *Cluster) beginKill(ctx context.Context, i *Injection) error {
	return c.signalled(ctx, i, func(s *server) error {
		if err := i.takes(func() error { return s.signal(os.Kill) }); err != nil {
			return err
		}
		return s.wait(ctx)
	})
}

// beginTerm asks the member to end and does not wait for it: a primary hands over first.
func (c *Cluster) beginTerm(ctx context.Context, i *Injection) error {
	return c.signalled(ctx, i, func(s *server) error {
		return i.takes(func() error { return s.signal(sigTerminate) })
	})
}

// signalled does something that ends the member; healing waits for the end and starts it again.
func (c *Cluster) signalled(ctx context.Context, i *Injection, do func(*server) error) error {
	name := i.member.Name
	srv, err := findServer(i.member.dbpath())
	if err != nil {
		return err
	}
	i.undoes(func(ctx context.Context) error {
		err := srv.wait(ctx)
		if err != nil {
			return err
		}
		srv.release()
		_, err = c.Start(ctx, name)
		return err
	})
	return do(srv)
}

func (c *Cluster) beginStepDown(ctx context.Context, i *Injection) error {
	return i.takes(func() error {
		_, err := c.StepDown(ctx, i.member.Name)
		return err
	})
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
