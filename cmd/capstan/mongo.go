package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// closeTimeout bounds what is done when all is over: closing connections.
const closeTimeout = 2 * time.Second

// connect returns a client for a command's own questions (the libraries that move messages have
// their own). close disconnects it; it may be called when ctx has ended.
func (e *environ) connect(ctx context.Context) (client *mongo.Client, closeClient func(), err error) {
	opts, err := e.clientOptions()
	if err != nil {
		return nil, nil, err
	}
	if client, err = mongo.Connect(opts); err != nil {
		return nil, nil, err
	}
	return client, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = client.Disconnect(ctx) // nothing is in progress
	}, nil
}

// finalError reports whether trying a read again is useless.
func finalError(err error) bool { return mongoerr.Classify(err).Read == mongoerr.ReadStop }

// owner names this process in a checkpoint: unique, and of use to a person who looks for it.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s pid %d %s", host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
}
