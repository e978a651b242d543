package record

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrBadToken says that bytes are no resume token of a change stream.
var ErrBadToken = errors.New("not a resume token of a change stream")

// tokenData is the field that holds the token in the document that a server sends.
const tokenData = "_data"

// tokenTimestamp is the type that a token begins with: a KeyString of a Timestamp.
const tokenTimestamp = 0x82

// PositionOfToken returns the Position that holds a copy of a resume token: the _id of a change event,
// or the token that a server returns with a batch (postBatchResumeToken). TS is the cluster time that
// the token begins with, ID its field _data, a string of hex digits. A document of any other shape is
// kept whole, and TS is zero where it cannot be read. The error is ErrBadToken, for what is no document.
//
// Positions of one change stream compare by Position.Compare in the order of the stream, as its tokens
// do. Resuming after a token is exclusive, as after every Position.
func PositionOfToken(token bson.Raw) (Position, error) {
	var data bson.RawValue
	fields := 0
	err := walk(token, func(typ bson.Type, name, value []byte) {
		fields++
		if string(name) == tokenData {
			data = bson.RawValue{Type: typ, Value: value}
		}
	})
	switch {
	case err != nil:
		return Position{}, fmt.Errorf("%w: %w", ErrBadToken, err)
	case fields == 0:
		return Position{}, fmt.Errorf("%w: it is empty", ErrBadToken)
	case fields == 1 && data.Type == bson.TypeString:
		return Position{TS: tokenTime(stringBytes(data.Value)), ID: IDOf(data)}, nil
	}
	p := Position{ID: idOf(bson.TypeEmbeddedDocument, token)}
	if data.Type == bson.TypeString {
		p.TS = tokenTime(stringBytes(data.Value))
	}
	return p, nil
}

// TokenOf returns the resume token that p holds, as a document to send to a server. ok is false where p
// is no position of a change stream: a message's, or a time alone.
func TokenOf(p Position) (token bson.Raw, ok bool) {
	switch p.ID.typ {
	case bson.TypeString:
		if tokenTime([]byte(p.ID.text())).IsZero() {
			return nil, false // a message with a string for its _id
		}
		token, err := bson.Marshal(bson.D{{Key: tokenData, Value: p.ID.RawValue()}})
		return token, err == nil
	case bson.TypeEmbeddedDocument:
		token := bson.Raw(p.ID.val)
		_, err := token.LookupErr(tokenData)
		return token, err == nil
	}
	return nil, false
}

// tokenTime reads the cluster time at the front of a token's hex digits: the type, 4 bytes of seconds
// and 4 of the increment, big endian. It returns zero for everything else.
func tokenTime(digits []byte) Timestamp {
	var b [9]byte
	if len(digits) < hex.EncodedLen(len(b)) {
		return Timestamp{}
	}
	if _, err := hex.Decode(b[:], digits[:hex.EncodedLen(len(b))]); err != nil || b[0] != tokenTimestamp {
		return Timestamp{}
	}
	var t Timestamp
	for i := range 4 {
		t.T, t.I = t.T<<8|uint32(b[1+i]), t.I<<8|uint32(b[5+i])
	}
	return t
}

// TokenKind says what a resume token stands for.
type TokenKind uint8

// The kinds of resume tokens.
const (
	// TokenUnknown is none that is known.
	TokenUnknown TokenKind = iota
	// TokenOfTime stands for no event but for a time: events of that time come behind it.
	TokenOfTime
	// TokenOfEvent is that of an event, one of perhaps several of its time.
	TokenOfEvent
)

// KindOfToken tells what the resume token in p stands for. The forms are those of versions 1 and 2 of tokens (MongoDB 4.2 to 6.0): behind
// the time a version and a type, as numbers of a KeyString.
func KindOfToken(p Position) TokenKind {
	if p.ID.typ != bson.TypeString {
		return TokenUnknown
	}
	digits := strings.ToLower(p.ID.text())
	if tokenTime([]byte(digits)).IsZero() {
		return TokenUnknown
	}
	switch rest := digits[2*9:]; {
	case strings.HasPrefix(rest, "2b0229"), strings.HasPrefix(rest, "2b0429"):
		return TokenOfTime
	case strings.HasPrefix(rest, "2b022c0100"), strings.HasPrefix(rest, "2b042c0100"):
		return TokenOfEvent
	}
	return TokenUnknown
}
