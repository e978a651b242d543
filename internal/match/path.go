package match

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// missing is the value of a path that leads nowhere.
var missing = bson.RawValue{}

func splitPath(p string) []string { return strings.Split(p, ".") }

// each calls yield for every value that path reaches in doc, until yield returns true, and returns
// whether it did. It walks as mongod does: a path goes through an array both into every document in
// it and, where a part is a number, into the element of that number; arrays directly inside arrays
// are entered by number only. A path that leads nowhere yields missing, but inside an array only from
// documents. At the end of the path, an array yields its elements if leaves is true, and then itself.
func each(doc bson.Raw, path []string, leaves bool, yield func(bson.RawValue) bool) bool {
	v, rest := descend(doc, path)
	if v.Type != bson.TypeArray {
		return yield(v)
	}
	elems, err := bson.Raw(v.Value).Elements()
	if err != nil {
		return false
	}
	if len(rest) > 0 {
		return eachInArray(elems, rest, leaves, yield)
	}
	if leaves {
		for _, e := range elems {
			if yield(e.Value()) {
				return true
			}
		}
	}
	return yield(v)
}

// descend follows path through documents until it ends, leads nowhere, or meets an array.
func descend(doc bson.Raw, path []string) (v bson.RawValue, rest []string) {
	for i, part := range path {
		v, err := doc.LookupErr(part)
		if err != nil {
			return missing, nil
		}
		rest := path[i+1:]
		if len(rest) == 0 || v.Type == bson.TypeArray {
			return v, rest
		}
		if v.Type != bson.TypeEmbeddedDocument {
			return missing, nil
		}
		doc = bson.Raw(v.Value)
	}
	return missing, nil
}

func eachInArray(elems []bson.RawElement, rest []string, leaves bool, yield func(bson.RawValue) bool) bool {
	index := arrayIndex(rest[0])
	for i, e := range elems {
		v := e.Value()
		if v.Type == bson.TypeEmbeddedDocument && each(bson.Raw(v.Value), rest, leaves, yield) {
			return true
		}
		if i != index {
			continue
		}
		switch {
		case len(rest) == 1:
			if yield(v) {
				return true
			}
		case v.Type == bson.TypeEmbeddedDocument:
			if each(bson.Raw(v.Value), rest[1:], leaves, yield) {
				return true
			}
		case v.Type == bson.TypeArray:
			inner, err := bson.Raw(v.Value).Elements()
			if err == nil && eachInArray(inner, rest[1:], leaves, yield) {
				return true
			}
		}
	}
	return false
}

// arrayIndex returns the number that part is, or -1.
func arrayIndex(part string) int {
	n, err := strconv.Atoi(part)
	if err != nil || n < 0 || strconv.Itoa(n) != part {
		return -1
	}
	return n
}
