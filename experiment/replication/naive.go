package replication

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
)

// The kinds of naive replicators. They are what one writes in an afternoon, with the plain driver and raw documents, and what
// capstan's figures are compared with. None survives a fault.
const (
	// NaiveCopy reads each range by Find in the order of _id and writes it by InsertMany, 1,000 documents at a time, unordered.
	NaiveCopy = "copy"
	// NaiveReplace follows a change stream with updateLookup and writes what comes as ReplaceOne with upsert, in unordered batches.
	NaiveReplace = "replace"
	// NaiveSet follows one without lookup and writes updates as $set and $unset, in ordered batches, as it must.
	NaiveSet = "set"
	// NaiveMirror copies whole databases and then follows as NaiveReplace does, from the moment after the copy: what a random run must find
	// unequal.
	NaiveMirror = "mirror"
)

// naiveBatch is how many documents a naive program writes at once.
const naiveBatch = 1000

// NaiveJob is what a naive program does. It travels as JSON.
type NaiveJob struct {
	Kind                 string
	SourceURI, TargetURI string
	// Database and Collection are the names on both sides. Databases are those of a mirror.
	Database, Collection string
	Databases            []string `json:",omitempty"`
	// Ranges is how many parts are copied side by side, cut at Bounds, which has one less.
	Ranges int
	Bounds []bson.ObjectID `json:",omitempty"`
	// Token is where to resume the change stream, in hex as MongoDB prints it; Events how many changes there are to apply.
	Token  string `json:",omitempty"`
	Events int64  `json:",omitempty"`
}

// RunNaive does a job, a NaiveJob in JSON, and returns when it is done; a mirror never is.
func RunNaive(ctx context.Context, job string) (err error) {
	var j NaiveJob
	if err := json.Unmarshal([]byte(job), &j); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	from, err := mongo.Connect(options.Client().ApplyURI(j.SourceURI))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Disconnect(context.WithoutCancel(ctx))) }()
	to, err := mongo.Connect(options.Client().ApplyURI(j.TargetURI))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Disconnect(context.WithoutCancel(ctx))) }()
	source, target := from.Database(j.Database).Collection(j.Collection), to.Database(j.Database).Collection(j.Collection)
	switch j.Kind {
	case NaiveCopy:
		var g errgroup.Group
		for i := range j.Ranges {
			g.Go(func() error { return naiveCopy(ctx, source, target, j.filter(i)) })
		}
		return g.Wait()
	case NaiveReplace, NaiveSet:
		return naiveFollow(ctx, source, target, j)
	case NaiveMirror:
		return naiveMirror(ctx, from, to, j.Databases)
	}
	return fmt.Errorf("there is no naive program %q", j.Kind)
}

// filter selects range i.
func (j NaiveJob) filter(i int) bson.D {
	cond := bson.D{}
	if i > 0 {
		cond = append(cond, bson.E{Key: "$gte", Value: j.Bounds[i-1]})
	}
	if i < j.Ranges-1 {
		cond = append(cond, bson.E{Key: "$lt", Value: j.Bounds[i]})
	}
	if len(cond) == 0 {
		return bson.D{}
	}
	return bson.D{{Key: "_id", Value: cond}}
}

func naiveCopy(ctx context.Context, source, target *mongo.Collection, filter bson.D) error {
	cur, err := source.Find(ctx, filter)
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(ctx) }()
	batch := make([]any, 0, naiveBatch)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := target.InsertMany(ctx, batch, options.InsertMany().SetOrdered(false))
		batch = batch[:0]
		return err
	}
	for cur.Next(ctx) {
		if batch = append(batch, bytes.Clone(cur.Current)); len(batch) == naiveBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return errors.Join(cur.Err(), flush())
}

// naiveFollow applies Events changes from Token on.
func naiveFollow(ctx context.Context, source, target *mongo.Collection, j NaiveJob) error {
	o := options.ChangeStream().SetMaxAwaitTime(100 * time.Millisecond)
	if j.Kind == NaiveReplace {
		o.SetFullDocument(options.UpdateLookup)
	}
	if j.Token != "" {
		o.SetResumeAfter(bson.D{{Key: "_data", Value: j.Token}})
	}
	cs, err := source.Watch(ctx, mongo.Pipeline{}, o)
	if err != nil {
		return err
	}
	defer func() { _ = cs.Close(context.WithoutCancel(ctx)) }()
	return naiveApply(ctx, cs, j.Events, j.Kind == NaiveSet, func(bson.Raw) *mongo.Collection { return target })
}

// naiveApply writes what a stream yields, until events changes are written (0: for ever). A batch is what the server sent at once,
// at most naiveBatch.
func naiveApply(ctx context.Context, cs *mongo.ChangeStream, events int64, ordered bool, where func(bson.Raw) *mongo.Collection) error {
	var done int64
	var batch []mongo.WriteModel
	var target *mongo.Collection
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := target.BulkWrite(ctx, batch, options.BulkWrite().SetOrdered(ordered))
		done += int64(len(batch))
		batch = batch[:0]
		return err
	}
	for events == 0 || done < events {
		if !cs.TryNext(ctx) {
			if err := errors.Join(cs.Err(), flush()); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
			continue
		}
		event := bytes.Clone(cs.Current)
		if coll := where(event); coll != nil {
			if target != nil && coll.Name() != target.Name() {
				if err := flush(); err != nil {
					return err
				}
			}
			if m := naiveModel(event, ordered); m != nil {
				target, batch = coll, append(batch, m)
			}
		}
		if cs.RemainingBatchLength() == 0 || len(batch) >= naiveBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// naiveModel is the write that a change becomes, nil if it becomes none.
func naiveModel(event bson.Raw, set bool) mongo.WriteModel {
	key := event.Lookup("documentKey").Document()
	full, hasFull := event.Lookup("fullDocument").DocumentOK()
	switch op := event.Lookup("operationType").StringValue(); {
	case op == "delete":
		return mongo.NewDeleteOneModel().SetFilter(key)
	case hasFull:
		return mongo.NewReplaceOneModel().SetFilter(key).SetReplacement(full).SetUpsert(true)
	case op == "update" && set:
		change := bson.D{}
		if fields := event.Lookup("updateDescription", "updatedFields").Document(); len(fields) > 5 {
			change = append(change, bson.E{Key: "$set", Value: fields})
		}
		unset := bson.D{}
		if gone, err := event.Lookup("updateDescription", "removedFields").Array().Values(); err == nil {
			for _, name := range gone {
				unset = append(unset, bson.E{Key: name.StringValue(), Value: 1})
			}
		}
		if len(unset) > 0 {
			change = append(change, bson.E{Key: "$unset", Value: unset})
		}
		if len(change) > 0 {
			return mongo.NewUpdateOneModel().SetFilter(key).SetUpdate(change)
		}
	}
	return nil
}

// naiveMirror copies databases and follows them. It goes wrong in most of the ways there are, and is the control of the random runs.
func naiveMirror(ctx context.Context, from, to *mongo.Client, databases []string) error {
	for _, db := range databases {
		names, err := from.Database(db).ListCollectionNames(ctx, bson.D{{Key: "type", Value: "collection"}})
		if err != nil {
			return err
		}
		for _, name := range names {
			// What an earlier run has copied is a duplicate.
			if err := naiveCopy(ctx, from.Database(db).Collection(name), to.Database(db).Collection(name), bson.D{}); err != nil && !mongoerr.IsDuplicateID(err) {
				return err
			}
		}
	}
	match := bson.D{{Key: "$match", Value: bson.D{{Key: "ns.db", Value: bson.D{{Key: "$in", Value: databases}}}}}}
	cs, err := from.Watch(ctx, mongo.Pipeline{match}, options.ChangeStream().SetFullDocument(options.UpdateLookup).SetMaxAwaitTime(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer func() { _ = cs.Close(context.WithoutCancel(ctx)) }()
	return naiveApply(ctx, cs, 0, false, func(event bson.Raw) *mongo.Collection {
		coll, ok := event.Lookup("ns", "coll").StringValueOK()
		if _, about := event.Lookup("documentKey").DocumentOK(); !ok || !about {
			return nil
		}
		return to.Database(event.Lookup("ns", "db").StringValue()).Collection(coll)
	})
}

// NaiveProgram is the control: a mirror without a memory, run by the arguments that come before the job. A supervisor starts it
// again whatever it ends with.
func NaiveProgram(path string, args ...string) Program {
	return Program{Path: path, Args: func(p *Pair, r Route) []string {
		job, err := json.Marshal(NaiveJob{Kind: NaiveMirror, SourceURI: p.SourceURI(), TargetURI: p.TargetURI(), Databases: []string{r.Name + "a", r.Name + "b"}})
		if err != nil {
			job = []byte(err.Error())
		}
		return append(append([]string{}, args...), string(job))
	}}
}
