// Package raw is the ideal MongoDB client that capstan is measured against: one TCP socket, OP_MSG
// messages written by hand, BSON appended by hand, and nothing else.
//
// It has no pool, no sessions, no monitoring, no retries, no authentication, no TLS and no
// compression, and it speaks to one server. So its figures are a floor: what the server and the
// kernel cost when the client costs nearly nothing. It is for experiments and must not be used for
// anything else. Every read and write has a deadline, so a dead server ends an experiment with an
// error and does not hang it.
package raw

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// DefaultTimeout is Config.Timeout's default: longer than any await of a tail in this project plus
// the scan of a full 100 MB stream on a busy machine.
const DefaultTimeout = 30 * time.Second

const (
	headerSize   = 16                 // length, request id, response to, opcode: four int32
	opMsg        = 2013               // the only opcode that this client speaks
	maxMessage   = 48_000_000         // what every server announces as maxMessageSizeBytes
	sectionBody  = 0                  // one document
	sectionDocs  = 1                  // size, identifier, documents back to back
	bodyOffset   = headerSize + 4 + 1 // behind the flags and the section's kind
	startOfReply = 64 << 10           // first size of the receive buffer; it grows to the largest reply
)

// ErrProtocol says that the server's answer is not an OP_MSG reply as this client expects it.
var ErrProtocol = errors.New("not the reply that was expected")

// CommandError is a reply with ok: 0, or the first write error of an insert.
type CommandError struct {
	Command string
	Code    int32
	Message string
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("run %s: code %d: %s", e.Command, e.Code, e.Message)
}

// Config holds what Dial may be told. The zero Config is valid.
type Config struct {
	// Timeout bounds connecting, and every message sent with its reply; 0 means DefaultTimeout.
	// The await of a GetMore comes on top of it.
	Timeout time.Duration
	// Dialer connects; nil means a net.Dialer. It is for servers in another network namespace.
	Dialer interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	}
}

func (c Config) withDefaults() Config {
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Dialer == nil {
		c.Dialer = &net.Dialer{Timeout: c.Timeout}
	}
	return c
}

// Conn is one connection to one server. It is not safe for concurrent use, except that Close may be
// called at any time and ends a call that waits, and that StartInsert and FinishInsert may be called by
// two goroutines.
type Conn struct {
	nc      net.Conn
	timeout time.Duration
	id      atomic.Int32
	out     []byte // the message being built; reused
	in      []byte // the last reply; reused, so every result aliases it until the next call
}

// Dial connects to addr ("host:port") and says hello. ctx bounds connecting only. The caller closes
// the Conn.
func Dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	nc, err := cfg.Dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	c := &Conn{nc: nc, timeout: cfg.Timeout, in: make([]byte, startOfReply)}
	if _, err := c.Run("hello", "admin", bsonInt32(nil, "hello", 1), nil); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("greet %s: %w", addr, err)
	}
	return c, nil
}

// Close closes the socket. A cursor that is still open on the server ends with its own time-out.
func (c *Conn) Close() error { return c.nc.Close() }

// Run sends one command and waits for its reply. elements are the command's encoded elements without
// the document's length and end; "$db" is added. docs, if not empty, travels as a document sequence
// named "documents" (documents back to back, which is how an insert avoids one copy into an array).
// The reply aliases the receive buffer: it is valid until the next call.
func (c *Conn) Run(name, db string, elements, docs []byte) (bson.Raw, error) {
	return c.run(name, db, elements, docs, 0)
}

func (c *Conn) run(name, db string, elements, docs []byte, await time.Duration) (bson.Raw, error) {
	if err := c.nc.SetDeadline(time.Now().Add(c.timeout + await)); err != nil {
		return nil, fmt.Errorf("set deadline of %s: %w", name, err)
	}
	if err := c.send(db, elements, docs); err != nil {
		return nil, fmt.Errorf("send %s: %w", name, err)
	}
	reply, err := c.receive()
	if err != nil {
		return nil, fmt.Errorf("receive reply of %s: %w", name, err)
	}
	return reply, check(name, reply)
}

func (c *Conn) send(db string, elements, docs []byte) error {
	id := c.id.Add(1)
	b := c.out[:0]
	b = appendInt32(b, 0) // the length, known at the end
	b = appendInt32(b, id)
	b = appendInt32(b, 0)
	b = appendInt32(b, opMsg)
	b = appendInt32(b, 0) // no flags
	b = append(b, sectionBody)
	b = appendInt32(b, int32(4+len(elements)+len("\x02$db\x00")+4+len(db)+1+1))
	b = append(b, elements...)
	b = bsonString(b, "$db", db)
	b = append(b, 0)
	if len(docs) > 0 {
		b = append(b, sectionDocs)
		b = appendInt32(b, int32(4+len("documents\x00")+len(docs)))
		b = append(b, "documents\x00"...)
		b = append(b, docs...)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	c.out = b
	_, err := c.nc.Write(b)
	return err
}

func (c *Conn) receive() (bson.Raw, error) {
	// Most replies are small and arrive in one piece: one system call reads header and body.
	n, err := io.ReadAtLeast(c.nc, c.in, headerSize)
	if err != nil {
		return nil, err
	}
	size := int(int32(binary.LittleEndian.Uint32(c.in)))
	if size < bodyOffset+5 || size > maxMessage || n > size {
		return nil, fmt.Errorf("%w: message of %d bytes, %d read", ErrProtocol, size, n)
	}
	if size > len(c.in) {
		grown := make([]byte, size)
		copy(grown, c.in[:n])
		c.in = grown
	}
	if n < size {
		if _, err := io.ReadFull(c.nc, c.in[n:size]); err != nil {
			return nil, err
		}
	}
	return body(c.in[:size], c.id.Load())
}

// body returns the document of a reply to request id.
func body(msg []byte, id int32) (bson.Raw, error) {
	if got := int32(binary.LittleEndian.Uint32(msg[8:])); got != id {
		return nil, fmt.Errorf("%w: answers request %d instead of %d", ErrProtocol, got, id)
	}
	if op := binary.LittleEndian.Uint32(msg[12:]); op != opMsg {
		return nil, fmt.Errorf("%w: opcode %d", ErrProtocol, op)
	}
	if msg[headerSize+4] != sectionBody {
		return nil, fmt.Errorf("%w: section of kind %d", ErrProtocol, msg[headerSize+4])
	}
	doc := msg[bodyOffset:]
	if n := binary.LittleEndian.Uint32(doc); int(n) > len(doc) || n < 5 {
		return nil, fmt.Errorf("%w: document of %d bytes in %d", ErrProtocol, n, len(doc))
	}
	return bson.Raw(doc[:binary.LittleEndian.Uint32(doc)]), nil
}

// check returns a *CommandError for a reply with ok: 0 or with write errors.
func check(name string, reply bson.Raw) error {
	var ok bool
	var e CommandError
	var writeErrors []byte
	err := Each(reply, func(typ bson.Type, key, value []byte) {
		switch string(key) {
		case "ok":
			ok = number(typ, value) == 1
		case "code":
			e.Code = int32(number(typ, value))
		case "errmsg":
			e.Message = text(typ, value)
		case "writeErrors":
			writeErrors = value
		}
	})
	switch {
	case err != nil:
		return err
	case ok && writeErrors == nil:
		return nil
	case ok:
		return firstWriteError(name, writeErrors)
	}
	e.Command = name
	return &e
}

func firstWriteError(name string, array []byte) error {
	e := CommandError{Command: name}
	err := Each(array, func(_ bson.Type, key, value []byte) {
		if string(key) != "0" {
			return
		}
		_ = Each(value, func(typ bson.Type, key, value []byte) {
			switch string(key) {
			case "code":
				e.Code = int32(number(typ, value))
			case "errmsg":
				e.Message = text(typ, value)
			}
		})
	})
	if err != nil {
		return err
	}
	return &e
}
