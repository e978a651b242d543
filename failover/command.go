package failover

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// maxCommandSize is the largest command document that mongod reads (16 MiB + 16 KiB), less what the
	// driver appends: $db, lsid, $clusterTime, maxTimeMS, apiVersion, about 400 bytes.
	maxCommandSize = 16<<20 + 16<<10 - 2<<10
	// wantCommandSize is where a command ends if it holds at least one message. The driver copies a
	// command three times, so this bounds memory; larger ones are not faster (a mongod takes about
	// 100,000 small messages a second, 4 MiB of them in half a second).
	wantCommandSize = 4 << 20
	// maxCommandDocuments is mongod's maxWriteBatchSize.
	maxCommandDocuments = 100_000
	// minCommandDocuments is how far a writer goes down when commands are cut by their deadline.
	minCommandDocuments = 100
	// keepBuffer is the largest buffer that a writer keeps between calls.
	keepBuffer = wantCommandSize + wantCommandSize/4
	// closeTimeout bounds giving up a cursor. It is what may be added to a read's deadline (I8).
	closeTimeout = 100 * time.Millisecond
)

// server is what a StreamWriter needs of MongoDB. The tests have one that fails as told.
type server interface {
	// insert runs an insert command on the primary, once, and returns its reply.
	insert(ctx context.Context, cmd bson.Raw) (bson.Raw, error)
	// held reports whether direct can be tried: insert on a connection that an earlier one left open. It
	// returns wire.ErrReleased if nothing was sent.
	held() bool
	direct(ctx context.Context, cmd bson.Raw, limit time.Time) (bson.Raw, error)
	// member is the address that direct goes to, as far as it is known.
	member() string
	// find runs a find command on the primary and returns all that it yields, and the operation time of
	// the reply (zero on a standalone server).
	find(ctx context.Context, cmd bson.D) ([]bson.Raw, bson.Timestamp, error)
}

// database is the server that a Layer is connected to. It is for one goroutine.
type database struct {
	layer *Layer
	name  string

	// line, if not nil, takes the inserts (see package wire), at a third of what they cost otherwise.
	line    *wire.Line
	unwatch func()
	cmd     []byte
	addr    string // of the line
	// plain: no line, ever.
	plain bool
}

// insert runs it through the driver, and holds the connection for the next ones where that is possible.
func (d *database) insert(ctx context.Context, cmd bson.Raw) (bson.Raw, error) {
	c, err := d.layer.connected()
	if err != nil {
		return nil, err
	}
	db := c.Database(d.name)
	d.drop()
	if d.plain || !d.layer.direct.Load() || !d.layer.reserve() {
		// The driver copies the top level of a raw command and never looks into the array of documents.
		return db.RunCommand(ctx, cmd).Raw()
	}
	line, out := d.layer.dialer.Hold(ctx, cleanInsert, func(ctx context.Context, token string) (bson.Raw, error) {
		held := bsoncore.AppendStringElement(append([]byte(nil), cmd[:len(cmd)-1]...), "comment", token)
		held, _ = bsoncore.AppendDocumentEnd(held, 0) // fails only on an index that is not one
		return db.RunCommand(ctx, bson.Raw(held)).Raw()
	})
	switch kept := d.layer.keep(line); {
	case kept:
		line.Short = true
		d.addr = d.layer.primary.Addr()
		// A new primary frees a writer from an old one that is silent.
		d.line, d.unwatch = line, d.layer.onNewPrimary(true, line.Cut)
	case line == nil && out.Err == nil:
		d.layer.direct.Store(false) // encrypted or compressed: never
	}
	return out.Reply, out.Err
}

// held reports whether direct can run a command.
func (d *database) held() bool { return d.line != nil && !d.line.Ended() }

func (d *database) member() string { return d.addr }

// direct runs an insert on the line, until ctx ends or limit. The error is wire.ErrReleased if nothing was
// sent.
func (d *database) direct(ctx context.Context, cmd bson.Raw, limit time.Time) (bson.Raw, error) {
	d.cmd = append(d.cmd[:0], cmd[4:len(cmd)-1]...)
	// As the driver does: so that the server gives up what nobody waits for any more.
	d.cmd = bsoncore.AppendInt64Element(d.cmd, "maxTimeMS", max(1, time.Until(limit).Milliseconds()))
	reply, err := d.line.Do(ctx, limit, d.cmd)
	if cap(d.cmd) > keepBuffer {
		d.cmd = nil
	}
	return reply, err
}

// drop gives the line back, if there is one.
func (d *database) drop() {
	if d.line != nil {
		d.unwatch()
		d.layer.release(d.line)
		d.line = nil
	}
}

// cleanInsert reports whether a reply acknowledges an insert and says nothing else.
func cleanInsert(reply bson.Raw) bool {
	ok, unclean := false, false
	whole := wire.Each(reply, func(key []byte, v bsoncore.Value) {
		switch string(key) {
		case "ok":
			n, _ := v.AsInt64OK()
			ok = n == 1
		case "writeErrors", "writeConcernError", "errmsg":
			unclean = true
		}
	})
	return ok && whole && !unclean
}

func (d *database) find(ctx context.Context, cmd bson.D) (docs []bson.Raw, at bson.Timestamp, err error) {
	c, err := d.layer.connected()
	if err != nil {
		return nil, at, err
	}
	sess, err := c.StartSession() // no round trip; it notes the operation time of the replies
	if err != nil {
		return nil, at, err
	}
	defer sess.EndSession(ctx)
	cur, err := c.Database(d.name).RunCommandCursor(mongo.NewSessionContext(ctx, sess), cmd)
	if err != nil {
		return nil, at, err
	}
	defer closeCursor(ctx, cur)
	for cur.Next(ctx) {
		docs = append(docs, append(bson.Raw(nil), cur.Current...))
	}
	if t := sess.OperationTime(); t != nil {
		at = *t
	}
	return docs, at, cur.Err()
}

// closeCursor ends a cursor also when ctx has ended: one that is not closed stays at the server.
func closeCursor(ctx context.Context, cur *mongo.Cursor) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = cur.Close(ctx) // nothing is left to do about it
}

// insertion is an insert command that is being built. The documents are appended as they are.
type insertion struct {
	b         []byte
	at, array int32
	n         int
}

// begin starts a command in buf. uuid may be nil.
func (l *Layer) begin(buf []byte, coll string, ordered bool, uuid *bson.Binary, timeout time.Duration) insertion {
	var c insertion
	c.at, c.b = bsoncore.AppendDocumentStart(buf[:0])
	c.b = bsoncore.AppendStringElement(c.b, "insert", coll)
	c.b = bsoncore.AppendBooleanElement(c.b, "ordered", ordered)
	if uuid != nil {
		c.b = bsoncore.AppendBinaryElement(c.b, "collectionUUID", uuid.Subtype, uuid.Data)
	}
	c.b = l.appendWriteConcern(c.b, timeout)
	c.array, c.b = bsoncore.AppendArrayElementStart(c.b, "documents")
	return c
}

// fits reports whether a document belongs into this command: the first always does.
func (c *insertion) fits(doc bson.Raw) bool { return c.n == 0 || len(c.b)+len(doc) <= wantCommandSize }

func (c *insertion) add(doc bson.Raw) {
	c.b = append(c.b, byte(bson.TypeEmbeddedDocument))
	c.b = append(strconv.AppendInt(c.b, int64(c.n), 10), 0)
	c.b = append(c.b, doc...)
	c.n++
}

// end returns the command, or an error about its first document.
func (c *insertion) end() (bson.Raw, error) {
	b, err := bsoncore.AppendArrayEnd(c.b, c.array)
	if err != nil {
		return nil, err
	}
	if b, err = bsoncore.AppendDocumentEnd(b, c.at); err != nil {
		return nil, err
	}
	c.b = b
	if len(b) > maxCommandSize {
		return nil, fmt.Errorf("%w: the command would have %d bytes", ErrTooLarge, len(b))
	}
	return bson.Raw(b), nil
}

// insertCommand builds the insert of as many of docs as fit, in the writer's buffer: it is valid
// until the next call. An error is about docs[0].
func (w *StreamWriter) insertCommand(docs []bson.Raw, timeout time.Duration) (cmd bson.Raw, n int, err error) {
	c := w.layer.begin(w.buf, w.coll, true, &w.cfg.UUID, timeout)
	for c.n < min(len(docs), w.perCommand) {
		doc := docs[c.n]
		if !c.fits(doc) {
			break
		}
		if err = w.check(doc); err != nil {
			break
		}
		c.add(doc)
	}
	if c.n > 0 {
		cmd, err = c.end()
	}
	w.buf = c.b
	if err != nil && cmd == nil {
		return nil, 0, err
	}
	return cmd, c.n, nil
}

// appendWriteConcern asks for the majority with a wtimeout slightly under the attempt's deadline: so
// a set without a majority answers "applied here, not committed" instead of nothing.
func (l *Layer) appendWriteConcern(b []byte, timeout time.Duration) []byte {
	at, b := bsoncore.AppendDocumentElementStart(b, "writeConcern")
	if l.majority() {
		b = bsoncore.AppendStringElement(b, "w", "majority")
		b = bsoncore.AppendInt64Element(b, "wtimeout", max(1, (timeout-timeout/10).Milliseconds()))
	} else {
		b = bsoncore.AppendInt32Element(b, "w", 1)
	}
	if l.cfg.Journal {
		b = bsoncore.AppendBooleanElement(b, "j", true)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at) // fails only on an index that is not one
	return b
}

// majority reports whether acknowledgements wait for the majority. On a standalone server w: 1 is
// all there is: asking it for a majority would only wait for the journal (1.3 instead of 0.4 ms).
func (l *Layer) majority() bool {
	return l.cfg.WriteConcern == Majority && !l.standalone.Load()
}

// proves reports whether a reply without a write concern error says that what it speaks of stays.
func (l *Layer) proves() bool {
	return l.cfg.WriteConcern == Majority || l.standalone.Load()
}

// check refuses what must not be sent: the bytes go into the command unseen.
func (w *StreamWriter) check(doc bson.Raw) error {
	if err := checkDocument(doc); err != nil {
		return err
	}
	if w.cfg.Size > 0 && int64(len(doc)) > w.cfg.Size {
		return fmt.Errorf("%w: it has %d bytes, the whole stream %d", ErrTooLarge, len(doc), w.cfg.Size)
	}
	return nil
}

func checkDocument(doc bson.Raw) error {
	const header, least = 4, 5
	if len(doc) < least || int64(binary.LittleEndian.Uint32(doc)) != int64(len(doc)) || doc[len(doc)-1] != 0 {
		return ErrBadDocument
	}
	if len(doc) > record.MaxDocumentSize {
		return fmt.Errorf("%w: it has %d bytes, a document may have %d", ErrTooLarge, len(doc), record.MaxDocumentSize)
	}
	if len(doc) > header+5 && string(doc[header+1:header+5]) == "_id\x00" { // as a producer writes them
		return nil
	}
	if _, err := doc.LookupErr(record.FieldID); err != nil {
		return ErrBadDocument
	}
	return nil
}

// findCommand builds a find on the stream, with a read concern that waits for the cluster time after,
// unless that is zero.
func (w *StreamWriter) findCommand(level string, after bson.Timestamp, filter bson.D, more ...bson.E) bson.D {
	return findCommand(w.coll, &w.cfg.UUID, level, after, filter, more...)
}

func findCommand(coll string, uuid *bson.Binary, level string, after bson.Timestamp, filter bson.D, more ...bson.E) bson.D {
	concern := bson.D{{Key: "level", Value: level}}
	if !after.IsZero() {
		concern = append(concern, bson.E{Key: "afterClusterTime", Value: after})
	}
	cmd := bson.D{{Key: "find", Value: coll}, {Key: "filter", Value: filter}, {Key: "readConcern", Value: concern}}
	if uuid != nil {
		cmd = append(cmd, bson.E{Key: "collectionUUID", Value: *uuid})
	}
	return append(cmd, more...)
}
