package failover

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/seed-12ef14e5/capstan/internal/wire"
	"github.com/seed-12ef14e5/capstan/record"
)

// fault is what happens to one command.
type fault int

const (
	none          fault = iota
	notSent             // the client found no server
	lostBefore          // the connection broke before the server ran the command
	lostAfter           // … after it
	lostMidway          // … after k documents
	uncommitted         // everything is applied on the primary, and the majority did not answer
	notPrimary          // refused as a whole
	refusedMidway       // … although k documents were applied before
	notPrimaryAt        // refused at document k
	election            // what was not committed is rolled back, and the connection breaks
	late                // no answer; the server runs the command later
	faults
)

// tick is one entry of a script: what happens before and at a command.
type tick struct {
	fault   fault
	k       int
	commit  bool // what was applied becomes committed before
	foreign int  // messages that others write before
}

// sim is a capped collection on a replica set that fails as its script says, after which it works.
// It is a model of the rules in DESIGN.md, not of MongoDB: the tests on real servers see whether
// those are the rules.
type sim struct {
	capacity int // documents; 0: no limit
	script   []tick
	bad      map[record.ID]bool // refused by the validator
	before   []record.ID        // stored by an earlier run
	// local is what the primary has, stable what the majority has: the documents that are there, and the
	// history of all that ever were.
	local, stable state
	delayed       []bson.Raw // commands to run later
	down          bool       // answers nothing, ever
	lostUntil     time.Time  // no server is found before
	inserts       int
}

type state struct {
	docs    []bson.Raw
	history []record.ID
}

func (s state) clone() state { return state{slices.Clone(s.docs), slices.Clone(s.history)} }

func (s *sim) next() tick {
	var t tick
	if len(s.script) > 0 {
		t, s.script = s.script[0], s.script[1:]
	}
	time.Sleep(time.Millisecond) // of the bubble's clock
	if time.Now().Before(s.lostUntil) {
		return tick{fault: notSent}
	}
	if t.commit {
		s.commit()
	}
	for range t.foreign {
		s.store(encode(bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "src", Value: "other"}}))
	}
	if len(s.delayed) > 0 && t.k%2 == 1 {
		s.apply(s.delayed[0], -1)
		s.delayed = s.delayed[1:]
	}
	return t
}

func (s *sim) commit() { s.stable = s.local.clone() }

func (s *sim) store(doc bson.Raw) {
	s.local.docs = append(s.local.docs, slices.Clone(doc))
	s.local.history = append(s.local.history, idOf(doc))
	if s.capacity > 0 && len(s.local.docs) > s.capacity {
		s.local.docs = s.local.docs[1:]
	}
}

// apply runs an insert, of at most limit documents if limit is not negative. An ordered one stops at the
// first error.
func (s *sim) apply(cmd bson.Raw, limit int) (n int, failed mongo.WriteErrors) {
	docs, _ := cmd.Lookup("documents").Array().Values()
	ordered := cmd.Lookup("ordered").Boolean()
	for i, v := range docs {
		doc := bson.Raw(v.Document())
		id := idOf(doc)
		switch {
		case i == limit:
			return n, failed
		case s.bad[id]:
			failed = append(failed, mongo.WriteError{Index: i, Code: 121, Message: "Document failed validation"})
		case slices.ContainsFunc(s.local.docs, func(d bson.Raw) bool { return idOf(d) == id }):
			failed = append(failed, mongo.WriteError{Index: i, Code: 11000, Raw: encode(bson.D{{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}}}})})
		default:
			s.store(doc)
			n++
			continue
		}
		if ordered {
			return n, failed
		}
	}
	return n, failed
}

var errLost = mongo.CommandError{Labels: []string{driver.NetworkError}, Message: "connection closed"}

func (s *sim) held() bool { return false }

func (s *sim) member() string { return "" }

func (s *sim) direct(context.Context, bson.Raw, time.Time) (bson.Raw, error) {
	return nil, wire.ErrReleased
}

func (s *sim) insert(ctx context.Context, cmd bson.Raw) (bson.Raw, error) {
	if s.down {
		<-ctx.Done()
		return nil, topology.ServerSelectionError{Wrapped: ctx.Err()}
	}
	s.inserts++
	t := s.next()
	switch t.fault {
	case notSent:
		return nil, topology.ServerSelectionError{Wrapped: context.DeadlineExceeded}
	case lostBefore:
		return nil, errLost
	case lostAfter, lostMidway:
		limit := -1
		if t.fault == lostMidway {
			limit = t.k
		}
		s.apply(cmd, limit)
		return nil, errLost
	case election:
		s.apply(cmd, t.k)
		s.local = s.stable.clone()
		return nil, errLost
	case notPrimary, refusedMidway:
		if t.fault == refusedMidway {
			docs, _ := cmd.Lookup("documents").Array().Values()
			s.apply(cmd, min(t.k, len(docs)-1))
		}
		return nil, mongo.CommandError{Code: 10107, Name: "NotWritablePrimary"}
	case late:
		s.delayed = append(s.delayed, slices.Clone(cmd))
		return nil, errLost
	}
	return s.answer(cmd, t)
}

// answer runs the command and replies as a server does that stays alive.
func (s *sim) answer(cmd bson.Raw, t tick) (bson.Raw, error) {
	limit := -1
	docs, _ := cmd.Lookup("documents").Array().Values()
	if t.fault == notPrimaryAt && t.k < len(docs) {
		limit = t.k
	}
	n, failed := s.apply(cmd, limit)
	if ordered := cmd.Lookup("ordered").Boolean(); limit >= 0 && !(ordered && failed != nil) {
		for i := limit; i < len(docs); i++ {
			if failed = append(failed, mongo.WriteError{Index: i, Code: 10107}); ordered {
				break
			}
		}
	}
	var concern *mongo.WriteConcernError
	switch {
	case t.fault == uncommitted:
		concern = &mongo.WriteConcernError{Code: 64, Message: "waiting for replication timed out"}
	case cmd.Lookup("writeConcern", "w").Type == bson.TypeString:
		s.commit()
	}
	if failed != nil || concern != nil {
		e := mongo.WriteException{WriteConcernError: concern}
		if failed != nil {
			e.WriteErrors = failed
		}
		return nil, e
	}
	return encode(bson.D{{Key: "n", Value: int32(n)}, {Key: "ok", Value: 1.0}}), nil
}

func (s *sim) find(ctx context.Context, cmd bson.D) ([]bson.Raw, bson.Timestamp, error) {
	at := bson.Timestamp{T: 1}
	if s.down {
		<-ctx.Done()
		return nil, at, topology.ServerSelectionError{Wrapped: ctx.Err()}
	}
	switch s.next().fault {
	case notSent, lostBefore, lostAfter, lostMidway, late:
		return nil, at, errLost
	case election:
		s.local = s.stable.clone()
		return nil, at, errLost
	}
	raw := encode(cmd)
	docs := s.local.docs
	if raw.Lookup("readConcern", "level").StringValue() == "majority" {
		if raw.Lookup("readConcern", "afterClusterTime").Type != 0 {
			s.commit() // it answers at the commit
		}
		docs = s.stable.docs
	}
	if raw.Lookup("sort").Type != 0 {
		return docs[max(0, len(docs)-1):], at, nil
	}
	in := []bson.RawValue{raw.Lookup("filter", "_id", "$eq")}
	if list, ok := raw.Lookup("filter", "_id", "$in").ArrayOK(); ok {
		in, _ = list.Values()
	}
	var found []bson.Raw
	for _, doc := range docs {
		if slices.ContainsFunc(in, func(v bson.RawValue) bool { return record.IDOf(v) == idOf(doc) }) {
			found = append(found, doc)
		}
	}
	return found, at, nil
}
