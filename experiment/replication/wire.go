package replication

import (
	"context"
	"encoding/json"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/verify"
)

func upsert() options.Lister[options.UpdateOneOptions] { return options.UpdateOne().SetUpsert(true) }

// version is that of the server.
func version(ctx context.Context, client *mongo.Client) (string, error) {
	var reply struct{ Version string }
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&reply); err != nil {
		return "", fmt.Errorf("ask the server for its version: %w", err)
	}
	return reply.Version, nil
}

// capstanMemory is what capstan stores at the destination.
type capstanMemory struct {
	target  *mongodb.Target
	store   *mongodb.Store
	letters *mongodb.Letters
}

// openMemory opens what capstan stores at the destination.
func openMemory(p *Pair) (Memory, error) {
	target, err := mongodb.NewTarget(options.Client().ApplyURI(p.TargetURI()).SetAppName("capstan bench"), mongodb.TargetConfig{})
	if err != nil {
		return nil, err
	}
	store, err := mongodb.NewStore(target, mongodb.StoreConfig{})
	if err != nil {
		return nil, err
	}
	return &capstanMemory{target, store, mongodb.NewLetters(target)}, nil
}

// Load returns the state of a route.
func (m *capstanMemory) Load(ctx context.Context, route string) (replicator.State, error) {
	return m.store.Load(ctx, route)
}

// Letters is how many dead letters a route has.
func (m *capstanMemory) Letters(ctx context.Context, route string) (int64, error) {
	return m.letters.Count(ctx, route)
}

// Close disconnects.
func (m *capstanMemory) Close(ctx context.Context) error { return m.target.Close(ctx) }

// VerifyWithPackage compares with package verify. Both sides must be at rest. The report is its, as JSON.
func VerifyWithPackage(ctx context.Context, p *Pair, r Route) (differences int64, report []byte, err error) {
	side := func(uri string) *options.ClientOptions { return options.Client().ApplyURI(uri) }
	v, err := verify.New(side(p.SourceURI()), side(p.TargetURI()), verify.Config{Scope: r.Scope, Quiet: true})
	if err != nil {
		return 0, nil, err
	}
	found, err := v.Run(ctx)
	if err != nil {
		return 0, nil, err
	}
	for i := range found.Namespaces {
		n := &found.Namespaces[i]
		differences += n.Missing + n.Extra + n.Different + n.Changing + n.Moved
		for _, f := range n.Findings {
			if !f.Note {
				differences++
			}
		}
	}
	if !found.Equal && differences == 0 {
		differences = 1
	}
	report, err = json.MarshalIndent(found, "", "  ")
	return differences, report, err
}
