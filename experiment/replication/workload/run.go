package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/pace"
)

const (
	// attempt bounds one command: a frozen server answers nothing.
	attempt = 3 * time.Second
	// pause is what a writer waits before it sends a command again. It does not grow: a load that hesitates tries a replicator less.
	pause = 50 * time.Millisecond
	// attempts bounds the repetitions of one operation: with pause and attempt, more than any fault of an experiment lasts.
	attempts = 200
)

func until(ctx context.Context, due time.Time) error {
	if d := time.Until(due); d > 0 {
		return pace.Sleep(ctx, d)
	}
	return nil
}

// do carries an operation out. It sends it again until a server has said yes or no to it; the error is a server's no.
func (l *Load) do(ctx context.Context, client *mongo.Client, o operation) error {
	err := error(nil)
	for n := range attempts {
		if n > 0 {
			l.mu.Lock()
			l.stats.Repeats++
			l.mu.Unlock()
			if err := pace.Sleep(ctx, pause); err != nil {
				return err
			}
		}
		err = once(ctx, client, o)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !again(err) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", errStop, err)
}

// again reports whether err leaves the outcome open, or may pass.
func again(err error) bool {
	if err == nil {
		return false
	}
	if labelled, ok := errors.AsType[mongo.LabeledError](err); ok && labelled.HasErrorLabel("TransientTransactionError") {
		return true
	}
	c := mongoerr.Classify(err)
	return c.Network || c.Timeout || c.Read == mongoerr.ReadRetry
}

// once makes one attempt.
func once(ctx context.Context, client *mongo.Client, o operation) error {
	if !o.tx {
		var err error
		for _, c := range o.commands { // a sequence of single commands: one that is refused keeps no other from being sent
			if e := send(ctx, client, c); e != nil {
				if again(e) {
					return e
				}
				err = e
			}
		}
		return err
	}
	session, err := client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	if err := session.StartTransaction(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(mongo.NewSessionContext(ctx, session), 2*attempt)
	defer cancel()
	for _, c := range o.commands {
		if err := send(ctx, client, c); err != nil {
			_ = session.AbortTransaction(ctx) // the server does it, too, when the session is used again or expires
			return err
		}
	}
	return session.CommitTransaction(ctx)
}

func send(ctx context.Context, client *mongo.Client, c command) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	err := client.Database(c.db).RunCommand(ctx, c.body).Err()
	if refused, ok := errors.AsType[mongo.WriteException](err); ok && refused.WriteConcernError == nil && len(refused.WriteErrors) < c.documents() {
		return nil // of many documents some are there already
	}
	return err
}

// operation is what a writer does at one time: commands one after the other, or in one transaction.
type operation struct {
	kind     string
	tx       bool
	commands []command
}

// command is a command and the database it is sent to.
type command struct {
	db   string
	body bson.D
}

// documents is the number of documents that an insert has, else 0.
func (c command) documents() int {
	for _, e := range c.body {
		if all, ok := e.Value.(bson.A); ok && e.Key == "documents" {
			return len(all)
		}
	}
	return 0
}

// String returns the operation as it is sent, for people and for comparing.
func (o operation) String() string {
	s := o.kind
	if o.tx {
		s += " in a transaction"
	}
	for _, c := range o.commands {
		text, err := bson.MarshalExtJSON(c.body, true, false)
		if err != nil {
			text = []byte(err.Error())
		}
		s += " " + c.db + " " + string(text)
	}
	return s
}
