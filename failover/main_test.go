package failover

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/internal/retry"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

// message returns a message in the layout of a producer.
func message(src string, seq int64, payload int) bson.Raw {
	return encode(bson.D{
		{Key: "_id", Value: bson.NewObjectID()},
		{Key: "time", Value: time.Now().UnixMicro()},
		{Key: "src", Value: src},
		{Key: "seq", Value: seq},
		{Key: "ts", Value: bson.Timestamp{}},
		{Key: "data", Value: string(make([]byte, payload))},
	})
}

func encode(v any) bson.Raw {
	b, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// messages returns n messages of src, numbered from first.
func messages(src string, first, n int) []bson.Raw {
	docs := make([]bson.Raw, n)
	for i := range docs {
		docs[i] = message(src, int64(first+i), 40)
	}
	return docs
}

// judge is the oracle of this package: it looks at what a stream holds, in its order, and at how many
// messages of src were acknowledged, and names what is wrong. Messages are told apart by src and seq,
// not by _id: a writer that made a new _id per attempt must not pass.
func judge(stored []bson.Raw, src string, acknowledged int64) []string {
	var wrong []string
	count := map[int64]int{}
	last := int64(0)
	for _, doc := range stored {
		if s, _ := doc.Lookup("src").StringValueOK(); s != src {
			continue
		}
		seq := doc.Lookup("seq").Int64()
		if count[seq]++; count[seq] > 1 {
			wrong = append(wrong, fmt.Sprintf("seq %d is stored %d times", seq, count[seq]))
		}
		if seq < last {
			wrong = append(wrong, fmt.Sprintf("seq %d stands behind %d", seq, last))
		}
		last = max(last, seq)
	}
	for seq := int64(1); seq <= acknowledged; seq++ {
		if count[seq] == 0 {
			wrong = append(wrong, fmt.Sprintf("seq %d was acknowledged and is not stored", seq))
		}
	}
	return wrong
}

// stream is a capped collection of a test, with a Layer and a writer for it.
type stream struct {
	t    testing.TB
	coll *mongo.Collection
	uuid bson.Binary
	l    *Layer
	w    *StreamWriter
}

const streamSize = 16 << 20

func newStream(t testing.TB, d *mongotest.Deployment, c Config) *stream {
	t.Helper()
	s := &stream{t: t, coll: d.DB(t).Collection("s")}
	s.create(streamSize)
	s.use(d.Options(), c)
	return s
}

// create makes the collection (again), with a primer as package stream would.
func (s *stream) create(size int64) {
	s.t.Helper()
	ctx, db := s.t.Context(), s.coll.Database()
	s.patiently(func() error {
		err := db.CreateCollection(ctx, s.coll.Name(), options.CreateCollection().SetCapped(true).SetSizeInBytes(size))
		if mongoerr.IsNamespaceExists(err) {
			return nil
		}
		return err
	})
	s.patiently(func() error {
		_, err := s.coll.InsertOne(ctx, bson.D{{Key: "_id", Value: "primer"}})
		if mongoerr.IsDuplicateID(err) {
			return nil
		}
		return err
	})
	specs, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: s.coll.Name()}})
	if err != nil || len(specs) != 1 {
		s.t.Fatal(err, specs)
	}
	s.uuid = *specs[0].UUID
}

// patiently repeats a step of the set-up: on a busy machine a set may hold an election that nobody asked for.
func (s *stream) patiently(step func() error) {
	s.t.Helper()
	loop := retry.New(retry.Policy{})
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for {
		err := step()
		if err == nil {
			return
		}
		if err := loop.Wait(ctx, err); err != nil {
			s.t.Fatal(err)
		}
	}
}

// use makes a Layer and a writer.
func (s *stream) use(opts *options.ClientOptions, c Config) {
	s.t.Helper()
	l, err := New(opts, c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = l.Close(context.WithoutCancel(s.t.Context())) })
	s.l = l
	s.w = l.Stream(s.coll.Database().Name(), s.coll.Name(), StreamConfig{UUID: s.uuid, Size: streamSize})
}

// stored returns what the majority has, in natural order.
func (s *stream) stored() []bson.Raw {
	s.t.Helper()
	docs, err := storedIn(s.t.Context(), majorityOf(s.coll))
	if err != nil {
		s.t.Fatal(err)
	}
	return docs
}

func storedIn(ctx context.Context, coll *mongo.Collection) ([]bson.Raw, error) {
	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var docs []bson.Raw
	if err := cur.All(ctx, &docs); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(docs, func(d bson.Raw) bool { return d.Lookup("src").Type == 0 }), nil
}

// ok fails the test if the stream is not exactly what it must be after n messages of src.
func (s *stream) ok(src string, n int64) {
	s.t.Helper()
	docs := s.stored()
	for _, wrong := range judge(docs, src, n) {
		s.t.Error(wrong)
	}
	if int64(len(docs)) != n {
		s.t.Errorf("%d messages are stored, want %d", len(docs), n)
	}
}
