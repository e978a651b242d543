package localcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// Election timing of a set that does not keep the server's defaults. The heartbeat must go down
// with the election timeout: with 1000/2000 (the default heartbeat) a second, needless election came in two of
// four planned step-downs, because a secondary without sync source hears from the primary only once
// per heartbeat. Both are in the first configuration, never in a later one: fetchers that run
// already keep the old timing (18 s instead of 3 s in the first outage after a change). Never below
// 100 ms: 1 ms crashes mongod for good.
const (
	electionTimeout   = time.Second
	heartbeatInterval = 250 * time.Millisecond
	// catchUpTimeout bounds how long a new primary looks for members that are ahead of it. It waits for a word of
	// every member, so for a silent one until that counts as down, another electionTimeout later: without this
	// bound writes were permitted 2.03 to 2.1 s after a freeze, with it after 1.26 to 1.38 s, and acknowledged by
	// a majority after 1.4 to 1.9 s (mongod 6.0.5, six trials). What a majority had is on the new primary anyway;
	// what only w: 1 had acknowledged is rolled back a little oftener.
	catchUpTimeout = 250 * time.Millisecond
)

const (
	// askTimeout bounds one question to one member: a frozen one never answers.
	askTimeout = 2 * time.Second
	// commandTimeout bounds one administrative command.
	commandTimeout = 10 * time.Second
	// roleTimeout is how long a fault waits for a member in the role that it names, during an election for instance.
	roleTimeout = 15 * time.Second
	// stepDownPeriod bars the old primary from being elected again at once.
	stepDownPeriod = 10 * time.Second
)

// errNoRole says that no member has a role at this moment.
var errNoRole = errors.New("no member in that role")

// hello is the part of a member's answer that we use.
type hello struct {
	Primary    bool          `bson:"isWritablePrimary"`
	Secondary  bool          `bson:"secondary"`
	SetName    string        `bson:"setName"`
	ElectionID bson.ObjectID `bson:"electionId"`
	Follows    string        `bson:"primary"`
}

func (h hello) role() string {
	switch {
	case h.Primary && h.SetName == "":
		return RoleStandalone
	case h.Primary:
		return RolePrimary
	case h.Secondary:
		return RoleSecondary
	}
	return RoleNone
}

// connect returns a client of one member. anonymous leaves the credentials out: hello needs none,
// and before the first user exists they would be refused.
func (c *Cluster) connect(m memberState, anonymous bool) (*mongo.Client, error) {
	c.mu.Lock()
	st := c.st
	c.mu.Unlock()
	if anonymous {
		st.User = ""
	}
	var dialer options.ContextDialer = &net.Dialer{}
	if st.Network != nil {
		// From the member's own machine, over the loopback interface there, which no fault cuts: what we
		// ask is about the member, not about the way to it. The first user is made from there as well.
		m.Host = loopback
		dialer = spaceDialer{namespace: st.Network.namespace(m.Name)}
	}
	uri := st.uri(c.dir, []memberState{m}, url.Values{"directConnection": {"true"}})
	return mongo.Connect(options.Client().ApplyURI(uri).SetDialer(dialer).SetAppName("capstan-localcluster").
		SetConnectTimeout(askTimeout).SetServerSelectionTimeout(askTimeout).SetRetryReads(false).SetRetryWrites(false))
}

// command runs one command on the admin database of one member.
func (c *Cluster) command(ctx context.Context, m memberState, anonymous bool, cmd bson.D, result any) error {
	client, err := c.connect(m, anonymous)
	if err != nil {
		return err
	}
	// Disconnect also when ctx has ended: it must not leave monitors behind.
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	return client.Database("admin").RunCommand(ctx, cmd).Decode(result)
}

func (c *Cluster) hello(ctx context.Context, m memberState) (hello, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var h hello
	err := c.command(ctx, m, true, bson.D{{Key: "hello", Value: 1}}, &h)
	return h, err
}

// form makes a usable deployment of servers that listen.
func (c *Cluster) form(ctx context.Context, st state) error {
	if st.Set != "" {
		if err := c.initiate(ctx, st); err != nil {
			return err
		}
	}
	if err := waitFor(ctx, "a primary", func() error {
		_, err := c.primary(ctx)
		return err
	}); err != nil {
		return err
	}
	if st.User != "" {
		if err := waitFor(ctx, "the root user", func() error { return c.ensureUser(ctx, st) }); err != nil {
			return err
		}
	}
	if st.Set == "" {
		return nil
	}
	if err := waitFor(ctx, "a majority write", func() error { return c.writeNote(ctx) }); err != nil {
		return err
	}
	return waitFor(ctx, "all members", func() error {
		for _, m := range c.Status(ctx) {
			if m.Role != RolePrimary && m.Role != RoleSecondary {
				return fmt.Errorf("%s is not in service", m.Name)
			}
		}
		return nil
	})
}

// initiate configures the set on its first member, unless it has a configuration. On a busy machine the
// command may not even be sent, or take longer than its connection lives; it goes on then, and the
// member's own word is what counts. Only an answer that says no is final.
func (c *Cluster) initiate(ctx context.Context, st state) error {
	members := bson.A{}
	for i, m := range st.Members {
		members = append(members, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: m.addr()}})
	}
	cfg := bson.D{{Key: "_id", Value: st.Set}, {Key: "version", Value: 1}, {Key: "members", Value: members}}
	if !st.ServerDefaults {
		cfg = append(cfg, bson.E{Key: "settings", Value: bson.D{
			{Key: "electionTimeoutMillis", Value: electionTimeout.Milliseconds()},
			{Key: "heartbeatIntervalMillis", Value: heartbeatInterval.Milliseconds()},
			{Key: "catchUpTimeoutMillis", Value: catchUpTimeout.Milliseconds()},
		}})
	}
	var refused error
	err := waitFor(ctx, "the set's configuration", func() error {
		h, err := c.hello(ctx, st.Members[0])
		if err != nil || h.SetName != "" { // used again, or an earlier attempt got there
			return err
		}
		var reply bson.Raw
		err = c.command(ctx, st.Members[0], true, bson.D{{Key: "replSetInitiate", Value: cfg}}, &reply)
		if mongoerr.IsInvalidSetConfig(err) {
			refused, err = err, nil
		}
		return err
	})
	if err = errors.Join(refused, err); err != nil {
		return fmt.Errorf("initiate replica set %s: %w", st.Set, err)
	}
	return nil
}

// ensureUser creates the root user unless it can log in already. While no user exists, the server
// lets a local client create the first one.
func (c *Cluster) ensureUser(ctx context.Context, st state) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	m, err := c.primary(ctx)
	if err != nil {
		return err
	}
	var reply bson.Raw
	login := c.command(ctx, m, false, bson.D{{Key: "ping", Value: 1}}, &reply)
	if login == nil {
		return nil
	}
	create := bson.D{{Key: "createUser", Value: st.User}, {Key: "pwd", Value: st.Password},
		{Key: "roles", Value: bson.A{"root"}}}
	if err := c.command(ctx, m, true, create, &reply); err != nil {
		return fmt.Errorf("create user %s: %w (log in: %w)", st.User, err, login)
	}
	return nil
}

// writeNote proves that majority writes are acknowledged, without leaving a database behind: the
// note is an oplog entry.
func (c *Cluster) writeNote(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	m, err := c.primary(ctx)
	if err != nil {
		return err
	}
	if err := c.note(ctx, m, "majority"); err != nil {
		return fmt.Errorf("majority write: %w", err)
	}
	return nil
}

// Status returns the members with their roles, as each says of itself. It asks all at once and
// returns within about two seconds, whatever their state; a frozen or stopped member has RoleNone.
func (c *Cluster) Status(ctx context.Context) []Member {
	members, _ := c.ask(ctx)
	return members
}

func (c *Cluster) ask(ctx context.Context) ([]Member, []hello) {
	c.mu.Lock()
	states := c.st.Members
	c.mu.Unlock()
	members := c.Members()
	answers := make([]hello, len(members))
	var wg sync.WaitGroup
	for i := range members {
		members[i].Role = RoleNone
		if !members[i].Running() || members[i].Frozen {
			continue
		}
		wg.Go(func() {
			if h, err := c.hello(ctx, states[i]); err == nil {
				answers[i], members[i].Role = h, h.role()
			}
		})
	}
	wg.Wait()
	return members, answers
}

// primary returns the member that takes writes. After a partition or a thaw two members may say so
// for a moment; the one elected last is right.
func (c *Cluster) primary(ctx context.Context) (memberState, error) {
	members, answers := c.ask(ctx)
	best := -1
	for i, m := range members {
		if m.Role != RolePrimary && m.Role != RoleStandalone {
			continue
		}
		if best < 0 || bytes.Compare(answers[i].ElectionID[:], answers[best].ElectionID[:]) > 0 {
			best = i
		}
	}
	if best < 0 {
		return memberState{}, fmt.Errorf("%w: %s (%s)", errNoRole, RolePrimary, describe(members))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st.Members[best], nil
}

// describe sums up the members for an error.
func describe(members []Member) string {
	parts := make([]string, len(members))
	for i, m := range members {
		switch {
		case !m.Running():
			parts[i] = m.Name + " does not run"
		case m.Frozen:
			parts[i] = m.Name + " is frozen"
		default:
			parts[i] = m.Name + " is " + m.Role
		}
	}
	return strings.Join(parts, ", ")
}
