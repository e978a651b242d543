package localcluster

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// AwaitHealthy returns when the cluster is as a fault should find it: one primary, which every other
// member follows; every member sees every other one; and a write of this moment has been
// acknowledged by a majority and applied by every member. ctx bounds it; its end is reported
// together with what was still missing.
func (c *Cluster) AwaitHealthy(ctx context.Context) error {
	return waitFor(ctx, "a healthy cluster", func() error { return c.checkHealthy(ctx) })
}

func (c *Cluster) checkHealthy(ctx context.Context) error {
	c.mu.Lock()
	states, set := c.st.Members, c.st.Set
	c.mu.Unlock()
	members, answers := c.ask(ctx)
	primary := -1
	for i, m := range members {
		switch {
		case m.Role == RoleNone:
			return fmt.Errorf("%s is not in service (%s)", m.Name, describe(members))
		case m.Role == RoleSecondary:
		case primary >= 0:
			return fmt.Errorf("%s and %s are both primary", members[primary].Name, m.Name)
		default:
			primary = i
		}
	}
	if primary < 0 {
		return fmt.Errorf("%w: %s (%s)", errNoRole, RolePrimary, describe(members))
	}
	if set == "" {
		return nil
	}
	for i, h := range answers {
		if h.Follows != members[primary].Addr {
			return fmt.Errorf("%s follows %q and not the primary %s", members[i].Name, h.Follows, members[primary].Name)
		}
	}
	// The write first: it takes the longest, and what the members see of each other is younger then.
	if err := c.writeToAll(ctx, states[primary], len(states)); err != nil {
		return err
	}
	return each(states, func(m memberState) error { return c.seesAll(ctx, m) })
}

// writeToAll has a note applied by all members. A majority of those who elect is part of that, and it
// says of a member that writes keep busy what the comparison of two positions could not.
func (c *Cluster) writeToAll(ctx context.Context, primary memberState, members int) error {
	for _, w := range []any{"majority", members} {
		if err := c.note(ctx, primary, w); err != nil {
			return fmt.Errorf("write acknowledged by %v: %w", w, err)
		}
	}
	return nil
}

// note writes an oplog entry, which leaves no database behind.
func (c *Cluster) note(ctx context.Context, primary memberState, w any) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var reply struct {
		WriteConcernError bson.Raw `bson:"writeConcernError"`
	}
	note := bson.D{{Key: "appendOplogNote", Value: 1}, {Key: "data", Value: bson.D{{Key: "capstan", Value: "written"}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}, {Key: "wtimeout", Value: (commandTimeout / 2).Milliseconds()}}}}
	if err := c.command(ctx, primary, false, note, &reply); err != nil {
		return err
	}
	if reply.WriteConcernError != nil {
		return fmt.Errorf("write concern: %v", reply.WriteConcernError)
	}
	return nil
}

// seesAll reports whether a member hears from all others, which takes heartbeats after a fault.
func (c *Cluster) seesAll(ctx context.Context, m memberState) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var status struct {
		Members []struct {
			Name   string  `bson:"name"`
			Health float64 `bson:"health"`
			State  string  `bson:"stateStr"`
		} `bson:"members"`
	}
	if err := c.command(ctx, m, false, bson.D{{Key: "replSetGetStatus", Value: 1}}, &status); err != nil {
		return err
	}
	if len(status.Members) == 0 {
		return errors.New("the set has no members yet")
	}
	for _, other := range status.Members {
		if other.Health != 1 || other.State != "PRIMARY" && other.State != "SECONDARY" {
			return fmt.Errorf("%s sees %s as %s", m.Name, other.Name, other.State)
		}
	}
	return nil
}
