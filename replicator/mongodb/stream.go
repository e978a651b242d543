package mongodb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// StreamCheckpoints is the collection of the destination's database scope.Own that has the checkpoints of stream routes.
const StreamCheckpoints = "checkpoints"

const (
	// streamReadTimeout bounds one small read of a stream.
	streamReadTimeout = 5 * time.Second
	// streamLeftEvery is how many looks at the end of a stream share one estimate of the time that is left, which takes six commands.
	streamLeftEvery = 10
	// streamCloseTimeout bounds the closing of one client.
	streamCloseTimeout = 2 * time.Second
)

// StreamRouteConfig configures OpenStreamRoute. The zero value is valid.
type StreamRouteConfig struct {
	// Route is the route's name; "" means "SOURCE to DESTINATION" by their namespaces.
	Route string
	// Size (bytes) and Max (messages) are those of the destination if it has to be created; 0 means the source's.
	Size, Max int64
	// Visibility is when a message of the source counts; the zero value is majority on a replica set.
	Visibility tailer.Visibility
	// Failover configures the writes; its Logger is Link's.
	Failover failover.Config
	// Link configures the route.
	Link replicator.StreamConfig
}

// OpenStreamRoute returns a route from the stream from of one deployment to the stream to of another, or of the same one. It does no I/O: the clients
// connect when the route runs. closeRoute ends them, after Run has returned; it is bounded by itself too. Errors: options that cannot be used, a
// configuration that is out of range.
//
// The source and the destination may be standalone servers: a stream needs no oplog.
func OpenStreamRoute(sourceOpts, targetOpts *options.ClientOptions, from, to record.Namespace, cfg StreamRouteConfig) (link *replicator.StreamLink, closeRoute func(context.Context) error, err error) {
	if cfg.Route == "" {
		cfg.Route = from.String() + " to " + to.String()
	}
	cfg.Failover.Logger = cfg.Link.Logger
	layer, err := failover.New(targetOpts, cfg.Failover)
	if err != nil {
		return nil, nil, fmt.Errorf("stream route %q: destination: %w", cfg.Route, err)
	}
	source := &streamSource{end: streamEnd{opts: sourceOpts, ns: from}, cfg: cfg}
	target := &streamTarget{end: streamEnd{opts: targetOpts, ns: to}, layer: layer, cfg: cfg}
	store := &streamStore{end: &target.end, layer: layer}
	if link, err = replicator.NewStreamLink(cfg.Route, source, target, store, cfg.Link); err != nil {
		return nil, nil, err
	}
	return link, func(ctx context.Context) error {
		// The caller's context may have ended, as that is what ended the route.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), streamCloseTimeout)
		defer cancel()
		return errors.Join(layer.Close(ctx), source.end.close(ctx), target.end.close(ctx))
	}, nil
}

// streamEnd is one side of a route, with the client for its small questions. (Messages are read and written by clients of the tailer and of
// the layer.) Safe for concurrent use.
type streamEnd struct {
	opts *options.ClientOptions
	ns   record.Namespace

	mu     sync.Mutex
	client *mongo.Client // made at first use
	closed bool
}

// db returns the database of the stream.
func (e *streamEnd) db() (*mongo.Database, error) {
	c, err := e.connected()
	if err != nil {
		return nil, err
	}
	return c.Database(e.ns.DB, options.Database().SetReadPreference(readpref.Primary())), nil
}

func (e *streamEnd) connected() (*mongo.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, record.ErrClosed
	}
	if e.client == nil {
		c, err := mongo.Connect(e.opts) // starts the monitoring; waits for nothing
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		e.client = c
	}
	return e.client, nil
}

func (e *streamEnd) close(ctx context.Context) error {
	e.mu.Lock()
	c := e.client
	e.client, e.closed = nil, true
	e.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.Disconnect(ctx)
}

// identity says which deployment it is. What the user may not ask is left out.
func (e *streamEnd) identity(ctx context.Context) (replicator.Identity, error) {
	var id replicator.Identity
	c, err := e.connected()
	if err != nil {
		return id, err
	}
	ctx, cancel := context.WithTimeout(ctx, streamReadTimeout)
	defer cancel()
	admin := c.Database("admin", options.Database().SetReadPreference(readpref.Primary()))
	var hello struct {
		SetName string `bson:"setName"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return id, fmt.Errorf("ask %s who it is: %w", e.ns.DB, err)
	}
	var build struct {
		Version string `bson:"version"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&build); err != nil {
		return id, fmt.Errorf("ask for the version: %w", err)
	}
	id = replicator.Identity{SetName: hello.SetName, SetID: hello.SetName, Version: build.Version}
	if hello.SetName == "" {
		return id, nil
	}
	var config struct {
		Config struct {
			Settings struct {
				ID bson.ObjectID `bson:"replicaSetId"`
			} `bson:"settings"`
		} `bson:"config"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&config); err == nil {
		id.SetID = config.Config.Settings.ID.Hex()
	} // else the name must do
	return id, nil
}

// describe says what the stream is and holds.
func (e *streamEnd) describe(ctx context.Context, at record.Position) (stream.Description, error) {
	db, err := e.db()
	if err != nil {
		return stream.Description{}, err
	}
	return stream.Describe(ctx, db, e.ns.Coll, stream.DescribeConfig{Reader: at})
}

func (e *streamEnd) info(ctx context.Context) (replicator.StreamInfo, error) {
	d, err := e.describe(ctx, record.Position{})
	if err != nil {
		return replicator.StreamInfo{}, err
	}
	id, err := e.identity(ctx)
	return replicator.StreamInfo{
		Name: e.ns, UUID: d.Fingerprint(), Size: d.Size, Max: d.Max, Messages: d.Messages, Bytes: d.Bytes, Identity: id,
	}, err
}

// streamPassing is an error after which the same may succeed later.
type streamPassing struct{ error }

// Unwrap returns the error.
func (e *streamPassing) Unwrap() error { return e.error }

// TryAgain implements replicator.Passing.
func (e *streamPassing) TryAgain() bool { return true }

// passingStream marks err if it may pass: no server, no primary, a deadline, a full disk.
func passingStream(err error) error {
	if err == nil {
		return nil
	}
	c := mongoerr.Classify(err)
	later := c.Read == mongoerr.ReadRetry || c.Write == mongoerr.WriteNotSent || c.Write == mongoerr.WriteUnknown || c.Write == mongoerr.WriteUncommitted ||
		mongoerr.IsOutOfDiskSpace(err) || errors.Is(err, context.DeadlineExceeded)
	if later {
		return &streamPassing{err}
	}
	return err
}

// streamStore keeps the checkpoints of stream routes at the destination.
type streamStore struct {
	end   *streamEnd
	layer *failover.Layer

	mu   sync.Mutex
	made *checkpoint.Mongo
}

// Acquire implements replicator.Checkpointer.
func (s *streamStore) Acquire(ctx context.Context, name, of, owner string) (record.Checkpoint, error) {
	m, err := s.open()
	if err != nil {
		return record.Checkpoint{}, err
	}
	cp, err := m.Acquire(ctx, name, of, owner)
	return cp, passingStream(err)
}

// Save implements replicator.Checkpointer.
func (s *streamStore) Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	m, err := s.open()
	if err != nil {
		return record.Checkpoint{}, err
	}
	saved, err := m.Save(ctx, cp)
	return saved, passingStream(err)
}

// open makes the store, once: a store knows what it has stored itself, and is not fenced off by a save of its own whose answer was lost.
func (s *streamStore) open() (*checkpoint.Mongo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made != nil {
		return s.made, nil
	}
	c, err := s.end.connected()
	if err != nil {
		return nil, err
	}
	s.made, err = checkpoint.NewMongo(c.Database(scope.Own).Collection(StreamCheckpoints), s.layer, checkpoint.MongoConfig{})
	return s.made, err
}
