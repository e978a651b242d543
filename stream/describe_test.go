package stream_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/stream"
)

// message is a document in capstan's layout; pad makes it larger.
func message(id record.ID, seq int64, pad int) bson.D {
	return bson.D{
		{Key: "_id", Value: id.RawValue()}, {Key: "time", Value: time.Now().UnixMicro()}, {Key: "src", Value: "p/1"}, {Key: "seq", Value: seq},
		{Key: "ts", Value: bson.Timestamp{}}, {Key: "data", Value: strings.Repeat("x", pad)},
	}
}

// fill inserts n messages from seq first on and returns their ids.
func fill(t *testing.T, db *mongo.Database, name string, first, n, pad int) []record.ID {
	t.Helper()
	ids, docs := make([]record.ID, n), make([]any, n)
	for i := range n {
		ids[i] = record.NewID()
		docs[i] = message(ids[i], int64(first+i), pad)
	}
	must[*mongo.InsertManyResult](t)(db.Collection(name).InsertMany(t.Context(), docs))
	return ids
}

func TestDescribeCountsMessagesAndNotThePrimer(t *testing.T) {
	both(t, func(t *testing.T, db *mongo.Database) {
		info := must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", stream.Config{Size: 100_000}))
		d := must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{}))
		if d.Messages != 0 || d.Bytes != 0 || d.AvgBytes != 0 || d.Oldest != nil || d.Newest != nil || d.Age != 0 || d.Rate != 0 || d.Full > 0.01 || d.Fingerprint() != info.Fingerprint() {
			t.Errorf("a stream without messages: %+v", d)
		}
		ids := fill(t, db, "s", 1, 100, 300)
		size := int64(len(must[bson.Raw](t)(db.Collection("s").FindOne(t.Context(), bson.D{{Key: "seq", Value: 1}}).Raw())))
		d = must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{}))
		if d.Messages != 100 || d.AvgBytes != size || d.Bytes != 100*size || d.StorageBytes <= 0 {
			t.Errorf("%+v, want 100 messages of %d bytes", d, size)
		}
		if want := float64(100*size) / float64(d.Size); math.Abs(d.Full-want) > 0.01 {
			t.Errorf("full %v, want %v", d.Full, want)
		}
		if d.Oldest == nil || d.Oldest.Position.ID != ids[0] || d.Oldest.Seq != 1 || d.Oldest.Src != "p/1" || d.Oldest.Time == 0 || d.Oldest.Position.TS.IsZero() {
			t.Errorf("oldest %+v", d.Oldest)
		}
		if d.Newest == nil || d.Newest.Position.ID != ids[99] || d.Newest.Seq != 100 {
			t.Errorf("newest %+v", d.Newest)
		}
		if d.Age < 0 || d.Age > time.Minute {
			t.Errorf("age %v", d.Age)
		}
	})
}

func TestDescribeKnowsHowFullAStreamIsByMax(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", stream.Config{Size: 1_000_000, Max: 200}))
	fill(t, db, "s", 1, 99, 10) // and the primer
	if d := must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{})); d.Full != 0.5 || d.Messages != 99 {
		t.Errorf("full %v, %d messages", d.Full, d.Messages)
	}
	fill(t, db, "s", 100, 300, 10) // rolls over, the primer is gone
	if d := must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{})); d.Full != 1 || d.Messages != 200 || d.Oldest.Seq != 200 {
		t.Errorf("full %v, %d messages from seq %d", d.Full, d.Messages, d.Oldest.Seq)
	}
}

func TestDescribeReadsOtherPeoplesCollections(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	run(t, db, bson.D{{Key: "create", Value: "s"}, {Key: "capped", Value: true}, {Key: "size", Value: 100_000}})
	d := must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{}))
	if d.Messages != 0 || d.Oldest != nil || d.Ours {
		t.Errorf("%+v", d)
	}
	must[*mongo.InsertOneResult](t)(db.Collection("s").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 7}}))
	must[*mongo.InsertOneResult](t)(db.Collection("s").InsertOne(t.Context(), bson.D{{Key: "x", Value: 7}}))
	d = must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{}))
	if d.Messages != 2 || d.Oldest.Src != "" || !d.Oldest.At.IsZero() || d.Newest.At.IsZero() || d.Age != 0 {
		t.Errorf("%+v, oldest %+v, newest %+v", d, d.Oldest, d.Newest)
	}
}

// written counts what can be written before the message behind seq is overwritten.
func written(t *testing.T, db *mongo.Database, seq, next int, pad int, message int64) int64 {
	t.Helper()
	for n := int64(0); ; n += 10 {
		left := must[int64](t)(db.Collection("s").CountDocuments(t.Context(), bson.D{{Key: "seq", Value: seq + 1}}))
		if left == 0 {
			return n * message
		}
		fill(t, db, "s", next+int(n), 10, pad)
	}
}

func TestTheTimeToOverrunIsWhatCanStillBeWrittenOverTheRate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg    stream.Config
		fill   int
		reader int // seq
	}{
		"half full, reader near the newest": {cfg: stream.Config{Size: 200_000}, fill: 250, reader: 249},
		"half full, reader at the oldest":   {cfg: stream.Config{Size: 200_000}, fill: 250, reader: 1},
		"rolled over, reader in between":    {cfg: stream.Config{Size: 200_000}, fill: 1300, reader: 1100},
		"bounded by max":                    {cfg: stream.Config{Size: 10_000_000, Max: 400}, fill: 1300, reader: 1100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := mongotest.Standalone(t).DB(t)
			must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", c.cfg))
			ids := fill(t, db, "s", 1, c.fill, 300)
			at := record.Position{ID: ids[c.reader-1]}
			d := must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{Reader: at, Rate: 1000}))
			if d.Reader == nil || !d.Reader.Found || d.Reader.Behind != int64(c.fill-c.reader) {
				t.Fatalf("%+v", d.Reader)
			}
			if want := stream.TimeToOverrun(d.Reader.Free, 1000); d.Reader.Overrun != want {
				t.Errorf("overrun in %v, want %v", d.Reader.Overrun, want)
			}
			real := written(t, db, c.reader, c.fill+1, 300, d.AvgBytes)
			if diff := math.Abs(float64(real - d.Reader.Free)); diff > 0.03*float64(d.Size)+12*float64(d.AvgBytes) && diff > 0.03*float64(real) {
				t.Errorf("estimated %d bytes, it took %d", d.Reader.Free, real)
			}
			d = must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{Reader: at, Rate: 1000}))
			if d.Reader.Found || d.Reader.Overrun != 0 {
				t.Errorf("after the overrun: %+v", d.Reader)
			}
		})
	}
}

func TestAReaderThatIsKnownByTimeOnlyIsFound(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	must[stream.Info](t)(stream.Ensure(t.Context(), db, "s", stream.Config{Size: 200_000}))
	fill(t, db, "s", 1, 50, 10)
	d := must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{}))
	at := record.Position{TS: d.Newest.Position.TS}
	d = must[stream.Description](t)(stream.Describe(t.Context(), db, "s", stream.DescribeConfig{Reader: at, Rate: 1}))
	if d.Reader == nil || !d.Reader.Found || d.Reader.Behind != 0 {
		t.Errorf("%+v", d.Reader)
	}
}

func TestTimeToOverrun(t *testing.T) {
	for _, c := range []struct {
		free int64
		rate float64
		want time.Duration
	}{
		{1000, 100, 10 * time.Second}, {0, 100, 0}, {1000, 0, math.MaxInt64}, {1000, -5, math.MaxInt64}, {math.MaxInt64, 1e-9, math.MaxInt64},
	} {
		if got := stream.TimeToOverrun(c.free, c.rate); got != c.want {
			t.Errorf("TimeToOverrun(%d, %v) = %v, want %v", c.free, c.rate, got, c.want)
		}
	}
}
