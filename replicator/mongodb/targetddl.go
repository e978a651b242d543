package mongodb

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// watchEvery is how often it is looked who is primary while a command runs that has no deadline.
	watchEvery = time.Second
	// againAfter is the wait before such a command is sent again.
	againAfter = 200 * time.Millisecond
)

// command runs a command that changes a catalog. It has no deadline of its own: building an index takes as long as it takes, and a
// server ends the build when its client goes away. Instead it is looked every second who is primary: when that is another
// member, or nobody answers within the budget, the command is given up, and sent again, which is why it must be idempotent. The error
// is one that another attempt would meet again.
func (t *Target) command(ctx context.Context, db string, cmd bson.D) error {
	client, set, err := t.connected(ctx)
	if err != nil {
		return err
	}
	if set {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})
	}
	for {
		err := t.watched(ctx, client.Database(db), cmd)
		if err == nil || ctx.Err() != nil {
			return err
		}
		switch mongoerr.Classify(err).Write {
		case mongoerr.WriteNotSent, mongoerr.WriteUnknown, mongoerr.WriteUncommitted:
		default:
			return err
		}
		t.cfg.Failover.Logger.Warn().Err(err).Str("database", db).Str("command", cmd[0].Key).Msg("a command was cut, sending it again")
		wait := time.NewTimer(againAfter)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return context.Cause(ctx)
		}
	}
}

// watched runs cmd until it ends or the primary is another one.
func (t *Target) watched(ctx context.Context, db *mongo.Database, cmd bson.D) error {
	me, err := t.primary(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- db.RunCommand(ctx, cmd).Err() }()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
		}
		now, err := t.primary(ctx)
		if err == nil && now == me {
			continue
		}
		cancel(err)
		if cut := <-ended; err == nil || cut == nil {
			return cut
		}
		return err
	}
}

// primary returns the address of the primary by its own words, after as much patience as the layer has.
func (t *Target) primary(ctx context.Context) (string, error) {
	_, hello, err := connect(ctx, t.layer)
	if err != nil {
		return "", err
	}
	me, _ := hello.Lookup("me").StringValueOK()
	return me, nil
}

// Drop removes a collection or view; none is success. The drop carries the collection's UUID, so that one that a frozen server
// executes late does not remove what has its name by then.
func (t *Target) Drop(ctx context.Context, ns record.Namespace) error {
	found, err := t.Describe(ctx, []record.Namespace{ns})
	if err != nil || len(found) == 0 {
		return err
	}
	cmd := bson.D{{Key: "drop", Value: ns.Coll}}
	if id := uuidOf(found[0].UUID); id != nil {
		cmd = append(cmd, bson.E{Key: "collectionUUID", Value: *id})
	}
	err = t.command(ctx, ns.DB, cmd)
	if err == nil || mongoerr.IsNotFound(err) || mongoerr.IsUUIDMismatch(err) {
		return nil // not there any more
	}
	return fmt.Errorf("drop %s: %w", ns, explain(err))
}

// uuidOf returns a UUID that is given in hex, nil for none.
func uuidOf(text string) *bson.Binary {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 16 {
		return nil
	}
	return &bson.Binary{Subtype: bson.TypeBinaryUUID, Data: b}
}

// without returns doc without some of its fields.
func without(doc bson.Raw, keys ...string) bson.Raw {
	elems, err := doc.Elements()
	if err != nil {
		return doc
	}
	at, b := bsoncore.AppendDocumentStart(nil)
next:
	for _, e := range elems {
		for _, k := range keys {
			if e.Key() == k {
				continue next
			}
		}
		b = append(b, e...)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	return bson.Raw(b)
}
