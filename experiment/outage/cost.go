package outage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/failover"
)

// Cost is what the failover layer costs when nothing fails: the time of the same inserts through it and through
// the plain driver, in turns, on one set with the majority's write concern. Times are the medians of the
// rounds, per call.
type Cost struct {
	// OneDriver and OneLayer are of an insert of one document, ManyDriver and ManyLayer of one of ManyDocuments.
	OneDriver  time.Duration `json:"insert_one_driver"`
	OneLayer   time.Duration `json:"insert_one_layer"`
	ManyDriver time.Duration `json:"insert_many_driver"`
	ManyLayer  time.Duration `json:"insert_many_layer"`
	Rounds     int           `json:"rounds"`
}

const (
	costRounds = 20
	// costOnes and costManies are the calls of one round.
	costOnes, costManies = 100, 5
	// ManyDocuments is how many documents an InsertMany of the comparison has.
	ManyDocuments = 1000
	// costCollection is dropped when it is over.
	costCollection = "cost"
)

// One and Many return the layer's time as a multiple of the driver's.
func (c Cost) One() float64 { return ratio(c.OneLayer, c.OneDriver) }

// Many is One for ManyDocuments at once.
func (c Cost) Many() float64 { return ratio(c.ManyLayer, c.ManyDriver) }

func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// costSide is one of the two that are compared.
type costSide struct {
	one       func(ctx context.Context, doc bson.Raw) error
	many      func(ctx context.Context, docs []bson.Raw) error
	ones, all []time.Duration // per call, of each round
}

// measureCost compares the two on a set that is whole.
func (l *lane) measureCost(ctx context.Context) (Cost, error) {
	layer, err := failover.New(l.options(l.cluster.URI()), failover.Config{Profile: l.profile})
	if err != nil {
		return Cost{}, err
	}
	defer closeLayer(ctx, layer)
	w := layer.Collection(Database, costCollection, failover.CollectionConfig{})
	plain, err := mongo.Connect(l.options(l.cluster.URI()).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		return Cost{}, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = plain.Disconnect(context.WithoutCancel(ctx)) }() // every call has returned
	coll := plain.Database(Database).Collection(costCollection)
	sides := []*costSide{
		{one: func(ctx context.Context, doc bson.Raw) error {
			_, err := coll.InsertOne(ctx, doc)
			return err
		}, many: func(ctx context.Context, docs []bson.Raw) error {
			_, err := coll.InsertMany(ctx, docs)
			return err
		}},
		{one: w.InsertOne, many: func(ctx context.Context, docs []bson.Raw) error {
			_, err := w.InsertMany(ctx, docs)
			return err
		}},
	}
	for round := range costRounds + 1 { // the first one warms up
		for i := range sides {
			s := sides[(i+round)%2]
			if err := s.round(ctx, round > 0); err != nil {
				return Cost{}, fmt.Errorf("compare with the driver: %w", err)
			}
		}
	}
	c := Cost{Rounds: costRounds, OneDriver: middle(sides[0].ones), OneLayer: middle(sides[1].ones),
		ManyDriver: middle(sides[0].all), ManyLayer: middle(sides[1].all)}
	return c, coll.Drop(ctx)
}

func middle(of []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(of))[(len(of)-1)/2]
}

// round makes the calls of one round.
func (s *costSide) round(ctx context.Context, counts bool) error {
	docs, err := costDocuments(costOnes + costManies*ManyDocuments)
	if err != nil {
		return err
	}
	start := time.Now()
	for _, doc := range docs[:costOnes] {
		if err := s.one(ctx, doc); err != nil {
			return err
		}
	}
	between := time.Now()
	for batch := range slices.Chunk(docs[costOnes:], ManyDocuments) {
		if err := s.many(ctx, batch); err != nil {
			return err
		}
	}
	if counts {
		s.ones = append(s.ones, between.Sub(start)/costOnes)
		s.all = append(s.all, time.Since(between)/costManies)
	}
	return nil
}

// costDocuments makes documents of some 200 bytes.
func costDocuments(n int) ([]bson.Raw, error) {
	docs := make([]bson.Raw, n)
	for i := range docs {
		b, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "time", Value: time.Now().UnixMicro()},
			{Key: "value", Value: float64(i)}, {Key: "title", Value: string(make([]byte, 120))}, {Key: "type", Value: "temperature"}})
		if err != nil {
			return nil, err
		}
		docs[i] = b
	}
	return docs, nil
}
