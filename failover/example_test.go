package failover_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/record"
)

// A writer whose outcome is always known, on an ordinary collection.
func Example() {
	ctx := context.Background()
	layer, err := failover.New(options.Client().ApplyURI("mongodb://m0,m1,m2/?replicaSet=abc"),
		failover.Config{Profile: failover.ProfileFast, Budget: time.Minute})
	if err != nil {
		fmt.Println(err) // of the options, or the Config
		return
	}
	defer layer.Close(ctx)
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "value", Value: 21.5}})
	if err != nil {
		fmt.Println(err)
		return
	}
	readings := layer.Collection("lab", "readings", failover.CollectionConfig{})
	err = readings.InsertOne(ctx, doc)
	if rejected, ok := errors.AsType[*record.RejectedError](err); ok {
		fmt.Println("refused for good, and not stored:", rejected)
	} else if unknown, ok := errors.AsType[*record.UnknownOutcomeError](err); ok {
		fmt.Println("stored or not; insert it again with the same _id to find out:", unknown.IDs)
	} else if err != nil {
		fmt.Println("not stored:", err)
	}
	// Reads go on during an election, and stay away from a member that has let one time out.
	docs, err := layer.Find(ctx, "lab", "readings", failover.ReadConfig{Preference: readpref.SecondaryPreferred()}, bson.D{})
	fmt.Println(len(docs), err)
}
