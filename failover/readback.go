package failover

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

// errGone is the reason to send again.
var errGone = errors.New("the document that held the _id is not there any more")

// readBack finds out what is stored under the _ids that were taken, or whose documents were refused after an
// attempt that may have stored them. As on streams, "local" on the primary says what is not there, and
// "majority" at that time or later what is there to stay.
func (c *call) readBack(ctx context.Context) error {
	var in bson.A
	for size := 0; len(in) < min(len(c.looking), maxLookUp); {
		doc := c.docs[c.looking[len(in)]]
		if size += len(doc); size > wantCommandSize && len(in) > 0 { // they are read whole
			break
		}
		in = append(in, doc.Lookup(record.FieldID))
	}
	look := c.looking[:len(in)]
	filter := bson.D{{Key: record.FieldID, Value: bson.D{{Key: "$in", Value: in}}}}
	local, at, err := c.find(ctx, "local", bson.Timestamp{}, filter, len(look), bson.E{Key: "projection", Value: bson.D{{Key: record.FieldID, Value: 1}}})
	if err != nil {
		return err
	}
	var committed map[record.ID]bson.Raw
	if len(local) > 0 {
		if committed, _, err = c.find(ctx, "majority", at, filter, len(look)); err != nil {
			return err
		}
	}
	var later []int
	var again error
	for _, i := range look {
		id := idOf(c.docs[i])
		switch stored := committed[id]; {
		case stored != nil:
			c.compare(i, stored)
		case local[id] != nil:
			later, again = append(later, i), errUncommitted
		default:
			known, err := c.absent(ctx, at, i)
			if err != nil {
				return err
			}
			if !known {
				again = errGone
			}
		}
	}
	c.looking = append(later, c.looking[len(look):]...)
	return again
}

// compare settles a document under whose _id another one or itself is stored.
func (c *call) compare(i int, stored bson.Raw) {
	same := SameDocument
	if c.w.cfg.Same != nil {
		same = c.w.cfg.Same
	}
	if same(c.docs[i], stored) {
		c.applied(i)
		return
	}
	c.reject(i, &ConflictError{Namespace: c.w.ns, ID: idOf(c.docs[i])})
}

// absent settles a document that the primary does not have, unless it is to be sent again.
func (c *call) absent(ctx context.Context, at bson.Timestamp, i int) (known bool, err error) {
	if c.has(i, refused) {
		reason := c.outcomes[i].Err
		c.reject(i, reason)
		return true, nil
	}
	// An _id can be taken by one that is not the same: 1 and 1.0 are one key to the server, and with a
	// collation so are "a" and "A".
	filter := bson.D{{Key: record.FieldID, Value: bson.D{{Key: "$eq", Value: c.docs[i].Lookup(record.FieldID)}}}}
	docs, _, err := c.find(ctx, "majority", at, filter, 1)
	if err != nil {
		return false, err
	}
	for _, stored := range docs {
		c.compare(i, stored)
		return true, nil
	}
	c.doubts[i] &^= taken
	c.open = append(c.open, i)
	return false, nil
}

// find reads documents of the collection, by their _id.
func (c *call) find(ctx context.Context, level string, after bson.Timestamp, filter bson.D, batch int, more ...bson.E) (map[record.ID]bson.Raw, bson.Timestamp, error) {
	var docs []bson.Raw
	var at bson.Timestamp
	cmd := findCommand(c.w.coll, c.w.uuid, level, after, filter, append(more, bson.E{Key: "batchSize", Value: batch})...)
	err := c.w.layer.attempt(ctx, Attempt{Kind: KindResolve, Name: c.w.ns}, true, func(ctx context.Context) (err error) {
		docs, at, err = c.ins.srv.find(ctx, cmd)
		return err
	})
	if err != nil {
		if mongoerr.Classify(err).Read != mongoerr.ReadRetry {
			err = final{replaced(c.w.ns, c.w.cfg.UUID, err)}
		}
		return nil, at, err
	}
	byID := make(map[record.ID]bson.Raw, len(docs))
	for _, doc := range docs {
		byID[idOf(doc)] = doc
	}
	return byID, at, nil
}
