package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// DefaultTimeout of MongoConfig covers an election with a server's default settings (10 s election timeout).
const DefaultTimeout = 15 * time.Second

// Doer runs a step until its outcome is known: each time under a deadline of its own, with waits in between,
// until ctx ends. A step of Do may write, one of DoRead only reads. It stops at an error that another attempt would
// meet again, and at any that is not MongoDB's, unless it has a method TryAgain() bool that returns true.
// *failover.Layer is one.
type Doer interface {
	Do(ctx context.Context, name string, step func(ctx context.Context) error) error
	DoRead(ctx context.Context, name string, step func(ctx context.Context) error) error
}

// MongoConfig configures a Mongo. The zero value is valid.
type MongoConfig struct {
	// Timeout bounds every call with all its attempts; a context that ends earlier wins. 0 means
	// DefaultTimeout. How long one attempt may take is the Doer's to say.
	Timeout time.Duration
}

func (c MongoConfig) withDefaults() MongoConfig {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	return c
}

func (c MongoConfig) validate() error {
	if c.Timeout < 0 {
		return fmt.Errorf("mongo checkpoints: Timeout is %s, it must be positive", c.Timeout)
	}
	return nil
}

// Mongo keeps one document per name in an ordinary (not capped) collection.
//
// Every change compares owner and revision with the stored ones in the filter of the write and is
// acknowledged by a majority, so a member that comes back from the dead cannot undo it, and an update
// that a frozen server executes late finds another revision and does nothing. Two writes compare nothing:
// Delete, and Set over a damaged document. All attempts of a call use one session, so on a replica set a late
// execution of these is fenced off by the server's transaction number, provided the client has retryWrites
// (the driver's default). An attempt whose
// outcome is not known is resolved by trying again and reading back, in a causally consistent session.
// Sessions follow one another: no call sees less than what an earlier one through the same Mongo was
// told is stored. A member that was primary, or a new primary that does not yet know what its
// predecessor acknowledged, would otherwise answer with an older checkpoint, and the holder would take
// its own past for somebody else's present.
//
// Every call returns by MongoConfig.Timeout, or earlier by its context. Safe for concurrent use. The
// collection's client belongs to the caller, who disconnects it after the last call.
type Mongo struct {
	coll   *mongo.Collection
	doer   Doer
	cfg    MongoConfig
	unsure unsure

	mu    sync.Mutex
	known bson.Timestamp // operation time of the last acknowledged write; zero on a standalone
}

// NewMongo returns a store in coll, whatever read and write concerns coll has, that does everything through
// doer. It does no I/O; the collection is made by the first write. Errors: a Config that is out of range.
func NewMongo(coll *mongo.Collection, doer Doer, cfg MongoConfig) (*Mongo, error) {
	if coll == nil || doer == nil {
		return nil, errors.New("mongo checkpoints: the collection or the Doer is nil")
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Mongo{coll: committed(coll), doer: doer, cfg: cfg}, nil
}

// committed returns coll with reads and writes that no election takes back.
func committed(coll *mongo.Collection) *mongo.Collection {
	journal := true
	return coll.Clone(options.Collection().
		SetReadConcern(readconcern.Majority()).
		SetReadPreference(readpref.Primary()).
		SetWriteConcern(&writeconcern.WriteConcern{W: "majority", Journal: &journal}))
}

// Acquire is as Memory.Acquire. It blocks until a majority has it; further errors: *CorruptError and
// the server's.
func (m *Mongo) Acquire(ctx context.Context, name, stream, owner string) (record.Checkpoint, error) {
	if err := checkAcquire(name, owner); err != nil {
		return record.Checkpoint{}, err
	}
	next, err := m.edit(ctx, name, func(cur record.Checkpoint, corrupt error) (record.Checkpoint, error) {
		if corrupt != nil {
			return cur, corrupt
		}
		return takeOver(cur, name, stream, owner, clock())
	})
	if err != nil {
		return record.Checkpoint{}, fmt.Errorf("acquire checkpoint %q: %w", name, err)
	}
	m.unsure.settled(name)
	return next, nil
}

// Set is as Memory.Set; further errors as for Acquire, except *CorruptError: it is the way to repair
// a damaged document.
func (m *Mongo) Set(ctx context.Context, cp record.Checkpoint) error {
	if err := checkName("name", cp.Name); err != nil {
		return err
	}
	_, err := m.edit(ctx, cp.Name, func(cur record.Checkpoint, _ error) (record.Checkpoint, error) {
		return byHand(cur, cp, clock()), nil
	})
	if err != nil {
		return fmt.Errorf("set checkpoint %q: %w", cp.Name, err)
	}
	return nil
}

// Save is as Memory.Save. It blocks until a majority has it, or until the call's deadline. Then the
// outcome may be unknown, and the next Save with the same revision, through the same Mongo, finds it
// out: it is not fenced by its own predecessor. Further errors: the server's.
func (m *Mongo) Save(ctx context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	if err := checkName("name", cp.Name); err != nil {
		return record.Checkpoint{}, err
	}
	var saved record.Checkpoint
	err := m.writing(ctx, func(ctx context.Context) (err error) {
		saved, err = m.save(ctx, cp)
		return err
	})
	if err != nil {
		return record.Checkpoint{}, fmt.Errorf("save checkpoint %q: %w", cp.Name, err)
	}
	m.unsure.settled(cp.Name)
	return saved, nil
}

// save compares and sets until the outcome is known. cur is what is believed to be stored; it goes
// up when an earlier save of ours turns out to have been stored.
func (m *Mongo) save(ctx context.Context, cp record.Checkpoint) (saved record.Checkpoint, err error) {
	cur := record.Checkpoint{Name: cp.Name, Owner: cp.Owner, Revision: cp.Revision, Stream: cp.Stream}
	look := false // cur may be out of date
	err = m.doer.Do(ctx, "save checkpoint "+cp.Name, func(ctx context.Context) error {
		if look {
			stored, err := m.holder(ctx, cp, cur)
			if _, fenced := errors.AsType[*record.FencedError](err); fenced {
				m.unsure.settled(cp.Name)
			}
			if err != nil {
				return err
			}
			cur = stored
		}
		mine := cp
		mine.Revision = cur.Revision
		next, err := replace(cur, true, mine, clock())
		if err != nil {
			return err
		}
		applied, err := m.compareAndSet(ctx, cur, next)
		look = true
		switch {
		case err != nil:
			// Also where the error says "never sent": the client may have retried by itself, and the
			// last error then hides an attempt before it.
			m.unsure.note(cp, next.Revision)
			return err
		case !applied:
			return errChanged
		}
		saved = next
		return nil
	})
	return saved, err
}

// holder returns what is stored under the name of cp, if that is cur or a save of ours whose outcome
// was unknown, and otherwise a *record.FencedError. Only what a majority has can fence.
func (m *Mongo) holder(ctx context.Context, cp, cur record.Checkpoint) (record.Checkpoint, error) {
	stored, found, err := m.find(ctx, cp.Name)
	switch {
	case err != nil:
		return record.Checkpoint{}, err
	case !found:
		return replace(stored, false, cp, clock())
	case stored.Owner == cp.Owner && (stored.Revision == cur.Revision || m.unsure.ours(cp, stored)):
		return stored, nil
	}
	return record.Checkpoint{}, &record.FencedError{Name: cp.Name, Owner: stored.Owner, Revision: stored.Revision}
}

// edit reads, changes and writes one document until nobody came between. change may be called more
// than once; writing its result twice is harmless. It gets a *CorruptError instead of a checkpoint
// where the document cannot be read, and returns it or makes a new one.
func (m *Mongo) edit(ctx context.Context, name string, change func(cur record.Checkpoint, corrupt error) (record.Checkpoint, error)) (record.Checkpoint, error) {
	var next record.Checkpoint
	err := m.writing(ctx, func(ctx context.Context) error {
		return m.doer.Do(ctx, "edit checkpoint "+name, func(ctx context.Context) error {
			cur, found, err := m.find(ctx, name)
			_, corrupt := errors.AsType[*CorruptError](err)
			if err != nil && !corrupt {
				return err
			}
			if next, err = change(cur, err); err != nil {
				return err
			}
			applied, err := m.put(ctx, cur, found, corrupt, next)
			if err == nil && !applied {
				err = errChanged
			}
			return err
		})
	})
	if err != nil {
		return record.Checkpoint{}, err
	}
	return next, nil
}

func (m *Mongo) put(ctx context.Context, cur record.Checkpoint, found, corrupt bool, next record.Checkpoint) (applied bool, err error) {
	if found {
		return m.compareAndSet(ctx, cur, next)
	}
	if corrupt { // nothing in it can be compared
		res, err := m.coll.ReplaceOne(ctx, byName(next.Name), entryOf(next))
		return err == nil && res.MatchedCount == 1, err
	}
	_, err = m.coll.InsertOne(ctx, entryOf(next))
	if mongoerr.IsDuplicateID(err) {
		return false, nil // somebody, or an earlier attempt of ours, was first: read again
	}
	return err == nil, err
}

func byName(name string) bson.D { return bson.D{{Key: "_id", Value: name}} }

// compareAndSet replaces cur by next if owner and revision are still those of cur.
func (m *Mongo) compareAndSet(ctx context.Context, cur, next record.Checkpoint) (applied bool, err error) {
	filter := bson.D{{Key: "_id", Value: next.Name}, {Key: "owner", Value: cur.Owner}, {Key: "revision", Value: cur.Revision}}
	res, err := m.coll.ReplaceOne(ctx, filter, entryOf(next))
	if err != nil {
		return false, err // also with a write concern error: applied on that member only
	}
	return res.MatchedCount == 1, nil
}

// find reads what a majority has. In a session it sees what the session's earlier replies knew.
func (m *Mongo) find(ctx context.Context, name string) (cp record.Checkpoint, found bool, err error) {
	raw, err := m.coll.FindOne(ctx, byName(name)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return record.Checkpoint{}, false, nil
	}
	if err != nil {
		return record.Checkpoint{}, false, err
	}
	cp, err = m.decode(raw)
	return cp, err == nil, err
}

func (m *Mongo) decode(raw bson.Raw) (record.Checkpoint, error) {
	var e entry
	err := bson.Unmarshal(raw, &e)
	var cp record.Checkpoint
	if err == nil {
		cp, err = e.checkpoint()
	}
	if err != nil {
		id, _ := raw.Lookup("_id").StringValueOK()
		return record.Checkpoint{}, &CorruptError{Path: fmt.Sprintf("%s.%s, document %q", m.coll.Database().Name(), m.coll.Name(), id), Err: err}
	}
	return cp, nil
}

// changedError says that another process changed the checkpoint in between: look again.
type changedError struct{}

func (changedError) Error() string { return "another process changed the checkpoint in between" }

// TryAgain is for the Doer.
func (changedError) TryAgain() bool { return true }

var errChanged error = changedError{}

// session runs f in a causally consistent session that begins at what is known to be stored, within the
// call's time.
func (m *Mongo) session(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.Timeout, fmt.Errorf("no outcome within %s", m.cfg.Timeout))
	defer cancel()
	s, err := m.coll.Database().Client().StartSession(options.Session().SetCausalConsistency(true))
	if err != nil {
		return fmt.Errorf("start session: %w", err)
	}
	defer s.EndSession(ctx)
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	if !known.IsZero() {
		if err := s.AdvanceOperationTime(&known); err != nil {
			return fmt.Errorf("start session: %w", err)
		}
	}
	return f(mongo.NewSessionContext(ctx, s))
}

// writing is session for a call that returns nil only after a majority has what it wrote. Only such
// times are remembered: what a mere reply tells of may still be rolled back.
func (m *Mongo) writing(ctx context.Context, f func(ctx context.Context) error) error {
	return m.session(ctx, func(ctx context.Context) error {
		if err := f(ctx); err != nil {
			return err
		}
		if at := mongo.SessionFromContext(ctx).OperationTime(); at != nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			if at.After(m.known) {
				m.known = *at
			}
		}
		return nil
	})
}
