package tailer

import (
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// skimBehind is how far behind the end of the oplog a position must be for the oplog to be looked through first.
	skimBehind = 10 // seconds
	// skimShort and skimLong are what one look should take: the windows grow and shrink by it.
	skimShort, skimLong = 250 * time.Millisecond, time.Second
	// skimLimit is how many entries one look returns at most.
	skimLimit = 500
)

// skimmer looks through the oplog in windows of time for the first entry that a change stream could have an event of,
// and moves the position over what comes before it. The server does the same within a getMore, but says nothing meanwhile,
// for minutes or hours: who asks cannot tell it from one that hangs, and whoever is stopped then begins anew.
//
// It may move the position only over entries that give no event; where it cannot tell, it stops.
type skimmer struct {
	names  *regexp.Regexp // ChangesConfig.Namespaces
	off    bool           // the oplog cannot be read by this user
	window uint32         // seconds of the next look
	behind uint32         // skimBehind
}

func newSkimmer(cfg ChangesConfig) skimmer {
	s := skimmer{window: 1, behind: skimBehind, off: cfg.skimNever}
	if cfg.skimAll {
		s.behind = 0
	}
	if cfg.Namespaces != "" {
		s.names = regexp.MustCompile(cfg.Namespaces) // validate has compiled it
	}
	return s
}

// skimFrom is where a look through the oplog begins.
type skimFrom struct {
	at record.Timestamp
	// inclusive: events of the entry at that time may still come.
	inclusive bool
	// token, if not "", is that of an event of the entry at that time.
	token string
}

// skimStart returns where to begin, from the position. ok is false where there is none, or where it cannot be read.
func (l *changeLoop) skimStart() (from skimFrom, ok bool) {
	p := l.origin()
	token, has := record.TokenOf(p)
	if !has {
		return skimFrom{at: p.TS}, !p.TS.IsZero() && p.ID.IsZero()
	}
	own, err := record.PositionOfToken(token) // its time, which p's may be just before
	if err != nil {
		return from, false
	}
	switch record.KindOfToken(own) {
	case record.TokenOfEvent:
		data, _ := token.Lookup("_data").StringValueOK()
		return skimFrom{at: own.TS, inclusive: true, token: strings.ToLower(data)}, true
	case record.TokenOfTime:
		return skimFrom{at: own.TS, inclusive: true}, true
	}
	return from, false
}

// skim moves the position to before the next entry that may give an event, or to the end of the oplog as it is now, and reports whether
// it did. Records of progress are handed over meanwhile. ctx is the stream's, sctx the session's. A failure here is
// none of the stream's: it goes on as if nothing had been asked.
func (l *changeLoop) skim(ctx, sctx context.Context, client *mongo.Client) (moved bool, err error) {
	from, ok := l.skimStart()
	if l.skimmer.off || !ok || !l.replicaSet && !l.direct {
		return false, nil
	}
	end, err := l.oplogEnd(sctx, client, -1)
	if err != nil || end.Compare(from.at) <= 0 || end.T-from.at.T < l.skimmer.behind {
		return false, l.skimFailed(sctx, err)
	}
	for from.at.Compare(end) < 0 {
		to := end
		if w := from.at.T + l.skimmer.window; w >= from.at.T && w < end.T {
			to = record.Timestamp{T: w}
		}
		passed, found, err := l.look(sctx, client, from, to)
		if err != nil && sctx.Err() == nil && l.skimmer.window > 1 && !mongoerr.IsUnauthorized(err) {
			l.skimmer.window = 1 // perhaps it was too much for one look, where little had been before
			continue
		}
		if err != nil {
			return moved, l.skimFailed(sctx, err)
		}
		if passed.Compare(from.at) > 0 {
			l.announce(l.origin())
			l.moveTo(record.Position{TS: passed})
			moved, l.moved = true, true
			if err := l.handOver(ctx, nil, false); err != nil {
				return moved, err
			}
		}
		if found {
			break
		}
		from = skimFrom{at: passed}
	}
	if moved {
		l.logger.Debug().Stringer("after", l.after).Msg("looked through the oplog")
	}
	return moved, nil
}

// skimFailed decides about an error: only the end of the session's context is one.
func (l *changeLoop) skimFailed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.skimmer.off = mongoerr.IsUnauthorized(err)
	l.skimmer.window = 1
	l.logger.Debug().Err(err).Bool("for_good", l.skimmer.off).Msg("the oplog is not looked through in windows")
	return nil
}

// look looks through the oplog up to a time, inclusively. It returns up to where no entry gives an event, and whether the one behind that may give
// one.
func (l *changeLoop) look(ctx context.Context, client *mongo.Client, from skimFrom, to record.Timestamp) (passed record.Timestamp, found bool, err error) {
	began, at, inclusive := time.Now(), from.at, from.inclusive
	seen := from.token == ""
	for {
		entries, err := l.entries(ctx, client, at, to, inclusive)
		if err != nil {
			return at, false, err
		}
		for _, e := range entries.all {
			t, i, _ := e.Lookup("ts").TimestampOK()
			ts := record.Timestamp{T: t, I: i}
			if from.token != "" && ts == from.at && sole(e, from.token) {
				seen = true // it has one event, which has been delivered
			} else if l.gives(e) {
				at, found = ts.Prev(), true
				break
			}
			at = ts
		}
		inclusive = false
		if found || !entries.more {
			break
		}
	}
	if !found {
		at = to
	}
	if at.Compare(from.at) < 0 || !seen {
		// Either the entry at the position gives events, or it is not that of the token's event: the server knows what to say.
		return from.at, true, nil
	}
	// What the oplog has lost meanwhile was not looked at.
	oldest, err := l.oplogEnd(ctx, client, 1)
	if err != nil {
		return from.at, false, err
	}
	if oldest.Compare(from.at) > 0 {
		return from.at, true, nil
	}
	switch took := time.Since(began); {
	case took < skimShort:
		l.skimmer.window = min(2*l.skimmer.window, 1<<30)
	case took > skimLong:
		l.skimmer.window = max(l.skimmer.window/2, 1)
	}
	return at, found, nil
}

// someEntries are entries of the oplog, and whether the same look has more.
type someEntries struct {
	all  []bson.Raw
	more bool
}

// entries returns the first entries up to a time, in their order, that may give an event, as far as the server can tell.
func (l *changeLoop) entries(ctx context.Context, client *mongo.Client, from, to record.Timestamp, inclusive bool) (someEntries, error) {
	above := "$gt"
	if inclusive {
		above = "$gte"
	}
	when := bson.D{{Key: above, Value: bson.Timestamp(from)}, {Key: "$lte", Value: bson.Timestamp(to)}}
	equal := func(a, b any) bson.D { return bson.D{{Key: "$eq", Value: bson.A{a, b}}} }
	isCommand := bson.D{{Key: "$and", Value: bson.A{equal("$op", "c"), equal(bson.D{{Key: "$type", Value: "$o.applyOps"}}, "missing")}}}
	what := bson.D{{Key: "$cond", Value: bson.A{isCommand, "$o", bson.D{{Key: "_id", Value: "$o._id"}}}}}
	raw, err := l.command(ctx, client, "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: append(bson.D{{Key: "ts", Value: when}}, l.entryQuery()...)},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "op", Value: 1}, {Key: "ns", Value: 1}, {Key: "ui", Value: 1},
			{Key: "o", Value: what}}},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: 1}}},
		{Key: "limit", Value: skimLimit}, {Key: "batchSize", Value: skimLimit},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return someEntries{}, fmt.Errorf("look through the oplog: %w", err)
	}
	batch, ok := raw.Lookup("cursor", "firstBatch").ArrayOK()
	if !ok {
		return someEntries{}, errNotYet
	}
	vals, err := batch.Values()
	if err != nil {
		return someEntries{}, fmt.Errorf("look through the oplog: %w", err)
	}
	id, _ := raw.Lookup("cursor", "id").AsInt64OK()
	out := someEntries{more: id != 0 || len(vals) == skimLimit}
	for _, v := range vals {
		out.all = append(out.all, v.Document())
	}
	if id != 0 { // a reply is at most 16 MB
		_, err = l.command(ctx, client, "local", bson.D{{Key: "killCursors", Value: "oplog.rs"}, {Key: "cursors", Value: bson.A{id}}})
	}
	return out, err
}

// entryQuery fits every entry that may give an event: operations on what is watched, transactions with one of them, transactions
// of several entries, whose events come with the last one, every other command, as gives looks at those, and what is unknown.
// The forms are those of 6.0.
func (l *changeLoop) entryQuery() bson.D {
	var on bson.A
	switch {
	case l.coll != "":
		on = append(on, bson.D{{Key: "ns", Value: l.db + "." + l.coll}})
	case l.db != "":
		on = append(on, bson.D{{Key: "ns", Value: bson.Regex{Pattern: "^" + regexp.QuoteMeta(l.db) + `\.(?!system\.)`}}})
	default:
		on = append(on, bson.D{{Key: "ns", Value: bson.Regex{Pattern: `^(?!(?:admin|config|local)\.)[^.]+\.(?!system\.)`}}})
	}
	if l.skimmer.names != nil {
		on = append(on, bson.D{{Key: "ns", Value: bson.Regex{Pattern: l.skimmer.names.String()}}})
	}
	views := bson.D{{Key: "ns", Value: bson.Regex{Pattern: `^[^.]+\.system\.views$`}}} // what is made of them has events as a collection
	op := func(name string, more ...bson.E) bson.D { return append(bson.D{{Key: "op", Value: name}}, more...) }
	const inner = "o.applyOps"
	within := bson.D{{Key: "$or", Value: bson.A{op("c"), views, bson.D{{Key: "$and", Value: on}}}}}
	return bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "op", Value: bson.D{{Key: "$in", Value: bson.A{"i", "u", "d"}}}}, {Key: "$or", Value: bson.A{views, bson.D{{Key: "$and", Value: on}}}}},
		op("c", bson.E{Key: "$or", Value: bson.A{
			bson.D{{Key: inner, Value: bson.D{{Key: "$exists", Value: false}}}},
			bson.D{{Key: inner, Value: bson.D{{Key: "$elemMatch", Value: within}}}},
			bson.D{{Key: "prevOpTime.ts", Value: bson.D{{Key: "$ne", Value: bson.Timestamp{}}}}},
			bson.D{{Key: "o.partialTxn", Value: true}},
			bson.D{{Key: "o.prepare", Value: true}},
		}}),
		op("n", bson.E{Key: "o2", Value: bson.D{{Key: "$exists", Value: true}}}),
		bson.D{{Key: "op", Value: bson.D{{Key: "$nin", Value: bson.A{"i", "u", "d", "c", "n"}}}}},
	}}}
}

// sole reports whether an entry has one event, which the token is that of: it holds the UUID of the collection.
func sole(entry bson.Raw, token string) bool {
	op, _ := entry.Lookup("op").StringValueOK()
	_, uuid, ok := entry.Lookup("ui").BinaryOK()
	return ok && (op == "i" || op == "u" || op == "d") && strings.Contains(token, hex.EncodeToString(uuid))
}

// gives reports whether an entry that fits entryQuery may give an event.
func (l *changeLoop) gives(entry bson.Raw) bool {
	op, _ := entry.Lookup("op").StringValueOK()
	ns, _ := entry.Lookup("ns").StringValueOK()
	db, coll, _ := strings.Cut(ns, ".")
	what, _ := entry.Lookup("o").DocumentOK()
	first, err := what.IndexErr(0)
	switch {
	case coll == "system.views":
		view, named := what.Lookup("_id").StringValueOK()
		return !named || l.watches(view)
	case op != "c" || err != nil || first.Key() == "_id":
		return true // with _id it is a transaction, whose operations were not asked for
	}
	name, named := first.Value().StringValueOK()
	switch {
	case first.Key() == "renameCollection":
		to, _ := what.Lookup("to").StringValueOK()
		return l.watches(name) || l.watches(to)
	case named:
		return l.watches(db + "." + name)
	}
	return l.db == "" || l.db == db // dropDatabase, and the end of a prepared transaction
}

// watches reports whether the stream may have events about a collection.
func (l *changeLoop) watches(ns string) bool {
	db, coll, _ := strings.Cut(ns, ".")
	switch {
	case strings.HasPrefix(coll, "system."), l.db != "" && db != l.db, l.coll != "" && coll != l.coll, l.db == "" && serverOwn(db):
		return false
	}
	return l.skimmer.names == nil || l.skimmer.names.MatchString(ns)
}

// serverOwn reports whether a database is the server's: the change stream of a deployment leaves it out.
func serverOwn(db string) bool { return db == "admin" || db == "config" || db == "local" }

// oplogEnd returns the time of the oldest (1) or newest (-1) entry of the oplog that a majority has.
func (l *changeLoop) oplogEnd(ctx context.Context, client *mongo.Client, order int) (record.Timestamp, error) {
	raw, err := l.command(ctx, client, "local", bson.D{
		{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: order}}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "_id", Value: 0}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return record.Timestamp{}, fmt.Errorf("find an end of the oplog: %w", err)
	}
	t, i, ok := raw.Lookup("cursor", "firstBatch", "0", "ts").TimestampOK()
	if !ok {
		return record.Timestamp{}, errNotYet
	}
	return record.Timestamp{T: t, I: i}, nil
}
