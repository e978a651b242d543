package tailer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

const (
	// endAwait is the await of a reader that stops at the end: only until a majority has what was written.
	endAwait = 10 * time.Millisecond
	// adminDB is where the change stream of a deployment is opened.
	adminDB = "admin"
	// wholeDB stands for a collection in the getMores of a cursor on a database.
	wholeDB = "$cmd.aggregate"
)

// errNotYet: the oplog has no entry, or its oldest went while it was looked at.
var errNotYet = errors.New("the oplog cannot be read at present")

// choose finds the member to read from and returns the client to use. The caller calls done.
func (l *changeLoop) choose(ctx context.Context) (client *mongo.Client, done func(context.Context), err error) {
	raw, err := l.command(ctx, l.client, adminDB, bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return nil, nil, fmt.Errorf("ask the server for its state: %w", err)
	}
	primary, _ := raw.Lookup("isWritablePrimary").BooleanOK()
	msg, _ := raw.Lookup("msg").StringValueOK()
	mongos := msg == "isdbgrid"
	_, set := raw.Lookup("setName").StringValueOK()
	if !set && !mongos {
		return nil, nil, &NotReplicaSetError{Namespace: l.ns, Err: errors.New("it names no set")}
	}
	if t, i, ok := raw.Lookup("operationTime").TimestampOK(); ok && l.end.IsZero() {
		l.end = record.Timestamp{T: t, I: i}
	}
	l.replicaSet, l.onPrimary = set && !l.direct, primary
	nothing := func(context.Context) {}
	switch {
	case l.direct:
		return l.client, nothing, nil
	case set && l.pref.Mode() == readpref.PrimaryMode:
		if !primary {
			return nil, nil, errNotPrimary
		}
		l.member.setFollow(true)
		return l.client, nothing, nil
	}
	// getMores must go to the member of the cursor, and the driver chooses one for each command.
	pinned, err := mongo.Connect(only(l.opts, l.member.at()))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", l.member.at(), err)
	}
	return pinned, func(ctx context.Context) { l.disconnect(ctx, pinned) }, nil
}

// command runs a command that returns one reply. It blocks for at most Config.AttemptTimeout.
func (l *changeLoop) command(ctx context.Context, client *mongo.Client, db string, cmd bson.D) (bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AttemptTimeout)
	defer cancel()
	raw, err := client.Database(db).RunCommand(ctx, cmd, options.RunCmd().SetReadPreference(l.pref)).Raw()
	return raw, overdue(ctx, err)
}

// open opens a cursor. It asks for no documents: the server then answers at once, however far it has to
// look for the first one, and the first getMore waits for that.
func (l *changeLoop) open(ctx context.Context, client *mongo.Client) (*cursor, error) {
	stage, err := l.stage(ctx, client)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(openTimeout, l.cfg.AttemptTimeout)*time.Duration(l.patience))
	defer cancel()
	pipeline := bson.A{bson.D{{Key: "$changeStream", Value: stage}}}
	for _, s := range l.cfg.Pipeline {
		pipeline = append(pipeline, s)
	}
	for _, s := range l.cfg.blow {
		pipeline = append(pipeline, s)
	}
	db, coll, target := l.db, l.coll, any(l.coll)
	if db == "" {
		db = adminDB
	}
	if coll == "" {
		coll, target = wholeDB, 1
	}
	cmd := bson.D{
		{Key: "aggregate", Value: target},
		{Key: "pipeline", Value: pipeline},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}
	ls := l.lines
	if client != l.client {
		ls = &lines{off: true, sent: ls.sent}
	}
	cur, err := openCursor(ctx, client.Database(db).Collection(coll), cmd, l.await(), false, ls)
	if err != nil {
		l.slow = errors.Is(context.Cause(ctx), context.DeadlineExceeded)
		return nil, fmt.Errorf("open the change stream of %s: %w", l.ns, overdue(ctx, err))
	}
	return cur, nil
}

// stage is what $changeStream is asked for. Always startAfter and never resumeAfter: behind an invalidate
// event the server's own token is that event's, which resumeAfter refuses (260). Never a look-up of the
// document and never images: they make events that are too large (10334), and each other slower.
func (l *changeLoop) stage(ctx context.Context, client *mongo.Client) (bson.D, error) {
	d := bson.D{}
	if l.db == "" {
		d = append(d, bson.E{Key: "allChangesForCluster", Value: true})
	}
	if l.cfg.Expanded {
		d = append(d, bson.E{Key: "showExpandedEvents", Value: true})
	}
	after := l.after
	if after.IsZero() && l.start.Where == record.After {
		after = l.start.Position
	}
	if token, ok := record.TokenOf(after); ok {
		return append(d, bson.E{Key: "startAfter", Value: token}), nil
	}
	at := record.Timestamp{T: uint32(l.start.Time.Unix()), I: 0}
	switch {
	case !after.IsZero():
		at = record.Timestamp{T: after.TS.T, I: after.TS.I + 1} // the server takes the time inclusively
	case l.start.Where == record.Latest:
		return d, nil
	case l.earliest():
		var err error
		if at, err = l.oplogEnd(ctx, client, 1); err != nil {
			return nil, err
		}
	}
	return append(d, bson.E{Key: "startAtOperationTime", Value: bson.Timestamp(at)}), nil
}

// fetch reads one batch, waiting for at most the await. An empty one means that nothing more is there at
// present. What came before an error is returned with it.
func (l *changeLoop) fetch(ctx context.Context, cur *cursor, first bool) ([]record.Record, error) {
	cur.size, cur.await = l.batchSize(), l.await()
	limit := cur.await + l.cfg.AttemptTimeout*time.Duration(l.patience)
	if first {
		// The server looks through the oplog from the position on, for as long as it takes; and nobody waits for
		// the first event to know that the stream is open.
		cur.await = MinAwait
		limit = max(openTimeout, l.cfg.AttemptTimeout) * time.Duration(l.patience)
	}
	batch, size := l.buffer(), 0
	for more := cur.next(ctx, limit); more; more = cur.next(ctx, limit) {
		r, err := l.accept(cur.doc)
		if err != nil {
			return batch, err
		}
		batch, size = append(batch, r), size+len(cur.doc)
		if !cur.left() {
			break // the next call would go to the server
		}
	}
	if cur.err != nil {
		l.slow = errors.Is(cur.err, errWatchdog)
		return batch, fmt.Errorf("read the change stream of %s: %w", l.ns, cur.err)
	}
	l.patience = 1
	if n := len(batch); n > 0 {
		l.meanSize = (l.meanSize + size/n + 1) / 2
		if l.cfg.Hooks.OnBatch != nil {
			l.cfg.Hooks.OnBatch(n, size)
		}
	}
	return batch, nil
}

// accept takes one event where it lies in the server's reply, and copies it: no event keeps a reply of up
// to 16 MB alive.
func (l *changeLoop) accept(doc bson.Raw) (record.Record, error) {
	if len(l.intern) > maxIntern {
		clear(l.intern) // names and transactions come and go
	}
	own := make(bson.Raw, len(doc))
	copy(own, doc)
	r, err := record.DecodeChange(own, l.intern)
	if err != nil {
		return r, fmt.Errorf("read an event of %s: %w", l.ns, err)
	}
	l.moveTo(r.Position)
	r.Position = l.after // never back
	l.invalid = r.Change.Op == record.OpInvalidate
	return r, nil
}

// maxIntern bounds the strings that are kept to be shared between events.
const maxIntern = 10_000

// buffer returns an empty slice to collect records in: one that Next has finished with, if there is one.
func (l *changeLoop) buffer() []record.Record {
	select {
	case b := <-l.free:
		return b[:0]
	default:
		return nil
	}
}

// await is how long the server holds an idle getMore.
func (l *changeLoop) await() time.Duration {
	if l.cfg.UntilEnd {
		return endAwait
	}
	return l.cfg.Await
}

// batchSize is how many events the next batch may have.
func (l *changeLoop) batchSize() int32 {
	switch {
	case l.single:
		return 1
	case l.cfg.BatchSize > 0:
		return int32(l.cfg.BatchSize)
	case l.meanSize == 0:
		return minBatch * minBatch
	}
	return int32(min(max(DefaultBatchBytes/l.meanSize, minBatch), maxBatch))
}

// closeCursor ends a cursor with a fresh, short context: one that was only cancelled stays open on the
// server, even after the client has gone.
func (l *changeLoop) closeCursor(ctx context.Context, cur *cursor) {
	if cur.err != nil && mongoerr.Classify(cur.err).Code != 0 {
		cur.id, cur.err = 0, nil // the server ended it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := cur.close(ctx); err != nil {
		l.logger.Debug().Err(err).Msg("close the cursor")
	}
}
