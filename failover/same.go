package failover

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// SameMessage reports whether two documents with one _id are one message: equal src and seq, or, in
// documents without these, equal fields in any order. ts is not compared: the server fills it.
func SameMessage(ours, stored bson.Raw) bool {
	if numbered(ours) {
		return numbered(stored) && ours.Lookup(record.FieldSrc).Equal(stored.Lookup(record.FieldSrc)) &&
			ours.Lookup(record.FieldSeq).Equal(stored.Lookup(record.FieldSeq))
	}
	return contains(ours, stored) && contains(stored, ours)
}

// SameDocument reports whether two documents have equal fields, in any order (the server moves _id to the
// front). At the top level ts is not compared, nor a timestamp that is empty in ours: the server fills these.
func SameDocument(ours, stored bson.Raw) bool {
	a, errA := ours.Elements()
	b, errB := stored.Elements()
	if errA != nil || errB != nil || len(a) != len(b) {
		return false
	}
	used := make([]bool, len(b))
	from := 0 // of b; nearly always the next one is the one
	for _, e := range a {
		at := -1
		for k := range b {
			if n := (from + k) % len(b); !used[n] && sameField(e, b[n]) {
				at = n
				break
			}
		}
		if at < 0 {
			return false
		}
		used[at], from = true, at+1
	}
	return true
}

func sameField(ours, stored bson.RawElement) bool {
	if ours.Key() != stored.Key() {
		return false
	}
	o, s := ours.Value(), stored.Value()
	if ours.Key() == record.FieldTS {
		return true
	}
	if t, i, ok := o.TimestampOK(); ok && t == 0 && i == 0 && s.Type == bson.TypeTimestamp {
		return true
	}
	return o.Type == s.Type && bytes.Equal(o.Value, s.Value)
}

// contains reports whether every field of b but ts is in a.
func contains(a, b bson.Raw) bool {
	elems, err := b.Elements()
	if err != nil {
		return false
	}
	for _, e := range elems {
		if e.Key() == record.FieldTS {
			continue
		}
		v, err := a.LookupErr(e.Key())
		if err != nil || v.Type != e.Value().Type || !bytes.Equal(v.Value, e.Value().Value) {
			return false
		}
	}
	return true
}

func numbered(doc bson.Raw) bool {
	src, okSrc := doc.Lookup(record.FieldSrc).StringValueOK()
	seq, okSeq := doc.Lookup(record.FieldSeq).Int64OK()
	return okSrc && okSeq && src != "" && seq > 0
}

func allNumbered(docs []bson.Raw) bool {
	for _, doc := range docs {
		if !numbered(doc) {
			return false
		}
	}
	return true
}
