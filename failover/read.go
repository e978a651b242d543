package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// ReadConfig says where a read goes and what it may see. The zero value is valid.
type ReadConfig struct {
	// Preference is which members may answer; nil means the connection string's readPreference, or else the
	// primary. A member that let an attempt time out is avoided for 10 s, or until it answers again, by
	// every preference that allows another one; primaryPreferred then goes to a secondary.
	Preference *readpref.ReadPref
	// Concern is what the read may see; nil means the connection string's readConcernLevel, or else majority: what
	// no election takes away.
	Concern *readconcern.ReadConcern
	// Name is what hooks and log call the read; "" means the database's name.
	Name string
}

// Read runs do, which reads from the database db and does nothing else, until it succeeds. It is run again
// after an error that another attempt may not meet, each time under a deadline of its own
// (Config.AttemptTimeout), so what it reads must be readable within that: a long scan goes in pieces. do uses
// the context and the database that it is given, forgets what an earlier run has read, and returns the
// driver's error, wrapped or not. Any other error ends Read; so does mongo.ErrNoDocuments.
//
// It returns within 250 ms of the end of ctx or of Config.Budget (I8); the error wraps the cause and the last
// attempt's. A read from a secondary may lag: it shows what was true a moment ago.
func (l *Layer) Read(ctx context.Context, db string, r ReadConfig, do func(ctx context.Context, db *mongo.Database) error) error {
	if r.Preference == nil {
		if r.Preference = l.opts.ReadPreference; r.Preference == nil {
			r.Preference = readpref.Primary()
		}
	}
	if r.Concern == nil {
		if r.Concern = l.opts.ReadConcern; r.Concern == nil {
			r.Concern = readconcern.Majority()
		}
	}
	if r.Name == "" {
		r.Name = db
	}
	opts := options.Database().SetReadPreference(r.Preference).SetReadConcern(r.Concern)
	primary := r.Preference.Mode() == readpref.PrimaryMode
	err := l.repeat(ctx, Attempt{Kind: KindRead, Name: r.Name}, primary, stopsRead, func(ctx context.Context) error {
		c, err := l.connected()
		if err != nil {
			return err
		}
		return do(ctx, c.Database(db, opts))
	})
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return fmt.Errorf("read %s: %w", r.Name, err)
	}
	return err
}

// Find returns the documents of db.coll that match filter, all of them: they must be readable within one
// attempt. It is Read with one find command.
func (l *Layer) Find(ctx context.Context, db, coll string, r ReadConfig, filter any, opts ...options.Lister[options.FindOptions]) ([]bson.Raw, error) {
	if r.Name == "" {
		r.Name = db + "." + coll
	}
	var docs []bson.Raw
	err := l.Read(ctx, db, r, func(ctx context.Context, d *mongo.Database) error {
		docs = nil
		cur, err := d.Collection(coll).Find(ctx, filter, opts...)
		if err != nil {
			return err
		}
		defer closeCursor(ctx, cur)
		for cur.Next(ctx) {
			docs = append(docs, append(bson.Raw(nil), cur.Current...))
		}
		return cur.Err()
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

// FindOne is Find for one document; mongo.ErrNoDocuments if there is none.
func (l *Layer) FindOne(ctx context.Context, db, coll string, r ReadConfig, filter any, opts ...options.Lister[options.FindOneOptions]) (bson.Raw, error) {
	if r.Name == "" {
		r.Name = db + "." + coll
	}
	var doc bson.Raw
	err := l.Read(ctx, db, r, func(ctx context.Context, d *mongo.Database) (err error) {
		doc, err = d.Collection(coll).FindOne(ctx, filter, opts...).Raw()
		return err
	})
	return doc, err
}

// Do runs step, which may write, until it returns nil: each time under a deadline of its own
// (Config.AttemptTimeout), with the layer's waits in between, until Config.Budget or ctx ends. step must be
// idempotent: it runs again after any error that leaves its outcome open. It works with the client of its
// choice, uses the context that it is given, and returns the driver's errors, wrapped or not. name is what hooks
// and log call it.
//
// An error ends Do if another attempt would meet it again: one of the server or driver that says so, and any
// that is not theirs, unless it has a method TryAgain() bool that returns true. It comes back as it is. If
// the budget or ctx ended instead, the error wraps the cause and the last attempt's, and the step's outcome may be
// unknown. It returns within 250 ms of that (I8).
func (l *Layer) Do(ctx context.Context, name string, step func(ctx context.Context) error) error {
	return l.repeat(ctx, Attempt{Kind: KindStep, Name: name}, true, stopsStep, step)
}

// DoRead is Do for a step that only reads: some errors, such as a duplicate key, end a read and not a write.
func (l *Layer) DoRead(ctx context.Context, name string, step func(ctx context.Context) error) error {
	return l.repeat(ctx, Attempt{Kind: KindRead, Name: name}, true, stopsRead, step)
}

// repeat runs do until it succeeds, stops says that its error is final, or time is up.
func (l *Layer) repeat(ctx context.Context, a Attempt, cut bool, stops func(error) bool, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.cfg.Budget, errBudget) // I8
	defer cancel()
	e := effort{layer: l, name: a.Name, log: "name"}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		start := time.Now()
		err := l.attempt(ctx, a, cut, do)
		switch {
		case err == nil, errors.Is(err, mongo.ErrNoDocuments): // both are answers
			e.ended(nil)
			return err
		case stops(err):
			e.ended(err)
			return err
		}
		e.failing(start, a.Kind == KindStep && !mongoerr.Classify(err).Untouched, err)
		if err := e.pause(ctx, err); err != nil {
			e.ended(err)
			return err
		}
	}
}

// stopsRead reports whether a read that failed with err will fail again.
func stopsRead(err error) bool {
	return !asksAgain(err) && mongoerr.Classify(err).Read != mongoerr.ReadRetry
}

// stopsStep reports whether a step that failed with err will fail again.
func stopsStep(err error) bool {
	switch mongoerr.Classify(err).Write {
	case mongoerr.WriteRejected, mongoerr.WriteStop:
		return !asksAgain(err)
	}
	return false
}

// asksAgain reports whether err, of the caller's own making, asks for another attempt.
func asksAgain(err error) bool {
	t, ok := errors.AsType[interface {
		error
		TryAgain() bool
	}](err)
	return ok && t.TryAgain()
}
