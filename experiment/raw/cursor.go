package raw

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Insert sends docs, documents back to back, as one ordered insert and returns how many the server
// counted. It sends no write concern, so the server's own default holds.
func (c *Conn) Insert(db, coll string, docs []byte) (int, error) {
	reply, err := c.Run("insert", db, bsonString(nil, "insert", coll), docs)
	return inserted(reply, err)
}

// InsertArray does the same with the documents inside the command, as an array under "documents":
// the form that a client must use whose library knows no document sequences. array is a whole BSON
// array.
func (c *Conn) InsertArray(db, coll string, array []byte) (int, error) {
	cmd := bsonString(nil, "insert", coll)
	cmd = append(appendKey(cmd, bson.TypeArray, "documents"), array...)
	reply, err := c.Run("insert", db, cmd, nil)
	return inserted(reply, err)
}

// StartInsert is the first half of Insert: it sends and does not wait. One may be in flight at a time.
func (c *Conn) StartInsert(db, coll string, docs []byte) error {
	if err := c.nc.SetDeadline(time.Now().Add(c.timeout)); err != nil { // also of a FinishInsert that waits already
		return fmt.Errorf("set deadline of insert: %w", err)
	}
	if err := c.send(db, bsonString(nil, "insert", coll), docs); err != nil {
		return fmt.Errorf("send insert: %w", err)
	}
	return nil
}

// FinishInsert is the second half of Insert. It may be called before StartInsert: then it waits for that,
// for as long as it takes.
func (c *Conn) FinishInsert() (int, error) {
	reply, err := c.receive()
	if err != nil {
		return 0, fmt.Errorf("receive reply of insert: %w", err)
	}
	n, err := inserted(reply, check("insert", reply))
	return n, errors.Join(err, c.nc.SetReadDeadline(time.Time{})) // none is in flight
}

func inserted(reply bson.Raw, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := field(reply, "insert", "n")
	return int(n), err
}

// CreateCapped creates a capped collection of size bytes.
func (c *Conn) CreateCapped(db, coll string, size int64) error {
	cmd := bsonString(nil, "create", coll)
	cmd = bsonBool(cmd, "capped", true)
	cmd = bsonInt64(cmd, "size", size)
	_, err := c.Run("create", db, cmd, nil)
	return err
}

// Count returns the number of documents in a collection, from its metadata.
func (c *Conn) Count(db, coll string) (int64, error) {
	return c.value("count", db, bsonString(nil, "count", coll), "n")
}

// value runs a command and returns one number of its reply.
func (c *Conn) value(name, db string, elements []byte, want string) (int64, error) {
	reply, err := c.Run(name, db, elements, nil)
	if err != nil {
		return 0, err
	}
	return field(reply, name, want)
}

// field returns a number of command's reply.
func field(reply bson.Raw, command, want string) (int64, error) {
	n := int64(-1)
	err := Each(reply, func(typ bson.Type, key, value []byte) {
		if string(key) == want {
			n = number(typ, value)
		}
	})
	if err == nil && n < 0 {
		err = fmt.Errorf("%w: no %q in the reply of %s", ErrProtocol, want, command)
	}
	return n, err
}

// Version returns the server's version, for instance "6.0.5".
func (c *Conn) Version() (string, error) {
	reply, err := c.Run("buildInfo", "admin", bsonInt32(nil, "buildInfo", 1), nil)
	if err != nil {
		return "", err
	}
	v, err := reply.LookupErr("version")
	if err != nil {
		return "", fmt.Errorf("read version: %w", err)
	}
	return v.StringValue(), nil
}

// DropDatabase drops db; a missing one is no error.
func (c *Conn) DropDatabase(db string) error {
	_, err := c.Run("dropDatabase", db, bsonInt32(nil, "dropDatabase", 1), nil)
	return err
}

// Query says what Find reads. The zero Query is everything, once.
type Query struct {
	// Filter is a whole document; nil matches everything.
	Filter bson.Raw
	// Tailable makes it a tailable awaitData cursor.
	Tailable bool
	// BatchSize bounds the documents of every batch; 0 leaves it to the server (101, then 16 MB).
	BatchSize int32
}

// Cursor iterates over the batches of a find. Not safe for concurrent use.
type Cursor struct {
	c     *Conn
	db    string
	coll  string
	size  int32
	id    int64
	batch []byte // what is unread of the batch: elements of an array, in the Conn's receive buffer
}

// Find opens a cursor; its first batch is ready in it.
func (c *Conn) Find(db, coll string, q Query) (*Cursor, error) {
	cmd := bsonString(nil, "find", coll)
	if q.Filter != nil {
		cmd = bsonDocument(cmd, "filter", q.Filter)
	}
	if q.BatchSize > 0 {
		cmd = bsonInt32(cmd, "batchSize", q.BatchSize)
	}
	if q.Tailable {
		cmd = bsonBool(cmd, "tailable", true)
		cmd = bsonBool(cmd, "awaitData", true)
	}
	reply, err := c.Run("find", db, cmd, nil)
	if err != nil {
		return nil, err
	}
	cur := &Cursor{c: c, db: db, coll: coll, size: q.BatchSize}
	return cur, cur.take(reply)
}

// ID returns the server's cursor id; 0 means that the cursor is exhausted or dead.
func (cur *Cursor) ID() int64 { return cur.id }

// Buffered reports whether Next has a document.
func (cur *Cursor) Buffered() bool { return len(cur.batch) > 0 }

// Next returns the next document of the batch and whether there was one. The document aliases the
// receive buffer: it is valid until GetMore.
func (cur *Cursor) Next() (bson.Raw, bool) {
	b := cur.batch
	if len(b) == 0 {
		return nil, false
	}
	// An element of the array: type, decimal index, NUL, document. take has checked the frame; the
	// server's documents are taken as they are, as an ideal client would.
	at := 1
	for b[at] != 0 {
		at++
	}
	doc := b[at+1:]
	n := binary.LittleEndian.Uint32(doc)
	cur.batch = doc[n:]
	return bson.Raw(doc[:n:n]), true
}

// GetMore fetches the next batch. On a tailable cursor the server waits up to await for data (whole
// milliseconds; 0 is the server's default of one second); on another one await must be 0.
func (cur *Cursor) GetMore(await time.Duration) error {
	cmd := bsonInt64(nil, "getMore", cur.id)
	cmd = bsonString(cmd, "collection", cur.coll)
	if cur.size > 0 {
		cmd = bsonInt32(cmd, "batchSize", cur.size)
	}
	if ms := await.Milliseconds(); ms > 0 {
		cmd = bsonInt64(cmd, "maxTimeMS", ms)
	}
	reply, err := cur.c.run("getMore", cur.db, cmd, nil, await)
	if err != nil {
		return err
	}
	return cur.take(reply)
}

// Close kills the cursor on the server if it is still open there.
func (cur *Cursor) Close() error {
	if cur.id == 0 {
		return nil
	}
	cmd := bsonString(nil, "killCursors", cur.coll)
	ids := document(bsonInt64(nil, "0", cur.id))
	cmd = append(appendKey(cmd, bson.TypeArray, "cursors"), ids...)
	cur.id, cur.batch = 0, nil
	_, err := cur.c.Run("killCursors", cur.db, cmd, nil)
	return err
}

// take reads the cursor document of a reply.
func (cur *Cursor) take(reply bson.Raw) error {
	cur.batch = nil
	var found bool
	err := Each(reply, func(_ bson.Type, key, value []byte) {
		if string(key) != "cursor" {
			return
		}
		_ = Each(value, func(typ bson.Type, key, value []byte) {
			switch string(key) {
			case "id":
				cur.id, found = number(typ, value), true
			case "firstBatch", "nextBatch":
				cur.batch = value[4 : len(value)-1]
			}
		})
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: no cursor in the reply", ErrProtocol)
	}
	return err
}
