// Package stream creates and describes the capped collections that capstan uses as streams.
//
// It promises that creating and priming are idempotent, also when several processes race, and that a
// collection is written to (by the primer, once) only while it is empty and only if capstan created it.
// It does not read or write messages: see packages producer and tailer. It never drops, converts or
// resizes anything.
//
// How a stream of ours is told from other people's: Ensure creates the collection with the validator
// {$comment: Mark}, which accepts every document and which listCollections shows to everyone. An empty
// collection holds no message whose layout could tell, so the mark is the only sign of who created it,
// and it survives the process that did. A collection made by hand is tailed and written to like any
// other, but not primed.
package stream

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/retry"
)

const (
	// DefaultSize is the size of a stream where none is given, in bytes.
	DefaultSize = 100_000_000
	// DefaultTimeout bounds a whole call whose context has no earlier end. It is longer than an election
	// with MongoDB's default settings (12 s at the median).
	DefaultTimeout = 20 * time.Second
	// Mark is the comment in the validator of a collection that capstan created.
	Mark = "capstan stream"

	// attemptTimeout bounds one command, so that a frozen server costs an attempt and not the call.
	attemptTimeout = 5 * time.Second
	// sizeUnit: mongod rounds the size of a capped collection up to a multiple of this many bytes.
	sizeUnit = 256
	// maxSize and maxMax are the server's own limits (1 PiB and a 31-bit number).
	maxSize = 1 << 50
	maxMax  = 1<<31 - 1
)

// Config says how a stream is created. It changes nothing about one that exists. The zero Config is
// valid.
type Config struct {
	// Size is the size in bytes of the documents that the stream holds before it overwrites the oldest;
	// 0 means DefaultSize. The server rounds it as RoundSize does.
	Size int64
	// Max is the number of messages that it holds at most; 0 means that only Size counts.
	Max int64
	// Timeout bounds the whole call; 0 means DefaultTimeout.
	Timeout time.Duration
	// Logger is silent by default.
	Logger zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Size == 0 {
		c.Size = DefaultSize
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Size < 1 || c.Size > maxSize:
		return fmt.Errorf("stream: Config.Size is %d, want 1 to %d bytes", c.Size, int64(maxSize))
	case c.Max < 0 || c.Max > maxMax:
		return fmt.Errorf("stream: Config.Max is %d, want 0 to %d messages", c.Max, maxMax)
	case c.Timeout < 0:
		return fmt.Errorf("stream: Config.Timeout is %v, want more than 0", c.Timeout)
	}
	return nil
}

// RoundSize returns the size that a capped collection really gets when it is created with size bytes:
// the next multiple of 256.
func RoundSize(size int64) int64 { return (size + sizeUnit - 1) / sizeUnit * sizeUnit }

// Info identifies a stream and says how large it is.
type Info struct {
	// Namespace is "database.collection".
	Namespace string
	// UUID is the collection's identity (subtype 4). It stays through a rename, and is another one after
	// drop and creation, or a conversion.
	UUID bson.Binary
	// Size is in bytes, Max in messages (0: no limit).
	Size, Max int64
	// Ours is true if capstan created the collection (see Mark).
	Ours bool
	// Created is true if this call of Ensure created it.
	Created bool
}

// Fingerprint returns the UUID in hex: the identity that checkpoints and records carry.
func (i Info) Fingerprint() string { return hex.EncodeToString(i.UUID.Data) }

// collection returns the part of the namespace behind the database's name.
func (i Info) collection(db *mongo.Database) string {
	return strings.TrimPrefix(i.Namespace, db.Name()+".")
}

// Ensure returns the stream, creating it if there is no collection of that name, and primes it if it is
// empty and ours. It is idempotent and safe to call from several processes at once: one of them
// creates, all of them return the same UUID. A stream that exists is returned as it is, with its own
// size and max.
//
// It blocks until it is done, through elections, for Config.Timeout at most. Errors: ErrBadName;
// *KindError for a collection that is no capped one; *PrivilegeError; and what the server or the driver says.
func Ensure(ctx context.Context, db *mongo.Database, name string, cfg Config) (Info, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), CheckName(db.Name(), name)); err != nil {
		return Info{}, err
	}
	log := cfg.Logger.With().Str("component", "stream").Str("stream", db.Name()+"."+name).Logger()
	db = onPrimary(db)
	return again(ctx, cfg.Timeout, func(ctx context.Context) (Info, error) {
		info, err := lookup(ctx, db, name)
		if errors.Is(err, ErrNotFound) {
			var created bool
			if created, err = create(ctx, db, name, cfg); err == nil {
				info, err = lookup(ctx, db, name)
				info.Created = created
			}
		}
		if err != nil {
			return Info{}, err
		}
		if info.Created {
			log.Info().Int64("size", info.Size).Int64("max", info.Max).Msg("stream created")
		}
		switch err := prime(ctx, db, info); {
		case errors.Is(err, ErrNotOurs): // someone else's is a stream to write to, and not ours to prime
		case errors.Is(err, ErrGone):
			return Info{}, &raceError{err}
		case err != nil:
			return Info{}, err
		}
		return info, nil
	})
}

// create makes the collection; false without an error means that someone else did meanwhile.
func create(ctx context.Context, db *mongo.Database, name string, cfg Config) (bool, error) {
	cmd := bson.D{
		{Key: "create", Value: name}, {Key: "capped", Value: true}, {Key: "size", Value: cfg.Size},
		{Key: "validator", Value: bson.D{{Key: "$comment", Value: Mark}}},
		{Key: "writeConcern", Value: majority(ctx)},
	}
	if cfg.Max > 0 {
		cmd = append(cmd, bson.E{Key: "max", Value: cfg.Max})
	}
	err := db.RunCommand(ctx, cmd).Err()
	switch {
	case err == nil:
		return true, nil
	case mongoerr.IsNamespaceExists(err):
		return false, nil // another process was faster: look again
	case mongoerr.IsUnauthorized(err):
		return false, &PrivilegeError{Action: "createCollection", Resource: db.Name() + "." + name, Err: err}
	}
	return false, fmt.Errorf("create stream %s.%s: %w", db.Name(), name, err)
}

// majority is the write concern of what this package writes: a stream that exists only on a primary
// that is voted out would be created again, with another UUID. A standalone server accepts it too.
func majority(ctx context.Context) bson.D {
	wait := attemptTimeout
	if end, ok := ctx.Deadline(); ok {
		wait = time.Until(end) * 9 / 10 // so that the server's answer comes before our own deadline
	}
	return bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: max(wait.Milliseconds(), 1)}} // 0 would mean: for ever
}

// Lookup returns the stream. It blocks for DefaultTimeout at most. Errors: ErrBadName, ErrNotFound,
// *KindError, *PrivilegeError, and what the server or the driver says.
func Lookup(ctx context.Context, db *mongo.Database, name string) (Info, error) {
	if err := CheckName(db.Name(), name); err != nil {
		return Info{}, err
	}
	db = onPrimary(db)
	return again(ctx, DefaultTimeout, func(ctx context.Context) (Info, error) { return lookup(ctx, db, name) })
}

func lookup(ctx context.Context, db *mongo.Database, name string) (Info, error) {
	specs, err := collections(ctx, db, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return Info{}, err
	}
	if len(specs) == 0 {
		return Info{}, fmt.Errorf("%w: %s.%s", ErrNotFound, db.Name(), name)
	}
	return infoOf(db, specs[0])
}

// List returns the capped collections of db by name, those of the server's own (system.…) apart. It
// blocks for DefaultTimeout at most.
func List(ctx context.Context, db *mongo.Database) ([]Info, error) {
	db = onPrimary(db)
	return again(ctx, DefaultTimeout, func(ctx context.Context) ([]Info, error) {
		specs, err := collections(ctx, db, bson.D{{Key: "options.capped", Value: true}})
		if err != nil {
			return nil, err
		}
		var infos []Info
		for _, s := range specs {
			if strings.HasPrefix(s.Name, "system.") {
				continue
			}
			info, err := infoOf(db, s)
			if err != nil {
				return nil, err
			}
			infos = append(infos, info)
		}
		slices.SortFunc(infos, func(a, b Info) int { return strings.Compare(a.Namespace, b.Namespace) })
		return infos, nil
	})
}

func collections(ctx context.Context, db *mongo.Database, filter bson.D) ([]mongo.CollectionSpecification, error) {
	specs, err := db.ListCollectionSpecifications(ctx, filter)
	switch {
	case mongoerr.IsUnauthorized(err):
		return nil, &PrivilegeError{Action: "listCollections", Resource: db.Name(), Err: err}
	case err != nil:
		return nil, fmt.Errorf("list collections of %s: %w", db.Name(), err)
	}
	return specs, nil
}

// infoOf reads what listCollections says, or returns *KindError.
func infoOf(db *mongo.Database, s mongo.CollectionSpecification) (Info, error) {
	info := Info{Namespace: db.Name() + "." + s.Name}
	var opts struct {
		Capped    bool
		Size, Max int64
		Validator bson.Raw
	}
	if len(s.Options) > 0 {
		if err := bson.Unmarshal(s.Options, &opts); err != nil {
			return Info{}, fmt.Errorf("read options of %s: %w", info.Namespace, err)
		}
	}
	if !opts.Capped || s.UUID == nil {
		return Info{}, &KindError{Namespace: info.Namespace, Kind: s.Type}
	}
	info.UUID, info.Size, info.Max = *s.UUID, opts.Size, opts.Max
	if v, err := opts.Validator.LookupErr("$comment"); err == nil {
		text, ok := v.StringValueOK()
		info.Ours = ok && text == Mark
	}
	return info, nil
}

// onPrimary makes every read go where writes go: a secondary may not know the collection yet, and
// record ids differ between members.
func onPrimary(db *mongo.Database) *mongo.Database {
	return db.Client().Database(db.Name(), options.Database().SetReadPreference(readpref.Primary()))
}

// again calls f, which must be idempotent, until it answers: what an election or a lost connection
// interrupts is tried again until timeout is over or ctx ends. I8.
func again[T any](ctx context.Context, timeout time.Duration, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	loop := retry.New(retry.Policy{})
	for {
		one, end := context.WithTimeout(ctx, attemptTimeout)
		v, err := f(one)
		end()
		if err == nil || ctx.Err() != nil || !transient(err) {
			return v, err
		}
		if err := loop.Wait(ctx, err); err != nil {
			return v, err
		}
	}
}

// raceError says that someone else changed the stream meanwhile: the next attempt sees what is there now.
type raceError struct{ error }

func (e *raceError) Unwrap() error { return e.error }

// transient reports whether trying again can help.
func transient(err error) bool {
	if _, race := errors.AsType[*raceError](err); race {
		return true
	}
	c := mongoerr.Classify(err)
	return c.Read == mongoerr.ReadRetry || c.Write == mongoerr.WriteUncommitted || c.Uncommitted
}
