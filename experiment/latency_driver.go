package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/record"
)

// pollSleep is how long the sleeping poll sleeps where it finds nothing, as in 2011.
const pollSleep = time.Second

// driverSender is what a user writes first: one InsertOne per message.
type driverSender struct {
	client *mongo.Client
	coll   *mongo.Collection
	counts *counts
	src    string
	data   []string
	n      int64
}

func newDriverSender(j Job, c *counts) (*driverSender, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(j.URI))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	coll := client.Database(j.Database).Collection(j.Stream, options.Collection().SetWriteConcern(writeconcern.W1()))
	return &driverSender{client: client, coll: coll, counts: c, src: "naive/" + record.NewID().String()[:13],
		data: payloads(differentPayloads, j.Payload, j.Seed)}, nil
}

// send inserts one message with the fields of a stream's, so that both have the same bytes.
func (s *driverSender) send(ctx context.Context) error {
	s.n++
	s.counts.inserts.Add(1)
	_, err := s.coll.InsertOne(ctx, bson.D{
		{Key: record.FieldID, Value: bson.NewObjectID()},
		{Key: record.FieldTime, Value: time.Now().UnixMicro()},
		{Key: record.FieldSrc, Value: s.src},
		{Key: record.FieldSeq, Value: s.n},
		{Key: record.FieldData, Value: s.data[s.n%int64(len(s.data))]},
		{Key: record.FieldTS, Value: bson.Timestamp{}},
	})
	return err
}

func (s *driverSender) flush(context.Context) error { return nil }

func (s *driverSender) close(ctx context.Context) { _ = s.client.Disconnect(ctx) }

// driverReader is a cursor of the driver, used plainly.
type driverReader struct {
	job    Job
	client *mongo.Client
	coll   *mongo.Collection
	counts *counts
	wait   *pace.Waiter
	cursor *mongo.Cursor
}

func newDriverReader(ctx context.Context, j Job, c *counts) (_ *driverReader, err error) {
	r := &driverReader{job: j, counts: c}
	if r.wait, err = pace.New(); err != nil {
		return nil, err
	}
	if r.client, err = mongo.Connect(options.Client().ApplyURI(j.URI).SetMonitor(c.monitor())); err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), r.wait.Close())
	}
	r.coll = r.client.Database(j.Database).Collection(j.Stream)
	if j.Latency.Style != styleFind { // a replay pays for its opening
		if err := r.open(ctx); err != nil {
			r.close(context.WithoutCancel(ctx))
			return nil, err
		}
	}
	return r, nil
}

func (r *driverReader) open(ctx context.Context) (err error) {
	o := options.Find()
	switch r.job.Latency.Style {
	case styleSleep, styleSpin:
		o.SetCursorType(options.Tailable)
	case styleAwait:
		o.SetCursorType(options.TailableAwait)
	case styleFind:
	default:
		return fmt.Errorf("no style of reading is named %q", r.job.Latency.Style)
	}
	for {
		if r.cursor, err = r.coll.Find(ctx, bson.D{}, o); err != nil {
			return err
		}
		if r.job.Latency.Style == styleFind || r.cursor.ID() == 0 || r.cursor.RemainingBatchLength() > 0 {
			return nil
		}
		// Opened in the instant of the first insert: mongod 6.0.5 says that it is alive, and never gives it
		// anything. A plain program hangs here for good; this one counts another query.
		if err := r.cursor.Close(ctx); err != nil {
			return err
		}
	}
}

func (r *driverReader) read(ctx context.Context, n int64, got func(arrival)) error {
	if r.cursor == nil {
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	for seen := int64(0); seen < n; {
		more, err := r.next(ctx)
		if err != nil {
			return err
		}
		if !more || record.IsPrimer(r.cursor.Current) {
			continue
		}
		got(arrivalOf(r.cursor.Current))
		seen++
	}
	return nil
}

// next moves to the next document, or does what the style does where there is none.
func (r *driverReader) next(ctx context.Context) (bool, error) {
	left := r.cursor.RemainingBatchLength()
	more := r.cursor.TryNext(ctx)
	switch {
	case more:
		if left == 0 {
			r.counts.batches.Add(1)
		}
		return true, nil
	case r.cursor.Err() != nil:
		return false, r.cursor.Err()
	case r.cursor.ID() == 0 && r.job.Latency.Style == styleFind:
		return false, errors.New("there are no more messages")
	case r.cursor.ID() == 0: // an empty stream has no tail: open it again
		if err := r.wait.Until(ctx, time.Now().Add(r.job.Latency.Requery)); err != nil {
			return false, err
		}
		return false, r.open(ctx)
	case r.job.Latency.Style == styleSleep:
		return false, r.wait.Until(ctx, time.Now().Add(pollSleep))
	}
	return false, ctx.Err()
}

func (r *driverReader) idle(ctx context.Context) error {
	for ctx.Err() == nil {
		more, err := r.next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if more && !record.IsPrimer(r.cursor.Current) {
			return errors.New("a message came where nothing was sent")
		}
	}
	return nil
}

func (r *driverReader) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, workerGrace)
	defer cancel()
	if r.cursor != nil {
		_ = r.cursor.Close(ctx)
	}
	_ = r.client.Disconnect(ctx)
	_ = r.wait.Close()
}
