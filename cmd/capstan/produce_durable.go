package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/producer"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// checkpointCollection holds the checkpoints of a database's streams.
	checkpointCollection = "capstan_checkpoints"
	// producerPrefix keeps the names of producers apart from those of consumers.
	producerPrefix = "produce:"
	// saveEvery is the least time between two stored offsets. What was sent since is looked up one by
	// one after a crash.
	saveEvery = time.Second
	// readBudget bounds the look-up with all its attempts, lastSave the saving of a position at the end.
	readBudget = time.Minute
	lastSave   = 5 * time.Second
)

var (
	errOtherContent = errors.New("this line was sent before with other content: the input changed under the same --durable name; use another name")
	errInputChanged = errors.New("the input is not the one that was sent under this --durable name so far; use another name")
)

// durableInput makes a re-run add exactly what is missing. An _id is a function of the name and the
// line's number, the stored offset says how far everything is acknowledged, and what was sent behind
// it by a run that died is looked up: first by reading, and, because an insert of the dead run may
// still be executed, by the duplicate key that the producer then meets.
type durableInput struct {
	name    string
	store   *checkpoint.Mongo
	stored  record.Checkpoint // owned by save
	offsets *offsets
	run     *produceRun
	// finished stops keep, kept says that it has ended.
	finished, kept chan struct{}
	looking        bool // owned by feed: the dead run may have sent these lines

	mu     sync.Mutex
	verify []pending // found by their _id only; the content is still to be compared
}

// pending is a message whose _id was taken already.
type pending struct {
	line line
	m    producer.Message
}

// openDurable takes the name over, and moves the input to the stored offset.
func openDurable(ctx context.Context, r *produceRun) (*durableInput, error) {
	db := r.client.Database(r.o.name.db)
	store, err := checkpoint.NewMongo(db.Collection(checkpointCollection), r.layer, checkpoint.MongoConfig{})
	if err != nil {
		return nil, err
	}
	d := &durableInput{
		name: r.o.durable, store: store, run: r, looking: true, finished: make(chan struct{}), kept: make(chan struct{}),
	}
	if d.stored, err = store.Acquire(ctx, producerPrefix+r.o.durable, r.o.name.String(), owner()); err != nil {
		return nil, err
	}
	from := mark{lines: d.stored.Lines, bytes: d.stored.Bytes}
	if uuid, sum, ok := strings.Cut(d.stored.Fingerprint, "/"); ok {
		if uuid != r.info.Fingerprint() {
			return nil, fmt.Errorf("stream %s was created anew since %d lines were sent to it under --durable %s: delete the checkpoint to send them again (capstan checkpoint delete %s %s)",
				r.o.name, from.lines, d.name, r.o.name.db, d.stored.Name)
		}
		from.sum = sum
	}
	if err := skipTo(ctx, r.in, from); err != nil {
		return nil, err
	}
	if from.lines > 0 {
		r.env.note("%d lines were sent before; going on behind them", from.lines)
		r.handled.Store(from.bytes)
	}
	d.offsets = newOffsets(from)
	r.in.onMark = d.offsets.add
	return d, nil
}

// skipTo reads over what was sent, and checks that it still is what was sent.
func skipTo(ctx context.Context, in *lineReader, from mark) error {
	for in.number < from.lines {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := in.next(); errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: it has %d lines, and %d were sent", errInputChanged, in.number, from.lines)
		} else if err != nil {
			return err
		}
	}
	if from.lines > 0 && (in.bytes != from.bytes || hex.EncodeToString(in.sum.Sum(nil)) != from.sum) {
		return fmt.Errorf("%w: its first %d lines have changed", errInputChanged, from.lines)
	}
	return nil
}

// id derives the _id of a line's message.
func (d *durableInput) id(l line) record.ID {
	h := sha256.New()
	_, _ = io.WriteString(h, "capstan produce\x00"+d.name+"\x00") // a hash never fails
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(l.number)))
	return record.ObjectID(bson.ObjectID(h.Sum(nil)[:12]))
}

// lookUp returns the stored messages of lines, while it is possible that there are some: the dead
// run sent in order, so behind a chunk of which nothing is stored, nothing is. nil-safe.
func (d *durableInput) lookUp(ctx context.Context, r *produceRun, lines []line) (map[record.ID]bson.Raw, error) {
	if d == nil || !d.looking || len(lines) == 0 {
		return nil, nil
	}
	ids := make([]record.ID, len(lines))
	for i, l := range lines {
		ids[i] = d.id(l)
	}
	found, err := d.read(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look up what was sent before: %w", err)
	}
	d.looking = len(found) > 0
	return found, nil
}

// read returns the stored messages with one of ids, as a majority has them.
func (d *durableInput) read(ctx context.Context, ids []record.ID) (map[record.ID]bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, readBudget)
	defer cancel()
	in := make(bson.A, len(ids))
	for i, id := range ids {
		in[i] = id.RawValue()
	}
	filter := bson.D{{Key: record.FieldID, Value: bson.D{{Key: "$in", Value: in}}}}
	// What an election may take back is not "sent before".
	docs, err := d.run.layer.Find(ctx, d.run.o.name.db, d.run.o.name.coll,
		failover.ReadConfig{Preference: readpref.Primary(), Concern: readconcern.Majority()}, filter,
		options.Find().SetProjection(bson.D{{Key: record.FieldSubject, Value: 1}, {Key: record.FieldData, Value: 1}}))
	if err != nil {
		return nil, err
	}
	found := make(map[record.ID]bson.Raw, len(docs))
	for _, doc := range docs {
		found[record.IDOf(doc.Lookup(record.FieldID))] = doc
	}
	return found, nil
}

// sameContent compares what was to be sent with what is stored.
func sameContent(m producer.Message, doc bson.Raw) bool {
	subject, _ := doc.Lookup(record.FieldSubject).StringValueOK()
	data := doc.Lookup(record.FieldData)
	return subject == m.Subject && data.Type == m.Data.Type && bytes.Equal(data.Value, m.Data.Value)
}

// verifyLater takes a message whose _id turned out to be taken. It is called by the producer and
// must not read.
func (d *durableInput) verifyLater(l line, m producer.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.verify = append(d.verify, pending{l, m})
}

// verifyNow compares what verifyLater took.
func (d *durableInput) verifyNow(ctx context.Context) error {
	d.mu.Lock()
	list := d.verify
	d.verify = nil
	d.mu.Unlock()
	for len(list) > 0 {
		part := list[:min(len(list), chunkLines)]
		list = list[len(part):]
		ids := make([]record.ID, len(part))
		for i, p := range part {
			ids[i] = p.m.ID
		}
		found, err := d.read(ctx, ids)
		if err != nil {
			return fmt.Errorf("compare what was sent before: %w", err)
		}
		for _, p := range part {
			doc, ok := found[p.m.ID]
			if !ok { // evicted between the insert and now: it was there
				d.run.existed.Add(1)
				d.offsets.finish(p.line.number)
				continue
			}
			if err := d.run.found(p.line, p.m, doc); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep stores the offset about every saveEvery, until finish is called or ctx ends.
func (d *durableInput) keep(ctx context.Context) {
	defer close(d.kept)
	t := time.NewTicker(saveEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		case <-d.finished:
			return
		}
		if err := d.save(ctx); err != nil && ctx.Err() == nil {
			d.run.fail(err)
			return
		}
	}
}

// finish waits for keep and stores the last offset. ctx may have ended.
func (d *durableInput) finish(ctx context.Context) error {
	close(d.finished)
	<-d.kept
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSave)
	defer cancel()
	return d.save(ctx)
}

// save stores the offset if it moved. One goroutine at a time calls it: keep, and after that finish.
func (d *durableInput) save(ctx context.Context) error {
	if err := d.verifyNow(ctx); err != nil {
		return err
	}
	m := d.offsets.current()
	if m.lines == d.stored.Lines {
		return nil
	}
	next := d.stored.Clone()
	next.Lines, next.Bytes = m.lines, m.bytes
	next.Fingerprint = d.run.info.Fingerprint() + "/" + m.sum
	saved, err := d.store.Save(ctx, next)
	if err != nil {
		return err
	}
	d.stored = saved
	return nil
}
