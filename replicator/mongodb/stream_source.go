package mongodb

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/stream"
	"github.com/seed-12ef14e5/capstan/tailer"
)

// streamSource is a stream that is read.
type streamSource struct {
	end streamEnd
	cfg StreamRouteConfig

	// Owned by the goroutine that calls Head, of which there is one at a time (see replicator.StreamLink).
	looks int
	left  *float64
	uuid  bson.Binary
}

// Describe implements replicator.StreamSource.
func (s *streamSource) Describe(ctx context.Context) (replicator.StreamInfo, error) {
	info, err := s.end.info(ctx)
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return info, fmt.Errorf("%s: %w: create it (capstan stream create %s), or correct the name", s.end.ns, err, s.end.ns)
	case err != nil:
		return info, passingStream(err)
	}
	uuid, err := hex.DecodeString(info.UUID)
	s.uuid = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: uuid}
	return info, err
}

// Open implements replicator.StreamSource. Loss is reported by records, and the subject and filter are the route's business, which
// counts what they reject.
func (s *streamSource) Open(start record.Start, waiting func(reason string)) (replicator.StreamReader, error) {
	return tailer.New(s.end.opts, s.end.ns.DB, s.end.ns.Coll, tailer.Config{
		Start: start, Visibility: s.cfg.Visibility, MaxMarks: s.cfg.Link.MaxMarks, Logger: s.cfg.Link.Logger,
		Hooks: tailer.Hooks{OnWait: waiting},
	})
}

// Head implements replicator.StreamSource.
func (s *streamSource) Head(ctx context.Context, at record.Position) (replicator.StreamHead, error) {
	head, err := s.newest(ctx)
	if err != nil {
		return head, err
	}
	if !at.IsZero() {
		if s.looks%streamLeftEvery == 0 {
			s.left = s.remaining(ctx, at)
		}
		s.looks++
		head.Left = s.left
	}
	return head, nil
}

// newest reads the end of the stream with that UUID. The primer may stand behind the first message, so two documents are looked at.
func (s *streamSource) newest(ctx context.Context) (replicator.StreamHead, error) {
	ctx, cancel := context.WithTimeout(ctx, streamReadTimeout)
	defer cancel()
	var head replicator.StreamHead
	db, err := s.end.db()
	if err != nil {
		return head, err
	}
	cmd := bson.D{
		{Key: "find", Value: s.end.ns.Coll}, {Key: "filter", Value: bson.D{}}, {Key: "sort", Value: bson.D{{Key: "$natural", Value: -1}}},
		{Key: "limit", Value: 2}, {Key: "singleBatch", Value: true}, {Key: "projection", Value: streamFields},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}, {Key: "collectionUUID", Value: s.uuid},
	}
	var reply struct {
		Cursor struct {
			FirstBatch []bson.Raw `bson:"firstBatch"`
		} `bson:"cursor"`
	}
	err = db.RunCommand(ctx, cmd).Decode(&reply)
	switch {
	case mongoerr.IsUUIDMismatch(err):
		return head, fmt.Errorf("%s: %w: %w", s.end.ns, replicator.ErrGone, err)
	case err != nil:
		return head, passingStream(fmt.Errorf("look at the end of %s: %w", s.end.ns, err))
	}
	for _, doc := range reply.Cursor.FirstBatch {
		if record.IsPrimer(doc) {
			continue
		}
		r, err := record.Decode(doc, record.Interner{})
		if err != nil {
			return head, fmt.Errorf("look at the end of %s: %w", s.end.ns, err)
		}
		return replicator.StreamHead{Position: r.Position, Src: r.Src, Seq: r.Seq}, nil
	}
	return head, nil
}

// remaining returns how many seconds the stream still holds what follows at; nil if that is not known.
func (s *streamSource) remaining(ctx context.Context, at record.Position) *float64 {
	ctx, cancel := context.WithTimeout(ctx, streamReadTimeout)
	defer cancel()
	d, err := s.end.describe(ctx, at)
	if err != nil || d.Reader == nil || !d.Reader.Found || d.Reader.Overrun == time.Duration(math.MaxInt64) {
		return nil
	}
	left := d.Reader.Overrun.Seconds()
	return &left
}

// streamFields are what tells one message from another.
var streamFields = bson.D{{Key: record.FieldID, Value: 1}, {Key: record.FieldSrc, Value: 1}, {Key: record.FieldSeq, Value: 1}, {Key: record.FieldTS, Value: 1}}
