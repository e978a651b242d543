package mongodb

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// work is one call of Insert or Apply. It is for one goroutine.
type work struct {
	t        *Target
	f        *fence
	db       *mongo.Database
	ns       record.Namespace
	ops      []replicator.Op
	refusals []replicator.Refusal
	buf      []byte
	// How documents failed that may yet be applied in another way, by the indexes of their ops.
	taken   []int            // their _id is there
	foreign map[int]bson.Raw // another document has the value of a unique index: the server's error
	invalid map[int]error    // a validator refuses them
	swaps   []int            // their _id is there in other bytes, and the server does not change it
	reasons map[int]error    // the errors of foreign and swaps
}

// buffers are those of commands, which would otherwise grow anew in every call.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10); return &b }}

func (w *work) buffer() []byte {
	if w.buf == nil {
		w.buf = *buffers.Get().(*[]byte)
	}
	return w.buf
}

func (w *work) free() {
	if b := w.buf; b != nil && cap(b) <= wantCommandSize+wantCommandSize/4 {
		buffers.Put(&b)
	}
	w.buf = nil
}

func (w *work) all() []int {
	idx := make([]int, len(w.ops))
	for i := range idx {
		idx[i] = i
	}
	return idx
}

func (w *work) id(i int) bson.RawValue {
	if op := w.ops[i]; op.ID.Type != 0 {
		return op.ID
	}
	return w.ops[i].Document.Lookup(record.FieldID)
}

// verb is what is tried first. A document with an empty timestamp cannot be inserted as it is.
func (w *work) verb(i int) replicator.Verb {
	if op := w.ops[i]; op.Verb == replicator.Insert {
		if timestamp, _ := odd(op.Document); timestamp {
			return replicator.Put
		}
	}
	return w.ops[i].Verb
}

func (w *work) refuse(i int, holder bson.RawValue, err error) {
	w.refusals = append(w.refusals, replicator.Refusal{Index: i, Holder: holder, Err: err})
}

// anyOrder applies the ops with the given indexes. Removes come first, as they free values of unique indexes.
func (w *work) anyOrder(ctx context.Context, idx []int) error {
	var by [3][]int
	for _, i := range idx {
		v := w.verb(i)
		by[v] = append(by[v], i)
	}
	for _, v := range []replicator.Verb{replicator.Remove, replicator.Put, replicator.Insert} {
		if _, err := w.run(ctx, v, by[v], false, false); err != nil {
			return err
		}
	}
	return w.resolve(ctx)
}

// resolve does what is left over in another way, or refuses it.
func (w *work) resolve(ctx context.Context) error {
	free := 0
	for held := -1; ; {
		again := w.taken
		w.taken = nil
		foreign := w.foreign
		if len(foreign) > 0 && (held < 0 || len(foreign) < held) && len(w.ops) > 1 {
			// What held a value may have been changed by this very call.
			held = len(foreign)
			for i := range foreign {
				again = append(again, i)
			}
			w.foreign = nil
		}
		if len(again) > 0 {
			if _, err := w.run(ctx, replicator.Put, again, false, false); err != nil {
				return err
			}
			// An upsert that meets its own _id was overtaken by another writer; once more, and then it is refused.
			for _, i := range w.taken {
				if err := w.swap(ctx, i, w.reasons[i]); err != nil {
					return err
				}
			}
			w.taken = nil
			continue
		}
		if len(w.invalid) > 0 {
			if err := w.bypass(ctx); err != nil {
				return err
			}
			continue
		}
		if len(w.swaps) > 0 {
			swaps := w.swaps
			w.swaps = nil
			for _, i := range swaps {
				if err := w.swap(ctx, i, w.reasons[i]); err != nil {
					return err
				}
			}
			continue
		}
		again, err := w.refuseForeign(ctx, free == maxFree)
		if err != nil || len(again) == 0 {
			return err
		}
		free++
		if _, err := w.run(ctx, replicator.Put, again, false, false); err != nil {
			return err
		}
	}
}

// maxFree is how often a document is written again whose value nobody has any more when it is looked who has it.
const maxFree = 20

// run sends the ops as verb. Ordered, it ends at the first that fails and returns how many are done; what that one
// is, is noted as all failures are.
func (w *work) run(ctx context.Context, verb replicator.Verb, idx []int, ordered, bypass bool) (done int, err error) {
	for done < len(idx) {
		c, n, large := w.build(verb, idx[done:], ordered, bypass)
		if large {
			w.tooLarge(verb, idx[done])
			if done++; ordered {
				return done - 1, nil
			}
			continue
		}
		failed, err := w.t.send(ctx, w.f, w.db, w.ns, c)
		w.buf = c.b
		if err != nil {
			return done, err
		}
		for _, e := range failed {
			if e.Index < 0 || e.Index >= n {
				return done, fmt.Errorf("the server speaks of document %d of %d: %w", e.Index, n, e)
			}
			w.note(idx[done+e.Index], verb, e)
		}
		if ordered && len(failed) > 0 {
			return done + failed[0].Index, nil
		}
		done += n
	}
	return done, nil
}

// build makes one command of as many ops as fit. large: the first one alone is too large for a command.
func (w *work) build(verb replicator.Verb, idx []int, ordered, bypass bool) (c *command, n int, large bool) {
	name := [...]string{replicator.Insert: "insert", replicator.Put: "update", replicator.Remove: "delete"}[verb]
	most := w.t.cfg.Operations
	if verb == replicator.Insert {
		most = maxOperations
	}
	const perStatement = 100 // bytes around a document
	c = startCommand(w.buffer(), name, w.ns.Coll, ordered, bypass && verb != replicator.Remove)
	for _, i := range idx[:min(len(idx), most)] {
		doc := w.ops[i].Document
		switch verb {
		case replicator.Insert:
			if !c.fits(len(doc) + perStatement) {
				return c, c.n, false
			}
			c.insert(doc)
		default:
			id := w.id(i)
			if !c.fits(len(doc) + len(id.Value) + perStatement) {
				return c, c.n, false
			}
			if verb == replicator.Remove {
				c.remove(id)
			} else if timestamp, dollar := odd(doc); timestamp || dollar {
				c.putLiteral(id, doc)
			} else {
				c.put(id, doc, true)
			}
		}
	}
	return c, c.n, len(c.b) > maxCommandSize
}

// tooLarge settles an op that fits into no command: a replacement carries its _id twice, an insert does not.
func (w *work) tooLarge(verb replicator.Verb, i int) {
	err := fmt.Errorf("%w: it has %d bytes, and a command may have %d", failover.ErrTooLarge, len(w.ops[i].Document), maxCommandSize)
	if timestamp, _ := odd(w.ops[i].Document); verb == replicator.Put && !timestamp && len(w.ops[i].Document) <= record.MaxDocumentSize {
		w.later(&w.swaps, i, err)
		return
	}
	w.refuse(i, bson.RawValue{}, err)
}

func (w *work) later(list *[]int, i int, err error) {
	*list = append(*list, i)
	w.because(i, err)
}

func (w *work) because(i int, err error) {
	if w.reasons == nil {
		w.reasons = make(map[int]error)
	}
	w.reasons[i] = err
}

// note notes how the document of op i failed.
func (w *work) note(i int, verb replicator.Verb, e mongo.WriteError) {
	err := alone(e)
	c := mongoerr.Classify(err)
	switch {
	case c.Write == mongoerr.WriteDuplicate && c.OnID:
		w.later(&w.taken, i, err)
	case c.Write == mongoerr.WriteDuplicate:
		if w.foreign == nil {
			w.foreign = make(map[int]bson.Raw)
		}
		w.foreign[i] = e.Raw
		w.because(i, err)
	case mongoerr.IsInvalid(err):
		if w.invalid == nil {
			w.invalid = make(map[int]error)
		}
		w.invalid[i] = err
	case verb == replicator.Put && (mongoerr.IsImmutable(err) || mongoerr.IsTooLargeForCache(err)):
		w.later(&w.swaps, i, err)
	default:
		w.refuse(i, bson.RawValue{}, err)
	}
}

// bypass writes what a validator refused, if that is permitted: the source is what counts.
func (w *work) bypass(ctx context.Context) error {
	invalid := w.invalid
	w.invalid = nil
	var idx []int
	for i := range invalid {
		idx = append(idx, i)
	}
	_, err := w.run(ctx, replicator.Put, idx, false, true)
	if mongoerr.IsUnauthorized(err) {
		for i, reason := range invalid {
			w.refuse(i, bson.RawValue{}, fmt.Errorf("the destination's validator refuses it, and the user may not bypass that (privilege bypassDocumentValidation): %w", reason))
		}
		return nil
	}
	for i, reason := range w.invalid { // again, which cannot be
		w.refuse(i, bson.RawValue{}, reason)
	}
	w.invalid = nil
	return err
}

// swap removes what has the _id of op i and inserts its document, where it cannot be replaced: a server does not change the bytes of a
// stored _id that its collation takes for the same, and one with 256 MB of cache has no room for the replacement of a document of 16 MB
// (an insert takes half of that). A reader may miss the document for a moment.
func (w *work) swap(ctx context.Context, i int, reason error) error {
	if _, err := w.run(ctx, replicator.Remove, []int{i}, false, false); err != nil {
		return err
	}
	for _, bypass := range []bool{false, true} {
		done, err := w.run(ctx, replicator.Insert, []int{i}, true, bypass)
		if bypass && mongoerr.IsUnauthorized(err) {
			w.refuse(i, bson.RawValue{}, reason)
			return nil
		}
		if err != nil || done == 1 {
			return err
		}
		if _, invalid := w.invalid[i]; !invalid {
			break
		}
		reason = w.invalid[i]
		delete(w.invalid, i)
	}
	if len(w.taken) > 0 {
		w.taken = w.taken[:len(w.taken)-1]
		w.refuse(i, bson.RawValue{}, fmt.Errorf("its _id is taken again and again: does somebody else write to %s? %w", w.ns, reason))
	}
	return nil
}

// refuseForeign refuses what meets another document on a unique index, and finds that document.
func (w *work) refuseForeign(ctx context.Context, last bool) (again []int, err error) {
	foreign := w.foreign
	w.foreign = nil
	for i, raw := range foreign {
		holder, known, err := w.holder(ctx, i, raw)
		if err != nil {
			return nil, err
		}
		if known && holder.IsZero() && !last {
			again = append(again, i) // another worker has just changed who had it
			continue
		}
		w.refuse(i, holder, w.reasons[i])
	}
	return again, nil
}

// holder returns the _id of the document that has the value that op i wants, the zero value if none has it any more. known is false if the
// error does not say which value it is.
func (w *work) holder(ctx context.Context, i int, raw bson.Raw) (id bson.RawValue, known bool, err error) {
	filter, collation := mongoerr.DuplicateFilter(raw, w.ops[i].Document)
	if filter == nil {
		return bson.RawValue{}, false, nil
	}
	filter = append(filter, bson.E{Key: record.FieldID, Value: bson.D{{Key: "$ne", Value: w.id(i)}}})
	o := options.FindOne().SetProjection(bson.D{{Key: record.FieldID, Value: 1}})
	if collation != nil {
		o.SetCollation(collation)
	}
	doc, err := w.t.layer.FindOne(ctx, w.ns.DB, w.ns.Coll, onPrimary(w.ns.String()), filter, o)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return bson.RawValue{}, true, nil
	}
	if err != nil {
		return bson.RawValue{}, true, err
	}
	return doc.Lookup(record.FieldID), true, nil
}

// inOrder applies the ops one after the other.
func (w *work) inOrder(ctx context.Context) error {
	for i := 0; i < len(w.ops); {
		v, end := w.verb(i), i+1
		for end < len(w.ops) && w.verb(end) == v {
			end++
		}
		idx := make([]int, end-i)
		for k := range idx {
			idx[k] = i + k
		}
		done, err := w.run(ctx, v, idx, true, false)
		if err != nil {
			return err
		}
		if i += done; done < len(idx) {
			// Its position is where it is already, or here.
			if err := w.resolve(ctx); err != nil {
				return err
			}
			i++
		}
	}
	return nil
}
