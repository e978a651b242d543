package tailer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// cursor is a tailable cursor. The driver's own opens and closes it; the getMores in between are sent
// here, in the same session, and their replies are read where they lie: the driver's cursor allocates
// a value for every document and counts every batch twice before it yields the first one.
//
// These getMores go to the member that the driver knows as primary. That is the one that opened the
// cursor until another is primary, which does not know the cursor, and then the tail has to move
// anyway. Behind a mongos, where any of several may be chosen, the driver's cursor does all.
// Not safe for concurrent use.
type cursor struct {
	plain   *mongo.Cursor
	session *mongo.Session // a getMore must carry the session of its find
	db      *mongo.Database
	coll    string
	await   time.Duration
	size    int32
	pinned  bool // every getMore is the driver's
	hides   bool // the find has a filter
	lines   *lines
	line    *wire.Line // takes the getMores, if not nil
	// token is the token that came with the last batch of a change stream, in the server's reply; nil
	// before the first getMore, and for a tail.
	token bson.Raw

	id   int64
	rest []byte // what is unread of the batch: elements of an array, in the server's reply
	doc  bson.Raw
	err  error
	cmd  []byte
}

// lines says whether and how getMores share a connection that is held for them (package wire): that saves
// most of what one costs the client.
type lines struct {
	dialer *wire.Dialer
	off    bool                 // encrypted or compressed, or not wanted
	sent   func(command string) // is told of what the driver's monitor does not see
}

// openCursor runs a find that opens a tail, or an aggregate that opens a change stream. The caller calls
// close.
func openCursor(ctx context.Context, coll *mongo.Collection, find bson.D, await time.Duration, pinned bool, ls *lines) (*cursor, error) {
	session, err := coll.Database().Client().StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return nil, err
	}
	plain, err := coll.Database().RunCommandCursor(mongo.NewSessionContext(ctx, session), find)
	if err != nil {
		session.EndSession(ctx)
		return nil, err
	}
	plain.SetMaxAwaitTime(await)
	return &cursor{plain: plain, session: session, db: coll.Database(), coll: coll.Name(), await: await, pinned: pinned, id: plain.ID(), lines: ls}, nil
}

// stillborn reports whether a tail that was just opened will never give anything, though it has an id.
// A tail that hides nothing finds at least one document, or it has no id, as there was none. Opened in
// the instant of the first insert it finds none and gets an id all the same: then it stays where it is,
// whatever is inserted, without an error (12 of 60 tails that were opened again and again until they had
// an id, on mongod 6.0.5).
func (c *cursor) stillborn() bool { return !c.hides && c.id != 0 && !c.left() }

// left reports whether next has a document without asking the server.
func (c *cursor) left() bool { return len(c.rest) > 0 || c.plain.RemainingBatchLength() > 0 }

// next moves to the next document and reports whether there is one. Where nothing is left it asks the
// server, which waits up to the await; limit bounds that (it is the watchdog). False means an error
// (err), a cursor that is dead without one (id is 0), or nothing yet.
func (c *cursor) next(ctx context.Context, limit time.Duration) bool {
	switch {
	case len(c.rest) > 0:
		return c.step()
	case c.err != nil || c.id == 0 && c.plain.RemainingBatchLength() == 0:
		return false
	case c.plain.RemainingBatchLength() > 0: // of the opening: nothing is asked
		return c.driverNext(ctx)
	case c.pinned:
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		c.plain.SetBatchSize(c.size)
		return c.driverNext(ctx)
	}
	c.more(ctx, limit)
	return c.err == nil && len(c.rest) > 0 && c.step()
}

func (c *cursor) driverNext(ctx context.Context) bool {
	more := c.plain.TryNext(ctx)
	c.doc, c.err, c.id = c.plain.Current, overdue(ctx, c.plain.Err()), c.plain.ID()
	return more
}

// step takes the next element of the batch: its type, its index in digits, NUL, the document.
func (c *cursor) step() bool {
	at := 1
	for at < len(c.rest) && c.rest[at] != 0 {
		at++
	}
	b := c.rest[min(at+1, len(c.rest)):]
	n := 0
	if len(b) >= 5 && c.rest[0] == byte(bson.TypeEmbeddedDocument) {
		n = int(int32(binary.LittleEndian.Uint32(b)))
	}
	if n < 5 || n > len(b) {
		c.rest, c.err = nil, fmt.Errorf("read a batch: %w", record.ErrMalformed)
		return false
	}
	c.doc, c.rest = bson.Raw(b[:n:n]), b[n:]
	return true
}

// more fetches the next batch.
func (c *cursor) more(ctx context.Context, limit time.Duration) {
	c.cmd = bsoncore.AppendInt64Element(c.cmd[:0], "getMore", c.id)
	c.cmd = bsoncore.AppendStringElement(c.cmd, "collection", c.coll)
	c.cmd = bsoncore.AppendInt32Element(c.cmd, "batchSize", c.size)
	c.cmd = bsoncore.AppendInt64Element(c.cmd, "maxTimeMS", c.await.Milliseconds())
	var reply bson.Raw
	var err error
	if c.line != nil {
		c.lines.sent("getMore")
		reply, err = c.line.Do(ctx, time.Now().Add(limit), c.cmd)
		if c.line.Ended() {
			c.release()
		}
	}
	if c.line == nil && (reply == nil && err == nil || errors.Is(err, wire.ErrReleased)) {
		reply, err = c.moreByDriver(ctx, limit)
	}
	if err != nil {
		if c.err = overdue(ctx, err); errors.Is(err, context.DeadlineExceeded) {
			c.err = fmt.Errorf("%w: %w", errWatchdog, err)
		}
		return
	}
	c.take(bsoncore.Document(reply))
}

// moreByDriver sends the getMore that is in c.cmd through the driver. Where that is possible, its
// connection is held for the next ones.
func (c *cursor) moreByDriver(ctx context.Context, limit time.Duration) (bson.Raw, error) {
	// No deadline: the driver would add what is left of it as a second maxTimeMS, and the server would
	// wait that long.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	defer watchdog.Stop()
	run := func(ctx context.Context, token string) (bson.Raw, error) {
		idx, cmd := bsoncore.AppendDocumentStart(nil)
		cmd = append(cmd, c.cmd...)
		if token != "" {
			cmd = bsoncore.AppendStringElement(cmd, "comment", token)
		}
		cmd, _ = bsoncore.AppendDocumentEnd(cmd, idx) // fails only on an index that is not one
		return c.db.RunCommand(mongo.NewSessionContext(ctx, c.session), bson.Raw(cmd)).Raw()
	}
	var reply bson.Raw
	var err error
	if c.lines.off {
		reply, err = run(ctx, "")
	} else {
		line, out := c.lines.dialer.Hold(ctx, cleanBatch, run)
		c.line, reply, err = line, out.Reply, out.Err
		c.lines.off = line == nil && err == nil
	}
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return reply, err
}

// cleanBatch reports whether a reply is that of a getMore that went well.
func cleanBatch(reply bson.Raw) bool {
	ok, batch := false, false
	whole := wire.Each(reply, func(key []byte, v bsoncore.Value) {
		switch string(key) {
		case "ok":
			n, _ := v.AsInt64OK()
			ok = n == 1
		case "cursor":
			batch = v.Type == bsoncore.TypeEmbeddedDocument
		}
	})
	return ok && batch && whole
}

// release gives the line's connection back to the driver.
func (c *cursor) release() {
	if c.line != nil {
		c.line.Release()
		c.line = nil
	}
}

// take reads the reply to a getMore.
func (c *cursor) take(reply bsoncore.Document) {
	v, err := reply.LookupErr("cursor")
	if err == nil {
		var id, batch bsoncore.Value
		if id, err = v.Document().LookupErr("id"); err == nil {
			c.id, _ = id.AsInt64OK()
			if batch, err = v.Document().LookupErr("nextBatch"); err == nil && len(batch.Data) >= 5 {
				c.rest = batch.Data[4 : len(batch.Data)-1]
			}
			if token, err := v.Document().LookupErr("postBatchResumeToken"); err == nil {
				c.token = token.Data
			}
		}
	}
	if err != nil {
		c.err = fmt.Errorf("read a batch: %w", errors.Join(record.ErrMalformed, err))
	}
}

// overdue returns errWatchdog together with err if it was the limit that ended the command.
func overdue(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", errWatchdog, err)
	}
	return err
}

// close ends the cursor on the server, on the member that opened it: one that is only forgotten stays
// there. It blocks until ctx ends at most.
func (c *cursor) close(ctx context.Context) error {
	c.release() // before anything else uses the session
	defer c.session.EndSession(ctx)
	if c.id == 0 && c.err == nil {
		return nil
	}
	return c.plain.Close(ctx)
}
