package producer

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
)

// direct is the simplest Writer on a real server: one InsertMany, no retries.
type direct struct{ coll *mongo.Collection }

func (w direct) WriteBatch(ctx context.Context, docs []bson.Raw) (int, error) {
	_, err := w.coll.InsertMany(ctx, docs)
	bulk, refused := errors.AsType[mongo.BulkWriteException](err)
	if refused && len(bulk.WriteErrors) == 1 {
		i := bulk.WriteErrors[0].Index
		return i, &record.RejectedError{Index: i, ID: idAtIndex(docs, i), Err: err}
	}
	if err != nil {
		return 0, &record.UnknownOutcomeError{IDs: allIDs(docs), Attempts: 1, Err: err}
	}
	return len(docs), nil
}

// produce runs a producer on a real capped collection while f uses it.
func produce(t *testing.T, create bson.D, f func(*Producer, *mongo.Collection)) {
	t.Helper()
	db := mongotest.Standalone(t).DB(t)
	cmd := append(bson.D{{Key: "create", Value: "s"}, {Key: "capped", Value: true}, {Key: "size", Value: 100 << 20}}, create...)
	if err := db.RunCommand(t.Context(), cmd).Err(); err != nil {
		t.Fatal(err)
	}
	p, err := New(direct{db.Collection("s")}, Config{Name: "real"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(t.Context()) }()
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}()
	f(p, db.Collection("s"))
}

// What the producer accepts must not fail in the server: one bad message would take its batch along.
func TestWhateverIsAcceptedIsStoredByteByByte(t *testing.T) {
	t.Parallel()
	produce(t, nil, func(p *Producer, coll *mongo.Collection) {
		empty := bson.Timestamp{}
		for name, m := range map[string]Message{
			"nothing":                     {},
			"deepest payload":             {Data: value(t, nested(t, maxDepth))},
			"deepest headers":             {Headers: nested(t, maxDepth)},
			"odd keys":                    {Data: value(t, bson.D{{Key: "$a", Value: 1}, {Key: "b.c", Value: 2}, {Key: "", Value: 3}, {Key: "$a", Value: 4}})},
			"nested empty timestamp":      {Data: value(t, bson.D{{Key: "ts", Value: empty}, {Key: "a", Value: bson.A{empty}}})},
			"empty timestamp in headers":  {Headers: document(t, bson.D{{Key: "ts", Value: empty}})},
			"the empty timestamp as _id":  {ID: record.IDOf(value(t, empty))},
			"a document as _id":           {ID: record.IDOf(value(t, bson.D{{Key: "file", Value: "a"}, {Key: "line", Value: int64(7)}}))},
			"minKey":                      {Data: value(t, bson.MinKey{})},
			"undefined":                   {Data: value(t, bson.Undefined{})},
			"invalid UTF-8 in a payload":  {Data: value(t, "a\xffb")},
			"code, regex, db pointer":     {Data: value(t, bson.A{bson.CodeWithScope{Code: "x", Scope: bson.D{}}, bson.Regex{Pattern: "a"}, bson.DBPointer{DB: "x"}})},
			"nearly 16 MB":                {Data: value(t, strings.Repeat("x", record.MaxDocumentSize-1000))},
			"headers, subject and string": {Subject: "größe.a", Headers: document(t, bson.D{{Key: "h", Value: 1}}), Data: value(t, "text")},
		} {
			r, err := p.SendSync(t.Context(), m)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			doc, err := coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: r.ID.RawValue()}}).Raw()
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			got, err := record.Decode(doc, record.Interner{})
			if err != nil || got.Src != p.Src() || got.Seq != r.Seq || got.Time == 0 || got.Position.TS.IsZero() || got.Subject != m.Subject {
				t.Errorf("%s: stored %+v, %v", name, got, err)
			}
			if d := got.Data(); d.Type != m.Data.Type || string(d.Value) != string(m.Data.Value) || string(got.Headers()) != string(m.Headers) {
				t.Errorf("%s: the payload or the headers changed", name)
			}
		}
	})
}

func TestWhatAValidatorRefusesLeavesNoHole(t *testing.T) {
	t.Parallel()
	refuse := bson.D{{Key: "validator", Value: bson.D{{Key: "data", Value: bson.D{{Key: "$ne", Value: "bad"}}}}}}
	produce(t, refuse, func(p *Producer, coll *mongo.Collection) {
		good, bad := value(t, "good"), value(t, "bad")
		var stored, refused int
		for i := range 200 {
			data := good
			if i%7 == 3 {
				data = bad
			}
			err := p.Send(t.Context(), Message{Data: data}, func(r Result) {
				var rejected *record.RejectedError
				switch {
				case r.Err == nil:
					if stored++; r.Seq != int64(stored) {
						t.Errorf("seq %d, want %d", r.Seq, stored)
					}
				case errors.As(r.Err, &rejected) && r.Seq == 0:
					refused++
				default:
					t.Errorf("%+v", r)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		cur, err := coll.Find(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var docs []struct{ Seq int64 }
		if err := cur.All(t.Context(), &docs); err != nil {
			t.Fatal(err)
		}
		for i, d := range docs {
			if d.Seq != int64(i+1) {
				t.Fatalf("stored message %d has seq %d", i, d.Seq)
			}
		}
		if len(docs) != stored || stored+refused != 200 || refused != 29 {
			t.Errorf("%d stored, %d acknowledged, %d refused", len(docs), stored, refused)
		}
	})
}
