package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Kill ends a member by SIGKILL, as a crash would, and waits until the process is gone. who is a
// member's name, or "primary" or "secondary"; a role is waited for during an election. The Member
// returned says which one it was, as it is afterwards.
func (c *Cluster) Kill(ctx context.Context, who string) (Member, error) {
	return c.onServer(ctx, "kill", who, func(s *server) error {
		if err := s.signal(os.Kill); err != nil {
			return err
		}
		return s.wait(ctx)
	})
}

// Freeze stops a member's process in its tracks (SIGSTOP): its connections stay open and the kernel
// acknowledges what is sent to it, yet it answers nothing. who is as in Kill.
func (c *Cluster) Freeze(ctx context.Context, who string) (Member, error) {
	return c.onServer(ctx, "freeze", who, func(s *server) error {
		if err := s.signal(sigFreeze); err != nil {
			return err
		}
		return waitFor(ctx, "the process to stand still", func() error {
			if s.frozen() {
				return nil
			}
			return errors.New("it still moves")
		})
	})
}

// Thaw lets a frozen member go on (SIGCONT). who is its name: a frozen member tells nobody its role.
func (c *Cluster) Thaw(ctx context.Context, who string) (Member, error) {
	return c.onServer(ctx, "thaw", who, func(s *server) error { return s.signal(sigThaw) })
}

// Stop ends a member cleanly (SIGTERM): a primary hands over first, then closes its data. It waits for
// the end of the process. A frozen member is thawed, or the signal would never reach it. who is as in Kill.
func (c *Cluster) Stop(ctx context.Context, who string) (Member, error) {
	return c.onServer(ctx, "stop", who, func(s *server) error {
		if err := s.terminate(); err != nil {
			return err
		}
		return s.wait(ctx)
	})
}

func (s *server) terminate() error {
	if err := s.signal(sigTerminate); err != nil {
		return err
	}
	return s.signal(sigThaw)
}

// Start starts a member that does not run, with its data and on its old port, and returns when it
// listens; its recovery and election take their time after that. who is its name. A standalone whose
// port another program has taken meanwhile moves to a new one: URI tells. Of a cluster that
// another process owns, that process starts it, so that the member ends with its cluster.
func (c *Cluster) Start(ctx context.Context, who string) (Member, error) {
	index := -1
	for i, m := range c.Members() {
		if m.Name == who {
			index = i
		}
	}
	if index < 0 {
		return Member{}, fmt.Errorf("start member: %q is not one of %s: a stopped member is called by its name", who, c.names())
	}
	if c.Members()[index].Running() {
		return c.Members()[index], nil
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultStartTimeout)
	defer cancel()
	c.mu.Lock()
	remote := !c.owner && c.st.Control != ""
	c.mu.Unlock()
	if remote {
		if err := c.request(ctx, request{Op: opStart, Member: who}); err != nil {
			return c.Members()[index], fmt.Errorf("start %s: ask the cluster's owner: %w", who, err)
		}
		return c.Members()[index], nil
	}
	err := c.startMember(ctx, index)
	return c.Members()[index], err
}

// StepDown makes the primary give up its role in favour of another member, and returns when it has.
// who is "primary", or a member's name, which must be the primary then.
func (c *Cluster) StepDown(ctx context.Context, who string) (Member, error) {
	m, index, err := c.resolve(ctx, who)
	if err != nil {
		return m, fmt.Errorf("step down: %w", err)
	}
	c.mu.Lock()
	ms := c.st.Members[index]
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*stepDownPeriod)
	defer cancel()
	var reply bson.Raw
	cmd := bson.D{{Key: "replSetStepDown", Value: int(stepDownPeriod.Seconds())},
		{Key: "secondaryCatchUpPeriodSecs", Value: int(stepDownPeriod.Seconds()) - 1}}
	if err := c.command(ctx, ms, false, cmd, &reply); err != nil {
		if p, perr := c.primary(ctx); perr == nil && p.Name != m.Name {
			return m, fmt.Errorf("step down %s: only the primary can, and that is %s now", m.Name, p.Name)
		}
		return m, fmt.Errorf("step down %s: %w", m.Name, err)
	}
	c.log.Info().Str("member", m.Name).Msg("primary stepped down")
	return c.Members()[index], nil
}

// onServer does something to the process of one member.
func (c *Cluster) onServer(ctx context.Context, verb, who string, do func(*server) error) (Member, error) {
	m, index, err := c.resolve(ctx, who)
	if err != nil {
		return m, fmt.Errorf("%s member: %w", verb, err)
	}
	srv, err := findServer(m.dbpath())
	if err != nil {
		return m, fmt.Errorf("%s %s: %w", verb, m.Name, err)
	}
	defer srv.release()
	if err := do(srv); err != nil {
		return m, fmt.Errorf("%s %s: %w", verb, m.Name, err)
	}
	c.log.Info().Str("member", m.Name).Str("fault", verb).Msg("member signalled")
	return c.Members()[index], nil
}

// resolve finds the member that who means.
func (c *Cluster) resolve(ctx context.Context, who string) (m Member, index int, err error) {
	if who != RolePrimary && who != RoleSecondary {
		for i, m := range c.Members() {
			if m.Name == who {
				return m, i, nil
			}
		}
		return m, -1, fmt.Errorf("%q is not one of %s, %s, %s", who, c.names(), RolePrimary, RoleSecondary)
	}
	ctx, cancel := context.WithTimeout(ctx, roleTimeout)
	defer cancel()
	err = waitFor(ctx, "a "+who, func() error {
		m, index, err = c.inRole(ctx, who)
		return err
	})
	return m, index, err
}

func (c *Cluster) inRole(ctx context.Context, role string) (Member, int, error) {
	if role == RolePrimary {
		p, err := c.primary(ctx)
		for i, m := range c.Members() {
			if err == nil && m.Name == p.Name {
				return m, i, nil
			}
		}
		return Member{}, -1, err
	}
	members := c.Status(ctx)
	for i, m := range members {
		if m.Role == role {
			return m, i, nil
		}
	}
	return Member{}, -1, fmt.Errorf("%w: %s (%s)", errNoRole, role, describe(members))
}

func (c *Cluster) names() string {
	var s string
	for i, m := range c.Members() {
		if i > 0 {
			s += ", "
		}
		s += m.Name
	}
	return s
}
