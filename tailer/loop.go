package tailer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// idleMaxWait is the longest wait between two looks (two commands each) for a missing or empty stream.
	idleMaxWait = 1500 * time.Millisecond
	// confirmFirstWait and confirmMaxWait are the waits between two questions about one batch.
	confirmFirstWait = 2 * time.Millisecond
	confirmMaxWait   = 100 * time.Millisecond
	// maxPatience bounds by how much the deadlines of openings and getMores grow while they are what
	// ends every attempt: a stream that takes longer to scan must be readable too.
	maxPatience = 16
	// causalPatience: after so many deadlines in a row, a member that never reaches the last known
	// operation is no longer waited for.
	causalPatience = 4
	// clockCheck is how often a tail with a bound looks whether the server's clock stepped back.
	clockCheck = 5 * time.Second
)

// loop reads a stream and hands batches over. All of it belongs to one goroutine.
type loop struct {
	cfg        Config
	ns         string
	subject    record.SubjectPattern
	logger     zerolog.Logger
	collection *mongo.Collection
	member     *member
	lines      *lines
	direct     bool // a direct connection: it reads from whatever is at its end

	out    chan<- []record.Record
	free   <-chan []record.Record
	opened func()

	// after is the resume position: the last message that was handed over or passed. It moves in
	// moveTo only.
	after record.Position
	// placed: the marks say what is old. Until then only the place of after does.
	placed bool
	// ours: the message at after has src and seq.
	ours   bool
	start  record.Start
	since  record.Timestamp
	ledger ledger
	ids    recent
	intern record.Interner
	primer record.Position
	born   bool // the first message of the first reading has been looked at

	uuid        bson.Binary
	fingerprint string
	identified  bool
	dropped     bool // the last look found nothing: no need to ask for a new name again
	server      hello
	opTime      record.Timestamp
	unfiltered  bool  // the next tail reads without a bound
	base        *plan // of the first tail with a bound since the last one without
	patience    int   // 1, 2, 4 … while deadlines end every opening or getMore
	slow        bool  // the last opening or getMore ended by its deadline
	meanSize    int

	end record.ID // the message at which UntilEnd stops

	batch    []record.Record
	spare    []record.Record
	skipped  map[string]int64
	progress time.Time
	clock    time.Time // of the last clockCheck
	moved    bool      // this session handed something over, or found that nothing is there
}

// run reads until ctx ends or nothing more can be read, and returns why: record.ErrClosed, io.EOF, or a
// typed error.
func (l *loop) run(ctx context.Context) error {
	wait, look := retry.New(retry.Policy{}), retry.New(retry.Policy{Max: idleMaxWait})
	out := outage{since: time.Now()}
	for {
		l.moved = false
		opened, err := l.session(ctx)
		if opened {
			out = outage{connected: true}
		}
		if l.moved {
			wait.Progress()
			look.Progress()
		}
		pause := wait
		switch {
		case ctx.Err() != nil:
			return record.ErrClosed
		case errors.Is(err, errEnd):
			return io.EOF
		case errors.Is(err, errMissing), errors.Is(err, errEmpty):
			out, pause = outage{connected: true}, look
			err = l.idle(ctx, err)
		default:
			err = l.failed(err, opened, &out, wait.Attempts())
		}
		if err != nil {
			return err
		}
		// A tail that got somewhere starts again at once: under a fast rollover every wait costs messages.
		if !l.moved && pause.Wait(ctx, nil) != nil {
			return record.ErrClosed
		}
	}
}

// idle is called while there is nothing to tail. A nil error means: wait and look again.
func (l *loop) idle(ctx context.Context, why error) error {
	call(l.cfg.Hooks.OnWait, reason(why))
	switch {
	case errors.Is(why, errMissing) && l.cfg.Wait == FailIfMissing:
		return fmt.Errorf("tail %s: %w", l.ns, ErrNotFound)
	case errors.Is(why, errMissing):
		l.identified = false
	case l.cfg.Prime != nil:
		ctx, cancel := context.WithTimeout(ctx, l.cfg.AttemptTimeout)
		defer cancel()
		if err := l.cfg.Prime(ctx, l.collection); err != nil && ctx.Err() == nil {
			l.logger.Warn().Err(err).Msg("the empty stream cannot be primed; waiting for its first message")
		}
	}
	if l.cfg.UntilEnd {
		return io.EOF
	}
	if l.start.Where == record.Latest && l.after.IsZero() {
		l.start = record.Start{Where: record.Earliest} // everything that comes is new
	}
	l.opened()
	return nil
}

// failed decides what a tail's end means. A nil error means: open again.
func (l *loop) failed(err error, opened bool, out *outage, attempts int) error {
	why := reason(err)
	switch {
	case errors.Is(err, errReread):
		l.unfiltered = true
	case l.slow:
		l.patience = min(2*l.patience, maxPatience)
	}
	l.slow = false
	switch mongoerr.Classify(err).Tail {
	case mongoerr.TailGone:
		l.identified = false
	case mongoerr.TailRefused:
		if fatal := l.refused(err); fatal != nil {
			return fatal
		}
	}
	e := endurance{ns: l.ns, connect: l.cfg.ConnectTimeout, outage: l.cfg.MaxOutage, logger: l.logger, onReopen: l.cfg.Hooks.OnReopen}
	return e.failed(err, why, opened, out, attempts)
}

// refused returns the error to end with, or nil if err is none of the server's.
func (l *loop) refused(err error) error {
	for _, ours := range []error{errMoved, errNotPrimary, errWatchdog, errReread, errAnchorGone, errExhausted, errStillborn} {
		if errors.Is(err, ours) {
			return nil
		}
	}
	switch {
	case errors.As(err, new(*NotCappedError)), errors.As(err, new(*RenamedError)), errors.As(err, new(*GapError)):
		return err // it names the stream
	case mongoerr.IsNotCapped(err):
		return &NotCappedError{Namespace: l.ns, Kind: "collection"}
	case mongoerr.IsView(err):
		return &NotCappedError{Namespace: l.ns, Kind: "view"}
	case mongoerr.IsUnauthorized(err):
		return fmt.Errorf("tail %s: the user needs the read role on the database (find and listCollections): %w", l.ns, err)
	}
	return fmt.Errorf("tail %s: %w", l.ns, err)
}

// session opens one tail on one member and reads from it until it ends. It reports whether the tail
// was opened.
func (l *loop) session(ctx context.Context) (opened bool, err error) {
	sctx, end := l.member.session(ctx, l.follows(), l.cfg.Hooks.OnMove)
	defer func() { err = end(err) }()
	server, err := l.hello(sctx)
	if err != nil {
		return false, err // what is known of the deployment stays
	}
	l.server = server
	if !l.server.primary && !l.direct {
		return false, errNotPrimary
	}
	l.member.setFollow(l.follows())
	if !l.identified {
		if err = l.identify(sctx); err != nil {
			return false, err
		}
	}
	p, err := l.plan(sctx)
	if err != nil {
		return false, err
	}
	if l.cfg.UntilEnd && p.anchor == l.end {
		return false, errEnd // behind the newest message already
	}
	cur, err := l.openTail(sctx, p)
	if err != nil {
		return false, err
	}
	defer l.closeCursor(ctx, cur)
	if cur.id == 0 && !cur.left() {
		return false, errEmpty // an empty capped collection: the server opens no tail on it
	}
	if cur.stillborn() {
		return false, errStillborn
	}
	l.unfiltered = false
	if !p.filtered() {
		l.base = nil
	} else if l.base == nil {
		l.base = &plan{anchor: p.anchor, floor: p.floor}
	}
	l.clock = time.Now()
	l.logger.Debug().Str("member", l.member.at()).Bool("bound", p.filtered()).Msg("tail opened")
	call(l.cfg.Hooks.OnOpen, l.member.at())
	return true, l.read(ctx, sctx, cur, p)
}

// follows reports whether the deployment, as far as it is known, has a primary that can change.
func (l *loop) follows() bool { return l.server.replicaSet && !l.server.mongos && !l.direct }

// read hands over what cur yields until it ends. ctx is the stream's, sctx the session's: a batch that
// waits for a slow consumer is not lost because the primary moves.
func (l *loop) read(ctx, sctx context.Context, cur *cursor, p *plan) error {
	for {
		n, err := l.fetch(sctx, cur, p)
		if err != nil {
			return err
		}
		gone, err := l.anchorGone(sctx, p)
		if err != nil {
			return err
		}
		if gone {
			return errAnchorGone
		}
		if !p.first || !p.waiting {
			l.opened()
		}
		if len(l.batch) > 0 {
			if err := l.deliver(ctx, sctx, p); err != nil {
				return err
			}
		}
		if n == 0 {
			l.moved = true
			if err := l.quiet(ctx); err != nil {
				return err
			}
		}
		if p.filtered() && time.Since(l.clock) >= clockCheck {
			l.clock = time.Now()
			back, err := l.steppedBack(sctx, p)
			if err != nil {
				return err
			}
			if back {
				return errReread
			}
		}
	}
}

// fetch reads one batch into l.batch, waiting for at most the await. It returns how many documents
// came, old ones included; 0 means that nothing more is there at present.
func (l *loop) fetch(ctx context.Context, cur *cursor, p *plan) (int, error) {
	cur.size = l.batchSize()
	// The watchdog: every getMore has a deadline. With the driver's defaults a frozen server held a tail
	// for 68.8 s.
	limit := l.await() + l.cfg.AttemptTimeout*time.Duration(l.patience)
	l.batch = l.batch[:0]
	n, size := 0, 0
	more := cur.next(ctx, limit)
	for more {
		n, size = n+1, size+len(cur.doc)
		if err := l.accept(cur.doc, p); err != nil {
			return n, err
		}
		if !cur.left() {
			break // the next call would go to the server
		}
		more = cur.next(ctx, limit)
	}
	if n > 0 && !more && cur.err == nil {
		return n, errExhausted
	}
	if n > 0 {
		l.patience = 1
		l.meanSize = (l.meanSize + size/n + 1) / 2
		if l.cfg.Hooks.OnBatch != nil {
			l.cfg.Hooks.OnBatch(n, size)
		}
		return n, nil
	}
	switch {
	case cur.err != nil: // final for this cursor
		l.slow = errors.Is(cur.err, errWatchdog)
		return 0, fmt.Errorf("read from the tail of %s: %w", l.ns, cur.err)
	case cur.id == 0: // dead without an error
		return 0, errExhausted
	default: // nothing yet
		l.patience = 1
		return 0, nil
	}
}

func call(hook func(string), arg string) {
	if hook != nil {
		hook(arg)
	}
}
