package mongodb

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// Defaults and limits of TargetConfig.
const (
	// DefaultCopies is how many calls of Target.Insert write at the same time: more do not make a server faster.
	DefaultCopies = 8
	// DefaultOperations is how many replacements or deletes go into one command. A replacement costs a server 200 µs (mongod
	// 6.0.5), so a command takes a tenth of an attempt's deadline; and what a cut command has done is not done again.
	DefaultOperations = 1000
	// maxOperations is mongod's maxWriteBatchSize.
	maxOperations = 100_000
)

// TargetConfig configures a Target. The zero value is valid.
type TargetConfig struct {
	// Failover is that of the layer that everything goes through: its deadlines, its budget, its logger and hooks.
	Failover failover.Config
	// Copies is how many calls of Insert write at the same time; others wait. 0 means DefaultCopies.
	Copies int
	// Operations is the most replacements or deletes in one command; 0 means DefaultOperations.
	Operations int
}

func (c TargetConfig) withDefaults() TargetConfig {
	if c.Copies == 0 {
		c.Copies = DefaultCopies
	}
	if c.Operations == 0 {
		c.Operations = DefaultOperations
	}
	return c
}

func (c TargetConfig) validate() error {
	switch {
	case c.Copies < 1 || c.Copies > replicator.MaxReaders:
		return fmt.Errorf("configure target: field Copies is %d; it must be 1 to %d", c.Copies, replicator.MaxReaders)
	case c.Operations < 1 || c.Operations > maxOperations:
		return fmt.Errorf("configure target: field Operations is %d; it must be 1 to %d", c.Operations, maxOperations)
	case c.Failover.WriteConcern != failover.Majority:
		return errors.New("configure target: field Failover.WriteConcern must be Majority: a checkpoint must not pass what an election can take away")
	}
	return nil
}

// ErrTakenOver says that the server refuses the writes of this process, as another one has fenced it off.
var ErrTakenOver = errors.New("another process has taken this route over, and its server refuses what this one still writes: stop this process")

// Target is a replicator.Target. Safe for concurrent use, except that calls of Apply with the same worker follow one another.
//
// How a write becomes certain: every command goes to the primary in a session with a transaction number (a retryable write), and
// after an unknown outcome the same command is sent again with the same number, until it is known. The server runs each
// statement of it once, also across elections: what was done already is reported again, and a command that takes longer than an attempt
// goes on where it was. The next command of the session has the next number, and from then on the server refuses the earlier
// ones: an attempt that a frozen server finds in its socket later does nothing. This holds for inserts too (a late insert would bring
// back what was deleted meanwhile), so they do not take the failover layer's own insert path, which has no sessions; in batches that
// costs next to nothing, as documents are copied into a command once. A standalone server has no sessions: there the same commands go
// without, which is idempotent, and late executions are not fenced off.
//
// Fence uses the same to end an earlier process: its sessions get the highest number that there is.
type Target struct {
	layer *failover.Layer
	cfg   TargetConfig
	// copies are the sessions of Insert that are free.
	copies chan *fence

	mu sync.Mutex
	// client is the layer's, nil before the first call; numbers says whether the deployment has sessions.
	client  *mongo.Client
	numbers bool
	workers []*fence
	spare   []*fence // those of copies, for their ids
}

// NewTarget returns a Target at the deployment that base describes. It does no I/O. Errors: options that ask for less than is
// promised, or a Config that is out of range.
func NewTarget(base *options.ClientOptions, cfg TargetConfig) (*Target, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	l, err := failover.New(base, cfg.Failover)
	if err != nil {
		return nil, fmt.Errorf("configure target: %w", err)
	}
	t := &Target{layer: l, cfg: cfg, copies: make(chan *fence, cfg.Copies)}
	for range cfg.Copies {
		f := &fence{}
		t.copies <- f
		t.spare = append(t.spare, f)
	}
	return t, nil
}

// Close ends the connections. Calls in progress are cut.
func (t *Target) Close(ctx context.Context) error {
	if err := t.layer.Close(ctx); err != nil {
		return fmt.Errorf("close target: %w", err)
	}
	return nil
}

// Layer returns what everything goes through, for a Store and Letters at the same deployment.
func (t *Target) Layer() *failover.Layer { return t.layer }

// connected returns the layer's client, and whether the deployment has sessions with transaction numbers. It is the layer's own and not
// a second one so that its knowledge of the primary, and of silent members, is of use to the steps that are run with it.
func (t *Target) connected(ctx context.Context) (*mongo.Client, bool, error) {
	t.mu.Lock()
	c, numbers := t.client, t.numbers
	t.mu.Unlock()
	if c != nil {
		return c, numbers, nil
	}
	c, hello, err := connect(ctx, t.layer)
	if err != nil {
		return nil, false, err
	}
	_, set := hello.Lookup("setName").StringValueOK()
	msg, _ := hello.Lookup("msg").StringValueOK()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client, t.numbers = c, set || msg == "isdbgrid"
	return c, t.numbers, nil
}

// connect returns a layer's client and what its primary says of itself.
func connect(ctx context.Context, l *failover.Layer) (c *mongo.Client, hello bson.Raw, err error) {
	err = l.Read(ctx, "admin", failover.ReadConfig{Name: "hello", Preference: readpref.Primary(), Concern: readconcern.Local()},
		func(ctx context.Context, db *mongo.Database) (err error) {
			c = db.Client()
			hello, err = db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
			return err
		})
	if err != nil {
		return nil, nil, err
	}
	return c, hello, nil
}

// onPrimary is where everything is read that a write depends on.
func onPrimary(name string) failover.ReadConfig {
	return failover.ReadConfig{Name: name, Preference: readpref.Primary(), Concern: readconcern.Local()}
}

// Identity says which deployment it is.
func (t *Target) Identity(ctx context.Context) (replicator.Identity, error) {
	var id replicator.Identity
	_, hello, err := connect(ctx, t.layer)
	if err != nil {
		return id, err
	}
	id.SetName, _ = hello.Lookup("setName").StringValueOK()
	id.SetID = id.SetName
	err = t.layer.Read(ctx, "admin", onPrimary("identity"), func(ctx context.Context, db *mongo.Database) error {
		info, err := db.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Raw()
		if err != nil {
			return err
		}
		id.Version, _ = info.Lookup("version").StringValueOK()
		if id.SetName == "" {
			return nil
		}
		cfg, err := db.RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Raw()
		if mongoerr.IsUnauthorized(err) {
			return nil // then the name must do
		}
		if err != nil {
			return err
		}
		if oid, ok := cfg.Lookup("config", "settings", "replicaSetId").ObjectIDOK(); ok {
			id.SetID = oid.Hex()
		}
		return nil
	})
	return id, err
}

// Insert writes documents of the copy; what is there is replaced.
func (t *Target) Insert(ctx context.Context, ns record.Namespace, docs []bson.Raw, ordered bool) ([]replicator.Refusal, error) {
	if len(docs) == 0 {
		return nil, nil
	}
	var f *fence
	select {
	case f = <-t.copies:
	case <-ctx.Done():
		return nil, fmt.Errorf("insert into %s: %w", ns, context.Cause(ctx))
	}
	defer func() { t.copies <- f }()
	ops := make([]replicator.Op, len(docs))
	for i, doc := range docs {
		ops[i].Document = doc // the _id is looked up where it is needed
	}
	return t.write(ctx, f, ns, ops, ordered)
}

// Apply applies ops, whose _ids differ from one another.
func (t *Target) Apply(ctx context.Context, worker int, ns record.Namespace, ops []replicator.Op, ordered bool) ([]replicator.Refusal, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	return t.write(ctx, t.worker(worker), ns, ops, ordered)
}

func (t *Target) write(ctx context.Context, f *fence, ns record.Namespace, ops []replicator.Op, ordered bool) ([]replicator.Refusal, error) {
	client, numbers, err := t.connected(ctx)
	if err == nil && numbers {
		err = f.begin(client)
	}
	if err != nil {
		return nil, fmt.Errorf("write to %s: %w", ns, err)
	}
	ops, place, refused := survivable(ops)
	w := &work{t: t, f: f, db: client.Database(ns.DB), ns: ns, ops: ops}
	if ordered {
		err = w.inOrder(ctx)
	} else {
		err = w.anyOrder(ctx, w.all())
	}
	w.free()
	if err != nil {
		return nil, fmt.Errorf("write to %s: %w", ns, explain(err))
	}
	for i := range w.refusals {
		if place != nil {
			w.refusals[i].Index = place[w.refusals[i].Index]
		}
	}
	return append(refused, w.refusals...), nil
}

// survivable leaves out the ops that would end the server: mongod 6.0.5 aborts when a pipeline gives an existing document two fields of one name,
// and a pipeline is the only way to replace a document with an empty timestamp or with names that begin with a dollar. place
// maps the indexes of what is left to those of ops; nil means that nothing was left out.
func survivable(ops []replicator.Op) (left []replicator.Op, place []int, refused []replicator.Refusal) {
	for i, op := range ops {
		if op.Document == nil || !deadly(op.Document) {
			if place != nil {
				left, place = append(left, op), append(place, i)
			}
			continue
		}
		if place == nil {
			left, place = append([]replicator.Op(nil), ops[:i]...), make([]int, i, len(ops))
			for k := range place {
				place[k] = k
			}
		}
		refused = append(refused, replicator.Refusal{Index: i, Err: errRepeated})
	}
	if place == nil {
		return ops, nil, nil
	}
	return left, place, refused
}

var errRepeated = errors.New("it has two fields of one name, beside an empty timestamp or a name that begins with a dollar at the top level: " +
	"replacing such a document crashes MongoDB 6.0")

// deadly reports whether replacing a document needs a pipeline, and has a repeated name.
func deadly(doc bson.Raw) bool {
	timestamp, dollar := odd(doc)
	return (timestamp || dollar) && repeats(doc)
}

// repeats reports whether a document, or one inside it, has two fields of one name.
func repeats(doc bson.Raw) bool {
	elems, err := doc.Elements()
	if err != nil {
		return false
	}
	seen := make(map[string]bool, len(elems))
	for _, e := range elems {
		if seen[e.Key()] {
			return true
		}
		seen[e.Key()] = true
		switch v := e.Value(); v.Type {
		case bson.TypeEmbeddedDocument, bson.TypeArray:
			if repeats(bson.Raw(v.Value)) {
				return true
			}
		}
	}
	return false
}

// explain adds what to do to errors that a person can do something about.
func explain(err error) error {
	switch {
	case mongoerr.IsUnauthorized(err):
		return fmt.Errorf("the user at the destination may not do this; give it the role readWrite on the database (dbAdmin for collections and indexes): %w", err)
	case mongoerr.IsOutOfDiskSpace(err):
		return fmt.Errorf("the destination's disk is full; make room and start again, the route goes on where it was: %w", err)
	}
	return err
}
