package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// maxJSONDepth is MongoDB's limit of nested documents.
const maxJSONDepth = 100

// jsonToBSON turns one JSON value into BSON: objects keep the order of their keys, a whole number is
// int32, int64 or, beyond these, decimal128 (nothing is rounded silently), any other number is a
// double, and a key that starts with $ means nothing special. encoding/json would lose the order of
// keys or, token by token, take longer than the insert.
func jsonToBSON(text []byte) (bson.RawValue, error) {
	p := jsonParser{text: text}
	p.blank()
	t, out, err := p.value(nil, 0)
	if err == nil {
		if p.blank(); p.at < len(p.text) {
			err = p.bad("a second value")
		}
	}
	return bson.RawValue{Type: bson.Type(t), Value: out}, err
}

// jsonParser reads one JSON text (RFC 8259), strictly.
type jsonParser struct {
	text []byte
	at   int
}

func (p *jsonParser) bad(what string) error {
	if p.at >= len(p.text) {
		return errors.New("broken JSON: it ends too early")
	}
	return fmt.Errorf("broken JSON: %s at column %d", what, p.at+1)
}

func (p *jsonParser) blank() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

// value appends the value at the front to dst.
func (p *jsonParser) value(dst []byte, depth int) (bsoncore.Type, []byte, error) {
	if depth > maxJSONDepth {
		return 0, nil, fmt.Errorf("JSON is nested deeper than %d levels", maxJSONDepth)
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object(dst, depth)
	case c == '[':
		return p.array(dst, depth)
	case c == '"':
		s, err := p.str()
		return bsoncore.TypeString, bsoncore.AppendString(dst, s), err
	case c == '-' || c >= '0' && c <= '9':
		return p.number(dst)
	case p.word("true"):
		return bsoncore.TypeBoolean, bsoncore.AppendBoolean(dst, true), nil
	case p.word("false"):
		return bsoncore.TypeBoolean, bsoncore.AppendBoolean(dst, false), nil
	case p.word("null"):
		return bsoncore.TypeNull, dst, nil
	}
	return 0, nil, p.bad("no value")
}

func (p *jsonParser) word(w string) bool {
	if len(p.text)-p.at < len(w) || string(p.text[p.at:p.at+len(w)]) != w {
		return false
	}
	p.at += len(w)
	return true
}

func (p *jsonParser) object(dst []byte, depth int) (bsoncore.Type, []byte, error) {
	start, dst := bsoncore.AppendDocumentStart(dst)
	p.at++
	for first := true; ; first = false {
		if more, err := p.more('}', first); err != nil || !more {
			if err == nil {
				dst, err = bsoncore.AppendDocumentEnd(dst, start)
			}
			return bsoncore.TypeEmbeddedDocument, dst, err
		}
		if p.peek() != '"' {
			return 0, nil, p.bad("no key")
		}
		key, err := p.str()
		if err != nil {
			return 0, nil, err
		}
		if p.blank(); p.peek() != ':' {
			return 0, nil, p.bad("no colon")
		}
		p.at++
		p.blank()
		if dst, err = p.element(dst, key, depth); err != nil {
			return 0, nil, err
		}
	}
}

func (p *jsonParser) array(dst []byte, depth int) (bsoncore.Type, []byte, error) {
	start, dst := bsoncore.AppendArrayStart(dst)
	p.at++
	for n := 0; ; n++ {
		if more, err := p.more(']', n == 0); err != nil || !more {
			if err == nil {
				dst, err = bsoncore.AppendArrayEnd(dst, start)
			}
			return bsoncore.TypeArray, dst, err
		}
		var err error
		if dst, err = p.element(dst, strconv.Itoa(n), depth); err != nil {
			return 0, nil, err
		}
	}
}

// more moves to the next member, or over the closing bracket and returns false.
func (p *jsonParser) more(closing byte, first bool) (bool, error) {
	p.blank()
	if p.peek() == closing {
		p.at++
		return false, nil
	}
	if first {
		return true, nil
	}
	if p.peek() != ',' {
		return false, p.bad("no comma")
	}
	p.at++
	p.blank()
	return true, nil
}

// element appends type, key and value; the type is known only after the value.
func (p *jsonParser) element(dst []byte, key string, depth int) ([]byte, error) {
	for i := range len(key) {
		if key[i] == 0 {
			return nil, errors.New("a key holds a zero byte, which BSON cannot store")
		}
	}
	at := len(dst)
	dst = append(dst, 0)
	dst = append(append(dst, key...), 0)
	t, dst, err := p.value(dst, depth+1)
	if err != nil {
		return nil, err
	}
	dst[at] = byte(t)
	return dst, nil
}

// str reads a string; the fast path has no escapes.
func (p *jsonParser) str() (string, error) {
	start := p.at
	p.at++
	for escaped := false; p.at < len(p.text); p.at++ {
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			if !escaped {
				return string(p.text[start+1 : p.at-1]), nil
			}
			var s string
			if err := json.Unmarshal(p.text[start:p.at], &s); err != nil {
				p.at = start
				return "", p.bad("bad escape in the string")
			}
			return s, nil
		case c == '\\':
			escaped = true
			p.at++
		case c < ' ':
			return "", p.bad("control character in a string")
		}
	}
	p.at = len(p.text)
	return "", p.bad("")
}

func (p *jsonParser) number(dst []byte) (bsoncore.Type, []byte, error) {
	start, whole := p.at, true
	if p.peek() == '-' {
		p.at++
	}
	if p.peek() == '0' {
		p.at++
	} else if !p.digits() {
		return 0, nil, p.bad("no digit")
	}
	if p.peek() == '.' {
		whole = false
		if p.at++; !p.digits() {
			return 0, nil, p.bad("no digit")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		whole = false
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return 0, nil, p.bad("no digit")
		}
	}
	return appendNumber(dst, string(p.text[start:p.at]), whole)
}

func (p *jsonParser) digits() bool {
	start := p.at
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.at++
	}
	return p.at > start
}

func appendNumber(dst []byte, text string, whole bool) (bsoncore.Type, []byte, error) {
	if whole && text != "-0" {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			if i >= math.MinInt32 && i <= math.MaxInt32 {
				return bsoncore.TypeInt32, bsoncore.AppendInt32(dst, int32(i)), nil
			}
			return bsoncore.TypeInt64, bsoncore.AppendInt64(dst, i), nil
		}
		d, err := bson.ParseDecimal128(text)
		if err != nil || len(text) > 34 {
			return 0, nil, fmt.Errorf("number %s has more digits than BSON can store", text)
		}
		hi, lo := d.GetBytes()
		return bsoncore.TypeDecimal128, bsoncore.AppendDecimal128(dst, hi, lo), nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("number %s is out of range", text)
	}
	return bsoncore.TypeDouble, bsoncore.AppendDouble(dst, f), nil
}

// extJSONToBSON turns one value in MongoDB's Extended JSON (relaxed or canonical) into BSON.
func extJSONToBSON(text []byte) (bson.RawValue, error) {
	if !json.Valid(text) {
		_, err := jsonToBSON(text) // says where
		if err == nil {
			err = errors.New("broken JSON")
		}
		return bson.RawValue{}, err
	}
	// A value that is no document needs one around it; being valid by itself, it cannot leave it.
	wrapped := append(append([]byte(`{"v":`), text...), '}')
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON(wrapped, false, &doc); err != nil {
		return bson.RawValue{}, fmt.Errorf("broken Extended JSON: %w", err)
	}
	v, err := doc.LookupErr("v")
	return v, err
}

// textToBSON turns a line of text into a BSON string.
func textToBSON(text []byte) (bson.RawValue, error) {
	if err := checkUTF8(text); err != nil {
		return bson.RawValue{}, err
	}
	return bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, string(text))}, nil
}

func checkUTF8(text []byte) error {
	if utf8.Valid(text) {
		return nil
	}
	at := 0
	for at < len(text) {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return fmt.Errorf("invalid UTF-8 at byte %d", at+1)
}
