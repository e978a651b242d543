package verify

import (
	"context"
	"hash/maphash"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/seed-12ef14e5/capstan/record"
)

// lookAhead is how many documents of each side a comparison of natural orders holds: a document that is displaced by less is
// recognised as such at once. tapeBatch is how many documents one reply has at most.
const (
	lookAhead = 20_000
	tapeBatch = 5_000
)

// entry is a document of a tape: enough to compare it and to find it again.
type entry struct {
	key   string
	id    bson.RawValue
	hash  uint64 // of what is compared of it
	size  int
	taken bool // it was met out of order
}

// tape reads one side of a capped collection in natural order, with a window of entries in memory. It belongs to one goroutine.
type tape struct {
	s     *side
	p     *pair
	cur   *mongo.Cursor
	ended bool

	entries []entry
	at      int            // how many entries were popped, ever
	place   map[string]int // where a key is, counted from the first entry ever
	read    int64
	bytes   int64
}

// openTape opens a cursor. close ends it.
func (s *side) openTape(ctx context.Context, p *pair, c *collection, query bson.Raw) (*tape, error) {
	t := &tape{s: s, p: p, place: make(map[string]int)}
	var filter any = bson.D{}
	if query != nil {
		filter = query
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AttemptTimeout)
	defer cancel()
	cl := s.client.Database(c.ns.DB).Collection(c.ns.Coll, options.Collection().SetReadPreference(s.pref).SetReadConcern(readconcern.Majority()))
	cur, err := cl.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "$natural", Value: 1}}).SetBatchSize(tapeBatch))
	t.cur = cur
	return t, err
}

func (t *tape) close(ctx context.Context) {
	if t.cur == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = t.cur.Close(ctx) // the server closes it by itself otherwise
}

// fill reads until n entries are in memory or the collection ends.
func (t *tape) fill(ctx context.Context, n int) error {
	for !t.ended && len(t.entries) < n {
		ok, err := t.next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			t.ended = true
			return nil
		}
		doc := t.cur.Current
		t.read++
		t.bytes += int64(len(doc))
		if t.p.newTS && record.IsPrimer(doc) {
			continue
		}
		id := clone(idOf(doc))
		e := entry{key: canonical(id), id: id, size: len(doc), hash: t.p.hashCompared(doc)}
		t.place[e.key] = t.at + len(t.entries)
		t.entries = append(t.entries, e)
	}
	return nil
}

func (t *tape) next(ctx context.Context) (bool, error) {
	if t.cur.RemainingBatchLength() == 0 { // a command follows
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.s.cfg.AttemptTimeout)
		defer cancel()
	}
	ok := t.cur.Next(ctx)
	return ok, t.cur.Err()
}

// head returns the next entry that was not taken, nil at the end. Entries are read as they are needed.
func (t *tape) head(ctx context.Context) (*entry, error) {
	for {
		if len(t.entries) < lookAhead/2 {
			if err := t.fill(ctx, lookAhead); err != nil {
				return nil, err
			}
		}
		if len(t.entries) == 0 {
			return nil, nil
		}
		if !t.entries[0].taken {
			return &t.entries[0], nil
		}
		t.pop()
	}
}

func (t *tape) pop() entry {
	e := t.entries[0]
	t.entries[0] = entry{}
	t.entries = t.entries[1:]
	if t.place[e.key] == t.at {
		delete(t.place, e.key)
	}
	t.at++
	return e
}

// find returns the entry of a key if it is in memory, and how far ahead it is.
func (t *tape) find(key string) (e *entry, ahead int) {
	i, ok := t.place[key]
	if !ok || i < t.at {
		return nil, 0
	}
	return &t.entries[i-t.at], i - t.at
}

// hashCompared is a hash of what is compared of a document.
func (p *pair) hashCompared(doc bson.Raw) uint64 {
	if !p.newTS {
		return maphash.Bytes(seed, doc)
	}
	a, b := withoutTS(doc)
	return maphash.Bytes(seed, a)*31 + maphash.Bytes(seed, b)
}
