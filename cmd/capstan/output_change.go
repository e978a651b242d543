package main

import (
	"bytes"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// appendChangeLine writes a change as text: time, what happened, where, to which document, and what is
// different now, separated by tabs.
func appendChangeLine(dst []byte, r record.Record, canonical bool) ([]byte, error) {
	c := r.Change
	switch {
	case !c.Wall.IsZero():
		dst = c.Wall.UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	default:
		dst = time.Unix(int64(c.Time.T), 0).UTC().AppendFormat(dst, time.RFC3339)
	}
	dst = append(dst, '\t')
	dst = appendVisible(dst, c.Op)
	dst = append(dst, '\t')
	if c.Namespace.IsZero() {
		dst = append(dst, '-')
	} else {
		dst = appendVisible(dst, c.Namespace.String())
	}
	dst = append(dst, '\t')
	dst, err := appendKey(dst, c.Key, canonical)
	if err != nil {
		return dst, err
	}
	dst, err = appendDifference(append(dst, '\t'), c, canonical)
	return append(bytes.TrimRight(dst, "\t"), '\n'), err
}

// appendKey writes an _id: an ObjectId and text as they are, everything else as JSON.
func appendKey(dst []byte, key bson.RawValue, canonical bool) ([]byte, error) {
	if key.Type == 0 {
		return append(dst, '-'), nil
	}
	if oid, ok := key.ObjectIDOK(); ok {
		return append(dst, oid.Hex()...), nil
	}
	if s, ok := key.StringValueOK(); ok {
		return appendVisible(dst, s), nil
	}
	return appendValue(dst, key, canonical)
}

// appendDifference writes what is different now: the document, or what an update did to it.
func appendDifference(dst []byte, c *record.Change, canonical bool) ([]byte, error) {
	switch {
	case c.Document != nil:
		return appendValue(dst, embedded(c.Document), canonical)
	case c.Op == record.OpUpdate:
		return appendUpdate(dst, c.Description, canonical)
	case c.Op == record.OpRename:
		return appendVisible(append(dst, "to "...), c.To.String()), nil
	case c.Description != nil:
		return appendValue(dst, embedded(c.Description), canonical)
	}
	return dst, nil
}

// appendUpdate writes the parts of an update that are not empty.
func appendUpdate(dst []byte, description bson.Raw, canonical bool) ([]byte, error) {
	between := ""
	for _, part := range []struct{ field, word string }{{"updatedFields", "set "}, {"removedFields", "unset "}, {"truncatedArrays", "cut "}} {
		v, err := description.LookupErr(part.field)
		if err != nil || len(v.Value) <= emptyDocument {
			continue
		}
		dst = append(append(dst, between...), part.word...)
		if dst, err = appendValue(dst, v, canonical); err != nil {
			return dst, err
		}
		between = " "
	}
	return dst, nil
}

// emptyDocument is the size of a document or array without an element, in bytes.
const emptyDocument = 5

func embedded(doc bson.Raw) bson.RawValue {
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
}

// appendChangeRaw writes the document that was written, or the whole event where there is none.
func appendChangeRaw(dst []byte, r record.Record, canonical bool) ([]byte, error) {
	doc := r.Change.Document
	if doc == nil {
		doc = r.Raw
	}
	dst, err := appendValue(dst, embedded(doc), canonical)
	return append(dst, '\n'), err
}
