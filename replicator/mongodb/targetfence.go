package mongodb

import (
	"context"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

const (
	// fencesCollection, in the database scope.Own, is written to by what fences sessions off: a transaction number
	// outlasts an election only if something was written with it.
	fencesCollection = "fences"
	// fencers is how many sessions are fenced off at the same time.
	fencers = 4
)

// fence is a session with the number of its last command. It is for one goroutine at a time.
type fence struct {
	sess   *mongo.Session // nil on a standalone server, and before the first use
	number int64
}

// begin makes the session, if there is none yet. It is not ended: Close of the layer's client ends it.
func (f *fence) begin(c *mongo.Client) error {
	if f.sess != nil {
		return nil
	}
	s, err := c.StartSession() // no round trip
	if err != nil {
		return fmt.Errorf("start session: %w", err)
	}
	f.sess = s
	return nil
}

// within returns ctx with the session.
func (f *fence) within(ctx context.Context) context.Context {
	if f.sess == nil {
		return ctx
	}
	return mongo.NewSessionContext(ctx, f.sess)
}

// worker returns the session of a worker of Apply.
func (t *Target) worker(n int) *fence {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n >= len(t.workers) {
		t.workers = append(t.workers, &fence{})
	}
	return t.workers[n]
}

// Fence ends what an earlier process with the sessions old may still have in progress or still send, and returns the ids of this
// one's, for workers and copies. When it returns, nothing of the earlier one runs any more, and every later write of it is refused
// with ErrTakenOver, on every member and across elections, as long as the server keeps an idle session (30 minutes). It needs no
// more than the right to write to the database capstan. The ids must be stored before the first write, so that the next process can
// do the same. On a standalone server there are no sessions, and Fence does nothing.
func (t *Target) Fence(ctx context.Context, old []bson.Raw, workers int) ([]bson.Raw, error) {
	client, numbers, err := t.connected(ctx)
	if err != nil {
		return nil, fmt.Errorf("fence off an earlier process: %w", err)
	}
	if !numbers {
		return nil, nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(fencers)
	for i, id := range old {
		g.Go(func() error { return t.fenceOff(gctx, client, i, id) })
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("fence off an earlier process: %w", explain(err))
	}
	var ids []bson.Raw
	add := func(f *fence) error {
		if err := f.begin(client); err != nil {
			return err
		}
		ids = append(ids, append(bson.Raw(nil), f.sess.ID()...))
		return nil
	}
	for n := range workers {
		if err := add(t.worker(n)); err != nil {
			return nil, err
		}
	}
	for _, f := range t.spare {
		if err := add(f); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// fenceOff writes something with the highest number in the session id. The server lets what runs in the session end first.
func (t *Target) fenceOff(ctx context.Context, client *mongo.Client, slot int, id bson.Raw) error {
	s, err := client.StartSession()
	if err != nil {
		return err
	}
	// The driver makes random ids only, and shows the bytes of its own: this is the way to use one that is known (a test would see
	// it if that ended). The session is never ended, as it would come to the driver's pool.
	if len(s.ID()) != len(id) {
		return fmt.Errorf("the stored session %v is none of MongoDB's", id)
	}
	copy(s.ID(), id)
	u := commandOf("update", fencesCollection, true)
	u.put(bson.RawValue{Type: bson.TypeString, Value: stringValue(fmt.Sprintf("slot %d", slot))}, []byte(fenceUpdate(id)), true)
	_, err = t.send(ctx, &fence{sess: s, number: math.MaxInt64 - 1}, client.Database(scope.Own), record.Namespace{DB: scope.Own, Coll: fencesCollection}, u)
	return err
}

// fenceUpdate always changes the document.
func fenceUpdate(id bson.Raw) bson.Raw {
	b, err := bson.Marshal(bson.D{{Key: "$inc", Value: bson.D{{Key: "count", Value: int64(1)}}}, {Key: "$set", Value: bson.D{{Key: "last", Value: id}}}})
	if err != nil {
		panic(err) // of constants and a document
	}
	return b
}
