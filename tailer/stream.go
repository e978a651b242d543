// Package tailer reads a stream, a capped collection, from a position on and for ever.
//
// It promises: every message that the stream holds behind the start is delivered once, in the order
// in which its src sent it, across failovers, restarts, frozen servers and dead cursors; and messages
// that were overwritten before they were read are counted per src and reported as a gap, never
// skipped in silence. With visibility majority no failover takes a delivered message back.
//
// It does not promise one order for several producers (each member has its own), nor a count of loss
// in streams of other programs, whose messages carry no src and seq. DESIGN.md says how and why.
package tailer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

const (
	// handedOver is how many batches wait between the reading goroutine and Next: one, so that the next
	// batch is fetched while this one is handled. When it is full, the reader blocks and the server's
	// cursor waits: a slow consumer costs no memory.
	handedOver = 1
	// recycled is how many used batch slices are kept.
	recycled = 2
	// The client's own timing, from the measurements of a frozen server (a tail cut after 4.2 s instead
	// of 68.8 s).
	heartbeatInterval      = 500 * time.Millisecond
	memberConnectTimeout   = 2 * time.Second
	serverSelectionTimeout = 3 * time.Second
)

// Stream reads one stream. One goroutine at a time may call Next or use All; Open and Close may be
// called from any goroutine, at any time. A Stream that was opened must be closed.
//
// It owns a client of its own, because a client-wide timeout kills an idle tail, and one goroutine,
// which reads ahead by one batch.
type Stream struct {
	cfg   Config
	db    string
	coll  string
	opts  options.ClientOptions
	parse record.SubjectPattern
	pull  *pull
}

// New checks its arguments and returns a Stream that reads the collection coll of database db. It
// does no I/O: the first Next (or Open) connects, with a client made from base and then owned by the
// Stream: no timeout of the whole client, read preference primary, short timing for finding out that
// a server is gone. Everything else, monitors included, is taken from base, which is not changed.
func New(base *options.ClientOptions, db, coll string, cfg Config) (*Stream, error) {
	if base == nil {
		return nil, errors.New("tailer: the client options are nil")
	}
	if db == "" || coll == "" || strings.ContainsAny(db, "/\\. \"$\x00") || strings.ContainsAny(coll, "$\x00") {
		return nil, fmt.Errorf("tailer: %q is no namespace (want a database and a collection name)", db+"."+coll)
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	subject, err := record.ParseSubject(cfg.Subject)
	if err != nil {
		return nil, fmt.Errorf("tailer: Subject: %w", err)
	}
	s := &Stream{cfg: cfg, db: db, coll: coll, opts: *base, parse: subject}
	s.pull = newPull(s.run, cfg.Hooks.OnRecord)
	return s, nil
}

// Open connects, opens the tail, and returns when it is open: with Start Latest, everything that is
// inserted from then on will be delivered. It need not be called: the first Next does the same. It
// blocks until the tail is open, ctx ends (the opening goes on), or the stream has ended (its error).
func (s *Stream) Open(ctx context.Context) error { return s.pull.open(ctx) }

// Next returns the next record. It blocks until there is one, ctx ends, or the stream ends.
//
// A ctx that ends costs nothing: the stream goes on, and the next call with a live context continues
// where this one stopped. Failures of servers and networks stay inside. The other errors are final,
// and every later call returns the same one: record.ErrClosed after Close, io.EOF at the end of data
// (Config.UntilEnd), *GapError (StopOnGap), *NotCappedError, *RenamedError, ErrNotFound
// (FailIfMissing), *OutageError (MaxOutage), and what the server refuses for good (wrong credentials,
// missing permission). If no server can be reached at first, that error comes after ConnectTimeout.
func (s *Stream) Next(ctx context.Context) (record.Record, error) { return s.pull.nextRecord(ctx) }

// All returns the records as an iterator that ends without an error at the end of data, and after
// yielding any other error of Next. It does not close the Stream.
func (s *Stream) All(ctx context.Context) iter.Seq2[record.Record, error] {
	return sequence(ctx, s.Next)
}

// Close ends the stream and waits for its goroutine, which takes at most a second. A Next that waits
// returns record.ErrClosed. Close is idempotent and safe to call at any time; it returns nil.
func (s *Stream) Close() error { return s.pull.end() }

// run connects, reads, and disconnects.
func (s *Stream) run(ctx context.Context) error {
	m := &member{}
	opts := s.opts
	opts.Timeout = nil
	opts.SetHeartbeatInterval(heartbeatInterval).
		SetConnectTimeout(memberConnectTimeout).
		SetServerSelectionTimeout(min(serverSelectionTimeout, s.cfg.ConnectTimeout)).
		SetReadPreference(readpref.Primary()).
		SetServerMonitor(m.primary.Monitor(s.opts.ServerMonitor)).
		SetMonitor(m.monitor(s.opts.Monitor, s.cfg.Hooks.OnCommand))
	ls := newLines(&opts, s.cfg.Plain || s.opts.Monitor != nil, s.cfg.Hooks.OnCommand)
	client, err := mongo.Connect(&opts)
	if err != nil {
		return fmt.Errorf("tail %s.%s: %w", s.db, s.coll, err)
	}
	defer func() {
		// Cursors are closed by now. A frozen server must not hold the end.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			s.cfg.Logger.Debug().Err(err).Msg("disconnect")
		}
	}()
	return s.loop(client, m, ls).run(ctx)
}

// minPool is how many connections a pool must allow so that a tail can keep one: majority visibility
// and looks at the stream need others.
const minPool = 4

func (s *Stream) loop(client *mongo.Client, m *member, ls *lines) *loop {
	l := &loop{
		cfg: s.cfg, ns: s.db + "." + s.coll, subject: s.parse,
		logger:     s.cfg.Logger.With().Str("component", "tailer").Str("stream", s.db+"."+s.coll).Logger(),
		collection: client.Database(s.db).Collection(s.coll), member: m, lines: ls,
		direct: s.opts.Direct != nil && *s.opts.Direct,
		out:    s.pull.batches, free: s.pull.free, opened: sync.OnceFunc(func() { close(s.pull.ready) }),
		start: s.cfg.Start, intern: make(record.Interner), patience: 1,
	}
	l.ledger.marks = newMarks(s.cfg.MaxMarks, nil)
	if l.start.Where == record.After {
		l.after = l.start.Position
		l.ledger.marks = newMarks(s.cfg.MaxMarks, l.start.Marks)
		l.placed = len(l.start.Marks) > 0
		l.ours = l.placed
		if l.after.IsZero() {
			l.start.Where = record.Earliest
			l.placed = true
		}
	}
	return l
}
