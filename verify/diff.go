package verify

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// maxPaths bounds what is listed of one document, maxValue the text of one value.
	maxPaths = 20
	maxValue = 200
)

// text returns a value as canonical Extended JSON, which keeps every type.
func text(v bson.RawValue) string {
	if v.Type == 0 {
		return ""
	}
	doc, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, true, false)
	if err != nil || !utf8.Valid(doc) {
		return fmt.Sprintf("%s 0x%s", v.Type, hex.EncodeToString(v.Value[:min(len(v.Value), maxValue/2)]))
	}
	return string(doc[len(`{"v":`) : len(doc)-1])
}

// shown is text, cut where it is long.
func shown(v bson.RawValue) string {
	s := text(v)
	if len(s) <= maxValue {
		return s
	}
	return fmt.Sprintf("%s… (%s, %d bytes)", strings.ToValidUTF8(s[:maxValue], ""), v.Type, len(v.Value))
}

// idText returns an _id as JSON: canonical Extended JSON, or a string where it has no such form.
func idText(v bson.RawValue) json.RawMessage {
	s := text(v)
	if json.Valid([]byte(s)) {
		return json.RawMessage(s)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`)
	}
	return b
}

// differ collects what differs between two documents.
type differ struct{ paths []PathDiff }

// diff returns what differs between two documents of a pair, without what is not compared.
func (p *pair) diff(source, target bson.Raw) []PathDiff {
	paths := diff(source, target)
	if p.newTS {
		paths = slices.DeleteFunc(paths, func(d PathDiff) bool { return d.Path == record.FieldTS })
	}
	return paths
}

// diff returns what differs between two documents of one _id, at most maxPaths places.
func diff(source, target bson.Raw) []PathDiff {
	var d differ
	d.documents("", source, target)
	if len(d.paths) == 0 && !bytes.Equal(source, target) {
		// A place that no path names: the wrong index keys of an array, for instance.
		d.add(PathDiff{Text: fmt.Sprintf("the bytes differ from offset %d on", commonPrefix(source, target))})
	}
	if len(d.paths) > maxPaths {
		d.paths = append(d.paths[:maxPaths], PathDiff{Text: "and more"})
	}
	return d.paths
}

func (d *differ) add(p PathDiff) {
	if len(d.paths) <= maxPaths {
		d.paths = append(d.paths, p)
	}
}

func commonPrefix(a, b []byte) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return i
}

func (d *differ) documents(path string, source, target bson.Raw) {
	a, errA := source.Elements()
	b, errB := target.Elements()
	if errA != nil || errB != nil {
		d.add(PathDiff{Path: path, Text: "the bytes are no BSON document"})
		return
	}
	at := len(d.paths)
	if repeated(a) || repeated(b) { // names do not say which is which
		d.inOrder(path, a, b)
		return
	}
	there := make(map[string]bson.RawValue, len(b))
	for _, e := range b {
		there[e.Key()] = e.Value()
	}
	var common []string
	for _, e := range a {
		v, ok := there[e.Key()]
		if ok {
			common = append(common, e.Key())
		}
		delete(there, e.Key())
		d.values(join(path, e.Key()), e.Value(), v)
	}
	var other []string
	for _, e := range b {
		if _, only := there[e.Key()]; only {
			d.values(join(path, e.Key()), bson.RawValue{}, e.Value())
		} else {
			other = append(other, e.Key())
		}
	}
	for i := range common {
		if common[i] != other[i] {
			d.add(PathDiff{Path: path, Source: list(a), Target: list(b), Text: "another order of fields"})
			return
		}
	}
	if at == len(d.paths) && !bytes.Equal(source, target) {
		d.add(PathDiff{Path: path, Text: "the bytes differ"})
	}
}

// inOrder compares element by element.
func (d *differ) inOrder(path string, a, b []bson.RawElement) {
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			d.add(PathDiff{Path: join(path, b[i].Key()), Target: shown(b[i].Value())})
		case i >= len(b):
			d.add(PathDiff{Path: join(path, a[i].Key()), Source: shown(a[i].Value())})
		case a[i].Key() != b[i].Key():
			d.add(PathDiff{Path: path, Source: list(a), Target: list(b), Text: "other fields"})
			return
		default:
			d.values(join(path, a[i].Key()), a[i].Value(), b[i].Value())
		}
	}
}

func (d *differ) values(path string, a, b bson.RawValue) {
	if sameValue(a, b) || len(d.paths) > maxPaths {
		return
	}
	nested := a.Type == bson.TypeEmbeddedDocument || a.Type == bson.TypeArray
	if a.Type == b.Type && nested {
		d.documents(path, a.Value, b.Value)
		return
	}
	p := PathDiff{Path: path, Source: shown(a), Target: shown(b)}
	if p.Source == p.Target { // a payload of NaN, invalid UTF-8, or long
		at := commonPrefix(a.Value, b.Value)
		p.Text = fmt.Sprintf("from byte %d on 0x%s and 0x%s", at, hexFrom(a.Value, at), hexFrom(b.Value, at))
	}
	d.add(p)
}

func hexFrom(b []byte, at int) string { return hex.EncodeToString(b[at:min(at+16, len(b))]) }

func repeated(elems []bson.RawElement) bool {
	seen := make(map[string]bool, len(elems))
	for _, e := range elems {
		if seen[e.Key()] {
			return true
		}
		seen[e.Key()] = true
	}
	return false
}

func list(elems []bson.RawElement) string {
	var b strings.Builder
	for i, e := range elems {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(e.Key())
		if b.Len() > maxValue {
			b.WriteString(" …")
			break
		}
	}
	return b.String()
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
