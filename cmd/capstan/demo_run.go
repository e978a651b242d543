package main

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

	"github.com/seed-12ef14e5/capstan/internal/history"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
)

// demoLead is the time between the start of producer and consumer and the first message.
const demoLead = 100 * time.Millisecond

// demoChain is what a load goes through.
type demoChain struct {
	writer producer.Writer
	// consume hands every message from the oldest on to handle, and every gap, until ctx ends; opened
	// is called whenever the source is opened.
	consume func(ctx context.Context, opened func(), handle func(record.Record) error) error
	close   func(ctx context.Context) error
}

// run sends the load through c and receives it, and returns once all is delivered, or nothing more
// comes. The error is that of ctx, or that of a part that failed; the history is true either way.
func (l *demoLoad) run(ctx context.Context, c demoChain) error {
	l.start = time.Now().Add(demoLead)
	reader := l.rec.Reader(demoConsumer)
	p, err := producer.New(c.writer, producer.Config{Name: demoSource, MaxBuffered: l.count})
	if err != nil {
		return err
	}
	consuming, stopConsumer := context.WithCancel(ctx)
	defer stopConsumer()
	consumed := make(chan error, 1)
	go func() {
		err := c.consume(consuming, reader.Resumed, func(r record.Record) error { return l.receive(reader, r) })
		if consuming.Err() == nil {
			err = errors.Join(errors.New("the consumer ended by itself"), err)
		}
		consumed <- err
	}()
	produced := make(chan error, 1)
	go func() { produced <- p.Run(context.WithoutCancel(ctx)) }()

	err = l.sendAll(ctx, p)
	close(l.ended)
	if ctx.Err() != nil {
		p.Abort() // the servers go in a moment, so there is nothing to drain into
	}
	err = errors.Join(err, p.Close(), <-produced)
	if ctx.Err() == nil {
		l.awaitDelivery(ctx)
	}
	stopConsumer()
	err = errors.Join(err, <-consumed)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// readBack reads the whole stream as another program would, by a plain majority read from the
// primary, and records it as a reader of its own: what the oracle compares with the acknowledged.
func (l *demoLoad) readBack(ctx context.Context, uri, db, coll string) error {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()))
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }() // it has only read
	reader := l.rec.Reader(demoReadBack)
	err = client.UseSession(ctx, func(ctx context.Context) error {
		c := client.Database(db).Collection(coll)
		// The session is causally consistent: the second read waits until the majority has what the
		// first one could see. A new primary's majority view may lag a little behind.
		if err := c.FindOne(ctx, bson.D{}).Err(); err != nil {
			return err
		}
		cur, err := c.Find(ctx, bson.D{}, options.Find().SetHint(bson.D{{Key: "$natural", Value: 1}}))
		if err != nil {
			return err
		}
		defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
		for cur.Next(ctx) {
			if !record.IsPrimer(cur.Current) {
				reader.Delivered(demoKey(demoNumber(cur.Current)))
			}
		}
		return cur.Err()
	})
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	return nil
}

// judge asks the oracle.
func (l *demoLoad) judge() history.Verdict {
	return history.Check(l.rec.Events(), history.Rules{Readers: map[string]history.ReaderRules{
		demoConsumer: {AtLeastOnce: true, Handles: true},
		demoReadBack: {},
	}})
}

// serverVersion returns the version of the mongod behind uri.
func serverVersion(ctx context.Context, uri string) (string, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	var reply struct{ Version string }
	err = client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&reply)
	return reply.Version, err
}
