package mongoerr_test

import (
	"bytes"
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// second makes an answer of an insert of three documents whose middle one is refused.
func second(t *testing.T, c *mongo.Collection, bad bson.D, want int) answer {
	t.Helper()
	ids := []any{"before", bad[0].Value, "behind"}
	return answer{insertAll(t.Context(), c, []bson.D{doc("before"), bad, doc("behind")}), c, ids, want}
}

// documentEvents are about one document of several: what is before it is applied, the rest is not.
var documentEvents = []happening{
	{11000, asDocument, "duplicate _id", func(t *testing.T, w *world) answer {
		c := w.coll()
		if err := insert(t.Context(), c, doc("twice")); err != nil {
			t.Fatal(err)
		}
		return second(t, c, doc("twice"), 2)
	}},
	{11000, asDocument, "duplicate _id in a collection with a collation", func(t *testing.T, w *world) answer {
		c := w.made(t, options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 1}))
		if err := insert(t.Context(), c, doc("twice")); err != nil {
			t.Fatal(err)
		}
		// For this collection it is the same _id, and for whoever compares bytes it is not.
		return second(t, c, doc("TWICE"), 2)
	}},
	{11000, asDocument, "duplicate on another index", func(t *testing.T, w *world) answer {
		c := w.coll()
		if _, err := c.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{e("n", 1)}, Options: options.Index().SetUnique(true)}); err != nil {
			t.Fatal(err)
		}
		if err := insert(t.Context(), c, doc("first", e("n", 7))); err != nil {
			t.Fatal(err)
		}
		return second(t, c, doc("second", e("n", 7)), 1)
	}},
	{121, asDocument, "validator", func(t *testing.T, w *world) answer {
		c := w.made(t, options.CreateCollection().SetValidator(bson.D{e("bad", bson.D{e("$exists", false)})}))
		return second(t, c, doc("bad", e("bad", true)), 1)
	}},
	{2, asDocument, "document of more than 16 MiB", func(t *testing.T, w *world) answer {
		return second(t, w.coll(), doc("large", e("data", make([]byte, 16<<20))), 1)
	}},
	{10334, asCommand, "command of more than 16 MiB", func(t *testing.T, w *world) answer {
		c, large := w.coll(), make([]byte, 9<<20)
		return answer{insertAll(t.Context(), c, []bson.D{doc("a", e("data", large)), doc("b", e("data", large))}), c, []any{"a", "b"}, 0}
	}},
	{16755, asDocument, "no point on the globe", func(t *testing.T, w *world) answer {
		c := w.coll()
		if _, err := c.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{e("at", "2dsphere")}}); err != nil {
			t.Fatal(err)
		}
		return second(t, c, doc("nowhere", e("at", "nowhere")), 1)
	}},
	{52, asDocument, "dollar sign in _id", func(t *testing.T, w *world) answer {
		return second(t, w.coll(), doc(bson.D{e("$x", 1)}), 1)
	}},
	{53, asDocument, "array as _id", func(t *testing.T, w *world) answer {
		return second(t, w.coll(), doc(bson.A{1}), 1)
	}},
	{22, asCommand, "bytes that are no BSON", func(t *testing.T, w *world) answer {
		c := w.coll()
		cmd, err := bson.Marshal(bson.D{e("insert", c.Name()), e("documents", bson.A{doc("before"), doc("bad", e("flag", true))})})
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(cmd, []byte("flag\x00\x01"))
		cmd[at+len("flag\x00")] = 2 // neither false nor true
		err = w.db.RunCommand(t.Context(), bson.Raw(cmd)).Err()
		return answer{err, c, []any{"before"}, 0}
	}},
	{54, asRead, "upsert with two values for one field", func(t *testing.T, w *world) answer {
		filter := bson.D{e("$and", bson.A{bson.D{e("a", 1)}, bson.D{e("a", 2)}})}
		return update(t, w, filter, bson.D{e("$set", bson.D{e("b", 1)})}, true)
	}},
	{66, asRead, "replacement with another _id", func(t *testing.T, w *world) answer {
		c := w.made(t, options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 1}))
		if err := insert(t.Context(), c, doc("a")); err != nil {
			t.Fatal(err)
		}
		_, err := c.ReplaceOne(t.Context(), doc("A"), doc("A"))
		return answer{err: err}
	}},
	{56, asRead, "empty field name", func(t *testing.T, w *world) answer {
		return update(t, w, bson.D{}, bson.D{e("$set", bson.D{e("a..b", 1)})}, true)
	}},
}

// update runs one update; its error counts as that of a read, as the insert's forms do not fit.
func update(t *testing.T, w *world, filter, change any, upsert bool) answer {
	_, err := w.coll().UpdateOne(t.Context(), filter, change, options.UpdateOne().SetUpsert(upsert))
	return answer{err: err}
}

// commandEvents are refused as a whole.
var commandEvents = []happening{
	{9, asRead, "unknown operator of an update", func(t *testing.T, w *world) answer {
		return update(t, w, bson.D{}, bson.D{e("$unknown", bson.D{e("b", 1)})}, false)
	}},
	{14, asCommand, "documents are no array", func(t *testing.T, w *world) answer {
		c := w.coll()
		err := w.db.RunCommand(t.Context(), bson.D{e("insert", c.Name()), e("documents", "a")}).Err()
		return answer{err, c, []any{"a"}, 0}
	}},
	{40415, asCommand, "unknown field of the command", func(t *testing.T, w *world) answer {
		c := w.coll()
		return answer{insert(t.Context(), c, doc("a"), e("collectionUuid", 1)), c, []any{"a"}, 0}
	}},
	{73, asCommand, "name that is not allowed", func(t *testing.T, w *world) answer {
		c := w.db.Collection(".a")
		return answer{err: insert(t.Context(), c, doc("a"))}
	}},
	{20, asCommand, "transaction number without a set", func(t *testing.T, w *world) answer {
		c := w.coll()
		return answer{numbered(t, w.session(t), c, "a", 1), c, []any{"a"}, 0}
	}},
	{166, asDocument, "insert into a view", func(t *testing.T, w *world) answer {
		return answer{err: insert(t.Context(), view(t, w), doc("a"))}
	}},
	{361, asDocument, "collection dropped and made again", func(t *testing.T, w *world) answer {
		c, old := replaced(t, w)
		return answer{insert(t.Context(), c, doc("a"), e("collectionUUID", old)), c, []any{"a"}, 0}
	}},
	{361, asTail, "tail on a collection made again", func(t *testing.T, w *world) answer {
		c, old := replaced(t, w)
		return answer{err: w.db.RunCommand(t.Context(), bson.D{e("find", c.Name()), e("collectionUUID", old)}).Err()}
	}},
	{59, asRead, "command that does not exist", func(t *testing.T, w *world) answer {
		return answer{err: w.db.RunCommand(t.Context(), bson.D{e("noSuchCommand", 1)}).Err()}
	}},
	{72, asRead, "capped collection without a size", func(t *testing.T, w *world) answer {
		return answer{err: w.db.RunCommand(t.Context(), bson.D{e("create", "x"), e("capped", true)}).Err()}
	}},
	{48, asRead, "collection exists", func(t *testing.T, w *world) answer {
		c := w.made(t)
		return answer{err: w.db.RunCommand(t.Context(), bson.D{e("create", c.Name()), e("capped", true), e("size", 4096)}).Err()}
	}},
	{26, asRead, "collection does not exist", func(t *testing.T, w *world) answer {
		return answer{err: w.db.RunCommand(t.Context(), bson.D{e("collMod", w.coll().Name())}).Err()}
	}},
	{123, asRead, "linearizable read without a set", func(t *testing.T, w *world) answer {
		return answer{err: w.db.RunCommand(t.Context(), bson.D{e("find", "x"), e("readConcern", bson.D{e("level", "linearizable")})}).Err()}
	}},
	{2, asRead, "hint that names no index", func(t *testing.T, w *world) answer {
		_, err := w.made(t).Find(t.Context(), bson.D{}, options.Find().SetHint("none"))
		return answer{err: err}
	}},
	{11, asRead, "unknown user", func(t *testing.T, w *world) answer {
		return answer{err: w.db.RunCommand(t.Context(), bson.D{e("dropUser", "nobody")}).Err()}
	}},
	{40573, asTail, "change stream without a set", func(t *testing.T, w *world) answer {
		_, err := w.db.Watch(t.Context(), mongo.Pipeline{})
		return answer{err: err}
	}},
}

// numbered inserts one document with the number of a retryable write, in a session.
func numbered(t *testing.T, s *mongo.Session, c *mongo.Collection, id any, number int64) error {
	t.Helper()
	cmd := bson.D{e("insert", c.Name()), e("documents", []bson.D{doc(id)}), e("txnNumber", number)}
	return s.Client().Database(c.Database().Name()).RunCommand(mongo.NewSessionContext(t.Context(), s), cmd).Err()
}

// session returns a session that ends with the test.
func (w *world) session(t *testing.T) *mongo.Session {
	t.Helper()
	s, err := connect(t, w.d.Options()).StartSession() // the driver would use its number again elsewhere
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.EndSession(context.WithoutCancel(t.Context())) })
	return s
}

func view(t *testing.T, w *world) *mongo.Collection {
	t.Helper()
	v := w.coll()
	if err := w.db.CreateView(t.Context(), v.Name(), w.made(t).Name(), mongo.Pipeline{}); err != nil {
		t.Fatal(err)
	}
	return v
}

// replaced returns a collection and the UUID of the one that had its name before.
func replaced(t *testing.T, w *world) (*mongo.Collection, bson.Binary) {
	t.Helper()
	c := w.made(t)
	specs, err := w.db.ListCollectionSpecifications(t.Context(), bson.D{e("name", c.Name())})
	if err != nil || len(specs) != 1 {
		t.Fatal(err, specs)
	}
	if err := c.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.db.CreateCollection(t.Context(), c.Name()); err != nil {
		t.Fatal(err)
	}
	return c, *specs[0].UUID
}
