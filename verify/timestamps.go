package verify

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/record"
)

// withoutTS returns what stands before and behind the value of a message's "ts", all and nothing if it has none that the server
// made.
func withoutTS(doc bson.Raw) (before, behind []byte) {
	if len(doc) < 5 {
		return doc, nil
	}
	at := 4
	for rest := []byte(doc[4 : len(doc)-1]); len(rest) > 0; {
		e, more, ok := bsoncore.ReadElement(rest)
		if !ok {
			return doc, nil
		}
		if bson.Type(e[0]) == bson.TypeTimestamp && e.Key() == record.FieldTS {
			end := at + len(e)
			return doc[:end-8], doc[end:]
		}
		at += len(e)
		rest = more
	}
	return doc, nil
}

// equalButTS reports whether two messages are equal but for the time that their servers gave them.
func equalButTS(a, b bson.Raw) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	a1, a2 := withoutTS(a)
	b1, b2 := withoutTS(b)
	return (a2 == nil) == (b2 == nil) && bytes.Equal(a1, b1) && bytes.Equal(a2, b2)
}

// isMessage reports whether doc has what a producer gives every message.
func isMessage(doc bson.Raw) bool {
	_, noSrc := doc.LookupErr(record.FieldSrc)
	_, noSeq := doc.LookupErr(record.FieldSeq)
	return noSrc == nil && noSeq == nil
}
