package mongodb

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// DefaultProgress is how often Changes say where they are while nothing comes.
const DefaultProgress = 500 * time.Millisecond

// SourceConfig holds the settings of a Source. The zero SourceConfig is valid.
type SourceConfig struct {
	// Failover bounds the reads: its AttemptTimeout each command, its Budget each call. Its Logger is used
	// unless it is silent and Logger is not.
	Failover failover.Config
	// Changes are settings of the change streams. Start, Pipeline, Expanded, UntilEnd and OnInvalidate are decided by the Source.
	Changes tailer.ChangesConfig
	// Progress is the least time between two records of record.KindProgress; 0 means DefaultProgress.
	Progress time.Duration
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
}

func (c SourceConfig) withDefaults() SourceConfig {
	if c.Progress == 0 {
		c.Progress = DefaultProgress
	}
	if c.Failover.Logger.GetLevel() == zerolog.Disabled {
		c.Failover.Logger = c.Logger
	}
	if c.Changes.Logger.GetLevel() == zerolog.Disabled {
		c.Changes.Logger = c.Logger
	}
	return c
}

func (c SourceConfig) validate() error {
	if c.Progress < 0 {
		return fmt.Errorf("field Progress is %v; it must not be negative", c.Progress)
	}
	return nil
}

// Source reads one MongoDB deployment for a route. It reads what a majority has, from the members that the connection
// string's readPreference names, so a copy can be fed by a secondary. It implements replicator.Source, and is safe for
// concurrent use.
type Source struct {
	cfg   SourceConfig
	base  *options.ClientOptions
	layer *failover.Layer
	pref  *readpref.ReadPref
	pace  pace
	// wander notes capped collections whose order of records differs between the members that were asked.
	wander wander
	// latest is the time of the latest position that was taken or gone on from: a member that is behind it is not
	// asked what exists.
	latest atomic.Uint64
}

func (s *Source) reached(t record.Timestamp) {
	for n := uint64(t.T)<<32 | uint64(t.I); ; {
		had := s.latest.Load()
		if n <= had || s.latest.CompareAndSwap(had, n) {
			return
		}
	}
}

func (s *Source) floor() record.Timestamp {
	n := s.latest.Load()
	return record.Timestamp{T: uint32(n >> 32), I: uint32(n)}
}

// NewSource returns a Source that connects, as base says, at its first use. base is copied. Errors are about base or cfg.
func NewSource(base *options.ClientOptions, cfg SourceConfig) (*Source, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure source: %w", err)
	}
	if base == nil {
		base = options.Client()
	}
	opts := *base
	reading := opts
	reading.WriteConcern = nil // a source is only read: what its connection string says of writes does not matter
	layer, err := failover.New(&reading, cfg.Failover)
	if err != nil {
		return nil, fmt.Errorf("configure source: %w", err)
	}
	s := &Source{cfg: cfg, base: &opts, layer: layer, pref: opts.ReadPreference}
	if s.pref == nil {
		s.pref = readpref.Primary()
	}
	// Refuses now what a change stream would refuse later.
	if _, err := tailer.NewChanges(s.base, "", "", s.changesConfig(nil, record.Start{})); err != nil {
		return nil, fmt.Errorf("configure source: %w", err)
	}
	return s, nil
}

// Close ends the connections; it waits for reads in progress until ctx ends. Changes are closed on their own. Further calls
// return record.ErrClosed.
func (s *Source) Close(ctx context.Context) error { return s.layer.Close(ctx) }

// attempt is how long an attempt may take.
func (s *Source) attempt() time.Duration {
	if t := s.cfg.Failover.AttemptTimeout; t > 0 {
		return t
	}
	return failover.DefaultAttemptTimeout
}

// majorityAfter is the read concern of everything that the copy reads: what no election takes away, and not older than at.
func majorityAfter(at record.Timestamp) bson.D { return concern("majority", at) }

func concern(level string, at record.Timestamp) bson.D {
	d := bson.D{{Key: "level", Value: level}}
	if !at.IsZero() {
		d = append(d, bson.E{Key: "afterClusterTime", Value: bson.Timestamp{T: at.T, I: at.I}})
	}
	return d
}

// read runs do against one of the members, under the deadline of an attempt, until it succeeds. try counts from 0.
func (s *Source) read(ctx context.Context, db, name string, do func(ctx context.Context, try int, db *mongo.Database) error) error {
	return s.readFrom(ctx, db, name, s.pref, do)
}

func (s *Source) readFrom(ctx context.Context, db, name string, pref *readpref.ReadPref, do func(ctx context.Context, try int, db *mongo.Database) error) error {
	try := -1
	return s.layer.Read(ctx, db, failover.ReadConfig{Preference: pref, Name: name}, func(ctx context.Context, d *mongo.Database) error {
		try++
		err := do(ctx, try, d)
		if mongoerr.IsTimeAhead(err) {
			// The member has not heard of that time. The primary has: what it answers, the driver passes on.
			_ = d.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
			return again{err}
		}
		return err
	})
}

// again is an error that another attempt may not meet.
type again struct{ error }

// TryAgain tells package failover so.
func (again) TryAgain() bool { return true }

// Unwrap returns the server's error.
func (e again) Unwrap() error { return e.error }

// command runs one command that reads and returns its reply.
func (s *Source) command(ctx context.Context, db, name string, cmd bson.D) (bson.Raw, error) {
	var reply bson.Raw
	err := s.read(ctx, db, name, func(ctx context.Context, _ int, d *mongo.Database) (err error) {
		reply, err = s.run(ctx, d, cmd)
		return err
	})
	return reply, err
}

// run sends one command. The driver takes the read preference of a raw command from its options alone.
func (s *Source) run(ctx context.Context, d *mongo.Database, cmd any) (bson.Raw, error) {
	return runOn(ctx, d, s.pref, cmd)
}

func runOn(ctx context.Context, d *mongo.Database, pref *readpref.ReadPref, cmd any) (bson.Raw, error) {
	return d.RunCommand(ctx, cmd, options.RunCmd().SetReadPreference(pref)).Raw()
}

// all runs a command with a cursor and returns everything that it yields, which must be readable within an attempt.
func (s *Source) all(ctx context.Context, db, name string, cmd bson.D) ([]bson.Raw, error) {
	var docs []bson.Raw
	err := s.read(ctx, db, name, func(ctx context.Context, _ int, d *mongo.Database) error {
		docs = nil
		cur, err := d.RunCommandCursor(ctx, cmd, options.RunCmd().SetReadPreference(s.pref))
		if err != nil {
			return err
		}
		defer closeCursor(ctx, cur)
		for cur.Next(ctx) {
			docs = append(docs, append(bson.Raw(nil), cur.Current...))
		}
		return cur.Err()
	})
	return docs, err
}

// maxRenames is how many renames of a collection one call follows.
const maxRenames = 8

// named runs do with a collection's name, and again with its present name when the server says that the collection with the UUID was
// renamed (within its database, as another database means a copy with another UUID). Otherwise a read would find another collection under
// the name, or nothing, and take it for the whole.
func (s *Source) named(ns record.Namespace, do func(ns record.Namespace) error) error {
	var err error
	for range maxRenames {
		err = do(ns)
		name, moved := mongoerr.ActualCollection(err)
		switch {
		case !moved:
			return err
		case name == "":
			return fmt.Errorf("%s: %w", ns, replicator.ErrGone)
		}
		ns.Coll = name
	}
	return err
}

// withUUID adds a collection's UUID to a command: the server then refuses it for any other collection of the name.
func withUUID(cmd bson.D, uuid string) bson.D {
	raw, err := hex.DecodeString(uuid)
	if err != nil || len(raw) == 0 {
		return cmd
	}
	return append(cmd, bson.E{Key: "collectionUUID", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: raw}})
}

// closeTimeout bounds giving up a cursor, also when the attempt's time is over.
const closeTimeout = 100 * time.Millisecond

func closeCursor(ctx context.Context, cur *mongo.Cursor) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = cur.Close(ctx) // nothing is left to do about it
}

// needs adds to an error of missing permission which role has it.
func needs(err error, what, role string) error {
	switch {
	case err == nil:
		return nil
	case mongoerr.IsUnauthorized(err):
		return fmt.Errorf("%s: the user of the source may not do this: grant the role %s: %w", what, role, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Identity implements replicator.Source. It needs no role, but without clusterMonitor (or read on the database local) the set is
// known by its name only.
func (s *Source) Identity(ctx context.Context) (replicator.Identity, error) {
	var id replicator.Identity
	hello, err := s.command(ctx, "admin", "hello", bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return id, fmt.Errorf("identify source: %w", err)
	}
	id.SetName, _ = hello.Lookup("setName").StringValueOK()
	build, err := s.command(ctx, "admin", "buildInfo", bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return id, fmt.Errorf("identify source: %w", err)
	}
	id.Version, _ = build.Lookup("version").StringValueOK()
	if id.SetName == "" {
		return id, nil
	}
	id.SetID, err = s.setID(ctx)
	if err != nil {
		return id, fmt.Errorf("identify source: %w", err)
	}
	if id.SetID == "" {
		id.SetID = id.SetName
	}
	return id, nil
}

// setID returns the replica set's id in hex, "" if it may not be read.
func (s *Source) setID(ctx context.Context) (string, error) {
	reply, err := s.command(ctx, "admin", "replSetGetConfig", bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err == nil {
		if oid, ok := reply.Lookup("config", "settings", "replicaSetId").ObjectIDOK(); ok {
			return oid.Hex(), nil
		}
	} else if !mongoerr.IsUnauthorized(err) {
		return "", err
	}
	// The configuration as each member keeps it. Its collection knows no majority.
	docs, err := s.all(ctx, "local", "local.system.replset", bson.D{{Key: "find", Value: "system.replset"}, {Key: "limit", Value: 1}})
	switch {
	case mongoerr.IsUnauthorized(err):
		return "", nil
	case err != nil:
		return "", err
	case len(docs) == 1:
		if oid, ok := docs[0].Lookup("settings", "replicaSetId").ObjectIDOK(); ok {
			return oid.Hex(), nil
		}
	}
	return "", nil
}

// Clock implements replicator.Source. Oldest and Behind need the role read on the database local; without it they are zero and -1.
func (s *Source) Clock(ctx context.Context, after record.Position) (replicator.Clock, error) {
	c := replicator.Clock{Behind: -1}
	hello, err := s.command(ctx, "admin", "hello", bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return c, fmt.Errorf("ask the source for its clock: %w", err)
	}
	c.Head = timestampAt(hello, "lastWrite", "majorityOpTime", "ts")
	if c.Head.IsZero() {
		return c, fmt.Errorf("ask the source for its clock: %w", ErrNotReplicaSet)
	}
	oldest, err := s.command(ctx, "local", "local.oplog.rs", bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "sort", Value: bson.D{{Key: "$natural", Value: 1}}}, {Key: "projection", Value: bson.D{{Key: "ts", Value: 1}}},
		{Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
	})
	if mongoerr.IsUnauthorized(err) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read the start of the source's oplog: %w", err)
	}
	c.Oldest = timestampAt(oldest, "cursor", "firstBatch", "0", "ts")
	if after.TS.IsZero() {
		return c, nil
	}
	// The server begins at ts without a scan. Its own no-ops are nobody's changes.
	n, err := s.command(ctx, "local", "local.oplog.rs", bson.D{
		{Key: "count", Value: "oplog.rs"}, {Key: "limit", Value: int64(replicator.MaxBehind)},
		{Key: "query", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: bson.Timestamp{T: after.TS.T, I: after.TS.I}}}}, {Key: "op", Value: bson.D{{Key: "$ne", Value: "n"}}}}},
	})
	switch {
	case mongoerr.IsUnauthorized(err):
		return c, nil
	case err != nil:
		return c, fmt.Errorf("count what is behind in the source's oplog: %w", err)
	}
	c.Behind, _ = n.Lookup("n").AsInt64OK()
	return c, nil
}

// ErrNotReplicaSet says that a source has no oplog, so that its changes cannot be followed.
var ErrNotReplicaSet = errors.New("the source must be a replica set, as only those keep an oplog: for one server, restart it with " +
	"--replSet and call rs.initiate(), or replicate a capped collection by a stream route")

func timestampAt(doc bson.Raw, path ...string) record.Timestamp {
	t, i, _ := doc.Lookup(path...).TimestampOK()
	return record.Timestamp{T: t, I: i}
}

// changesConfig returns the settings of a change stream of set.
func (s *Source) changesConfig(set *scope.Set, start record.Start) tailer.ChangesConfig {
	c := s.cfg.Changes
	c.Start, c.Expanded, c.UntilEnd, c.OnInvalidate = start, true, false, tailer.GoOn
	c.Progress, c.Pipeline, c.Namespaces = s.cfg.Progress, nil, ""
	if set != nil && !set.Whole() {
		c.Pipeline, c.Namespaces = []bson.D{{{Key: "$match", Value: set.Match()}}}, set.Names()
	}
	return c
}

// Position implements replicator.Source: it opens the change stream that Changes would open, and takes the token behind
// which it begins.
func (s *Source) Position(ctx context.Context, set *scope.Set) (record.Position, error) {
	c, err := tailer.NewChanges(s.base, set.Database(), "", s.changesConfig(set, record.Start{Where: record.Latest}))
	if err != nil {
		return record.Position{}, fmt.Errorf("take a position: %w", err)
	}
	err = c.Open(ctx)
	at := c.Start()
	if cerr := c.Close(); err == nil && cerr != nil && !errors.Is(cerr, record.ErrClosed) {
		err = cerr
	}
	if err != nil {
		return record.Position{}, fmt.Errorf("take a position: %w", standalone(err))
	}
	if at.IsZero() {
		return record.Position{}, errors.New("take a position: the change stream was opened and says no token: the server is older than 4.2; use 6.0 or newer")
	}
	// The token is a time and no event: the one behind the newest that the server knew. Events at that time come behind the
	// token. A read can only wait for what has been, which is the time before: nothing is between the two.
	at.TS = at.TS.Prev()
	s.reached(at.TS)
	return at, nil
}

// Changes implements replicator.Source.
func (s *Source) Changes(set *scope.Set, after record.Position) (replicator.Changes, error) {
	c, err := tailer.NewChanges(s.base, set.Database(), "", s.changesConfig(set, record.Start{Where: record.After, Position: after}))
	if err != nil {
		return nil, fmt.Errorf("follow changes: %w", err)
	}
	s.reached(after.TS)
	return changes{c}, nil
}

// changes is a change stream whose errors say what a route can do.
type changes struct{ *tailer.Changes }

// Next implements replicator.Changes.
func (c changes) Next(ctx context.Context) (record.Record, error) {
	r, err := c.Changes.Next(ctx)
	return r, standalone(err)
}

// standalone adds what to do about a server that has no oplog.
func standalone(err error) error {
	if _, ok := errors.AsType[*tailer.NotReplicaSetError](err); ok {
		return fmt.Errorf("%w: %w", ErrNotReplicaSet, err)
	}
	return err
}
