package tailer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"sync"

	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// Changes reads the change stream of a collection, a database or a whole deployment, with the same pull
// side as Stream: one goroutine at a time may call Next or use All; Open, Start and Close may be called
// from any goroutine, at any time. A Changes that was opened must be closed.
//
// It promises: every event behind the start is delivered once, in the order of the server, across
// elections, restarts, frozen servers and dead cursors; positions never go back; and what the oplog no
// longer holds ends it with a typed error, never in silence. Events are those that a majority of the
// members has, so no election takes one back. Its records are of KindChange, and of KindProgress where
// the configuration asks for them. An event's document is the one that the write carried; it never asks
// the server to look up a newer version, or for images.
//
// It owns a client of its own, and one goroutine, which reads ahead by one batch.
type Changes struct {
	cfg  ChangesConfig
	db   string
	coll string
	opts options.ClientOptions
	pull *pull

	mu sync.Mutex
	// Guarded by mu.
	began record.Position
}

// NewChanges checks its arguments and returns a Changes that reads the change stream of the collection
// coll of database db; of the whole database where coll is ""; of the whole deployment where both are.
// It does no I/O: the first Next (or Open) connects, with a client made from base and then owned by the
// Changes: no timeout of the whole client, short timing for finding out that a server is gone.
// Everything else, monitors included, is taken from base, which is not changed.
//
// The read preference is base's. With another one than primary, and behind a mongos, a session stays on
// the member that it was opened on, with a second client that knows this member alone.
func NewChanges(base *options.ClientOptions, db, coll string, cfg ChangesConfig) (*Changes, error) {
	if base == nil {
		return nil, errors.New("tailer: the client options are nil")
	}
	if db == "" && coll != "" || strings.ContainsAny(db, "/\\. \"$\x00") || strings.ContainsAny(coll, "$\x00") {
		return nil, fmt.Errorf("tailer: %q is no namespace (want a database and a collection, a database, or neither)", db+"."+coll)
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Changes{cfg: cfg, db: db, coll: coll, opts: *base}
	c.pull = newPull(c.run, cfg.Hooks.OnRecord)
	return c, nil
}

// Open connects, opens the change stream, and returns when the server has taken the position: with Start
// Latest, everything that is written from then on will be delivered. It need not be called: the first
// Next does the same. It blocks until the stream is open, ctx ends (the opening goes on), or the stream
// has ended (its error).
func (c *Changes) Open(ctx context.Context) error { return c.pull.open(ctx) }

// Start returns the position behind which the stream began, once Open has returned: with Latest a
// position from which a later reader misses nothing that was written after Open. It holds a token, or a
// time alone where events were there at once. Before, and after a failed Open, it is zero.
func (c *Changes) Start() record.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.began
}

// Next returns the next record. It blocks until there is one, ctx ends, or the stream ends.
//
// A ctx that ends costs nothing: the stream goes on, and the next call with a live context continues
// where this one stopped. Failures of servers and networks stay inside. The other errors are final,
// and every later call returns the same one: record.ErrClosed after Close, io.EOF at the end of data
// (UntilEnd), *HistoryLostError, *FatalTokenError, *OversizedError, *InvalidatedError
// (StopOnInvalidate), *NotReplicaSetError, *NotWatchableError, *OutageError (MaxOutage), and what the
// server refuses for good (wrong credentials, missing permission, a bad Pipeline). If no server can be
// reached at first, that error comes after ConnectTimeout.
func (c *Changes) Next(ctx context.Context) (record.Record, error) { return c.pull.nextRecord(ctx) }

// All returns the records as an iterator that ends without an error at the end of data, and after
// yielding any other error of Next. It does not close the Changes.
func (c *Changes) All(ctx context.Context) iter.Seq2[record.Record, error] {
	return sequence(ctx, c.Next)
}

// Close ends the stream and waits for its goroutine, which takes at most a second. A Next that waits
// returns record.ErrClosed. Close is idempotent and safe to call at any time; it returns nil.
func (c *Changes) Close() error { return c.pull.end() }

// scope says what is watched, for people.
func (c *Changes) scope() string {
	if c.db == "" {
		return "the cluster"
	}
	return record.Namespace{DB: c.db, Coll: c.coll}.String()
}

// run connects, reads, and disconnects.
func (c *Changes) run(ctx context.Context) error {
	m := &member{}
	opts := c.opts
	pref := opts.ReadPreference
	if pref == nil {
		pref = readpref.Primary()
	}
	opts.Timeout = nil
	opts.SetHeartbeatInterval(heartbeatInterval).
		SetConnectTimeout(memberConnectTimeout).
		SetServerSelectionTimeout(min(serverSelectionTimeout, c.cfg.ConnectTimeout)).
		SetReadPreference(pref).
		SetServerMonitor(m.primary.Monitor(c.opts.ServerMonitor)).
		SetMonitor(m.monitor(c.opts.Monitor, c.cfg.Hooks.OnCommand))
	ls := newLines(&opts, c.opts.Monitor != nil, c.cfg.Hooks.OnCommand)
	client, err := mongo.Connect(&opts)
	if err != nil {
		return fmt.Errorf("change stream of %s: %w", c.scope(), err)
	}
	l := &changeLoop{
		cfg: c.cfg, ns: c.scope(), db: c.db, coll: c.coll,
		logger: c.cfg.Logger.With().Str("component", "tailer").Str("changes", c.scope()).Logger(),
		client: client, opts: &opts, pref: pref, member: m, lines: ls,
		direct: c.opts.Direct != nil && *c.opts.Direct,
		out:    c.pull.batches, free: c.pull.free, start: c.cfg.Start,
		intern: make(record.Interner), patience: 1, began: c.begins, skimmer: newSkimmer(c.cfg),
	}
	l.opened = sync.OnceFunc(func() { close(c.pull.ready) })
	defer l.disconnect(ctx, client)
	return l.run(ctx)
}

// begins notes where the stream began.
func (c *Changes) begins(at record.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = at
}

// newLines sets the dialer in opts that lets getMores share a connection, if they may.
func newLines(opts *options.ClientOptions, plain bool, sent func(string)) *lines {
	ls := &lines{sent: func(name string) { call(sent, name) }}
	small := opts.MaxPoolSize != nil && *opts.MaxPoolSize > 0 && *opts.MaxPoolSize < minPool
	if ls.off = plain || small; !ls.off {
		ls.dialer = wire.NewDialer(opts.Dialer)
		opts.SetDialer(ls.dialer)
	}
	return ls
}

// only returns options for a client that knows the member at addr alone. They carry nothing of the
// connection string, which may not name one member (mongodb+srv).
func only(opts *options.ClientOptions, addr string) *options.ClientOptions {
	o := options.Client()
	from, to := reflect.ValueOf(opts).Elem(), reflect.ValueOf(o).Elem()
	for i := range from.NumField() {
		if to.Field(i).CanSet() {
			to.Field(i).Set(from.Field(i))
		}
	}
	o.ServerMonitor, o.SRVMaxHosts, o.SRVServiceName, o.ReplicaSet = nil, nil, nil, nil
	return o.SetHosts([]string{addr}).SetDirect(true)
}
