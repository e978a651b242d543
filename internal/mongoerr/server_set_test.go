package mongoerr_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/localcluster"
)

// detour is a dialer that can send new connections for every address to another one.
type detour struct{ to atomic.Pointer[string] }

func (d *detour) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if to := d.to.Load(); to != nil {
		addr = *to
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// misled returns a client of the primary whose later connections reach a secondary: the address was
// given to another member.
func (w *world) misled(t *testing.T) *mongo.Client {
	t.Helper()
	d := &detour{}
	c := connect(t, w.d.Options().SetDialer(d))
	if err := c.Ping(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	held := make(chan error, 1)
	go func() { held <- admin(t.Context(), c, e("sleep", 1), e("millis", 3000), e("lock", "none")) }()
	w.operation(t, bson.D{e("command.sleep", 1)})
	addr := w.address(t, w.role(t, localcluster.RoleSecondary))
	d.to.Store(&addr)
	t.Cleanup(func() { <-held })
	return c
}

func (w *world) address(t *testing.T, name string) string {
	t.Helper()
	for _, m := range w.d.Cluster.Members() {
		if m.Name == name {
			return m.Addr
		}
	}
	t.Fatal("no member ", name)
	return ""
}

// unreplicated stops replication on the secondaries for as long as do takes: the heartbeats go on, so
// the primary stays primary.
func (w *world) unreplicated(t *testing.T, do func()) {
	t.Helper()
	var members []*mongo.Client
	for _, name := range w.roles(t, localcluster.RoleSecondary) {
		members = append(members, w.member(t, name))
	}
	set := func(mode string) {
		for _, m := range members {
			run(t, m, e("configureFailPoint", "stopReplProducer"), e("mode", mode))
		}
	}
	set("alwaysOn")
	defer set("off")
	c := w.coll()
	until(t, "replication to stop", func() error {
		if err := insert(t.Context(), c, bson.D{}, concern(100*time.Millisecond)); err == nil {
			return errors.New("a write was replicated")
		}
		return nil
	})
	do()
}

// stepDown makes the primary step down, also where no other member has caught up.
func (w *world) stepDown(t *testing.T) {
	t.Helper()
	run(t, w.member(t, w.role(t, localcluster.RolePrimary)), e("replSetStepDown", 5), e("secondaryCatchUpPeriodSecs", 0), e("force", true))
}

var setEvents = []happening{
	{10107, asCommand, "insert sent to a secondary", func(t *testing.T, w *world) answer {
		c := w.coll()
		other := w.member(t, w.role(t, localcluster.RoleSecondary)).Database(c.Database().Name()).Collection(c.Name())
		return answer{insertAll(t.Context(), other, []bson.D{doc("a"), doc("b")}), c, []any{"a", "b"}, 0}
	}},
	{13435, asRead, "read that no secondary may answer reaches one", func(t *testing.T, w *world) answer {
		_, err := w.misled(t).Database("table").Collection("x").Find(t.Context(), bson.D{})
		return answer{err: err}
	}},
	{13436, asRead, "member in maintenance", func(t *testing.T, w *world) answer {
		m := w.member(t, w.role(t, localcluster.RoleSecondary))
		run(t, m, e("replSetMaintenance", 1))
		defer run(t, m, e("replSetMaintenance", 0))
		_, err := m.Database("table").Collection("x").Find(t.Context(), bson.D{})
		return answer{err: err}
	}},
	{64, asConcern, "no majority before wtimeout", func(t *testing.T, w *world) (a answer) {
		c := w.made(t)
		w.unreplicated(t, func() {
			a = answer{insertAll(t.Context(), c, []bson.D{doc("a"), doc("b")}, concern(100*time.Millisecond)), c, []any{"a", "b"}, 2}
		})
		return a
	}},
	{50, asConcern, "no majority before maxTimeMS", func(t *testing.T, w *world) (a answer) {
		c := w.made(t)
		w.unreplicated(t, func() {
			a = answer{insert(t.Context(), c, doc("a"), e("maxTimeMS", 500)), c, []any{"a"}, 1}
		})
		return a
	}},
	{11000, asDocument, "duplicate _id that is not committed", func(t *testing.T, w *world) (a answer) {
		c := w.made(t)
		w.unreplicated(t, func() {
			_ = insert(t.Context(), c, doc("a"), concern(100*time.Millisecond)) // applied, not committed
			a = answer{insert(t.Context(), c, doc("a"), concern(100*time.Millisecond)), c, []any{"a"}, 1}
		})
		return a
	}},
	{100, asConcern, "more members than the set has", func(t *testing.T, w *world) answer {
		c := w.coll()
		return answer{insert(t.Context(), c, doc("a"), e("writeConcern", bson.D{e("w", 4)})), c, []any{"a"}, 1}
	}},
	{79, asConcern, "mode that the set does not have", func(t *testing.T, w *world) answer {
		c := w.coll()
		return answer{insert(t.Context(), c, doc("a"), e("writeConcern", bson.D{e("w", "everywhere")})), c, []any{"a"}, 1}
	}},
	{225, asCommand, "older transaction number", func(t *testing.T, w *world) answer {
		c, s := w.coll(), w.session(t)
		if err := numbered(t, s, c, "a", 9); err != nil {
			t.Fatal(err)
		}
		return answer{numbered(t, s, c, "b", 8), c, []any{"b"}, -1}
	}},
	{112, asRead, "two transactions, one document", func(t *testing.T, w *world) answer {
		c := w.made(t)
		return answer{err: collide(t, w, c)}
	}},
	{246, asRead, "snapshot from before the collection", func(t *testing.T, w *world) answer {
		var before struct{ OperationTime bson.Timestamp }
		if err := w.db.RunCommand(t.Context(), bson.D{e("insert", w.coll().Name()), e("documents", bson.A{doc(1)})}).Decode(&before); err != nil {
			t.Fatal(err)
		}
		c := w.made(t)
		cmd := bson.D{e("find", c.Name()), e("readConcern", bson.D{e("level", "snapshot"), e("atClusterTime", before.OperationTime)})}
		return answer{err: w.db.RunCommand(t.Context(), cmd).Err()}
	}},
	{24, asRead, "lock held against a transaction", func(t *testing.T, w *world) answer {
		c := w.made(t)
		held := make(chan error, 1)
		go func() { held <- admin(t.Context(), w.client, e("sleep", 1), e("millis", 3000), e("lock", "w")) }()
		defer func() { <-held }()
		w.operation(t, bson.D{e("command.sleep", 1), e("waitingForLock", false)})
		return answer{err: within(t, w, func(ctx context.Context) error {
			_, err := c.InsertOne(ctx, doc("a"))
			return err
		})}
	}},
}

// within runs do in a transaction that is aborted.
func within(t *testing.T, w *world, do func(context.Context) error) error {
	t.Helper()
	s, err := w.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(t.Context())
	if err := s.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.AbortTransaction(t.Context()) }()
	return do(mongo.NewSessionContext(t.Context(), s))
}

// collide changes a document in two transactions at once and returns the error of the second.
func collide(t *testing.T, w *world, c *mongo.Collection) error {
	if err := insert(t.Context(), c, doc("a")); err != nil {
		t.Fatal(err)
	}
	change := func(ctx context.Context) error {
		_, err := c.UpdateOne(ctx, doc("a"), bson.D{e("$inc", bson.D{e("n", 1)})})
		return err
	}
	return within(t, w, func(first context.Context) error {
		if err := change(first); err != nil {
			return fmt.Errorf("the first transaction: %w", err)
		}
		return within(t, w, change)
	})
}

// userEvents need users.
var userEvents = []happening{
	{18, asRead, "wrong password", func(t *testing.T, w *world) answer {
		o := w.d.Options()
		o.Auth.Password = "wrong"
		return answer{err: connect(t, o).Ping(t.Context(), nil)}
	}},
	{18, asRead, "unknown user name", func(t *testing.T, w *world) answer {
		o := w.d.Options()
		o.Auth.Username = "nobody"
		return answer{err: connect(t, o).Ping(t.Context(), nil)}
	}},
	{13, asCommand, "insert without the right to", func(t *testing.T, w *world) answer {
		c := w.made(t)
		other := w.reader(t).Database(c.Database().Name()).Collection(c.Name())
		return answer{insert(t.Context(), other, doc("a")), c, []any{"a"}, 0}
	}},
	{13, asTail, "tail without the right to", func(t *testing.T, w *world) answer {
		_, err := w.reader(t).Database("other").Collection("c").Find(t.Context(), bson.D{}, options.Find().SetCursorType(options.Tailable))
		return answer{err: err}
	}},
}

// reader returns a client of a user who may read the database of the events, and nothing else.
func (w *world) reader(t *testing.T) *mongo.Client {
	t.Helper()
	name := fmt.Sprintf("reader%d", w.serial.Add(1))
	run(t, w.client, e("createUser", name), e("pwd", "secret"), e("roles", bson.A{bson.D{e("role", "read"), e("db", "table")}}))
	o := w.d.Options()
	o.Auth.Username, o.Auth.Password = name, "secret"
	return connect(t, o)
}
