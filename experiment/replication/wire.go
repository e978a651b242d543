package replication

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
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

// VerifyWithPackage compares with package verify.
func VerifyWithPackage(ctx context.Context, p *Pair, r Route) (differences int64, report []byte, err error) {
	return 0, nil, fmt.Errorf("not yet")
}
