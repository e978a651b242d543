package mongodb

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

var errReply = errors.New("the server's reply is damaged")

// batch appends the documents of a cursor's first batch to docs, as slices of the reply: nothing is decoded or copied. size
// is the sum of their lengths.
func batch(docs []bson.Raw, reply bson.Raw) (all []bson.Raw, size int, err error) {
	v, err := reply.LookupErr("cursor", "firstBatch")
	if err != nil || v.Type != bson.TypeArray || len(v.Value) < 5 {
		return docs, 0, fmt.Errorf("%w: it has no first batch", errReply)
	}
	for rest := v.Value[4 : len(v.Value)-1]; len(rest) > 0; {
		// type, decimal index, NUL, document
		end := 1
		for end < len(rest) && rest[end] != 0 {
			end++
		}
		if end+5 > len(rest) || bson.Type(rest[0]) != bson.TypeEmbeddedDocument {
			return docs, size, fmt.Errorf("%w: its first batch holds something else than documents", errReply)
		}
		rest = rest[end+1:]
		n, _, ok := bsoncore.ReadLength(rest)
		if !ok || n < 5 || int(n) > len(rest) {
			return docs, size, fmt.Errorf("%w: a document of its first batch is cut", errReply)
		}
		docs = append(docs, bson.Raw(rest[:n:n]))
		size += int(n)
		rest = rest[n:]
	}
	return docs, size, nil
}

// idOf returns a document's _id, which a server always stores in front.
func idOf(doc bson.Raw) (bson.RawValue, error) {
	v, err := doc.LookupErr("_id")
	if err != nil {
		return v, fmt.Errorf("%w: a document has no _id", errReply)
	}
	return v, nil
}

// values returns what an array holds, nothing if v is none.
func values(v bson.RawValue) []bson.RawValue {
	a, ok := v.ArrayOK()
	if !ok {
		return nil
	}
	all, err := a.Values()
	if err != nil {
		return nil
	}
	return all
}
