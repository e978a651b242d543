package mongodb

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// place is where a scan in natural order stands: behind the document with the _id id, which comes next behind the record
// before. A record's number alone is no place, as each member numbers the records of a capped collection by itself: the same
// number may be another document on another member. So a scan goes on one record before its place, and looks whether the
// document it knows comes first. before is 0 if the document was the first one of the collection.
type place struct {
	before int64
	id     record.ID
}

// id returns the place as an ID, to be kept by the caller: a document.
func (p place) ID() record.ID {
	raw, err := bson.Marshal(bson.D{{Key: "before", Value: p.before}, {Key: "id", Value: p.id.RawValue()}})
	if err != nil {
		return record.ID{} // cannot happen; it would mean the beginning, which repeats and loses nothing
	}
	return record.IDOf(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: raw})
}

func placeOf(at record.ID) (p place, ok bool) {
	v := at.RawValue()
	doc, ok := v.DocumentOK()
	if !ok {
		return p, false
	}
	before, ok1 := doc.Lookup("before").Int64OK()
	id, err := doc.LookupErr("id")
	if !ok1 || err != nil {
		return p, false
	}
	return place{before, record.IDOf(id)}, true
}

// natural reads a window in natural order. If the place was overwritten meanwhile, or is another one on the member that
// answers, it begins again at the oldest document. The range ends with the document that was the newest when it was made
// (Range.To): what came later comes by the changes.
func (s *scan) natural(ctx context.Context, r replicator.Range) (replicator.Window, error) {
	at, resumed := placeOf(r.At)
	docs, records, known, err := s.forward(ctx, at, resumed)
	if err != nil {
		return s.w, err
	}
	if !known {
		// Evicted, or another order of records. Without the last document of the range there is nothing left of it.
		s.src.wander.lost(s.ns)
		if gone, err := s.gone(ctx, r.To); err != nil || gone {
			s.w.Done = gone
			return s.w, err
		}
		at, resumed = place{}, false
		if docs, records, _, err = s.forward(ctx, at, false); err != nil {
			return s.w, err
		}
	} else if resumed {
		s.src.wander.found(s.ns)
	}
	if resumed {
		docs, records = docs[1:], records[1:]
	}
	return s.naturally(ctx, r, at, docs, records)
}

// naturally makes the window of what was read behind at.
func (s *scan) naturally(ctx context.Context, r replicator.Range, at place, docs []bson.Raw, records []int64) (replicator.Window, error) {
	s.w.Done = len(docs) == 0
	ids := make([]bson.RawValue, len(docs))
	for i, doc := range docs {
		v, err := idOf(doc)
		if err != nil {
			return s.w, err
		}
		ids[i] = v
		if !r.To.IsZero() && record.IDOf(v) == r.To {
			docs, records, ids = docs[:i+1], records[:i+1], ids[:i+1]
			s.w.Done = true
			break
		}
	}
	n := len(docs)
	s.w.Scanned = int64(n)
	if n == 0 {
		return s.w, nil
	}
	next := place{id: record.IDOf(ids[n-1])}
	if n > 1 {
		next.before = records[n-2]
	} else if !at.id.IsZero() {
		next.before = s.atRecord
	}
	s.w.At, s.w.Documents = next.ID(), docs
	if s.filter == nil {
		return s.w, nil
	}
	matching, err := s.src.Fetch(ctx, s.ns, s.uuid, ids, s.filter, s.at)
	if err != nil {
		return s.w, err
	}
	s.w.Documents, err = inOrder(ids, matching)
	return s.w, err
}

// inOrder puts documents in the order of ids.
func inOrder(ids []bson.RawValue, docs []bson.Raw) ([]bson.Raw, error) {
	by := make(map[record.ID]bson.Raw, len(docs))
	for _, doc := range docs {
		v, err := idOf(doc)
		if err != nil {
			return nil, err
		}
		by[record.IDOf(v)] = doc
	}
	out := make([]bson.Raw, 0, len(docs))
	for _, id := range ids {
		if doc, ok := by[record.IDOf(id)]; ok {
			out = append(out, doc)
		}
	}
	return out, nil
}

// forward reads documents from the place on, its own first, with the numbers of their records; without resume from the oldest
// on. known is false if the place is not there.
func (s *scan) forward(ctx context.Context, at place, resume bool) (docs []bson.Raw, records []int64, known bool, err error) {
	pref := s.src.wander.preference(s.ns, s.src.pref)
	err = s.src.readFrom(ctx, s.ns.DB, s.ns.String(), pref, func(ctx context.Context, try int, d *mongo.Database) error {
		n := s.src.pace.limit(s.ns, s.limit)
		cmd := s.find(bson.D{}, bson.E{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}, bson.E{Key: "showRecordId", Value: true},
			bson.E{Key: "limit", Value: n + 1}, bson.E{Key: "batchSize", Value: n + 1})
		if s.filter != nil {
			cmd = append(cmd, bson.E{Key: "projection", Value: byID})
		}
		if resume && at.before != 0 {
			// Never on a tailable cursor: that ends mongod 6.0.5.
			cmd = append(cmd, bson.E{Key: "$_requestResumeToken", Value: true}, bson.E{Key: "$_resumeAfter", Value: bson.D{{Key: "$recordId", Value: at.before}}})
		}
		least := 0
		if resume {
			least = 2 // its own document may fill a reply
		}
		found, _, err := firstBatch(ctx, d, pref, cmd, least)
		if mongoerr.IsRecordGone(err) {
			docs, known = nil, false
			return nil
		}
		if err != nil {
			if tooMuch(err) {
				s.src.pace.slower(s.ns, n)
			}
			return err
		}
		docs = found
		records, err = stripRecords(docs)
		known = true
		return err
	})
	if err != nil || !resume || !known {
		return docs, records, known, err
	}
	if len(docs) == 0 {
		return nil, nil, false, nil
	}
	first, err := idOf(docs[0])
	if err != nil || record.IDOf(first) != at.id {
		return nil, nil, false, err
	}
	s.atRecord = records[0]
	return docs, records, true, nil
}

// gone reports whether the document with the _id id does not exist (any more).
func (s *scan) gone(ctx context.Context, id record.ID) (bool, error) {
	if id.IsZero() {
		return false, nil
	}
	reply, err := s.src.command(ctx, s.ns.DB, s.ns.String(), (&scan{src: s.src, ns: s.ns, uuid: s.uuid, at: s.at}).find(
		bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id.RawValue()}}}}, bson.E{Key: "projection", Value: byID},
		bson.E{Key: "limit", Value: 1}, bson.E{Key: "singleBatch", Value: true}))
	if err != nil {
		return false, err
	}
	docs, _, err := batch(nil, reply)
	return len(docs) == 0, err
}

// recordField is what showRecordId adds behind a document's own fields: type, name, NUL and an int64.
const (
	recordField = "$recordId"
	recordBytes = 1 + len(recordField) + 1 + 8
)

// stripRecords takes the numbers of their records out of documents, in place: the reply is ours.
func stripRecords(docs []bson.Raw) ([]int64, error) {
	records := make([]int64, len(docs))
	for i, doc := range docs {
		at := len(doc) - 1 - recordBytes
		if at < 4 || bson.Type(doc[at]) != bson.TypeInt64 || string(doc[at+1:at+1+len(recordField)]) != recordField {
			return nil, fmt.Errorf("%w: a document came without the number of its record", errReply)
		}
		records[i] = int64(binary.LittleEndian.Uint64(doc[len(doc)-9:]))
		doc[at] = 0
		binary.LittleEndian.PutUint32(doc, uint32(at+1))
		docs[i] = doc[: at+1 : at+1]
	}
	return records, nil
}

// wander notes the collections whose place was not found, several times in a row: then the members that answer in turn have
// different orders, and one of them, the primary, is asked from then on. The zero value is ready. Safe for concurrent use.
type wander struct {
	mu     sync.Mutex
	misses map[record.Namespace]int
}

// maxMisses is how often in a row a place may be lost before the primary is asked.
const maxMisses = 3

func (w *wander) lost(ns record.Namespace) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.misses == nil {
		w.misses = make(map[record.Namespace]int)
	}
	w.misses[ns]++
}

// found forgets misses that were too few to matter; otherwise the primary is asked for good.
func (w *wander) found(ns record.Namespace) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.misses[ns] < maxMisses {
		delete(w.misses, ns)
	}
}

func (w *wander) preference(ns record.Namespace, pref *readpref.ReadPref) *readpref.ReadPref {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.misses[ns] >= maxMisses {
		return readpref.PrimaryPreferred()
	}
	return pref
}
