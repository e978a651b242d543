package mongodb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// maxCommandSize is the largest command document that mongod reads (16 MiB + 16 KiB), less what is appended to it: write
	// concern, number, session, cluster time.
	maxCommandSize = 16<<20 + 16<<10 - 2<<10
	// wantCommandSize is where a command ends if it holds at least one document; larger ones are not faster.
	wantCommandSize = 4 << 20
)

// command is an insert, update or delete command that is being built. Documents are appended as they are.
type command struct {
	verb      string
	b         []byte
	at, array int32
	n         int
}

// commandOf starts a command.
func commandOf(verb, coll string, ordered bool) *command {
	return startCommand(nil, verb, coll, ordered, false)
}

func startCommand(buf []byte, verb, coll string, ordered, bypass bool) *command {
	c := &command{verb: verb}
	c.at, c.b = bsoncore.AppendDocumentStart(buf[:0])
	c.b = bsoncore.AppendStringElement(c.b, verb, coll)
	c.b = bsoncore.AppendBooleanElement(c.b, "ordered", ordered)
	if bypass {
		c.b = bsoncore.AppendBooleanElement(c.b, "bypassDocumentValidation", true)
	}
	c.array, c.b = bsoncore.AppendArrayElementStart(c.b, map[string]string{"insert": "documents", "update": "updates", "delete": "deletes"}[verb])
	return c
}

// fits reports whether size more bytes belong into this command: the first document always does.
func (c *command) fits(size int) bool { return c.n == 0 || len(c.b)+size <= wantCommandSize }

func (c *command) key(typ bson.Type) {
	c.b = append(c.b, byte(typ))
	c.b = append(strconv.AppendInt(c.b, int64(c.n), 10), 0)
	c.n++
}

func (c *command) insert(doc bson.Raw) {
	c.key(bson.TypeEmbeddedDocument)
	c.b = append(c.b, doc...)
}

// put replaces the document with the _id, or inserts it; u is a document, or an update document.
func (c *command) put(id bson.RawValue, u []byte, upsert bool) {
	at := c.statement(id)
	c.b = bsoncore.AppendDocumentElement(c.b, "u", u)
	c.b = bsoncore.AppendBooleanElement(c.b, "upsert", upsert)
	c.b, _ = bsoncore.AppendDocumentEnd(c.b, at) // fails only on an index that is not one
}

// putLiteral is put for a document that a replacement would change or refuse: the server fills empty timestamps at the top level of a
// replacement, and takes no field names that begin with a dollar there. A pipeline does neither.
func (c *command) putLiteral(id bson.RawValue, doc bson.Raw) {
	at := c.statement(id)
	array, b := bsoncore.AppendArrayElementStart(c.b, "u")
	stage, b := bsoncore.AppendDocumentElementStart(b, "0")
	with, b := bsoncore.AppendDocumentElementStart(b, "$replaceWith")
	b = bsoncore.AppendDocumentElement(b, "$literal", doc)
	b, _ = bsoncore.AppendDocumentEnd(b, with)
	b, _ = bsoncore.AppendDocumentEnd(b, stage)
	b, _ = bsoncore.AppendArrayEnd(b, array)
	b = bsoncore.AppendBooleanElement(b, "upsert", true)
	c.b, _ = bsoncore.AppendDocumentEnd(b, at)
}

func (c *command) remove(id bson.RawValue) {
	at := c.statement(id)
	c.b = bsoncore.AppendInt32Element(c.b, "limit", 1)
	c.b, _ = bsoncore.AppendDocumentEnd(c.b, at)
}

// statement starts an element with its filter. {_id: value} is what the server looks up without planning a query, which is half
// of what a replacement costs it (mongod 6.0.5); only a value that could be a pattern (a regular expression, a document with
// operators) is wrapped: {_id: {$eq: value}}.
func (c *command) statement(id bson.RawValue) (at int32) {
	c.key(bson.TypeEmbeddedDocument)
	at, c.b = bsoncore.AppendDocumentStart(c.b)
	q, b := bsoncore.AppendDocumentElementStart(c.b, "q")
	value := bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value}
	switch id.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeRegex, bson.TypeUndefined:
		var e int32
		e, b = bsoncore.AppendDocumentElementStart(b, record.FieldID)
		b = bsoncore.AppendValueElement(b, "$eq", value)
		b, _ = bsoncore.AppendDocumentEnd(b, e)
	default:
		b = bsoncore.AppendValueElement(b, record.FieldID, value)
	}
	c.b, _ = bsoncore.AppendDocumentEnd(b, q)
	return at
}

// end closes the array of documents. What differs from one attempt to the next comes behind it, so that the documents are
// copied once.
func (c *command) end() (tooLarge bool) {
	c.b, _ = bsoncore.AppendArrayEnd(c.b, c.array)
	return len(c.b) > maxCommandSize
}

// attempt returns the whole command for one attempt that ends by deadline. It shares the command's memory until the next.
func (c *command) attempt(majority, journal bool, number int64, timeout time.Duration) bson.Raw {
	b := c.b
	at, b := bsoncore.AppendDocumentElementStart(b, "writeConcern")
	if majority {
		b = bsoncore.AppendStringElement(b, "w", "majority")
		// A set without a majority then answers "applied here, not committed" instead of nothing.
		b = bsoncore.AppendInt64Element(b, "wtimeout", max(1, (timeout-timeout/10).Milliseconds()))
	} else {
		b = bsoncore.AppendInt32Element(b, "w", 1)
	}
	if journal {
		b = bsoncore.AppendBooleanElement(b, "j", true)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	if number > 0 {
		b = bsoncore.AppendInt64Element(b, "txnNumber", number)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, c.at)
	c.b = b[:len(c.b)]
	return bson.Raw(b)
}

// countError says that a reply does not add up.
type countError struct {
	verb      string
	n, wanted int64
}

func (e *countError) Error() string {
	return fmt.Sprintf("the server says that its %s did %d of %d and names no error", e.verb, e.n, e.wanted)
}

// maxPressed is how often a document is tried again that the server's cache has no room for, about once a second.
const maxPressed = 30

// pressedError says that the server's cache has no room at the moment. It asks for another attempt, which does the rest.
type pressedError struct{ err error }

func (e *pressedError) Error() string {
	return "the server's cache has no room at the moment: " + e.err.Error()
}

// TryAgain is for the layer.
func (e *pressedError) TryAgain() bool { return true }

// send runs c until its outcome is known, and returns the documents that failed, each for good.
func (t *Target) send(ctx context.Context, f *fence, db *mongo.Database, ns record.Namespace, c *command) (failed mongo.WriteErrors, err error) {
	c.end()
	f.number++
	pressed := 0
	err = t.layer.Do(ctx, ns.String(), func(ctx context.Context) error {
		failed = nil
		number, timeout := f.number, failoverTimeout
		if f.sess == nil {
			number = 0
		}
		if deadline, ok := ctx.Deadline(); ok {
			timeout = time.Until(deadline)
		}
		reply, err := db.RunCommand(f.within(ctx), c.attempt(f.sess != nil, t.cfg.Failover.Journal, number, timeout)).Raw()
		switch {
		case err == nil:
			if n, ok := reply.Lookup("n").AsInt64OK(); c.verb != "delete" && (!ok || n != int64(c.n)) {
				return &countError{c.verb, n, int64(c.n)}
			}
			return nil
		case mongoerr.IsTransactionTooOld(err):
			return ErrTakenOver // numbers of a session only grow: somebody else used it
		case mongoerr.IsHistoryIncomplete(err):
			f.number++ // the server no longer knows what it did under this number: do it again, which is idempotent
			return err
		}
		failed, err = documents(err)
		if err == nil && c.verb == "insert" && mongoerr.IsTooLargeForCache(mongo.WriteException{WriteErrors: failed}) && pressed < maxPressed {
			pressed++
			return &pressedError{mongo.WriteException{WriteErrors: failed}}
		}
		return err
	})
	return failed, err
}

// failoverTimeout is used where a context has no deadline, which those of a layer's steps have.
const failoverTimeout = failover.DefaultAttemptTimeout

// documents returns the failures of single documents. The error is what is to be tried again, or what ends everything.
func documents(err error) (mongo.WriteErrors, error) {
	we, ok := errors.AsType[mongo.WriteException](err)
	if !ok {
		return nil, err
	}
	if we.WriteConcernError != nil {
		return nil, mongo.WriteException{WriteConcernError: we.WriteConcernError, Labels: we.Labels}
	}
	for _, e := range we.WriteErrors {
		one := alone(e)
		switch mongoerr.Classify(one).Write {
		case mongoerr.WriteDuplicate, mongoerr.WriteRejected:
		case mongoerr.WriteStop:
			if mongoerr.IsKnown(one) {
				return nil, one
			}
		default:
			return nil, one // the same number does the rest, and only that
		}
	}
	return we.WriteErrors, nil
}

// alone returns the error of one document.
func alone(e mongo.WriteError) mongo.WriteException {
	e.Index = 0
	return mongo.WriteException{WriteErrors: mongo.WriteErrors{e}}
}

// odd says what is special about the top level of a document: an empty timestamp, which a server fills when the document is
// inserted or replaces another, and a field name with a dollar in front.
func odd(doc bson.Raw) (timestamp, dollar bool) {
	var zero [8]byte
	if len(doc) < 5 || !bytes.Contains(doc, zero[:]) && !bytes.Contains(doc, []byte("$")) {
		return false, false // nearly always, and fast
	}
	const header = 4
	for rest := []byte(doc[header:]); len(rest) > 1; {
		e, behind, ok := bsoncore.ReadElement(rest)
		if !ok {
			break // the server says so
		}
		rest = behind
		key, v := e.KeyBytes(), e.Value()
		if len(key) > 0 && key[0] == '$' {
			dollar = true
		}
		if v.Type == bsoncore.TypeTimestamp && bytes.Equal(v.Data, zero[:]) && string(key) != record.FieldID {
			timestamp = true
		}
	}
	return timestamp, dollar
}

// stringValue is the BSON of a string.
func stringValue(s string) []byte { return bsoncore.AppendString(nil, s) }
