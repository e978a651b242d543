package replication

import (
	"context"
	"encoding/json"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

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

// openMemory opens what capstan stores at the destination.
func openMemory(p *Pair) (Memory, error) {
	return nil, fmt.Errorf("not yet")
}

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
