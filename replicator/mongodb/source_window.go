package mongodb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// windowBytes is where a window ends although it has fewer documents than asked for. A reply holds 16 MB at most,
// so a window has at most this and one reply.
const windowBytes = 8 << 20

// byID is the index that windows go along: every collection has it, with the collection's own collation, and a clustered one
// is in its order.
var byID = bson.D{{Key: "_id", Value: 1}}

// Window implements replicator.Source. A window may be shorter than limit where documents are large or the server is
// slow: Done alone says that the range has ended.
//
// The server scans the index on _id between bounds of the index itself (min and max), and not by a condition: a
// condition on _id sees only values of the type that it names, one by $expr scans a clustered collection from its
// beginning, and both cost more (measured on mongod 6.0.5: 1.6, 1.7 and 2.4 us per small document). min is inclusive
// and max exclusive, which is why the two ends are looked at on their own.
func (s *Source) Window(ctx context.Context, c replicator.Collection, r replicator.Range, limit int, filter bson.Raw, at record.Timestamp) (replicator.Window, error) {
	if r.Done {
		return replicator.Window{At: r.At, Done: true}, nil
	}
	if limit < 1 {
		return replicator.Window{}, fmt.Errorf("read a window of %s: limit is %d, must be at least 1", c.Name, limit)
	}
	if isEmpty(filter) {
		filter = nil
	}
	var w replicator.Window
	err := s.named(c.Name, func(ns record.Namespace) (err error) {
		scan := &scan{src: s, ns: ns, uuid: c.UUID, at: at, filter: filter, from: r.At, to: r.To, limit: limit, w: replicator.Window{At: r.At}}
		if scan.from.IsZero() {
			scan.from = r.From
		}
		switch {
		case r.Natural:
			w, err = scan.natural(ctx, r)
		case scan.filter != nil:
			w, err = scan.filtered(ctx)
		default:
			w, err = scan.everything(ctx)
		}
		return err
	})
	if err != nil {
		return replicator.Window{}, needs(err, "copy "+c.Name.String(), "read on the database "+c.Name.DB)
	}
	return w, nil
}

func isEmpty(d bson.Raw) bool { return len(d) <= 5 }

// scan reads one window. It is for one goroutine.
type scan struct {
	src      *Source
	ns       record.Namespace
	uuid     string
	at       record.Timestamp
	filter   bson.Raw
	from, to record.ID // exclusive, inclusive
	limit    int
	w        replicator.Window // what has been read
	atRecord int64             // of the document that a scan in natural order resumed at
}

// bounds returns the options that make a command scan (from, to), from itself included if it is still there.
func bounds(from, to record.ID) bson.D {
	d := bson.D{{Key: "hint", Value: byID}, {Key: "sort", Value: byID}}
	if !from.IsZero() {
		d = append(d, bson.E{Key: "min", Value: bson.D{{Key: "_id", Value: from.RawValue()}}})
	}
	if !to.IsZero() {
		d = append(d, bson.E{Key: "max", Value: bson.D{{Key: "_id", Value: to.RawValue()}}})
	}
	return d
}

// find returns a find command with the window's read concern.
func (s *scan) find(filter bson.D, more ...bson.E) bson.D {
	cmd := bson.D{{Key: "find", Value: s.ns.Coll}, {Key: "filter", Value: filter}, {Key: "readConcern", Value: majorityAfter(s.at)}}
	return append(withUUID(cmd, s.uuid), more...)
}

// except returns a filter that lets everything pass but id, and what the window's own filter does not.
func (s *scan) except(id record.ID) bson.D {
	var and bson.A
	if !id.IsZero() {
		and = append(and, bson.D{{Key: "_id", Value: bson.D{{Key: "$ne", Value: id.RawValue()}}}})
	}
	return s.also(and)
}

func (s *scan) only(id record.ID) bson.D {
	return s.also(bson.A{bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id.RawValue()}}}}})
}

func (s *scan) also(and bson.A) bson.D {
	if s.filter != nil {
		and = append(and, s.filter)
	}
	switch len(and) {
	case 0:
		return bson.D{}
	case 1:
		if d, ok := and[0].(bson.D); ok {
			return d
		}
	}
	return bson.D{{Key: "$and", Value: and}}
}

// interior reports whether there can be anything in (from, to).
func (s *scan) interior() bool {
	return !s.past() && (s.to.IsZero() || s.to != minKey)
}

// past reports whether the range has nothing behind from. (The open end of a clustered collection reaches its last document,
// that of an index does not.)
func (s *scan) past() bool { return s.from == s.end() }

var (
	minKey = record.IDOf(bson.RawValue{Type: bson.TypeMinKey})
	maxKey = record.IDOf(bson.RawValue{Type: bson.TypeMaxKey})
)

// end is the last _id that the range can have.
func (s *scan) end() record.ID {
	if s.to.IsZero() {
		return maxKey
	}
	return s.to
}

// everything reads a window without a filter. A reply with fewer documents than asked for may have ended at 16 MB, so
// only an empty one says that there are no more.
func (s *scan) everything(ctx context.Context) (replicator.Window, error) {
	size := 0
	for s.interior() {
		docs, bytes, paced, err := s.step(ctx, s.limit-len(s.w.Documents))
		if err != nil {
			return s.w, err
		}
		if len(docs) == 0 {
			break
		}
		if err := s.take(docs); err != nil {
			return s.w, err
		}
		s.w.Scanned = int64(len(s.w.Documents))
		if size += bytes; paced || len(s.w.Documents) >= s.limit || size >= windowBytes {
			return s.w, nil
		}
	}
	last, err := s.last(ctx)
	if err != nil {
		return s.w, err
	}
	s.w.Documents = append(s.w.Documents, last...)
	s.w.Scanned = int64(len(s.w.Documents))
	s.w.At, s.w.Done = s.end(), true
	return s.w, nil
}

// take adds documents to the window, which stands behind the last of them.
func (s *scan) take(docs []bson.Raw) error {
	id, err := idOf(docs[len(docs)-1])
	if err != nil {
		return err
	}
	s.from = record.IDOf(id)
	s.w.At = s.from
	if s.w.Documents == nil {
		s.w.Documents = docs
	} else {
		s.w.Documents = append(s.w.Documents, docs...)
	}
	return nil
}

// step reads the next documents of (from, to), at most n; paced says that it asked for fewer than that.
func (s *scan) step(ctx context.Context, n int) (docs []bson.Raw, size int, paced bool, err error) {
	err = s.src.paced(ctx, s.ns, n, func(ctx context.Context, d *mongo.Database, n int) error {
		cmd := append(s.find(s.except(s.from)), bounds(s.from, s.to)...)
		// With singleBatch no cursor stays behind, whatever the reply holds.
		cmd = append(cmd, bson.E{Key: "limit", Value: n}, bson.E{Key: "batchSize", Value: n}, bson.E{Key: "singleBatch", Value: true})
		reply, err := s.src.run(ctx, d, cmd)
		if err != nil {
			return err
		}
		docs, size, err = batch(make([]bson.Raw, 0, n), reply)
		return err
	}, &paced)
	return docs, size, paced, err
}

// paced runs do with n, or with fewer where n were too many for an attempt.
func (s *Source) paced(ctx context.Context, ns record.Namespace, n int, do func(ctx context.Context, d *mongo.Database, n int) error, paced *bool) error {
	return s.read(ctx, ns.DB, ns.String(), func(ctx context.Context, _ int, d *mongo.Database) error {
		k, start := s.pace.limit(ns, n), time.Now()
		*paced = k < n
		err := do(ctx, d, k)
		switch {
		case err == nil:
			s.pace.faster(ns, k, time.Since(start), s.attempt())
		case tooMuch(err):
			s.pace.slower(ns, k)
		}
		return err
	})
}

// last reads the one document that stands at the inclusive end, where the index's open end does not reach, unless it is read
// already.
func (s *scan) last(ctx context.Context) ([]bson.Raw, error) {
	if s.past() {
		return nil, nil
	}
	reply, err := s.src.command(ctx, s.ns.DB, s.ns.String(), s.find(s.only(s.end()), bson.E{Key: "limit", Value: 1}, bson.E{Key: "singleBatch", Value: true}))
	if err != nil {
		return nil, err
	}
	docs, _, err := batch(nil, reply)
	return docs, err
}

// filtered reads a window of what the filter lets pass: it is bounded by what is looked at, so that a filter that
// matches nothing moves on. The bound comes from the index alone.
func (s *scan) filtered(ctx context.Context) (replicator.Window, error) {
	for {
		bound, looked, err := s.bound(ctx)
		if err != nil {
			return s.w, err
		}
		ended := bound.IsZero()
		if ended {
			bound = s.end()
		}
		docs, cut, err := s.matching(ctx, bound, looked)
		if err != nil {
			return s.w, err
		}
		if cut { // a shorter window
			s.src.pace.slower(s.ns, int(max(2, min(looked, int64(s.limit)))))
			continue
		}
		if s.to = bound; len(docs) > 0 { // bound itself may be among them
			id, err := idOf(docs[len(docs)-1])
			if err != nil {
				return s.w, err
			}
			s.from = record.IDOf(id)
		}
		last, err := s.last(ctx)
		if err != nil {
			return s.w, err
		}
		s.w.Documents = append(docs, last...)
		s.w.At, s.w.Scanned, s.w.Done = bound, looked, ended
		return s.w, nil
	}
}

// bound returns the _id of the last document that the window looks at, and how many there are up to it; zero if the range ends
// before.
func (s *scan) bound(ctx context.Context) (id record.ID, looked int64, err error) {
	if s.interior() {
		var paced bool
		err := s.src.paced(ctx, s.ns, s.limit, func(ctx context.Context, d *mongo.Database, n int) (err error) {
			id, looked, err = s.inside(ctx, d, n)
			return err
		}, &paced)
		if err != nil || !id.IsZero() {
			return id, looked, err
		}
	}
	if s.past() {
		return record.ID{}, looked, nil
	}
	gone, err := s.gone(ctx, s.end())
	if !gone {
		looked++
	}
	return record.ID{}, looked, err
}

// inside returns the _id of the n-th document of (from, to); zero and their number if there are fewer. The index alone is read.
func (s *scan) inside(ctx context.Context, d *mongo.Database, n int) (id record.ID, looked int64, err error) {
	ids := func(skip, limit int) ([]bson.Raw, error) {
		cmd := append(s.find(bson.D{}, bson.E{Key: "projection", Value: byID}), bounds(s.from, s.to)...)
		reply, err := s.src.run(ctx, d, append(cmd, bson.E{Key: "skip", Value: skip}, bson.E{Key: "limit", Value: limit},
			bson.E{Key: "batchSize", Value: limit}, bson.E{Key: "singleBatch", Value: true}))
		if err != nil {
			return nil, err
		}
		docs, _, err := batch(nil, reply)
		return docs, err
	}
	skip := n - 1
	if !s.from.IsZero() {
		skip++ // the scan begins at the document that was the last
	}
	docs, err := ids(skip, 1)
	if err != nil {
		return id, 0, err
	}
	if len(docs) == 1 {
		v, err := idOf(docs[0])
		return record.IDOf(v), int64(n), err
	}
	if docs, err = ids(0, skip+1); err != nil { // the end of the range: what is left is counted
		return id, 0, err
	}
	for _, doc := range docs {
		v, err := idOf(doc)
		if err != nil {
			return id, 0, err
		}
		// Neither the one before the range nor, where it can be seen here, the one at its end counts.
		if this := record.IDOf(v); this != s.from && this != s.end() {
			looked++
		}
	}
	return id, looked, nil
}

// errNarrow says that a window is too wide for an attempt. It ends the read, so that a narrower one is bounded.
var errNarrow = errors.New("the window is too wide for an attempt")

// matching returns what the filter lets pass of (from, to), of which looked documents are known, and whether it was too much
// for a reply or for an attempt.
func (s *scan) matching(ctx context.Context, to record.ID, looked int64) (docs []bson.Raw, cut bool, err error) {
	upper := to
	if upper == maxKey {
		upper = record.ID{}
	}
	if !(&scan{from: s.from, to: upper}).interior() {
		return nil, false, nil
	}
	err = s.src.read(ctx, s.ns.DB, s.ns.String(), func(ctx context.Context, _ int, d *mongo.Database) (err error) {
		cmd := append(s.find(s.except(s.from)), bounds(s.from, upper)...)
		docs, cut, err = firstBatch(ctx, d, s.src.pref, append(cmd, bson.E{Key: "batchSize", Value: s.limit + 1}), 0)
		if tooMuch(err) && looked > 1 {
			return errNarrow
		}
		return err
	})
	if errors.Is(err, errNarrow) {
		return nil, true, nil
	}
	return docs, cut, err
}

// firstBatch runs a command with a cursor and returns the documents of the first reply, copied, and more replies until there are
// least, and whether there is more; the cursor is ended.
func firstBatch(ctx context.Context, d *mongo.Database, pref *readpref.ReadPref, cmd bson.D, least int) (docs []bson.Raw, more bool, err error) {
	cur, err := d.RunCommandCursor(ctx, cmd, options.RunCmd().SetReadPreference(pref))
	if err != nil {
		return nil, false, err
	}
	defer closeCursor(ctx, cur)
	docs = make([]bson.Raw, 0, cur.RemainingBatchLength())
	for (cur.RemainingBatchLength() > 0 || len(docs) < least) && cur.Next(ctx) {
		docs = append(docs, append(bson.Raw(nil), cur.Current...))
	}
	return docs, cur.ID() != 0, cur.Err()
}
