package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
)

// collection is an ordinary collection of a test, with a Layer and a writer for it.
type collection struct {
	t    testing.TB
	coll *mongo.Collection
	l    *Layer
	w    *CollectionWriter
}

func newCollection(t testing.TB, d *mongotest.Deployment, opts *options.ClientOptions, c Config) *collection {
	t.Helper()
	l, err := New(opts, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	coll := d.DB(t).Collection("c")
	return &collection{t: t, coll: coll, l: l, w: l.Collection(coll.Database().Name(), "c", CollectionConfig{})}
}

// items returns n documents with the field n numbered from first.
func items(first, n int) []bson.Raw {
	docs := make([]bson.Raw, n)
	for i := range docs {
		docs[i] = item(first + i)
	}
	return docs
}

func item(n int) bson.Raw {
	return encode(bson.D{{Key: "n", Value: n}, {Key: "_id", Value: bson.NewObjectID()}, {Key: "at", Value: bson.Timestamp{}}, {Key: "s", Value: bson.D{{Key: "a", Value: 1}}}})
}

// has fails the test if the collection does not hold exactly the given numbers, once each.
func (c *collection) has(first, n int) {
	c.t.Helper()
	cur, err := majorityOf(c.coll).Find(c.t.Context(), bson.D{{Key: "n", Value: bson.D{{Key: "$exists", Value: true}}}}, options.Find().SetSort(bson.D{{Key: "n", Value: 1}}))
	if err != nil {
		c.t.Fatal(err)
	}
	var docs []struct{ N int }
	if err := cur.All(c.t.Context(), &docs); err != nil {
		c.t.Fatal(err)
	}
	var got, want []int
	for _, d := range docs {
		got = append(got, d.N)
	}
	for i := range n {
		want = append(want, first+i)
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("stored are %v, want %d numbers from %d on", got, n, first)
	}
}

func states(outcomes []Outcome) (count [3]int) {
	for _, o := range outcomes {
		count[o.State]++
	}
	return count
}

var both = map[string]func(testing.TB) *mongotest.Deployment{"standalone": mongotest.Standalone, "replica set": mongotest.ReplicaSet}

func TestDocumentsAreInsertedOnceHoweverOftenTheyAreSent(t *testing.T) {
	t.Parallel()
	for name, on := range both {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := on(t)
			c := newCollection(t, d, d.Options(), Config{})
			docs := items(1, 500)
			for _, part := range [][]bson.Raw{docs[:100], docs[50:300], docs, docs[499:]} {
				outcomes, err := c.w.InsertMany(t.Context(), part)
				if err != nil || states(outcomes)[Applied] != len(part) {
					t.Fatalf("%v: %v", states(outcomes), err)
				}
			}
			for _, doc := range docs[:3] {
				if err := c.w.InsertOne(t.Context(), doc); err != nil {
					t.Fatal(err)
				}
			}
			c.has(1, 500)
		})
	}
}

func TestManyCallersShareACollectionWriter(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	c := newCollection(t, d, d.Options(), Config{})
	var wg sync.WaitGroup
	for g := range 20 {
		wg.Go(func() {
			for i := range 10 {
				if _, err := c.w.InsertMany(t.Context(), items(1+50*g+5*i, 4)); err != nil {
					t.Error(err)
				}
				if err := c.w.InsertOne(t.Context(), item(5+50*g+5*i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c.has(1, 1000)
	if err := c.l.Close(t.Context()); err != nil {
		t.Errorf("a connection did not come back: %v", err)
	}
}

// Another document under our _id, whatever makes it the same _id to the server.
func TestAnotherDocumentUnderOurIDIsAConflict(t *testing.T) {
	t.Parallel()
	d := mongotest.ReplicaSet(t)
	c := newCollection(t, d, d.Options(), Config{})
	db := c.coll.Database()
	if err := db.CreateCollection(t.Context(), "c", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 1})); err != nil {
		t.Fatal(err)
	}
	for _, id := range []any{1, "a", bson.D{{Key: "k", Value: 1}}} {
		if err := c.w.InsertOne(t.Context(), encode(bson.D{{Key: "_id", Value: id}, {Key: "v", Value: "first"}})); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []any{1, 1.0, int64(1), "a", "A", bson.D{{Key: "k", Value: 1}}} {
		docs := []bson.Raw{item(7), encode(bson.D{{Key: "_id", Value: id}, {Key: "v", Value: "second"}}), item(8)}
		outcomes, err := c.w.InsertMany(t.Context(), docs)
		conflict, ok := errors.AsType[*ConflictError](err)
		rejected, _ := errors.AsType[*record.RejectedError](err)
		if !ok || conflict.ID != idOf(docs[1]) || rejected == nil || rejected.Index != 1 || !errors.Is(err, record.ErrExists) || states(outcomes) != [3]int{0, 2, 1} {
			t.Errorf("%v: %v, %v", id, states(outcomes), err)
		}
		if err := c.w.InsertOne(t.Context(), docs[1]); !errors.As(err, &conflict) {
			t.Errorf("%v: %v", id, err)
		}
	}
}

// The same content is ours, whatever the server does to it: it moves _id to the front and fills empty
// timestamps. Other content is not, be it in the last field.
func TestContentIsComparedFieldByField(t *testing.T) {
	t.Parallel()
	base := bson.D{{Key: "a", Value: 1}, {Key: "_id", Value: 1}, {Key: "t", Value: bson.Timestamp{}}, {Key: "c", Value: 1}, {Key: "c", Value: 2}, {Key: "ts", Value: bson.Timestamp{}}}
	stored := bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}, {Key: "t", Value: bson.Timestamp{T: 5}}, {Key: "c", Value: 1}, {Key: "c", Value: 2}, {Key: "ts", Value: bson.Timestamp{T: 5}}}
	if !SameDocument(encode(base), encode(stored)) {
		t.Error("what the server stores is not the same")
	}
	for i, other := range []bson.D{
		stored[:5],
		append(slices.Clone(stored), bson.E{Key: "z", Value: 1}),
		{{Key: "_id", Value: 1}, {Key: "a", Value: 1.0}, stored[2], stored[3], stored[4], stored[5]},
		{{Key: "_id", Value: 2}, stored[1], stored[2], stored[3], stored[4], stored[5]},
		{stored[0], stored[1], stored[2], stored[3], {Key: "c", Value: 1}, stored[5]},
		{stored[0], stored[1], {Key: "t", Value: 5}, stored[3], stored[4], stored[5]},
	} {
		if SameDocument(encode(base), encode(other)) || SameDocument(encode(other), encode(base)) {
			t.Errorf("document %d is taken for the same", i)
		}
	}
}

func TestDocumentsThatCannotBeStoredAreRefusedAndTheOthersWritten(t *testing.T) {
	t.Parallel()
	for name, on := range both {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := on(t)
			c := newCollection(t, d, d.Options(), Config{})
			docs := items(1, 8)
			docs = slices.Insert(docs, 0, encode(bson.D{{Key: "n", Value: -1}})) // no _id
			docs = slices.Insert(docs, 4, bson.Raw{1, 2, 3}, nil, encode(bson.D{{Key: "_id", Value: 1}, {Key: "b", Value: make([]byte, record.MaxDocumentSize)}}))
			outcomes, err := c.w.InsertMany(t.Context(), docs)
			rejected, _ := errors.AsType[*record.RejectedError](err)
			if states(outcomes) != [3]int{0, 8, 4} || rejected == nil || rejected.Index != 0 || !errors.Is(err, ErrBadDocument) || !errors.Is(outcomes[6].Err, ErrTooLarge) {
				t.Errorf("%v, %v", states(outcomes), err)
			}
			if err := c.w.InsertOne(t.Context(), docs[0]); !errors.Is(err, ErrBadDocument) {
				t.Error(err)
			}
			c.has(1, 8)
		})
	}
}

// What the server refuses is refused at once, and alone.
func TestAValidatorAndAUniqueIndexRefuseOnlyTheirDocuments(t *testing.T) {
	t.Parallel()
	for name, on := range both {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := on(t)
			retries := 0
			c := newCollection(t, d, d.Options(), Config{Hooks: Hooks{OnRetry: func(Retry) { retries++ }}})
			if err := c.coll.Database().CreateCollection(t.Context(), "c", options.CreateCollection().SetValidator(bson.D{{Key: "n", Value: bson.D{{Key: "$ne", Value: 4}}}})); err != nil {
				t.Fatal(err)
			}
			index := mongo.IndexModel{Keys: bson.D{{Key: "n", Value: 1}}, Options: options.Index().SetUnique(true)}
			if _, err := c.coll.Indexes().CreateOne(t.Context(), index); err != nil {
				t.Fatal(err)
			}
			docs := append(items(1, 10), items(3, 4)...) // 4 is refused twice; 3, 5 and 6 come twice
			outcomes, err := c.w.InsertMany(t.Context(), docs)
			if states(outcomes) != [3]int{0, 9, 5} || errors.Is(err, record.ErrExists) || retries > 0 {
				t.Errorf("%v, %v; %d retries", states(outcomes), err, retries)
			}
			for _, i := range []int{3, 10, 11, 12, 13} {
				rejected, ok := errors.AsType[*record.RejectedError](outcomes[i].Err)
				if outcomes[i].State != NotApplied || !ok || rejected.Index != i || rejected.ID != idOf(docs[i]) {
					t.Errorf("document %d: %+v", i, outcomes[i])
				}
			}
			if err := c.w.InsertOne(t.Context(), item(4)); !errors.As(err, new(*record.RejectedError)) {
				t.Error(err)
			}
			n, err := c.coll.CountDocuments(t.Context(), bson.D{})
			if err != nil || n != 9 {
				t.Errorf("%d documents are stored, %v", n, err)
			}
		})
	}
}

// More than one command can hold, in bytes and in number.
func TestABatchOfAnySizeIsWritten(t *testing.T) {
	t.Parallel()
	d := mongotest.Standalone(t)
	commands := 0
	c := newCollection(t, d, d.Options(), Config{AttemptTimeout: 30 * time.Second, Hooks: Hooks{OnAttempt: func(a Attempt) { commands++ }}})
	docs := items(1, 100_001)
	for i := range 6 {
		docs = append(docs, encode(bson.D{{Key: "_id", Value: fmt.Sprint("large ", i)}, {Key: "b", Value: make([]byte, 10<<20)}}))
	}
	outcomes, err := c.w.InsertMany(t.Context(), docs)
	if err != nil || states(outcomes)[Applied] != len(docs) || commands < 8 {
		t.Errorf("%v, %v; %d commands", states(outcomes), err, commands)
	}
	if n, err := c.coll.CountDocuments(t.Context(), bson.D{}); err != nil || n != int64(len(docs)) {
		t.Errorf("%d documents are stored, %v", n, err)
	}
}
