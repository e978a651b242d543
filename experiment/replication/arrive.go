package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/pace"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

const (
	// poll is how often it is looked whether the destination has arrived.
	poll = 100 * time.Millisecond
	// askTime bounds one look at either side.
	askTime = 5 * time.Second
	// markCollection holds the last document of a run.
	markCollection = "marks"
)

// mark writes a last document to a database of the source and returns its time there.
func (p *Pair) mark(ctx context.Context, db string) (record.Timestamp, error) {
	session, err := p.From.StartSession()
	if err != nil {
		return record.Timestamp{}, err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	_, err = p.From.Database(db).Collection(markCollection).InsertOne(mongo.NewSessionContext(ctx, session), bson.D{{Key: "_id", Value: "end"}})
	if err != nil {
		return record.Timestamp{}, fmt.Errorf("write the last document: %w", err)
	}
	at := session.OperationTime()
	return record.Timestamp{T: at.T, I: at.I}, nil
}

// tick writes to another database of the source: a source without writes says only every ten seconds how far it is.
func (p *Pair) tick(ctx context.Context) error {
	_, err := p.From.Database("ticks").Collection("ticks").UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, upsert())
	if err != nil {
		return fmt.Errorf("write to the source: %w", err)
	}
	return nil
}

// await returns when there says that the destination has arrived. Errors wrap errJudged if it does not within patience,
// or if the replicator ends.
func (p *Pair) await(ctx context.Context, patience time.Duration, r *runner, there func(context.Context) (bool, error)) error {
	over := time.Now().Add(patience)
	last := errors.New("nothing is known of the route")
	for time.Now().Before(over) {
		if err := r.check(ctx); err != nil {
			return fmt.Errorf("%w: %w", errJudged, err)
		}
		ok, err := there(ctx)
		if ok {
			return nil
		}
		if err != nil {
			last = err
		}
		if err := pace.Sleep(ctx, poll); err != nil {
			return err
		}
		if err := p.tick(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the destination did not catch up within %s: %w", errJudged, patience, last)
}

// passed reports whether a route is live and its checkpoint has passed a time. The error says what is missing.
func passed(ctx context.Context, m Memory, route string, at record.Timestamp) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	s, err := m.Load(ctx, route)
	switch {
	case err != nil:
		return false, err
	case s.Phase != replicator.PhaseLive:
		return false, fmt.Errorf("it is %s %s", s.Phase, s.Reason)
	case s.Position.TS.Compare(at) < 0:
		return false, fmt.Errorf("its checkpoint is %v, the source is at %v", s.Position.TS, at)
	}
	return true, nil
}
