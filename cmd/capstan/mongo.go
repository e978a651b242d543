package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/failover"
)

// closeTimeout bounds what is done when all is over: closing connections.
const closeTimeout = 2 * time.Second

// connect returns a client for a command's own questions (the libraries that move messages have
// their own), once some server answers and accepts the user: a wrong address or password is said
// within selectTimeout, and not when the libraries' patience with elections ends. A set without a
// primary is no reason to fail here. close disconnects; it may be called when ctx has ended.
func (e *environ) connect(ctx context.Context) (client *mongo.Client, closeClient func(), err error) {
	opts, err := e.clientOptions()
	if err != nil {
		return nil, nil, err
	}
	return connectTo(ctx, opts)
}

// connectError says that no server answered at the start.
type connectError struct{ err error }

func (e *connectError) Error() string { return "cannot connect to MongoDB: " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// steps returns what repeats the steps of checkpoints, where a command has no layer that writes messages: it
// makes no connection of its own.
func (e *environ) steps() (*failover.Layer, error) {
	return failover.New(nil, failover.Config{Logger: e.log})
}

// checkpoints returns the checkpoints of a database's streams.
func (e *environ) checkpoints(db *mongo.Database) (*checkpoint.Mongo, error) {
	layer, err := e.steps()
	if err != nil {
		return nil, err
	}
	return checkpoint.NewMongo(db.Collection(checkpointCollection), layer, checkpoint.MongoConfig{})
}

// owner names this process in a checkpoint: unique, and of use to a person who looks for it.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s pid %d %s", host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
}
