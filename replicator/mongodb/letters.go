package mongodb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/stored"
	"github.com/seed-12ef14e5/capstan/scope"
)

const (
	// LettersCollection, in the database scope.Own of the destination, holds the dead letters of all routes.
	LettersCollection = "deadletters"
	// forgetAtOnce is how many letters Forget holds in memory.
	forgetAtOnce = 1000
)

// Letters keeps dead letters in capstan.deadletters at the destination: one document per route, namespace and _id, however often it
// is set aside. Safe for concurrent use.
type Letters struct {
	t  *Target
	ns record.Namespace

	mu sync.Mutex
	f  fence // of Add: an attempt that is repeated counts once
}

// letter is a dead letter as the collection holds it.
type letter struct {
	ID       string    `bson:"_id"`
	Route    string    `bson:"route"`
	DB       string    `bson:"db"`
	Coll     string    `bson:"coll"`
	Key      key       `bson:"key"`
	Reason   string    `bson:"reason"`
	Op       string    `bson:"op"`
	Position string    `bson:"position"`
	First    time.Time `bson:"first"`
	Time     time.Time `bson:"time"`
	Attempts int       `bson:"attempts"`
}

// key wraps an _id: a server would fill it at the top level, where it is an empty timestamp.
type key struct {
	ID bson.RawValue `bson:"id"`
}

// NewLetters returns the dead letters at t's deployment. It does no I/O; the collection is made by the first letter.
func NewLetters(t *Target) *Letters {
	return &Letters{t: t, ns: record.Namespace{DB: scope.Own, Coll: LettersCollection}}
}

// letterID names a letter by what it is about. The _id itself would not do, as not everything that is one may stand inside another.
func letterID(l replicator.Letter) []byte {
	h := sha256.New()
	for _, part := range []string{l.Route, l.Source.DB, l.Source.Coll, string([]byte{byte(l.ID.Type)}), string(l.ID.Value)} {
		_, _ = fmt.Fprintf(h, "%d:", len(part)) // a hash never fails
		_, _ = h.Write([]byte(part))
	}
	return []byte(hex.EncodeToString(h.Sum(nil)))
}

// Add stores letters; one that is there already gets the new reason and counts up.
func (ls *Letters) Add(ctx context.Context, letters []replicator.Letter) error {
	if len(letters) == 0 {
		return nil
	}
	client, numbers, err := ls.t.connected(ctx)
	if err != nil {
		return fmt.Errorf("store dead letters: %w", err)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if numbers {
		if err := ls.f.begin(client); err != nil {
			return fmt.Errorf("store dead letters: %w", err)
		}
	}
	db := client.Database(ls.ns.DB)
	for len(letters) > 0 {
		c := commandOf("update", ls.ns.Coll, true)
		for len(letters) > 0 && c.n < ls.t.cfg.Operations {
			u, err := bson.Marshal(letterUpdate(letters[0]))
			if err != nil {
				return fmt.Errorf("store dead letter of %s: %w", letters[0].Source, err)
			}
			if !c.fits(len(u)) {
				break
			}
			c.put(bson.RawValue{Type: bson.TypeString, Value: stringValue(string(letterID(letters[0])))}, u, true)
			letters = letters[1:]
		}
		failed, err := ls.t.send(ctx, &ls.f, db, ls.ns, c)
		if err == nil && len(failed) > 0 {
			err = alone(failed[0])
		}
		if err != nil {
			return fmt.Errorf("store dead letters: %w", explain(err))
		}
	}
	return nil
}

func letterUpdate(l replicator.Letter) bson.D {
	at := l.Time.UTC()
	return bson.D{
		{Key: "$set", Value: bson.D{{Key: "reason", Value: stored.Shorten(l.Reason)}, {Key: "op", Value: l.Op}, {Key: "position", Value: l.Position.String()}, {Key: "time", Value: at}}},
		{Key: "$setOnInsert", Value: bson.D{{Key: "route", Value: l.Route}, {Key: "db", Value: l.Source.DB}, {Key: "coll", Value: l.Source.Coll},
			{Key: "key", Value: key{l.ID}}, {Key: "first", Value: at}}},
		{Key: "$inc", Value: bson.D{{Key: "attempts", Value: int64(max(1, l.Attempts))}}},
	}
}

// List returns at most limit letters of a route, oldest first; 0 means all.
func (ls *Letters) List(ctx context.Context, route string, limit int) ([]replicator.Letter, error) {
	o := options.Find().SetSort(bson.D{{Key: "first", Value: 1}, {Key: "_id", Value: 1}}).SetLimit(int64(limit))
	docs, err := ls.t.layer.Find(ctx, ls.ns.DB, ls.ns.Coll, failover.ReadConfig{}, bson.D{{Key: "route", Value: route}}, o)
	if err != nil {
		return nil, fmt.Errorf("list dead letters of %q: %w", route, explain(err))
	}
	letters := make([]replicator.Letter, len(docs))
	for i, doc := range docs {
		var l letter
		err := bson.Unmarshal(doc, &l)
		var at record.Position
		if err == nil {
			at, err = record.ParsePosition(l.Position)
		}
		if err != nil {
			return nil, fmt.Errorf("dead letter %v in %s is damaged; look at it and delete it: %w", doc.Lookup("_id"), ls.ns, err)
		}
		letters[i] = replicator.Letter{Route: l.Route, Source: record.Namespace{DB: l.DB, Coll: l.Coll}, ID: l.Key.ID, Reason: l.Reason, Op: l.Op,
			Position: at, Time: l.Time.UTC(), Attempts: l.Attempts}
	}
	return letters, nil
}

// Count returns the number of letters of a route.
func (ls *Letters) Count(ctx context.Context, route string) (int64, error) {
	var n int64
	err := ls.t.layer.Read(ctx, ls.ns.DB, failover.ReadConfig{Name: ls.ns.String()}, func(ctx context.Context, db *mongo.Database) (err error) {
		n, err = db.Collection(ls.ns.Coll).CountDocuments(ctx, bson.D{{Key: "route", Value: route}})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("count dead letters of %q: %w", route, explain(err))
	}
	return n, nil
}

// Forget removes all letters of a route; none is success. Nobody may run the route.
func (ls *Letters) Forget(ctx context.Context, route string) error {
	for {
		letters, err := ls.List(ctx, route, forgetAtOnce)
		if err != nil {
			return err
		}
		for _, l := range letters {
			if err := ls.Remove(ctx, l); err != nil {
				return err
			}
		}
		if len(letters) < forgetAtOnce {
			return nil
		}
	}
}

// Remove removes one letter; none is success.
func (ls *Letters) Remove(ctx context.Context, l replicator.Letter) error {
	client, numbers, err := ls.t.connected(ctx)
	if err != nil {
		return fmt.Errorf("remove dead letter: %w", err)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if numbers {
		if err := ls.f.begin(client); err != nil {
			return fmt.Errorf("remove dead letter: %w", err)
		}
	}
	c := commandOf("delete", ls.ns.Coll, true)
	c.remove(bson.RawValue{Type: bson.TypeString, Value: stringValue(string(letterID(l)))})
	failed, err := ls.t.send(ctx, &ls.f, client.Database(ls.ns.DB), ls.ns, c)
	if len(failed) > 0 {
		err = errors.Join(err, alone(failed[0]))
	}
	if err != nil {
		return fmt.Errorf("remove dead letter: %w", explain(err))
	}
	return nil
}
