package mongoerr_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

// generous bounds what a test waits for: it is no claim about speed.
const generous = 60 * time.Second

// heartbeat is the shortest that the driver takes: a client that was told of a lost primary by a fail
// point looks again only at the next one.
const heartbeat = 500 * time.Millisecond

// testCommands makes fail points work, and makes a server insert two documents at a time, so that a
// command can be stopped between the documents of a small batch.
func testCommands(members int) localcluster.Config {
	return localcluster.Config{Members: members, ExtraArgs: []string{
		"--setParameter", "enableTestCommands=1", "--setParameter", "internalInsertMaxBatchSize=2",
		"--setParameter", "maxTransactionLockRequestTimeoutMillis=50",
	}}
}

// world is a running deployment with what the events need. Its client does not retry: one call is one
// command.
type world struct {
	d      *mongotest.Deployment
	client *mongo.Client
	db     *mongo.Database
	serial atomic.Int64
}

func newWorld(t *testing.T, cfg localcluster.Config) *world {
	t.Helper()
	w := &world{d: mongotest.Own(t, cfg)}
	w.client = connect(t, w.d.Options())
	w.db = w.client.Database("table")
	return w
}

// connect returns a client that does not retry, and disconnects it when the test ends.
func connect(t *testing.T, o *options.ClientOptions) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(o.SetRetryReads(false).SetRetryWrites(false).SetHeartbeatInterval(heartbeat))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), generous)
		defer cancel()
		_ = client.Disconnect(ctx) // the server may be gone, or the client closed
	})
	return client
}

// member returns a client of one member alone.
func (w *world) member(t *testing.T, name string) *mongo.Client {
	t.Helper()
	uri, err := w.d.Cluster.MemberURI(name)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, options.Client().ApplyURI(uri))
}

// role returns the name of a member in a role, of the first one where there are several.
func (w *world) role(t *testing.T, role string) string {
	t.Helper()
	return w.roles(t, role)[0]
}

func (w *world) roles(t *testing.T, role string) (names []string) {
	t.Helper()
	until(t, "a "+role, func() error {
		names = nil
		for _, m := range w.d.Cluster.Status(t.Context()) {
			if m.Role == role {
				names = append(names, m.Name)
			}
		}
		if len(names) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	return names
}

// coll returns a collection that nothing has used.
func (w *world) coll() *mongo.Collection {
	return w.db.Collection(fmt.Sprintf("c%d", w.serial.Add(1)))
}

// made returns a new collection that exists.
func (w *world) made(t *testing.T, o ...options.Lister[options.CreateCollectionOptions]) *mongo.Collection {
	t.Helper()
	c := w.coll()
	if err := w.db.CreateCollection(t.Context(), c.Name(), o...); err != nil {
		t.Fatal(err)
	}
	return c
}

// capped returns a small capped collection that holds one document, and a tail on it.
func (w *world) capped(t *testing.T) (*mongo.Collection, *mongo.Cursor) {
	t.Helper()
	c := w.made(t, options.CreateCollection().SetCapped(true).SetSizeInBytes(4096).SetMaxDocuments(3))
	if err := insert(t.Context(), c, doc("first")); err != nil {
		t.Fatal(err)
	}
	return c, tail(t, c)
}

// tail opens a tail on c and reads its first document.
func tail(t *testing.T, c *mongo.Collection) *mongo.Cursor {
	t.Helper()
	cur, err := c.Find(t.Context(), bson.D{}, options.Find().SetCursorType(options.TailableAwait).SetBatchSize(1).SetMaxAwaitTime(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cur.Close(context.WithoutCancel(t.Context())) })
	if !cur.Next(t.Context()) {
		t.Fatal("the tail is empty: ", cur.Err())
	}
	return cur
}

// run runs a command on the admin database and fails the test if it is refused.
func run(t *testing.T, c *mongo.Client, cmd ...bson.E) {
	t.Helper()
	if err := admin(t.Context(), c, cmd...); err != nil {
		t.Fatalf("%s: %v", cmd[0].Key, err)
	}
}

func admin(ctx context.Context, c *mongo.Client, cmd ...bson.E) error {
	return c.Database("admin").RunCommand(ctx, bson.D(cmd)).Err()
}

func e(key string, value any) bson.E { return bson.E{Key: key, Value: value} }

func doc(id any, more ...bson.E) bson.D { return append(bson.D{e("_id", id)}, more...) }

// insert sends one insert command in the way of the failover layer: ordered, with the majority's
// write concern unless more says otherwise.
func insert(ctx context.Context, c *mongo.Collection, first bson.D, more ...bson.E) error {
	return insertAll(ctx, c, []bson.D{first}, more...)
}

func insertAll(ctx context.Context, c *mongo.Collection, docs []bson.D, more ...bson.E) error {
	cmd := bson.D{e("insert", c.Name()), e("documents", docs), e("ordered", true)}
	if !slices.ContainsFunc(more, func(m bson.E) bool { return m.Key == "writeConcern" }) {
		cmd = append(cmd, e("writeConcern", bson.D{e("w", "majority")}))
	}
	return c.Database().RunCommand(ctx, append(cmd, more...)).Err()
}

// concern returns a write concern of the majority that gives up after a while.
func concern(timeout time.Duration) bson.E {
	return e("writeConcern", bson.D{e("w", "majority"), e("wtimeout", timeout.Milliseconds())})
}

// until calls try until it returns nil.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("waited for %s: %v", what, err)
		}
	}
}

// settle waits until the deployment takes majority writes again: everything that was applied before is
// committed then, or rolled back.
func (w *world) settle(t *testing.T) {
	t.Helper()
	until(t, "a majority write", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return insert(ctx, w.db.Collection("settled"), bson.D{})
	})
}

// found returns which of ids the majority has in c.
func (w *world) found(t *testing.T, c *mongo.Collection, ids []any) []any {
	t.Helper()
	w.settle(t)
	coll := w.client.Database(c.Database().Name()).Collection(c.Name(), options.Collection().SetReadConcern(readconcern.Majority()))
	var has []any
	for _, id := range ids {
		n, err := coll.CountDocuments(t.Context(), bson.D{e("_id", bson.D{e("$eq", id)})})
		if err != nil {
			t.Fatal(err)
		}
		if n > 1 {
			t.Fatalf("%v is stored %d times", id, n)
		}
		if n == 1 {
			has = append(has, id)
		}
	}
	return has
}

// answer is what an event made of a command.
type answer struct {
	err error
	// coll and ids: where the command's documents should be, in its order. Without coll it was no
	// insert.
	coll *mongo.Collection
	ids  []any
	// want is how many of ids are stored afterwards; negative: the event does not decide it.
	want int
}

// isTrue fails the test if the class does not agree with what is stored.
func (w *world) isTrue(t *testing.T, c mongoerr.Class, a answer) {
	t.Helper()
	if a.coll == nil {
		return
	}
	has := w.found(t, a.coll, a.ids)
	if a.want >= 0 && len(has) != a.want {
		t.Errorf("%d documents of %d are stored, this event leaves %d: %v", len(has), len(a.ids), a.want, has)
	}
	if len(has) > 0 && !slices.Equal(has, a.ids[:len(has)]) {
		t.Errorf("stored is %v: no prefix of %v", has, a.ids)
	}
	switch c.Write {
	case mongoerr.WriteNotSent, mongoerr.WriteRejected, mongoerr.WriteStop:
		// Only Untouched is a promise about the command as a whole.
		if c.Untouched && len(has) > 0 {
			t.Errorf("%v are stored by a command that changed nothing: %+v", has, c)
		}
		if c.Index >= 0 && len(has) != c.Index {
			t.Errorf("%d documents are stored, the error is about the document at %d", len(has), c.Index)
		}
		if c.Index < 0 && c.Write != mongoerr.WriteStop && len(has) > 0 {
			t.Errorf("%v are stored by a command that was certainly not applied: %+v", has, c)
		}
	case mongoerr.WriteDuplicate:
		if c.Index < 0 {
			break // only a fail point answers so
		}
		if c.OnID && len(has) <= c.Index || !c.OnID && len(has) != c.Index {
			t.Errorf("%d documents are stored, the duplicate is the one at %d (on _id: %t)", len(has), c.Index, c.OnID)
		}
	case mongoerr.WriteUncommitted:
		if a.want > 0 && len(has) != len(a.ids) {
			t.Errorf("%d documents of %d are stored of a command that was applied", len(has), len(a.ids))
		}
	case mongoerr.WriteOK:
		t.Error("the error is classified as none: ", a.err)
	}
}
