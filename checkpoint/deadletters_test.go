package checkpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/checkpoint"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
)

func deadLetter(t *testing.T, doc any) record.DeadLetter {
	t.Helper()
	raw, err := bson.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.Decode(raw, record.Interner{})
	if err != nil {
		t.Fatal(err)
	}
	r.Position.TS = record.Timestamp{T: 1_700_000_000, I: 7}
	return record.DeadLetter{Consumer: "billing", Stream: "shop.orders", Record: r, Err: "no such customer", Attempts: 5,
		Time: time.Now().UTC().Truncate(time.Millisecond)}
}

func nested(depth int) bson.D {
	d := bson.D{{Key: "leaf", Value: 1}}
	for range depth - 1 {
		d = bson.D{{Key: "d", Value: d}}
	}
	return d
}

func TestDeadLettersKeepTheWholeOriginalWhateverItIs(t *testing.T) {
	t.Parallel()
	coll := mongotest.Standalone(t).DB(t).Collection("dead")
	id := bson.NewObjectID()
	padded := func(size int) bson.D {
		empty, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "data", Value: ""}})
		if err != nil {
			t.Fatal(err)
		}
		return bson.D{{Key: "_id", Value: id}, {Key: "data", Value: strings.Repeat("x", size-len(empty))}}
	}
	for name, doc := range map[string]bson.D{
		"a message": {{Key: "_id", Value: id}, {Key: "time", Value: int64(5)}, {Key: "src", Value: "p/1"}, {Key: "seq", Value: int64(9)},
			{Key: "ts", Value: bson.Timestamp{T: 1_700_000_000, I: 7}}, {Key: "subject", Value: "a.b"}, {Key: "data", Value: nil}},
		"another program's":          {{Key: "_id", Value: "text: with/slash"}, {Key: "x", Value: 1.5}},
		"odd keys and twice one key": {{Key: "_id", Value: 1}, {Key: "$a.b", Value: bson.D{{Key: "$ref", Value: 1}, {Key: "", Value: 2}}}, {Key: "c", Value: 1}, {Key: "c", Value: 2}},
		"an empty nested timestamp":  {{Key: "_id", Value: 2}, {Key: "ts", Value: bson.Timestamp{}}, {Key: "d", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}}}},
		"as deep as the server goes": {{Key: "_id", Value: 3}, {Key: "d", Value: nested(178)}},
		"16 MiB":                     padded(record.MaxDocumentSize),
		"16 MiB less 100 bytes":      padded(record.MaxDocumentSize - 100),
		"a little less than 16 MiB":  padded(record.MaxDocumentSize - 5000),
	} {
		t.Run(name, func(t *testing.T) {
			store, err := checkpoint.NewDeadLetters(coll, doer(t, 10*time.Second), checkpoint.MongoConfig{})
			if err != nil {
				t.Fatal(err)
			}
			want := deadLetter(t, doc)
			want.Consumer = name
			if err := store.Add(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			got, err := store.Get(t.Context(), name, want.Record.Position)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Record.Raw, want.Record.Raw) {
				t.Errorf("document of %d bytes comes back as %d other bytes", len(want.Record.Raw), len(got.Record.Raw))
			}
			got.Record, want.Record = record.Record{Position: got.Record.Position}, record.Record{Position: want.Record.Position}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestADeadLetterThatComesAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	coll := mongotest.ReplicaSet(t).DB(t).Collection("dead")
	store, err := checkpoint.NewDeadLetters(coll, doer(t, 0), checkpoint.MongoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l := deadLetter(t, bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "data", Value: 1}})
	for n := 1; n <= 3; n++ {
		l.Attempts = n
		l.Err = strings.Repeat("ü", 20_000)
		if err := store.Add(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error)
	for range 8 { // the race of an upsert with itself
		go func() { errs <- store.Add(t.Context(), l) }()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n, err := coll.CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 {
		t.Errorf("%d documents, error %v, want 1", n, err)
	}
	got, err := store.Get(t.Context(), "billing", l.Record.Position)
	if err != nil || got.Attempts != 3 || len(got.Err) > 17_000 || !strings.HasPrefix(got.Err, "üü") {
		t.Errorf("attempts %d, error text of %d bytes, error %v", got.Attempts, len(got.Err), err)
	}
	id, _ := l.Record.Position.ID.ObjectID()
	n, err := coll.CountDocuments(t.Context(), bson.D{{Key: "document._id", Value: id}, {Key: "consumer", Value: "billing"}})
	if err != nil || n != 1 {
		t.Errorf("a query on the original finds %d documents, error %v", n, err)
	}
	if _, err := store.Get(t.Context(), "nobody", l.Record.Position); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Errorf("error %v, want %v", err, checkpoint.ErrNotFound)
	}
}
