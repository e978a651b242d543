package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// DescribeConfig asks Describe for more. The zero value is valid.
type DescribeConfig struct {
	// Reader, if it is not the zero Position, is where a reader is: Description.Reader is filled.
	Reader record.Position
	// Rate is how fast the stream is written, in bytes of documents per second. 0 means the mean rate of
	// what the stream holds (Description.Rate); a rate measured now is better.
	Rate float64
	// Timeout bounds the whole call; 0 means DefaultTimeout.
	Timeout time.Duration
}

// End is the oldest or the newest message of a stream.
type End struct {
	Position record.Position
	// Time is the producer's, in microseconds since the Unix epoch, Src and Seq the producer's count; all
	// are zero in other people's collections.
	Time int64
	Src  string
	Seq  int64
	// At is when it was written as far as that is known: the server's timestamp, else Time, else the
	// time in its ObjectId; zero if there is none of them. Its resolution is a second.
	At time.Time

	recordID int64
}

// Description is the state of a stream at one moment. Its numbers come from several commands, so under
// load they are a few messages apart.
type Description struct {
	Info
	// Messages is the number of messages, without the primer.
	Messages int64
	// Bytes is the size of the documents, StorageBytes what they take on disk, AvgBytes the mean size of
	// a message.
	Bytes, StorageBytes, AvgBytes int64
	// Full is how full the stream is by size or by max, whichever is nearer to its end: 0 to 1.
	Full float64
	// Oldest and Newest are nil if there is no message.
	Oldest, Newest *End
	// Age is the age of the oldest message by the server's clock, 0 if it is not known: what the stream
	// remembers.
	Age time.Duration
	// Rate is the mean rate of what the stream holds, in bytes per second, from its oldest to its newest
	// message; 0 if they are less than a second apart.
	Rate float64
	// Reader is set if DescribeConfig.Reader was.
	Reader *Reach
}

// Reach is how far a reader is from being overrun.
//
// It is an estimate. Free is what can be written before the first message that the reader has not read
// is overwritten: what is left of the stream, and what it holds of messages that the reader has read.
// Their share is taken from the record ids, which mongod gives out in steps of one, so neither a count
// nor a scan is needed; it is off where ids were burnt by refused inserts or after a rollback, and
// where the sizes of messages change along the stream.
type Reach struct {
	// Found is false if the stream does not hold the reader's position (any more): it has been overrun,
	// or the position is of another stream. Everything else is zero then.
	Found bool
	// Behind is the number of messages that the reader has not read.
	Behind int64
	// Free is in bytes.
	Free int64
	// Rate is the rate that Overrun is computed with, in bytes per second.
	Rate float64
	// Overrun is the time until the reader is overrun if it does not move: TimeToOverrun(Free, Rate).
	Overrun time.Duration
}

// TimeToOverrun returns how long it takes to write free bytes at rate bytes per second, and the longest
// Duration where rate is not positive. For a reader that moves, rate is what is written less what it reads.
func TimeToOverrun(free int64, rate float64) time.Duration {
	if s := float64(free) / rate; rate > 0 && s < math.MaxInt64/float64(time.Second) {
		return time.Duration(s * float64(time.Second))
	}
	return math.MaxInt64
}

// Describe returns the state of the stream. It reads a few documents by natural order and by _id, and
// scans only for a reader's position without an _id. It blocks for DescribeConfig.Timeout at most.
// Errors: those of Lookup.
func Describe(ctx context.Context, db *mongo.Database, name string, cfg DescribeConfig) (Description, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Timeout < 0 || cfg.Rate < 0 || math.IsNaN(cfg.Rate) {
		return Description{}, fmt.Errorf("stream: DescribeConfig has Timeout %v and Rate %v, want neither negative", cfg.Timeout, cfg.Rate)
	}
	if err := CheckName(db.Name(), name); err != nil {
		return Description{}, err
	}
	db = onPrimary(db)
	return again(ctx, cfg.Timeout, func(ctx context.Context) (Description, error) {
		d, err := describe(ctx, db, name, cfg)
		if mongoerr.IsUnauthorized(err) {
			action := "find or collStats"
			if p := (*PrivilegeError)(nil); errors.As(err, &p) {
				return d, err
			}
			return d, &PrivilegeError{Action: action, Resource: db.Name() + "." + name, Err: err}
		}
		return d, err
	})
}

func describe(ctx context.Context, db *mongo.Database, name string, cfg DescribeConfig) (Description, error) {
	info, err := lookup(ctx, db, name)
	if err != nil {
		return Description{}, err
	}
	d, coll := Description{Info: info}, db.Collection(name)
	count, now, err := d.readStats(ctx, coll)
	if err != nil {
		return Description{}, err
	}
	oldest, first, err := end(ctx, coll, 1)
	if err != nil {
		return Description{}, err
	}
	newest, _, err := end(ctx, coll, -1)
	if err != nil {
		return Description{}, err
	}
	if err := d.countPrimer(ctx, coll, count); err != nil {
		return Description{}, err
	}
	d.Oldest, d.Newest = oldest, newest
	if oldest != nil && newest != nil {
		if !oldest.At.IsZero() {
			d.Age = max(now.Sub(oldest.At), 0)
			if span := newest.At.Sub(oldest.At); span >= time.Second {
				d.Rate = float64(d.Bytes) / span.Seconds()
			}
		}
	}
	if !cfg.Reader.IsZero() {
		if cfg.Rate == 0 {
			cfg.Rate = d.Rate
		}
		at, err := find(ctx, coll, cfg.Reader)
		if err != nil {
			return Description{}, err
		}
		d.Reader = d.reach(at, first, count, cfg.Rate)
	}
	return d, nil
}

// readStats reads sizes and fill level, and returns the number of documents and the server's time.
func (d *Description) readStats(ctx context.Context, coll *mongo.Collection) (count int64, now time.Time, err error) {
	cur, err := coll.Aggregate(ctx, bson.A{
		bson.D{{Key: "$collStats", Value: bson.D{{Key: "storageStats", Value: bson.D{}}}}},
		bson.D{{Key: "$project", Value: bson.D{
			{Key: "localTime", Value: 1}, {Key: "storageStats.size", Value: 1}, {Key: "storageStats.count", Value: 1}, {Key: "storageStats.storageSize", Value: 1},
		}}},
	})
	if err != nil {
		return 0, now, fmt.Errorf("read statistics of %s: %w", d.Namespace, err)
	}
	var all []struct {
		LocalTime    time.Time `bson:"localTime"`
		StorageStats struct {
			Size        int64
			Count       int64
			StorageSize int64 `bson:"storageSize"`
		} `bson:"storageStats"`
	}
	if err := cur.All(ctx, &all); err != nil {
		return 0, now, fmt.Errorf("read statistics of %s: %w", d.Namespace, err)
	}
	if len(all) == 0 {
		return 0, now, fmt.Errorf("%w: %s has no statistics", ErrGone, d.Namespace)
	}
	s := all[0].StorageStats
	d.Bytes, d.StorageBytes, count = s.Size, s.StorageSize, s.Count
	if d.Size > 0 {
		d.Full = min(float64(d.Bytes)/float64(d.Size), 1)
	}
	if d.Max > 0 {
		d.Full = max(d.Full, min(float64(count)/float64(d.Max), 1))
	}
	return count, all[0].LocalTime, nil
}

// countPrimer takes the primer off the count of documents.
func (d *Description) countPrimer(ctx context.Context, coll *mongo.Collection, count int64) error {
	d.Messages = count
	doc, err := coll.FindOne(ctx, bson.D{{Key: record.FieldID, Value: record.PrimerID}}).Raw()
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
	case err != nil:
		return fmt.Errorf("look for the primer of %s: %w", d.Namespace, err)
	default:
		d.Messages = max(count-1, 0)
		d.Bytes = max(d.Bytes-int64(len(doc)), 0)
	}
	if d.Messages > 0 {
		d.AvgBytes = d.Bytes / d.Messages
	}
	return nil
}

// end returns the oldest (direction 1) or newest (-1) message, nil if there is none, and the record id
// of the first document on that side, which may be the primer.
func end(ctx context.Context, coll *mongo.Collection, direction int) (*End, int64, error) {
	// Two, as the primer may be one of them.
	opts := options.Find().SetSort(bson.D{{Key: "$natural", Value: direction}}).SetLimit(2).SetShowRecordID(true)
	cur, err := coll.Find(ctx, bson.D{}, opts)
	if err != nil {
		return nil, 0, fmt.Errorf("read the ends of a stream: %w", err)
	}
	var docs []bson.Raw
	if err := cur.All(ctx, &docs); err != nil {
		return nil, 0, fmt.Errorf("read the ends of a stream: %w", err)
	}
	var first int64
	for i, doc := range docs {
		e, err := endOf(doc)
		if err != nil {
			return nil, 0, err
		}
		if i == 0 {
			first = e.recordID
		}
		if !record.IsPrimer(doc) {
			return e, first, nil
		}
	}
	return nil, first, nil
}

func endOf(doc bson.Raw) (*End, error) {
	r, err := record.Decode(doc, record.Interner{})
	if err != nil {
		return nil, fmt.Errorf("read the ends of a stream: %w", err)
	}
	e := &End{Position: r.Position, Time: r.Time, Src: r.Src, Seq: r.Seq}
	e.recordID, _ = doc.Lookup("$recordId").AsInt64OK()
	oid, isOID := r.Position.ID.ObjectID()
	switch {
	case !r.Position.TS.IsZero():
		e.At = time.Unix(int64(r.Position.TS.T), 0)
	case r.Time > 0:
		e.At = time.UnixMicro(r.Time)
	case isOID:
		e.At = oid.Timestamp()
	}
	return e, nil
}

// find returns the message at p, nil if the stream does not hold it.
func find(ctx context.Context, coll *mongo.Collection, p record.Position) (*End, error) {
	filter := bson.D{{Key: record.FieldID, Value: p.ID.RawValue()}}
	opts := options.FindOne().SetShowRecordID(true)
	if p.ID.IsZero() { // a time only: the first message from it on
		filter = bson.D{{Key: record.FieldTS, Value: bson.D{{Key: "$gte", Value: bson.Timestamp{T: p.TS.T, I: p.TS.I}}}}}
		opts.SetSort(bson.D{{Key: "$natural", Value: 1}})
	}
	doc, err := coll.FindOne(ctx, filter, opts).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the reader's position: %w", err)
	}
	return endOf(doc)
}

// reach estimates how far a reader at the message at is from being overrun; first is the record id of
// the oldest document, count the number of documents.
func (d *Description) reach(at *End, first, count int64, rate float64) *Reach {
	if at == nil || d.Newest == nil {
		return &Reach{Rate: rate}
	}
	r := &Reach{Found: true, Rate: rate, Behind: max(d.Newest.recordID-at.recordID, 0)}
	read := 0.0 // the share of the stream that the reader has read
	if span := d.Newest.recordID - first + 1; span > 0 {
		read = min(max(float64(at.recordID-first+1)/float64(span), 0), 1)
	}
	r.Free = max(d.Size-d.Bytes, 0) + int64(read*float64(d.Bytes))
	if d.Max > 0 { // whichever limit comes first
		r.Free = min(r.Free, (max(d.Max-count, 0)+int64(read*float64(count)))*d.AvgBytes)
	}
	r.Overrun = TimeToOverrun(r.Free, rate)
	return r
}
