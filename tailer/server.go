package tailer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// hello is what a member says about itself.
type hello struct {
	primary    bool
	replicaSet bool // or a mongos, which has one behind it
	mongos     bool
	// election is the id of the term's election: while it stays, nothing was rolled back on the primary.
	election bson.ObjectID
	// opTime is the operationTime of the reply: an optime that this member has. Zero on a standalone.
	opTime record.Timestamp
}

// hello asks the member for its state. It blocks for at most Config.AttemptTimeout.
func (l *loop) hello(ctx context.Context) (hello, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AttemptTimeout)
	defer cancel()
	raw, err := l.collection.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Raw()
	if err != nil {
		return hello{}, fmt.Errorf("ask the server for its state: %w", l.late(ctx, err))
	}
	var h hello
	h.primary, _ = raw.Lookup("isWritablePrimary").BooleanOK()
	msg, _ := raw.Lookup("msg").StringValueOK()
	h.mongos = msg == "isdbgrid"
	_, set := raw.Lookup("setName").StringValueOK()
	h.replicaSet = set || h.mongos
	h.election, _ = raw.Lookup("electionId").ObjectIDOK()
	if t, i, ok := raw.Lookup("operationTime").TimestampOK(); ok {
		h.opTime = record.Timestamp{T: t, I: i}
		if h.opTime.Compare(l.opTime) > 0 {
			l.opTime = h.opTime
		}
	}
	return h, nil
}

// query runs one find that returns one batch. It blocks for at most Config.AttemptTimeout.
func (l *loop) query(ctx context.Context, rest bson.D) ([]bson.Raw, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AttemptTimeout)
	defer cancel()
	cmd := append(bson.D{{Key: "find", Value: l.collection.Name()}, {Key: "singleBatch", Value: true}, {Key: "collectionUUID", Value: l.uuid}}, rest...)
	raw, err := l.collection.Database().RunCommand(ctx, cmd).Raw()
	if err != nil {
		return nil, l.late(ctx, err)
	}
	batch, ok := raw.Lookup("cursor", "firstBatch").ArrayOK()
	if !ok {
		return nil, fmt.Errorf("read the reply to a find: %w", record.ErrMalformed)
	}
	values, err := batch.Values()
	if err != nil {
		return nil, fmt.Errorf("read the reply to a find: %w", err)
	}
	docs := make([]bson.Raw, 0, len(values))
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok {
			docs = append(docs, doc)
		}
	}
	return docs, nil
}

// concern is the read concern of everything but the confirmation: local, and after a failover not
// before the last operation that this reader knows of, so that a member that is behind cannot make
// messages look lost.
func (l *loop) concern() bson.D {
	c := bson.D{{Key: "level", Value: "local"}}
	if l.server.replicaSet && !l.opTime.IsZero() && l.patience <= causalPatience {
		c = append(c, bson.E{Key: "afterClusterTime", Value: bson.Timestamp(l.opTime)})
	}
	return c
}

// probe is one message looked up, without its payload.
type probe struct {
	record.Record
	primer bool
	size   int // of the whole document, in bytes
}

// look returns the first message that the filter and the natural order (1 or -1) select, nil if there
// is none.
func (l *loop) look(ctx context.Context, filter bson.D, order int) (*probe, error) {
	rest := bson.D{
		{Key: "filter", Value: filter},
		{Key: "limit", Value: 1},
		{Key: "projection", Value: bson.D{
			{Key: record.FieldSrc, Value: 1}, {Key: record.FieldSeq, Value: 1}, {Key: record.FieldTS, Value: 1},
			{Key: sizeField, Value: bson.D{{Key: "$bsonSize", Value: "$$ROOT"}}},
		}},
		{Key: "readConcern", Value: l.concern()},
	}
	if order != 0 {
		rest = append(rest, bson.E{Key: "sort", Value: bson.D{{Key: "$natural", Value: order}}})
	}
	docs, err := l.query(ctx, rest)
	if err != nil {
		return nil, fmt.Errorf("look up a message of %s: %w", l.ns, err)
	}
	if len(docs) == 0 {
		return nil, nil
	}
	r, err := record.Decode(docs[0], l.intern)
	if err != nil {
		return nil, fmt.Errorf("look up a message of %s: %w", l.ns, err)
	}
	p := &probe{Record: r, primer: record.IsPrimer(docs[0])}
	if n, ok := docs[0].Lookup(sizeField).AsInt64OK(); ok {
		p.size = int(n)
	}
	return p, nil
}

// sizeField is a name that no message's field in the projection has.
const sizeField = "capstanSize"

// byID selects one message.
func byID(id record.ID) bson.D { return bson.D{{Key: record.FieldID, Value: id.RawValue()}} }

// identify finds out what the namespace is now. It returns errMissing if it does not exist, and a
// typed error if it cannot be tailed or was renamed; a changed UUID is noted as a re-creation.
func (l *loop) identify(ctx context.Context) error {
	spec, err := l.specification(ctx)
	if err != nil {
		return err
	}
	same := spec != nil && spec.UUID != nil && l.uuid.Data != nil && string(spec.UUID.Data) == string(l.uuid.Data)
	if !same && l.uuid.Data != nil && !l.dropped {
		if err := l.renamed(ctx); err != nil {
			return err
		}
	}
	l.dropped = spec == nil
	if l.dropped {
		return errMissing
	}
	capped, _ := spec.Options.Lookup("capped").BooleanOK()
	if spec.Type != "collection" || !capped {
		return &NotCappedError{Namespace: l.ns, Kind: spec.Type}
	}
	if spec.UUID == nil {
		return fmt.Errorf("look up %s: the server gives no UUID (MongoDB 6.0 or newer is needed)", l.ns)
	}
	if !same {
		l.adopt(bson.Binary{Subtype: spec.UUID.Subtype, Data: spec.UUID.Data})
	}
	l.identified = true
	return nil
}

func (l *loop) specification(ctx context.Context) (*mongo.CollectionSpecification, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AttemptTimeout)
	defer cancel()
	specs, err := l.collection.Database().ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: l.collection.Name()}})
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", l.ns, l.late(ctx, err))
	}
	if len(specs) == 0 {
		return nil, nil
	}
	return &specs[0], nil
}

// renamed returns a *RenamedError if the collection that was tailed lives under another name.
func (l *loop) renamed(ctx context.Context) error {
	_, err := l.query(ctx, bson.D{{Key: "limit", Value: 1}, {Key: "projection", Value: bson.D{{Key: record.FieldID, Value: 1}}}})
	if name, ok := mongoerr.ActualCollection(err); ok {
		if name != "" {
			return &RenamedError{Namespace: l.ns, To: l.collection.Database().Name() + "." + name}
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %s by its UUID: %w", l.ns, err)
	}
	return nil
}

// adopt takes the collection with the given UUID as the stream. A UUID that is not the one before, or
// not that of Start, is a re-created stream: what was unread in the old one is gone, and the new one
// is read from its oldest message.
func (l *loop) adopt(uuid bson.Binary) {
	fingerprint := hex.EncodeToString(uuid.Data)
	before := l.fingerprint
	if before == "" {
		before = l.start.Fingerprint
	}
	l.uuid, l.fingerprint = uuid, fingerprint
	if before == "" || before == fingerprint {
		return
	}
	l.logger.Warn().Str("was", before).Str("is", fingerprint).Msg("the stream was created anew")
	l.ledger.lose(record.CauseRecreated, l.after, l.recently(), true)
	l.ledger.lost = true
	l.after, l.primer, l.placed = record.Position{}, record.Position{}, true
	l.start = record.Start{Where: record.Earliest}
	l.since, l.unfiltered, l.base, l.ids, l.end = record.Timestamp{}, false, nil, recent{}, record.ID{}
}

// recently is the timestamp from which on a src counts as active at the present position.
func (l *loop) recently() record.Timestamp { return before(l.after.TS, l.overlap()) }

// overlap is Config.Overlap in whole seconds, rounded up.
func (l *loop) overlap() uint32 {
	return uint32(min(math.Ceil(l.cfg.Overlap.Seconds()), math.MaxUint32))
}

// late returns errWatchdog together with err if it was ctx's deadline that ended the command.
func (l *loop) late(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", errWatchdog, err)
	}
	return err
}
