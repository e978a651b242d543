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
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// changeLoop reads a change stream and hands batches over. All of it belongs to one goroutine.
type changeLoop struct {
	cfg      ChangesConfig
	ns       string // for people
	db, coll string
	logger   zerolog.Logger
	client   *mongo.Client
	opts     *options.ClientOptions // the client's
	pref     *readpref.ReadPref
	member   *member
	lines    *lines
	direct   bool // a direct connection: it reads from whatever is at its end

	out    chan<- []record.Record
	free   <-chan []record.Record
	opened func()
	began  func(record.Position)

	start record.Start
	// after is the resume position: everything up to it was handed over, or did not match. It moves in
	// moveTo only.
	after  record.Position
	told   record.Position // of the last record that was handed over
	intern record.Interner

	replicaSet bool
	onPrimary  bool             // the member was the primary when the session began
	end        record.Timestamp // the operation at which UntilEnd stops
	skimmer    skimmer
	patience   int  // 1, 2, 4 … while deadlines end every opening or getMore
	slow       bool // the last opening or getMore ended by its deadline
	single     bool // an event is too large: one at a time, until it is the next one
	meanSize   int
	progress   time.Time
	moved      bool // this session got somewhere
	announced  bool
	invalid    bool // the last event was an invalidate
}

// maxScanPatience is maxPatience for a change stream, up to four hours for the first getMore. The server looks
// through the oplog for the first event that matches (150,000 entries a second were measured) and answers
// nothing before that; given up too early, it would begin anew each time, for ever. A server that is silent
// for another reason is found out by the driver's heartbeats.
const maxScanPatience = 512

// The ends of a change stream's cursor that are no failures of the server.
var (
	errInvalidated = errors.New("what was watched was dropped or renamed")
	errOneByOne    = errors.New("an event is too large: read one by one")
	errPromoted    = errors.New("the member became the primary, and another one is preferred")
)

// run reads until ctx ends or nothing more can be read, and returns why: record.ErrClosed, io.EOF, or a
// typed error.
func (l *changeLoop) run(ctx context.Context) error {
	wait := retry.New(retry.Policy{})
	out := outage{since: time.Now()}
	for {
		l.moved = false
		opened, err := l.session(ctx)
		if opened {
			out = outage{connected: true}
		}
		if l.moved {
			wait.Progress()
		}
		switch {
		case ctx.Err() != nil:
			return record.ErrClosed
		case errors.Is(err, errEnd):
			return io.EOF
		}
		if err = l.failed(err, opened, &out, wait.Attempts()); err != nil {
			return err
		}
		if !l.moved && wait.Wait(ctx, nil) != nil {
			return record.ErrClosed
		}
	}
}

// failed decides what a cursor's end means. A nil error means: open again.
func (l *changeLoop) failed(err error, opened bool, out *outage, attempts int) error {
	if l.slow {
		l.patience = min(2*l.patience, maxScanPatience)
	}
	l.slow = false
	if mongoerr.IsTooLarge(err) && !l.single {
		// The error names no event, and those before it in the same batch were lost with it.
		l.single, l.moved = true, true
		err = fmt.Errorf("%w: %w", errOneByOne, err)
	} else if fatal := l.refused(err); fatal != nil {
		return fatal
	}
	e := endurance{ns: l.ns, connect: l.cfg.ConnectTimeout, outage: l.cfg.MaxOutage, logger: l.logger, onReopen: l.cfg.Hooks.OnReopen}
	return e.failed(err, reason(err), opened, out, attempts)
}

// refused returns the error to end with, or nil if opening again may help.
func (l *changeLoop) refused(err error) error {
	switch {
	case errors.Is(err, errInvalidated) && l.cfg.OnInvalidate == StopOnInvalidate:
		return &InvalidatedError{Namespace: l.ns, Position: l.after}
	case errors.As(err, new(*NotReplicaSetError)):
		return err
	case mongoerr.IsNoChangeStreams(err):
		return &NotReplicaSetError{Namespace: l.ns, Err: err}
	case mongoerr.IsHistoryLost(err) && l.earliest():
		return nil // the oldest entry went between the two looks at it
	case mongoerr.IsHistoryLost(err):
		return &HistoryLostError{Namespace: l.ns, Position: l.origin(), Err: err}
	case mongoerr.IsTokenRefused(err):
		return &FatalTokenError{Namespace: l.ns, Position: l.origin(), Err: err}
	case mongoerr.IsTooLarge(err):
		return &OversizedError{Namespace: l.ns, After: l.after, Err: err}
	case mongoerr.IsView(err):
		return &NotWatchableError{Namespace: l.ns, Err: err}
	}
	for _, ours := range []error{errMoved, errNotPrimary, errWatchdog, errExhausted, errInvalidated, errNotYet, errPromoted} {
		if errors.Is(err, ours) {
			return nil
		}
	}
	if mongoerr.Classify(err).Tail != mongoerr.TailRefused || mongoerr.BadCredentials(err) {
		return nil // the second: endurance knows whether there was a connection before
	}
	if mongoerr.IsUnauthorized(err) {
		return fmt.Errorf("change stream of %s: %s: %w", l.ns, l.privilege(), err)
	}
	return fmt.Errorf("change stream of %s: %w", l.ns, err)
}

// privilege says what a user needs.
func (l *changeLoop) privilege() string {
	switch {
	case l.earliest():
		return "the user needs to read local.oplog.rs to begin at the earliest event (a role with find on the database local, such as backup), " +
			"and find and changeStream on what is watched"
	case l.db == "":
		return "the user needs find and changeStream on every database (the role readAnyDatabase)"
	}
	return "the user needs find and changeStream on it (the role read on the database " + l.db + ")"
}

// earliest reports whether the stream is to begin where the oplog does.
func (l *changeLoop) earliest() bool {
	return l.after.IsZero() && (l.start.Where == record.Earliest || l.start.Where == record.After && l.start.Position.IsZero())
}

// origin is the position that the present session was opened behind.
func (l *changeLoop) origin() record.Position {
	if l.after.IsZero() && l.start.Where == record.AtTime {
		return record.Position{TS: record.Timestamp{T: uint32(l.start.Time.Unix())}}
	}
	if l.after.IsZero() {
		return l.start.Position
	}
	return l.after
}

// session opens a cursor on one member and reads from it until it ends. It reports whether the cursor was
// opened.
func (l *changeLoop) session(ctx context.Context) (opened bool, err error) {
	sctx, end := l.member.session(ctx, l.follows(), l.cfg.Hooks.OnMove)
	defer func() { err = end(err) }()
	client, done, err := l.choose(sctx)
	if err != nil {
		return false, err
	}
	defer done(ctx)
	cur, err := l.open(sctx, client)
	if err != nil {
		return false, err
	}
	// The server has taken the position: what it would say nothing of for long is looked through in windows first.
	moved, err := l.skim(ctx, sctx, client)
	if err != nil || moved {
		l.closeCursor(ctx, cur)
	}
	if err == nil && moved {
		cur, err = l.open(sctx, client)
	}
	if err != nil {
		return true, err
	}
	defer l.closeCursor(ctx, cur)
	l.logger.Debug().Str("member", l.member.at()).Stringer("after", l.after).Msg("change stream opened")
	call(l.cfg.Hooks.OnOpen, l.member.at())
	return true, l.read(ctx, sctx, cur)
}

// follows reports whether a session has to be on the primary, which can change.
func (l *changeLoop) follows() bool { return l.replicaSet && l.pref.Mode() == readpref.PrimaryMode }

// promoted reports whether the secondary that is read has become the primary, where secondaries are
// preferred. Once it is known as the primary at the opening, there was no other choice.
func (l *changeLoop) promoted() bool {
	mode := l.pref.Mode()
	return !l.direct && !l.onPrimary && (mode == readpref.SecondaryMode || mode == readpref.SecondaryPreferredMode) &&
		l.member.primary.Addr() == l.member.at()
}

// read hands over what cur yields until it ends. ctx is the stream's, sctx the session's: a batch that
// waits for a slow consumer is not lost because the primary moves.
func (l *changeLoop) read(ctx, sctx context.Context, cur *cursor) error {
	for first := true; ; first = false {
		batch, err := l.fetch(sctx, cur, first)
		if err != nil {
			if lost := l.handOver(ctx, batch, false); lost != nil {
				return lost
			}
			return err
		}
		if err := l.advance(cur.token); err != nil {
			return err
		}
		if first {
			l.announce(l.beginning(batch))
		}
		// A batch that is empty with a token at the end: whatever was written before has been looked at.
		ended := l.cfg.UntilEnd && len(batch) == 0 && l.after.TS.Compare(l.end) >= 0
		if err := l.handOver(ctx, batch, ended); err != nil {
			return err
		}
		switch {
		case l.invalid:
			l.invalid = false
			return errInvalidated
		case ended:
			return errEnd
		case cur.id == 0:
			return errExhausted
		case l.promoted():
			return errPromoted
		}
	}
}

// announce says, once, where the stream began.
func (l *changeLoop) announce(at record.Position) {
	if !l.announced {
		l.announced = true
		l.began(at)
		l.opened()
	}
}

// beginning is the position behind which the stream began, given the first batch.
func (l *changeLoop) beginning(batch []record.Record) record.Position {
	switch {
	case l.start.Where == record.After && !l.start.Position.IsZero():
		return l.start.Position
	case len(batch) == 0:
		return l.after
	}
	// The token of the opening is not known, as events were there at once: the time just before the first.
	at := batch[0].Position.TS
	return record.Position{TS: record.Timestamp{T: at.T, I: max(at.I, 1) - 1}}
}

// handOver gives a batch to Next, with a record of progress behind it where one is due. It blocks until
// Next takes what was handed over before.
func (l *changeLoop) handOver(ctx context.Context, out []record.Record, end bool) error {
	if len(out) > 0 {
		l.told, l.moved = out[len(out)-1].Position, true
	}
	due := l.cfg.Progress > 0 && (end || time.Since(l.progress) >= l.cfg.Progress)
	if due && l.after.Compare(l.told) > 0 {
		out = append(out, record.Record{Kind: record.KindProgress, Position: l.after})
		l.told, l.progress = l.after, time.Now()
	}
	if len(out) == 0 {
		return nil
	}
	select {
	case l.out <- out:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.cfg.Hooks.OnLag != nil && l.after.TS.T > 0 {
		l.cfg.Hooks.OnLag(time.Since(time.Unix(int64(l.after.TS.T), 0)))
	}
	return nil
}

// moveTo is the one place where the position moves: forward, behind what was read.
func (l *changeLoop) moveTo(p record.Position) {
	if p.Compare(l.after) > 0 {
		l.after = p
	}
}

// advance moves the position to the token that came with a batch.
func (l *changeLoop) advance(token []byte) error {
	if token == nil {
		return nil
	}
	p, err := record.PositionOfToken(token)
	if err != nil {
		return fmt.Errorf("read the token of a batch of %s: %w", l.ns, err)
	}
	l.moveTo(p)
	return nil
}

// disconnect closes a client. A frozen server must not hold the end.
func (l *changeLoop) disconnect(ctx context.Context, client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := client.Disconnect(ctx); err != nil {
		l.logger.Debug().Err(err).Msg("disconnect")
	}
}
