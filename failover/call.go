package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/record"
)

// doubt is what is not known of one document.
type doubt uint8

const (
	// maybe: an attempt may have stored it, or may yet: a server that was frozen runs what is in its socket.
	maybe doubt = 1 << iota
	// taken: the server said, with the force of the write concern, that its _id is taken.
	taken
	// refused: the server refused it for good, and an earlier attempt may have stored it. The reason is in
	// its outcome.
	refused
)

// call is the state of one call of InsertOne or InsertMany. Documents from next on were never sent; those in
// open were, or were found to need a command of their own, and are not known. It is for one goroutine.
type call struct {
	w        *CollectionWriter
	ins      *inserter
	docs     []bson.Raw
	outcomes []Outcome
	effort   effort
	attempts int

	next  int
	open  []int
	known int
	// doubts has an entry per document once there is a doubt; inDoubt counts those that are maybe and open.
	doubts []doubt
	// looking are documents that are taken or refused, to be read back before anything is sent.
	looking []int

	perCommand int // documents; halved when commands are cut, doubled when not
}

// part is the documents of one command: those in list, or n from first on.
type part struct {
	list     []int
	first, n int
}

func (p part) at(k int) int {
	if p.list != nil {
		return p.list[k]
	}
	return p.first + k
}

// run works until every outcome is known, the budget or ctx ends, or an error says that trying again is
// useless, and fills in outcomes.
func (c *call) run(ctx context.Context) {
	c.effort = effort{layer: c.w.layer, name: c.w.ns, log: "collection"}
	c.perCommand = maxCommandDocuments
	c.refuse()
	c.ins = c.w.take()
	defer c.w.put(c.ins)
	ctx, cancel := context.WithDeadlineCause(ctx, time.Now().Add(c.w.layer.cfg.Budget), errBudget) // I8
	defer cancel()
	for c.known < len(c.docs) {
		if ctx.Err() != nil {
			c.giveUp(context.Cause(ctx))
			return
		}
		start, before := time.Now(), c.known
		err := c.step(ctx)
		if c.known > before {
			c.effort.progress()
		}
		if err == nil {
			continue
		}
		if f, ok := errors.AsType[final](err); ok {
			c.giveUp(f.error)
			return
		}
		c.effort.failing(start, c.anyMaybe(), err)
		if err := c.effort.pause(ctx, err); err != nil {
			c.giveUp(err)
			return
		}
	}
}

// refuse settles what must not be sent at all.
func (c *call) refuse() {
	for i, doc := range c.docs {
		err := checkDocument(doc)
		if err != nil {
			c.reject(i, err)
			if c.open == nil {
				c.open = make([]int, i, len(c.docs))
				for k := range c.open {
					c.open[k] = k
				}
			}
		} else if c.open != nil {
			c.open = append(c.open, i)
		}
	}
	if c.open != nil {
		c.next = len(c.docs)
	}
}

func (c *call) step(ctx context.Context) error {
	if len(c.looking) > 0 {
		return c.readBack(ctx)
	}
	return c.send(ctx)
}

// send makes one attempt to insert what is open, or else what was never sent.
func (c *call) send(ctx context.Context) error {
	timeout := c.w.layer.attemptTimeout()
	limit := time.Now().Add(timeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(limit) {
		limit = deadline
	}
	cmd, p, err := c.command(time.Until(limit))
	if err != nil {
		c.take(p)
		c.reject(p.at(0), err)
		return nil
	}
	if c.ins.srv.held() {
		start := time.Now()
		reply, err := c.ins.srv.direct(ctx, cmd, limit)
		if !errors.Is(err, wire.ErrReleased) {
			c.attempts++
			c.w.layer.tried(Attempt{Kind: KindInsert, Name: c.w.ns, Member: c.ins.srv.member(), Start: start, Timeout: timeout, Documents: p.n, Err: err})
			return c.judge(p, reply, err)
		}
	}
	c.attempts++
	var reply bson.Raw
	err = c.w.layer.attempt(ctx, Attempt{Kind: KindInsert, Name: c.w.ns, Documents: p.n}, true, func(ctx context.Context) (err error) {
		reply, err = c.ins.srv.insert(ctx, cmd)
		return err
	})
	return c.judge(p, reply, err)
}

// command builds the insert of as many documents as fit. An error is about the first one.
func (c *call) command(timeout time.Duration) (bson.Raw, part, error) {
	p := part{list: c.open, first: c.next}
	most := len(c.open)
	if most == 0 {
		p.list, most = nil, len(c.docs)-c.next
	}
	cmd := c.w.layer.begin(c.ins.buf, c.w.coll, false, c.w.uuid, timeout)
	for cmd.n < min(most, c.perCommand) && cmd.fits(c.docs[p.at(cmd.n)]) {
		cmd.add(c.docs[p.at(cmd.n)])
	}
	p.n = cmd.n
	raw, err := cmd.end()
	c.ins.buf = cmd.b
	return raw, p, err
}

// take removes the documents of p from what is to be sent.
func (c *call) take(p part) {
	if p.list != nil {
		c.open = c.open[p.n:]
	} else {
		c.next += p.n
	}
}

// judge decides what an attempt to insert the documents of p has done.
func (c *call) judge(p part, reply bson.Raw, err error) error {
	c.take(p) // what stays open is appended behind: p keeps its own
	if err == nil {
		if n, ok := reply.Lookup("n").AsInt64OK(); !ok || n != int64(p.n) {
			c.doubt(p)
			return final{fmt.Errorf("the server says it inserted %d of %d documents and names no error", n, p.n)}
		}
		for k := range p.n {
			c.applied(p.at(k)) // I1: acknowledged by the write concern, without a word of doubt in the reply
		}
		c.perCommand = min(2*c.perCommand, maxCommandDocuments)
		return nil
	}
	if we, ok := errors.AsType[mongo.WriteException](err); ok {
		return c.each(p, we)
	}
	return c.whole(p, err)
}

// whole decides what an attempt has done that failed as a whole.
func (c *call) whole(p part, err error) error {
	class := mongoerr.Classify(err)
	// A server that refuses a whole command has done nothing of it only if it says so before it starts;
	// of a code that also comes up between two documents of a batch, one cannot know.
	if !untouched(class, err) || class.Code != 0 && p.n > 1 && class.Write != mongoerr.WriteStop {
		c.doubt(p)
	}
	c.reopen(p)
	switch class.Write {
	case mongoerr.WriteStop:
		return final{replaced(c.w.ns, c.w.cfg.UUID, err)}
	case mongoerr.WriteRejected, mongoerr.WriteDuplicate: // of which document?
		if p.n == 1 {
			c.open = c.open[:len(c.open)-1]
			return c.settle(p.at(0), class, err)
		}
		c.perCommand = max(1, p.n/2)
	case mongoerr.WriteUnknown: // perhaps it was too much for one attempt
		c.perCommand = max(min(minCommandDocuments, p.n), p.n/2)
	}
	return err
}

// untouched reports whether an attempt that failed with err certainly changed nothing.
func untouched(class mongoerr.Class, err error) bool {
	return class.Untouched || errors.Is(err, record.ErrClosed)
}

// each decides document by document. An unordered insert goes on behind a document that fails, so each has
// its own answer, and the write concern error, if any, is about all of them.
func (c *call) each(p part, we mongo.WriteException) error {
	failed := make(map[int]mongo.WriteError, len(we.WriteErrors))
	for _, e := range we.WriteErrors {
		failed[e.Index] = e
	}
	var again error
	for k := range p.n {
		i := p.at(k)
		e, bad := failed[k]
		switch {
		case !bad && we.WriteConcernError == nil:
			c.applied(i)
			continue
		case !bad:
			// I1: applied there, and perhaps rolled back: neither a failure nor an acknowledgement.
			c.mark(i, maybe)
			c.open = append(c.open, i)
			again = we
			continue
		}
		e.Index = 0
		one := mongo.WriteException{WriteErrors: mongo.WriteErrors{e}, WriteConcernError: we.WriteConcernError}
		err := c.settle(i, mongoerr.Classify(one), one)
		if _, stop := errors.AsType[final](err); stop || again == nil {
			again = err
		}
	}
	if we.WriteConcernError != nil {
		concern := mongo.WriteException{WriteConcernError: we.WriteConcernError}
		if mongoerr.Classify(concern).Write == mongoerr.WriteStop {
			return final{concern}
		}
	}
	return again
}

// settle decides what the server's answer about one document means. nil: it is known, or will be read back.
func (c *call) settle(i int, class mongoerr.Class, err error) error {
	switch class.Write {
	case mongoerr.WriteDuplicate:
		if class.OnID {
			// Somebody's, perhaps ours; an answer that is not committed may be rolled back.
			c.mark(i, maybe)
			if class.Uncommitted {
				c.open = append(c.open, i)
				return err
			}
			c.mark(i, taken)
			c.looking = append(c.looking, i)
			return nil
		}
		if class.Uncommitted { // what it collides with may go away
			c.open = append(c.open, i)
			return err
		}
		fallthrough
	case mongoerr.WriteRejected:
		if c.has(i, maybe) {
			c.mark(i, refused)
			c.outcomes[i].Err = err
			c.looking = append(c.looking, i)
			return nil
		}
		c.reject(i, err)
		return nil
	case mongoerr.WriteStop:
		c.mark(i, maybe) // a code that nobody knows: it says nothing
		c.open = append(c.open, i)
		return final{err}
	case mongoerr.WriteUnknown:
		c.mark(i, maybe)
	}
	c.open = append(c.open, i)
	return err
}

func (c *call) applied(i int) {
	c.outcomes[i] = Outcome{State: Applied}
	c.known++
}

func (c *call) reject(i int, reason error) {
	var id record.ID
	if v, err := c.docs[i].LookupErr(record.FieldID); err == nil {
		id = record.IDOf(v)
	}
	c.outcomes[i] = Outcome{State: NotApplied, Err: &record.RejectedError{Index: i, ID: id, Err: reason}}
	c.known++
}

// doubt notes that every document of p may have been stored.
func (c *call) doubt(p part) {
	for k := range p.n {
		c.mark(p.at(k), maybe)
	}
}

// reopen puts the documents of p back.
func (c *call) reopen(p part) {
	for k := range p.n {
		c.open = append(c.open, p.at(k))
	}
}

func (c *call) mark(i int, d doubt) {
	if c.doubts == nil {
		c.doubts = make([]doubt, len(c.docs))
	}
	c.doubts[i] |= d
}

func (c *call) has(i int, d doubt) bool { return c.doubts != nil && c.doubts[i]&d != 0 }

// pending reports whether the outcome of document i is not known.
func (c *call) pending(i int) bool {
	o := c.outcomes[i]
	return o.State == Unknown
}

func (c *call) anyMaybe() bool {
	for i := range c.doubts {
		if c.pending(i) && c.has(i, maybe) {
			return true
		}
	}
	return false
}

// giveUp fills in the outcomes that are not known: what may be stored is never called a failure (I1).
func (c *call) giveUp(reason error) {
	for i := range c.outcomes {
		if !c.pending(i) {
			continue
		}
		o := Outcome{State: NotApplied, Err: reason}
		if c.has(i, maybe) {
			o.State = Unknown
		}
		c.outcomes[i] = o
	}
	c.effort.ended(reason)
}
