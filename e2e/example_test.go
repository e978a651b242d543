package e2e

import (
	"context"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/consumer"
	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// The README shows what is between begin and end. It is run by TestTheReadmesExampleRuns.

// begin

// sendAndHandle sends n messages to the stream shop.orders and prints them as they are handled.
func sendAndHandle(ctx context.Context, uri string, n int) error {
	opts := options.Client().ApplyURI(uri)
	client, err := mongo.Connect(opts)
	if err != nil {
		return err
	}
	defer client.Disconnect(context.WithoutCancel(ctx))
	db := client.Database("shop")
	info, err := stream.Ensure(ctx, db, "orders", stream.Config{Size: 10_000_000})
	if err != nil {
		return err
	}
	writer, err := failover.New(opts, failover.Config{}) // retries until the outcome is known
	if err != nil {
		return err
	}
	defer writer.Close(context.WithoutCancel(ctx))
	orders, err := producer.New(writer.Stream("shop", "orders", failover.StreamConfig{UUID: info.UUID, Size: info.Size}),
		producer.Config{Name: "web"})
	if err != nil {
		return err
	}
	store, err := checkpoint.NewMongo(db.Collection("capstan_checkpoints"), writer, checkpoint.MongoConfig{})
	if err != nil {
		return err
	}
	open := func(_ context.Context, start record.Start) (consumer.Source, error) {
		return tailer.New(opts, "shop", "orders", tailer.Config{Start: start}) // majority visibility on a replica set
	}
	ctx, stop := context.WithCancel(ctx)
	handled := 0
	handle := consumer.HandlerFunc(func(_ context.Context, r record.Record) error {
		fmt.Println(r.Seq, r.Subject, r.Data())
		if handled++; handled == n {
			stop()
		}
		return nil
	})
	billing, err := consumer.New("billing", open, handle, store, consumer.Config{
		Stream: "shop.orders", Start: record.Start{Where: record.Earliest}})
	if err != nil {
		return err
	}
	var work errgroup.Group
	work.Go(func() error { return orders.Run(ctx) })
	work.Go(func() error { return billing.Run(ctx) })
	for i := range n {
		_, data, err := bson.MarshalValue(bson.D{{Key: "n", Value: i}})
		if err != nil {
			return err
		}
		m := producer.Message{Subject: "orders.eu", Data: bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: data}}
		if _, err := orders.SendSync(ctx, m); err != nil { // stored, and committed by the majority
			return err
		}
	}
	return work.Wait()
}

// end

func Example() {
	if err := sendAndHandle(context.Background(), os.Getenv("CAPSTAN_URI"), 3); err != nil {
		fmt.Println(err)
	}
}
