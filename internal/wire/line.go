package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// ErrReleased says that a Line has ended, and that nothing was sent: its connection is the driver's again.
var ErrReleased = errors.New("the line has ended")

// errCut stands for the driver's error where it gives none: what was sent was cut off.
var errCut = errors.New("cut off")

// The wire protocol: https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/
const (
	headerSize  = 16                 // length, request id, response to, opcode: four int32
	opMsg       = 2013               // the opcode of every message that is neither old nor compressed
	bodyAt      = headerSize + 4 + 1 // behind the flags and the kind of the first section
	maxMessage  = 48_000_000         // maxMessageSizeBytes
	kindBody    = 0
	moreToCome  = 1 << 1
	checksumBit = 1 << 0
)

// Outcome is what the driver's command returned.
type Outcome struct {
	Reply bson.Raw
	Err   error
}

// Line is a connection that one command of the driver's holds open. Do is for one goroutine; Release may
// be called by any. Every Line must be released.
type Line struct {
	// Short is for commands that are answered soon, each under a context of its own: the context is looked
	// at every deadlineStep instead of watched, which costs less, and a reply is valid only until the
	// next Do. It may be set before the first Do. Otherwise give the same context each time.
	Short bool

	clean   func(bson.Raw) bool
	cancel  context.CancelFunc
	conn    net.Conn
	id      int32  // request id of the driver's command
	own     int32  // request id of the last command of ours
	tail    []byte // what the driver adds to a command: $db, lsid, $clusterTime, API version …
	first   []byte // the first reply, a whole message: what the driver gets at the end
	out     []byte // the message being built
	in      []byte // the last reply, with Short
	begun   time.Time
	until   time.Duration   // the connection's deadline, since begun
	writes  time.Duration   // with Short: that for writing
	watched <-chan struct{} // of the context of the last Do, without Short
	stop    func() bool     // ends its watch
	bound   chan struct{}
	give    chan given
	done    chan struct{} // closed when the driver's command has returned
	result  Outcome       // read after done

	mu    sync.Mutex
	busy  bool // a Do is under way
	ended bool
}

type given struct {
	message []byte
	err     error
}

// Hold runs one command through the driver and tries to hold its connection. run must send it, with ctx and with token as
// its last element: a string named "comment". clean reports whether a reply (a whole document, not
// kept) is a success through and through.
//
// It returns the command's outcome, and the Line if the connection is held; without one, the command has
// been an ordinary one. Hold blocks as long as the command does; if ctx ends, the command is cut off.
func (d *Dialer) Hold(ctx context.Context, clean func(bson.Raw) bool, run func(ctx context.Context, token string) (bson.Raw, error)) (*Line, Outcome) {
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &Line{clean: clean, cancel: cancel, begun: time.Now(), bound: make(chan struct{}), give: make(chan given, 1), done: make(chan struct{})}
	token := d.expect(l)
	stop := context.AfterFunc(ctx, cancel)
	go func() {
		defer close(l.done)
		defer cancel()
		l.result.Reply, l.result.Err = run(runCtx, token)
		d.forget(token)
		l.end()
	}()
	select {
	case <-l.done:
		stop()
		return nil, l.result
	case <-l.bound:
	}
	stop() // if it is too late for that, the first Do finds out
	return l, Outcome{Reply: body(l.first)}
}

// bind makes c the line's connection, if message is a command that can be held.
func (l *Line) bind(c *conn, message []byte) bool {
	if len(message) < bodyAt+5 || int(binary.LittleEndian.Uint32(message)) != len(message) ||
		binary.LittleEndian.Uint32(message[12:]) != opMsg || message[headerSize+4] != kindBody {
		return false
	}
	doc := bsoncore.Document(message[bodyAt:])
	if int(binary.LittleEndian.Uint32(doc)) != len(doc) {
		return false // several sections, or a checksum
	}
	elements, err := doc.Elements()
	if err != nil {
		return false
	}
	at := 4
	for _, e := range elements {
		at += len(e)
		if e.Key() == "comment" {
			l.conn, l.id = c.Conn, int32(binary.LittleEndian.Uint32(message[4:]))
			l.tail = append([]byte(nil), doc[at:len(doc)-1]...)
			return true
		}
	}
	return false
}

// hold is called where the driver waits for its reply. It returns what the driver gets.
func (l *Line) hold() ([]byte, error) {
	message, err := read(l.conn, nil)
	if err != nil {
		return nil, err
	}
	if reply := body(message); reply == nil || !l.clean(reply) {
		return message, nil
	}
	l.first = message
	close(l.bound)
	g := <-l.give
	return g.message, g.err
}

// giveBack ends the holding: the driver gets message, or err. The first one counts.
func (l *Line) giveBack(message []byte, err error) {
	select {
	case l.give <- given{message, err}:
	default:
	}
}

// Do sends a command with the elements given, to which it adds what the driver adds. It returns the reply
// of a clean success, which is the caller's. Otherwise the Line has ended, and it returns what the driver makes of that: a
// server's error, a broken connection, or the cause of ctx (at limit context.DeadlineExceeded) together
// with the driver's error; ErrReleased if it had ended before. It returns when ctx ends or at limit,
// whichever is earlier, as fast as the driver notices a cancelled context.
func (l *Line) Do(ctx context.Context, limit time.Time, elements []byte) (bson.Raw, error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return nil, ErrReleased
	}
	l.busy = true
	l.mu.Unlock()
	if !l.Short {
		l.watch(ctx)
	}
	reply, message, err := l.exchange(ctx, limit, elements)
	l.mu.Lock()
	l.busy = false
	l.mu.Unlock()
	if err == nil && reply != nil {
		if !l.Short && ctx.Err() != nil {
			<-l.done // the driver is closing the connection: no other Do may find it
		}
		return reply, nil
	}
	switch {
	case ctx.Err() != nil, isTimeout(err):
		l.cancel()
	case err != nil:
		l.giveBack(nil, err)
	default:
		binary.LittleEndian.PutUint32(message[8:], uint32(l.id)) // it answers the driver's command now
		l.giveBack(message, nil)
	}
	<-l.done
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), orCut(l.result.Err))
	}
	if isTimeout(err) {
		return nil, fmt.Errorf("%w: %w", context.DeadlineExceeded, orCut(l.result.Err))
	}
	return l.result.Reply, l.result.Err
}

// watch makes the end of ctx close the connection, through the driver. It costs nothing where ctx is that
// of the Do before.
func (l *Line) watch(ctx context.Context) {
	if l.stop != nil && l.watched == ctx.Done() {
		return
	}
	if l.stop != nil {
		l.stop()
	}
	l.watched, l.stop = ctx.Done(), context.AfterFunc(ctx, l.cancel)
}

// deadlineStep is by how much a connection's deadline may be late: a deadline that is set anew for every
// command costs a tenth of it.
const deadlineStep = 100 * time.Millisecond

// step rounds a moment up to the next step since l began, at least one after it.
func (l *Line) step(at time.Time) time.Duration {
	return (at.Sub(l.begun)/deadlineStep + 1) * deadlineStep
}

// setDeadline sets the connection's deadline to limit, or up to a deadlineStep later; with Short, that
// for reading to the next look at the context.
func (l *Line) setDeadline(limit time.Time) error {
	until := l.step(limit)
	if !l.Short {
		if until == l.until {
			return nil
		}
		l.until = until
		return l.conn.SetDeadline(l.begun.Add(until))
	}
	if until != l.writes {
		l.writes = until
		if err := l.conn.SetWriteDeadline(l.begun.Add(until)); err != nil {
			return err
		}
	}
	return l.look(limit)
}

// look sets the deadline for reading to the next look at the context.
func (l *Line) look(limit time.Time) error {
	until := min(l.step(time.Now()), l.step(limit))
	if until == l.until {
		return nil
	}
	l.until = until
	return l.conn.SetReadDeadline(l.begun.Add(until))
}

// receive reads one message, as read does, and looks at ctx meanwhile.
func (l *Line) receive(ctx context.Context, limit time.Time) ([]byte, error) {
	if !l.Short {
		return read(l.conn, nil)
	}
	m, err := read(readFunc(func(p []byte) (int, error) {
		for {
			n, err := l.conn.Read(p)
			if n > 0 || !isTimeout(err) || !time.Now().Before(limit) {
				return n, err
			}
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			if err := l.look(limit); err != nil {
				return 0, err
			}
		}
	}), l.in[:cap(l.in)])
	if err == nil && cap(m) <= keepBuffer {
		l.in = m
	}
	return m, err
}

// readFunc is an io.Reader.
type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func orCut(err error) error {
	if err == nil {
		return errCut
	}
	return err
}

// exchange sends a command and reads its reply. reply is nil if that is no clean success.
func (l *Line) exchange(ctx context.Context, limit time.Time, elements []byte) (reply bson.Raw, message []byte, err error) {
	l.own++
	b := append(l.out[:0], make([]byte, 4)...)
	b = binary.LittleEndian.AppendUint32(b, uint32(l.own))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, opMsg)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = append(b, kindBody)
	b = binary.LittleEndian.AppendUint32(b, uint32(4+len(elements)+len(l.tail)+1))
	b = append(append(append(b, elements...), l.tail...), 0)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	if l.out = b; cap(b) > keepBuffer {
		l.out = nil
	}
	if err := l.setDeadline(limit); err != nil {
		return nil, nil, err
	}
	if _, err := l.conn.Write(b); err != nil {
		return nil, nil, err
	}
	if message, err = l.receive(ctx, limit); err != nil {
		return nil, nil, err
	}
	if got := int32(binary.LittleEndian.Uint32(message[8:])); got != l.own {
		return nil, nil, fmt.Errorf("read a reply: it answers request %d instead of %d", got, l.own)
	}
	if reply = body(message); reply == nil || !l.clean(reply) {
		return nil, message, nil
	}
	return reply, message, nil
}

// keepBuffer is the largest buffer that a line keeps between commands.
const keepBuffer = 5 << 20

// Ended reports whether the next Do would fail with ErrReleased.
func (l *Line) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// Cut ends the Line: a Do that is under way is cut off, a later one gets ErrReleased. It does not wait, and
// does not replace Release.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.busy {
		l.cancel()
	}
}

// Release gives the connection back to the driver: the command that held it returns with its own reply. A
// Do that is under way is cut off. It waits for the driver's command to return, and may be called again.
func (l *Line) Release() {
	l.mu.Lock()
	busy := l.busy
	l.ended = true // no Do begins any more
	l.mu.Unlock()
	if busy {
		l.cancel()
	} else {
		if l.stop != nil {
			l.stop()
		}
		_ = l.conn.SetDeadline(time.Time{})
		l.giveBack(l.first, nil)
	}
	<-l.done
}

// end notes that the driver's command has returned.
func (l *Line) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
}

// read reads one message, into b if that is large enough. Most are small and arrive in one piece: one call
// reads header and body.
func read(r io.Reader, b []byte) ([]byte, error) {
	if len(b) < startOfReply {
		b = make([]byte, startOfReply)
	}
	n, err := io.ReadAtLeast(r, b, headerSize)
	if err != nil {
		return nil, err
	}
	size := int(int32(binary.LittleEndian.Uint32(b)))
	if size < bodyAt || size > maxMessage || n > size {
		return nil, fmt.Errorf("read a reply: message of %d bytes, %d received", size, n)
	}
	if size > len(b) {
		b = append(make([]byte, 0, size), b[:n]...)
	}
	b = b[:size]
	if n < size {
		if _, err := io.ReadFull(r, b[n:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// startOfReply is what a reply gets at first: enough for the acknowledgement of an insert or a few small
// messages, and little to throw away.
const startOfReply = 2048

// body returns the document of a message that consists of one, nil for any other.
func body(message []byte) bson.Raw {
	if len(message) < bodyAt+5 || binary.LittleEndian.Uint32(message[12:]) != opMsg || message[headerSize+4] != kindBody ||
		binary.LittleEndian.Uint32(message[headerSize:])&(moreToCome|checksumBit) != 0 {
		return nil
	}
	doc := message[bodyAt:]
	if int(binary.LittleEndian.Uint32(doc)) != len(doc) {
		return nil
	}
	return bson.Raw(doc)
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// Each calls visit with every element of a document of the server's, in order. It allocates nothing, and
// returns false if the document is malformed.
func Each(doc bson.Raw, visit func(key []byte, v bsoncore.Value)) bool {
	if len(doc) < 5 {
		return false
	}
	rest := []byte(doc[4 : len(doc)-1])
	for len(rest) > 0 {
		e, after, ok := bsoncore.ReadElement(rest)
		if !ok {
			return false
		}
		visit(e.KeyBytes(), e.Value())
		rest = after
	}
	return true
}
