package tailer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

func TestABatchThatIsNotOneIsAnErrorAndNotAnEnd(t *testing.T) {
	t.Parallel()
	good := bsoncore.NewDocumentBuilder().AppendInt32("a", 1).Build()
	for name, rest := range map[string][]byte{
		"a number":         append([]byte{byte(bson.TypeInt32), '0', 0}, 1, 0, 0, 0),
		"a cut document":   append([]byte{byte(bson.TypeEmbeddedDocument), '0', 0}, good[:len(good)-1]...),
		"an endless index": {byte(bson.TypeEmbeddedDocument), '0', '1'},
		"a short length":   {byte(bson.TypeEmbeddedDocument), '0', 0, 4, 0, 0, 0, 0},
	} {
		c := &cursor{rest: rest, id: 1}
		if c.next(t.Context(), 0) || !errors.Is(c.err, record.ErrMalformed) || len(c.rest) > 0 {
			t.Errorf("%s: %v, %d bytes left", name, c.err, len(c.rest))
		}
	}
	for name, reply := range map[string]bsoncore.Document{
		"no cursor": good,
		"no batch":  bsoncore.NewDocumentBuilder().AppendDocument("cursor", bsoncore.NewDocumentBuilder().AppendInt64("id", 1).Build()).Build(),
	} {
		c := &cursor{id: 1}
		if c.take(reply); !errors.Is(c.err, record.ErrMalformed) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

// TestADriversCursorYieldsTheSame is the way behind a mongos, on a server that is none.
func TestADriversCursorYieldsTheSame(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1"}
	w.send(t, 100)
	find := bson.D{{Key: "find", Value: "s"}, {Key: "tailable", Value: true}, {Key: "awaitData", Value: true}, {Key: "batchSize", Value: 7}}
	var got [2][]string
	for i, pinned := range []bool{false, true} {
		c, err := openCursor(t.Context(), coll, find, untilEndAwait, pinned, &lines{off: true})
		if err != nil {
			t.Fatal(err)
		}
		c.size = 9
		for c.next(t.Context(), DefaultAttemptTimeout) {
			got[i] = append(got[i], c.doc.String())
		}
		if c.err != nil || c.id == 0 || c.left() {
			t.Errorf("pinned %v: error %v, id %d, more %v", pinned, c.err, c.id, c.left())
		}
		if err := c.close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if len(got[0]) < 100 || len(got[0]) != len(got[1]) {
		t.Fatalf("%d and %d documents", len(got[0]), len(got[1]))
	}
	for i := range got[0] {
		if got[0][i] != got[1][i] {
			t.Fatalf("document %d: %s and %s", i, got[0][i], got[1][i])
		}
	}
}

// mongod 6.0.5 gives an id to a tail that is opened in the instant of the first insert, and then never a
// document. Whatever the server does: a tail either delivers, or it is known to be dead.
func TestNoTailStaysSilentThatIsNotKnownToBeDead(t *testing.T) {
	t.Parallel()
	db := mongotest.Standalone(t).DB(t)
	dead := 0
	for i := range 40 {
		name := fmt.Sprintf("c%d", i)
		if err := db.CreateCollection(t.Context(), name, options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<16)); err != nil {
			t.Fatal(err)
		}
		inserted := make(chan error, 1)
		go func() {
			_, err := db.Collection(name).InsertOne(t.Context(), bson.D{{Key: "n", Value: 1}})
			inserted <- err
		}()
		find := bson.D{{Key: "find", Value: name}, {Key: "tailable", Value: true}, {Key: "awaitData", Value: true}}
		for {
			c, err := openCursor(t.Context(), db.Collection(name), find, 10*time.Millisecond, false, &lines{off: true})
			if err != nil {
				t.Fatal(err)
			}
			if c.id == 0 {
				_ = c.close(t.Context())
				continue // there is nothing yet: it says so
			}
			if c.stillborn() {
				dead++
			} else if !c.next(t.Context(), time.Minute) {
				t.Errorf("collection %s: a tail counts as alive and does not deliver what is there (error %v)", name, c.err)
			}
			_ = c.close(t.Context())
			break
		}
		if err := <-inserted; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 40 tails were dead when they were opened", dead)
}
