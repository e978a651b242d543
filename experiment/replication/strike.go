package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// undoTime bounds the injection and the undoing of one fault.
const undoTime = time.Minute

// strike brings a fault of a set about, holds it, and undoes it, also when ctx ends meanwhile. A role is waited for
// during an election, so two faults of one set must not be tried at once.
func (p *Pair) strike(ctx context.Context, h Hit) error {
	c := p.cluster(h.Side)
	inject, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	heal, err := p.begin(inject, c, h)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", h, err)
	}
	held := pace.Sleep(ctx, h.Hold)
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if err := heal(undo); err != nil {
		return fmt.Errorf("undo %s: %w", h, err)
	}
	return held
}

func (p *Pair) begin(ctx context.Context, c *localcluster.Cluster, h Hit) (heal func(context.Context) error, err error) {
	if h.Fault == "cut" {
		return cut(ctx, c)
	}
	i, err := c.Inject(ctx, h.Fault, localcluster.FaultOptions{})
	if err != nil {
		return nil, err
	}
	return i.Heal, nil
}

// cut makes the primary close every connection on which it is asked to read or write, without doing it: what a cable that
// goes in and out does to clients, where networks of their own cannot be had.
func cut(ctx context.Context, c *localcluster.Cluster) (heal func(context.Context) error, err error) {
	name := ""
	for _, m := range c.Status(ctx) {
		if m.Role == localcluster.RolePrimary {
			name = m.Name
		}
	}
	if name == "" {
		return func(context.Context) error { return nil }, nil // an election is in progress: that is a cut, too
	}
	uri, err := c.MemberURI(name)
	if err != nil {
		return nil, err
	}
	data := bson.D{{Key: "failCommands", Value: bson.A{"find", "getMore", "aggregate", "insert", "update", "delete", "bulkWrite", "commitTransaction", "listCollections"}},
		{Key: "closeConnection", Value: true}}
	if err := failPoint(ctx, uri, bson.D{{Key: "mode", Value: "alwaysOn"}, {Key: "data", Value: data}}); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return failPoint(ctx, uri, bson.D{{Key: "mode", Value: "off"}})
	}, nil
}

func failPoint(ctx context.Context, uri string, how bson.D) (err error) {
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Disconnect(context.WithoutCancel(ctx))) }()
	if err := client.Database("admin").RunCommand(ctx, append(bson.D{{Key: "configureFailPoint", Value: "failCommand"}}, how...)).Err(); err != nil {
		return fmt.Errorf("cut a primary off: %w", err)
	}
	return nil
}
