package checkpoint_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/checkpoint/checkpointtest"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func mongoFactory(db *mongo.Database) checkpointtest.Factory {
	var n atomic.Int64
	return factory(func(tb checkpointtest.TB) func() checkpointtest.Store {
		coll := db.Collection(fmt.Sprintf("checkpoints%d", n.Add(1)))
		return func() checkpointtest.Store {
			m, err := checkpoint.NewMongo(coll, doer(tb, 0), checkpoint.MongoConfig{})
			if err != nil {
				tb.Fatalf("NewMongo: %v", err)
			}
			return m
		}
	})
}

func TestMongoOnAStandaloneKeepsEveryPromiseOfAStore(t *testing.T) {
	t.Parallel()
	checkpointtest.Run(t, mongoFactory(mongotest.Standalone(t).DB(t)))
}

func TestMongoOnAReplicaSetKeepsEveryPromiseOfAStore(t *testing.T) {
	t.Parallel()
	checkpointtest.Run(t, mongoFactory(mongotest.ReplicaSet(t).DB(t)))
}
