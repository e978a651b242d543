package mongoerr

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// Class is what an error means. The zero Class means no error.
type Class struct {
	Write Write
	Read  Read
	Tail  Tail

	// Code is the server's code that decided, 0 if the server did not answer. It is for messages and
	// counters: decisions are made here.
	Code int
	// Event says what happened, in a few words, for people.
	Event string

	// Untouched: the command certainly changed nothing, neither now nor later. False means only that
	// it is not certain.
	Untouched bool
	// Index is the place in the command's documents of the one that Write is about, or -1 if Write is
	// about the whole command. In an ordered insert everything before Index is applied, and everything
	// from it on is not.
	Index int
	// OnID: the duplicate is on _id. Without it, it is on another unique index.
	OnID bool
	// Uncommitted: the reply carried a write concern error: what it says is true on that member and may
	// be rolled back.
	Uncommitted bool

	// Network: the connection failed, or there was none. Timeout: a deadline passed, here or there.
	Network, Timeout bool
}

// Classify says what err means for a write with a client-made _id, for a read and for a tail. For a
// nil error nothing is to be done (WriteOK, ReadOK, TailOK). It never blocks and is safe for concurrent use.
//
// It holds for one attempt on a client whose own retries are off (retryWrites=false and
// retryReads=false): with them, a clear answer may hide an earlier attempt. A write whose reply was
// lost and whose retry met a former primary comes back as "not primary", and is stored. A context that
// the caller ended itself looks like a lost connection here, so the caller looks at its own context
// first.
//
// Codes decide, labels never do. RetryableWriteError says that the driver may send the same
// transaction number again, which is not how capstan tries again, and servers leave it out (a write
// concern error 11602 came without) as well as add it to replies of writes that were applied (a write
// concern error 91). NoWritesPerformed, TransientTransactionError and the two labels of an overloaded
// server add nothing to a code that is in the table. So a code that is not in the table stops, with the
// outcome unknown (WriteStop and not Untouched), also where its labels invite to try again: a server
// that knows more codes than this table may mean by them what no earlier one did. The one label that
// counts is the driver's own, on a connection that could not be made.
func Classify(err error) Class {
	if err == nil {
		return Class{Index: -1}
	}
	c := classify(err)
	c.Timeout = c.Timeout || mongo.IsTimeout(err)
	return c
}

func classify(err error) Class {
	// The order is deliberate: a write exception first, with both of its halves (mongo.IsTimeout and
	// mongo.IsDuplicateKeyError are both true for a duplicate that is not committed), then what was
	// never sent (pool and selection errors come wrapped in command errors), then the server's codes.
	if we, ok := errors.AsType[mongo.WriteException](err); ok {
		return classifyWrite(we.WriteErrors, we.WriteConcernError)
	}
	if be, ok := errors.AsType[mongo.BulkWriteException](err); ok {
		var errs mongo.WriteErrors
		for _, e := range be.WriteErrors {
			errs = append(errs, e.WriteError)
		}
		return classifyWrite(errs, be.WriteConcernError)
	}
	if event, ok := notSent(err); ok {
		return Class{Write: WriteNotSent, Read: ReadRetry, Tail: TailReopen, Event: event, Untouched: true, Index: -1, Network: true}
	}
	if event, ok := hopeless(err); ok {
		return Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Event: event, Untouched: true, Index: -1, Network: true}
	}
	if ce, ok := errors.AsType[mongo.CommandError](err); ok && ce.Code != 0 {
		r := lookup(int(ce.Code))
		return Class{Write: r.cmd, Read: r.read, Tail: r.tail, Code: r.code, Event: r.event,
			Untouched: r.untouched, Index: -1, OnID: r.cmd == WriteDuplicate && onID(ce.Raw)}
	}
	if broken(err) {
		return Class{Write: WriteUnknown, Read: ReadRetry, Tail: TailReopen, Event: "the connection broke or the deadline passed", Index: -1, Network: true}
	}
	return Class{Write: WriteStop, Read: ReadStop, Tail: TailRefused, Event: "an error that capstan does not know", Index: -1}
}

// classifyWrite classifies a reply to a write command that the server carried out, at least in part.
func classifyWrite(errs mongo.WriteErrors, wce *mongo.WriteConcernError) Class {
	c := Class{Index: -1, Read: ReadStop, Tail: TailRefused, Uncommitted: wce != nil}
	if len(errs) == 0 {
		if wce != nil {
			classifyConcern(&c, wce.Code)
		}
		return c
	}
	first := errs[0] // an ordered write has one
	r := lookup(first.Code)
	c.Write, c.Read, c.Tail, c.Code, c.Event, c.Index = r.doc, r.read, r.tail, r.code, r.event, first.Index
	c.OnID = r.doc == WriteDuplicate && onID(first.Raw)
	c.Untouched = first.Index == 0 && wce == nil && r.doc != WriteUnknown
	return c
}

// classifyConcern: a write concern error means "applied here, not known to be committed", whatever
// its code (50 and 64 for a wait that timed out, 91, 189 and 11602 for a primary that went away).
// Only a write concern that the set can never satisfy stops; the documents are applied all the same.
func classifyConcern(c *Class, code int) {
	r := lookup(code)
	c.Write, c.Read, c.Tail, c.Code, c.Event = WriteUncommitted, ReadRetry, TailReopen, code, r.event
	if code == codeUnsatisfiableWriteConcern || code == codeUnknownReplWriteConcern {
		c.Write, c.Read, c.Tail = WriteStop, ReadStop, TailRefused
	}
}

// onID reports whether a duplicate key error, as sent by the server, is about _id. Only the pattern
// of the key is looked at: with a collation, keyValue is not the document's value.
func onID(raw bson.Raw) bool {
	pattern, ok := raw.Lookup("keyPattern").DocumentOK()
	if !ok {
		return false
	}
	elems, err := pattern.Elements()
	return err == nil && len(elems) == 1 && elems[0].Key() == "_id"
}

// notSent reports whether err says that the command never left this process, or that there was no
// connection to send it on.
func notSent(err error) (event string, ok bool) {
	if sel, ok := errors.AsType[topology.ServerSelectionError](err); ok {
		if _, hopeless := hopelessSelection(sel); hopeless {
			return "", false
		}
		return "no server that takes the command was found in time", true
	}
	if _, ok := errors.AsType[topology.WaitQueueTimeoutError](err); ok {
		return "no connection became free in time", true
	}
	if pool := driver.RetryablePoolError(nil); errors.As(err, &pool) {
		return "the connection pool was cleared: the server went away", true
	}
	if errors.Is(err, driver.ErrDeadlineWouldBeExceeded) {
		return "too little time was left to send the command", true
	}
	if unconnected(err) {
		return "no connection could be made", true
	}
	return "", false
}

// unconnected reports whether err is that of making a connection, other than by bad TLS.
func unconnected(err error) bool {
	if _, ok := errors.AsType[topology.ConnectionError](err); !ok || badTLS(err) {
		return false
	}
	// The driver wraps the failure of a connection in use in a command error, and that of making one
	// too, with this label. A server may send the label as well, but then no connection has failed. A bare
	// error comes from making the connection: a name that does not resolve, for instance.
	ce, wrapped := errors.AsType[mongo.CommandError](err)
	return !wrapped || ce.Code == 0 && ce.HasErrorLabel(driver.ErrSystemOverloadedError)
}

// hopeless reports whether err is one of making a connection that the next try meets too.
func hopeless(err error) (event string, ok bool) {
	if sel, ok := errors.AsType[topology.ServerSelectionError](err); ok {
		return hopelessSelection(sel)
	}
	if errors.Is(err, mongo.ErrClientDisconnected) {
		return "the client is closed", true
	}
	if badTLS(err) {
		return "the TLS handshake was refused", true
	}
	return "", false
}

// hopelessSelection looks at why the members are unknown: a certificate that is wrong is wrong for
// ever, and the selection error itself says only "deadline exceeded".
func hopelessSelection(sel topology.ServerSelectionError) (event string, ok bool) {
	bad := 0
	for _, s := range sel.Desc.Servers {
		if s.LastError != nil && badTLS(s.LastError) {
			bad++
		}
	}
	if bad > 0 && bad == len(sel.Desc.Servers) {
		return "the TLS handshake was refused", true
	}
	return "", false
}

func badTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error" // an alert from the peer
}

// broken reports whether err says that a connection that was in use failed, or that time ran out.
func broken(err error) bool {
	if _, ok := errors.AsType[topology.ConnectionError](err); ok {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return mongo.IsNetworkError(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
