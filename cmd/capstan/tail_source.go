package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// tailSource is what a tail reads: a stream, or a change stream.
type tailSource interface {
	Next(ctx context.Context) (record.Record, error)
	Close() error
}

// parseScope reads what tail follows: DATABASE.COLLECTION, DATABASE, or * for all databases.
func parseScope(s string) (namespace, error) {
	if s == "*" {
		return namespace{}, nil
	}
	if checkDatabase(s) == nil {
		return namespace{db: s}, nil
	}
	if strings.Contains(s, "*") {
		return namespace{}, refusePattern(s)
	}
	return parseNamespace(s)
}

// refusePattern says what to follow instead of a pattern, which would be waited for as a collection of that name.
func refusePattern(s string) error {
	db, coll, _ := strings.Cut(s, ".")
	narrow := ""
	if coll != "" && coll != "*" {
		narrow = `, with --filter on "ns.coll" for some of its collections`
	}
	if checkDatabase(db) != nil {
		return usageError("%q: tail takes no patterns; follow all databases: capstan tail '*'%s", s, narrow)
	}
	return usageError("%q: tail takes no patterns; follow the database: capstan tail %s%s, or all of them: capstan tail '*'", s, db, narrow)
}

// checkChanges refuses the flags that mean nothing to a change stream.
func (o tailOptions) checkChanges() error {
	switch {
	case o.subject != "":
		return usageError("--subject is for streams: what happens to %s is a change and has none; use --filter, for example {\"operationType\": \"insert\"}", o.name)
	case o.visibility == tailer.Local:
		return usageError("--visibility local is for streams: the changes of %s come when a majority has them", o.name)
	case o.durable != "" && o.name.db == "":
		return usageError("--durable stores the position in the database that is followed, and all of them are: name one, " +
			"or begin with --from and the position that is printed at the end")
	}
	return nil
}

// place is what a look at the namespace says.
type place struct {
	kind   string // "collection", "view", "timeseries", or "" if it does not exist
	capped bool
	set    bool             // the deployment has change streams
	now    record.Timestamp // an operation that everything which comes is behind
}

// openTailSource finds out what o.name is and returns the source that reads it.
func openTailSource(ctx context.Context, env *environ, o tailOptions, start record.Start, now time.Time) (tailSource, error) {
	p, err := lookAt(ctx, env, o.name)
	if err != nil {
		return nil, err
	}
	_, token := record.TokenOf(start.Position)
	switch {
	case o.name.coll == "" || o.changes:
		if p.kind == "" && o.name.db != "" {
			env.note("%s does not exist yet: waiting for what happens in it", o.name)
		}
		return openChanges(env, o, start, now)
	case p.kind == "view" || p.kind == "timeseries":
		return nil, fmt.Errorf("%s is a %s, and neither a stream nor a collection that has changes of its own: name the collection it is made of, or its database", o.name, p.kind)
	case p.set && (token || p.kind != "" && !p.capped):
		return openChanges(env, o, start, now)
	}
	opts, err := env.clientOptions()
	if err != nil {
		return nil, err
	}
	s, err := tailer.New(opts, o.name.db, o.name.coll, o.config(env, start, now))
	if err != nil || p.kind != "" || !p.set {
		return s, err
	}
	return &awaited{tailSource: s, ordinary: func() (tailSource, error) {
		env.note("%s is an ordinary collection: printing its changes", o.name)
		if start.Where != record.AtTime {
			start = record.Start{Where: record.After, Position: record.Position{TS: p.now}} // from before it was there
		}
		return openChanges(env, o, start, now)
	}}, nil
}

// lookAt asks the server what there is.
func lookAt(ctx context.Context, env *environ, name namespace) (place, error) {
	client, closeClient, err := env.connect(ctx)
	if err != nil {
		return place{}, err
	}
	defer closeClient()
	ctx, cancel := context.WithTimeout(ctx, selectTimeout)
	defer cancel()
	var p place
	hello, err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
	if err != nil {
		return p, err
	}
	_, set := hello.Lookup("setName").StringValueOK()
	msg, _ := hello.Lookup("msg").StringValueOK()
	p.set = set || msg == "isdbgrid"
	if t, i, ok := hello.Lookup("operationTime").TimestampOK(); ok {
		p.now = record.Timestamp{T: t, I: i}
	}
	if name.db == "" {
		return p, nil
	}
	filter := bson.D{}
	if name.coll != "" {
		filter = bson.D{{Key: "name", Value: name.coll}}
	}
	specs, err := client.Database(name.db).ListCollectionSpecifications(ctx, filter)
	switch {
	case mongoerr.IsUnauthorized(err):
		p.kind, p.capped = "collection", true // the source says which role is missing
		return p, nil
	case err != nil || len(specs) == 0:
		return p, err
	}
	p.kind, p.capped = kindOf(specs[0])
	return p, nil
}

func kindOf(s mongo.CollectionSpecification) (kind string, capped bool) {
	capped, _ = s.Options.Lookup("capped").BooleanOK()
	return s.Type, capped
}

// openChanges returns the change stream of o.name.
func openChanges(env *environ, o tailOptions, start record.Start, now time.Time) (tailSource, error) {
	if err := o.checkChanges(); err != nil {
		return nil, err
	}
	if _, token := record.TokenOf(start.Position); start.Where == record.After && !token && !start.Position.ID.IsZero() {
		return nil, usageError("--from: %s is the position of a message, and %s is followed by its changes: begin at a time", start.Position, o.name)
	}
	opts, err := env.clientOptions()
	if err != nil {
		return nil, err
	}
	cfg := tailer.ChangesConfig{
		Start:    start,
		Expanded: true,
		Progress: time.Second,
		UntilEnd: o.exitAtEnd || o.until.past(now),
		Logger:   env.log,
	}
	if o.durable != "" && o.name.coll == "" {
		// The stored position would be a change itself, and the next one, for ever.
		cfg.Pipeline = []bson.D{{{Key: "$match", Value: bson.D{{Key: "ns.coll", Value: bson.D{{Key: "$ne", Value: checkpointCollection}}}}}}}
	}
	return tailer.NewChanges(opts, o.name.db, o.name.coll, cfg)
}

// awaited is a stream that did not exist yet. Should an ordinary collection come in its place, then its
// changes are read, all of them. One goroutine at a time may use it.
type awaited struct {
	tailSource
	ordinary func() (tailSource, error) // nil once it was called
}

// Next returns the next record of whatever came.
func (a *awaited) Next(ctx context.Context) (record.Record, error) {
	r, err := a.tailSource.Next(ctx)
	var is *tailer.NotCappedError
	if a.ordinary == nil || !errors.As(err, &is) || is.Kind != "collection" {
		return r, err
	}
	s, err := a.ordinary()
	a.ordinary = nil
	if err != nil {
		return r, err
	}
	_ = a.Close() // it has ended
	a.tailSource = s
	return s.Next(ctx)
}
