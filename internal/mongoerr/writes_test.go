package mongoerr

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestWhatAWriteErrorIsAbout(t *testing.T) {
	t.Parallel()
	one := func(code int) error { return mongo.WriteException{WriteErrors: mongo.WriteErrors{{Code: code}}} }
	for _, c := range []struct {
		name string
		is   func(error) bool
		code int
	}{
		{"transaction too old", IsTransactionTooOld, 225}, {"history incomplete", IsHistoryIncomplete, 217}, {"validator", IsInvalid, 121},
		{"immutable", IsImmutable, 66}, {"index conflict", IsIndexConflict, 86}, {"no such index", IsIndexNotFound, 27},
		{"not unique", CannotConvertIndex, 359}, {"option", IsBadOption, 72}, {"cache", IsTooLargeForCache, 388}, {"known", IsKnown, 11000},
	} {
		if !c.is(one(c.code)) || !c.is(command(int32(c.code), "")) && c.code != 11000 || c.is(one(99999)) || c.is(nil) {
			t.Errorf("%s: wrong", c.name)
		}
	}
}

func TestADuplicateNamesTheHolder(t *testing.T) {
	t.Parallel()
	document := raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "b", Value: "Text"}}}})
	e := bson.D{{Key: "keyPattern", Value: bson.D{{Key: "a.b", Value: 1}, {Key: "c", Value: 1}}}, {Key: "keyValue", Value: bson.D{{Key: "a.b", Value: "Text"}, {Key: "c", Value: nil}}}}
	filter, collation := DuplicateFilter(raw(t, e), document)
	want := raw(t, bson.D{{Key: "a.b", Value: bson.D{{Key: "$eq", Value: "Text"}}}, {Key: "c", Value: bson.D{{Key: "$eq", Value: nil}}}})
	if got := raw(t, filter); collation != nil || got.String() != want.String() {
		t.Errorf("got %v, want %v", got, want)
	}
	// With a collation the value is that of the document: the server names what it compares by.
	e[1].Value = bson.D{{Key: "a.b", Value: "0x2901"}, {Key: "c", Value: nil}}
	e = append(e, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}})
	filter, collation = DuplicateFilter(raw(t, e), document)
	if got := raw(t, filter); collation == nil || collation.Locale != "en" || collation.Strength != 2 || got.String() != want.String() {
		t.Errorf("got %v %v, want %v", got, collation, want)
	}
	if filter, _ := DuplicateFilter(raw(t, bson.D{}), document); filter != nil {
		t.Errorf("got %v", filter)
	}
}
