// Package match decides in the client whether a document matches a query written in a subset of
// MongoDB's query language.
//
// It promises the answer that mongod gives for the operators that it knows, on any document: $eq, $ne,
// $gt, $gte, $lt, $lte, $in, $nin, $exists, $type, $regex, $size, $all, $elemMatch, $not, $and, $or,
// $nor, and plain equality, with dotted paths and arrays. Any other operator is an error when the
// query is compiled, never ignored. It knows no collation: strings compare by their bytes.
// Regular expressions are Go's (RE2): no look-around and no back-references.
package match

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// UnsupportedError names an operator that this package does not know.
type UnsupportedError struct{ Operator string }

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("operator %s is not supported in a filter", e.Operator)
}

// Matcher is a compiled query. Safe for concurrent use.
type Matcher struct{ all conjunction }

// Compile compiles a query. Errors say what is wrong with it; *UnsupportedError is one of them.
// The Matcher keeps parts of query: do not change it afterwards.
func Compile(query bson.Raw) (*Matcher, error) {
	c, err := compileQuery(query)
	if err != nil {
		return nil, fmt.Errorf("compile filter: %w", err)
	}
	return &Matcher{c}, nil
}

// Match reports whether doc matches. It blocks on nothing. A malformed document matches nothing.
func (m *Matcher) Match(doc bson.Raw) bool { return m.all.match(doc) }

// node is a part of a query that looks at a document.
type node interface{ match(doc bson.Raw) bool }

// conjunction is true if all its nodes are; the empty one is true.
type conjunction []node

func (c conjunction) match(doc bson.Raw) bool {
	for _, n := range c {
		if !n.match(doc) {
			return false
		}
	}
	return true
}

// disjunction is $or; negated, it is $nor.
type disjunction struct {
	any     []conjunction
	negated bool
}

func (d disjunction) match(doc bson.Raw) bool {
	for _, c := range d.any {
		if c.match(doc) {
			return !d.negated
		}
	}
	return d.negated
}

// field is one predicate on one path.
type field struct {
	path []string
	pred predicate
}

func (f field) match(doc bson.Raw) bool { return f.pred.matchPath(doc, f.path) }

func compileQuery(query bson.Raw) (conjunction, error) {
	elems, err := query.Elements()
	if err != nil {
		return nil, err
	}
	var c conjunction
	for _, e := range elems {
		key, value := e.Key(), e.Value()
		switch {
		case key == "$and" || key == "$or" || key == "$nor":
			n, err := compileLogic(key, value)
			if err != nil {
				return nil, err
			}
			c = append(c, n)
		case key == "$comment":
		case len(key) > 0 && key[0] == '$':
			return nil, &UnsupportedError{key}
		default:
			preds, err := compileValue(value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			for _, p := range preds {
				c = append(c, field{splitPath(key), p})
			}
		}
	}
	return c, nil
}

func compileLogic(op string, value bson.RawValue) (node, error) {
	arr, ok := value.ArrayOK()
	if !ok {
		return nil, fmt.Errorf("%s needs an array", op)
	}
	values, err := arr.Values()
	if err != nil {
		return nil, err
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("%s needs an array that is not empty", op)
	}
	var parts []conjunction
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return nil, fmt.Errorf("%s needs an array of documents", op)
		}
		c, err := compileQuery(doc)
		if err != nil {
			return nil, err
		}
		parts = append(parts, c)
	}
	if op != "$and" {
		return disjunction{parts, op == "$nor"}, nil
	}
	var all conjunction
	for _, p := range parts {
		all = append(all, p)
	}
	return all, nil
}

// compileValue compiles what stands behind a path: operators, a regular expression, or a value to equal.
func compileValue(value bson.RawValue) ([]predicate, error) {
	if doc, ok := value.DocumentOK(); ok {
		elems, err := doc.Elements()
		if err != nil {
			return nil, err
		}
		if len(elems) > 0 && len(elems[0].Key()) > 0 && elems[0].Key()[0] == '$' {
			return compileOperators(elems)
		}
	}
	if value.Type == bson.TypeRegex {
		p, err := compileRegexValue(value)
		return []predicate{p}, err
	}
	p, err := newComparison("$eq", value)
	return []predicate{p}, err
}
