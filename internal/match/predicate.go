package match

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// predicate is an operator with its argument.
type predicate interface {
	// matchPath applies it to all that path reaches in doc.
	matchPath(doc bson.Raw, path []string) bool
	// matchValue applies it to one value, without looking into an array ($elemMatch does that).
	matchValue(v bson.RawValue) bool
}

// value is a predicate that holds for a path if it holds for one value that the path reaches.
type value struct {
	leaves bool // look at the elements of an array at the end of the path, too
	holds  func(bson.RawValue) bool
}

func (p value) matchPath(doc bson.Raw, path []string) bool {
	return each(doc, path, p.leaves, p.holds)
}
func (p value) matchValue(v bson.RawValue) bool { return p.holds(v) }

// not holds if one of its predicates does not: $not, $ne, $nin, {$exists: false}.
type not struct{ all []predicate }

func (p not) matchPath(doc bson.Raw, path []string) bool {
	for _, q := range p.all {
		if !q.matchPath(doc, path) {
			return true
		}
	}
	return false
}

func (p not) matchValue(v bson.RawValue) bool {
	for _, q := range p.all {
		if !q.matchValue(v) {
			return true
		}
	}
	return false
}

// both holds if all its predicates do: $all. The empty one never holds, as in mongod.
type both struct{ all []predicate }

func (p both) matchPath(doc bson.Raw, path []string) bool {
	for _, q := range p.all {
		if !q.matchPath(doc, path) {
			return false
		}
	}
	return len(p.all) > 0
}

func (p both) matchValue(v bson.RawValue) bool {
	for _, q := range p.all {
		if !q.matchValue(v) {
			return false
		}
	}
	return len(p.all) > 0
}

func compileOperators(elems []bson.RawElement) ([]predicate, error) {
	var preds []predicate
	var pattern, flags *bson.RawValue
	for _, e := range elems {
		v := e.Value()
		switch e.Key() {
		case "$regex":
			pattern = &v
			continue
		case "$options":
			flags = &v
			continue
		case "$ref", "$id", "$db":
			return nil, errors.New("a DBRef is not supported in a filter")
		}
		p, err := compileOperator(e.Key(), v)
		if err != nil {
			return nil, err
		}
		preds = append(preds, p)
	}
	if pattern == nil {
		if flags != nil {
			return nil, errors.New("$options needs a $regex")
		}
		return preds, nil
	}
	p, err := compileRegexOperator(*pattern, flags)
	return append(preds, p), err
}

func compileOperator(op string, v bson.RawValue) (predicate, error) {
	switch op {
	case "$eq", "$gt", "$gte", "$lt", "$lte":
		return newComparison(op, v)
	case "$ne":
		if v.Type == bson.TypeRegex {
			return nil, errors.New("$ne takes no regular expression")
		}
		p, err := newComparison("$eq", v)
		return not{[]predicate{p}}, err
	case "$in":
		return compileIn(op, v)
	case "$nin":
		p, err := compileIn(op, v)
		return not{[]predicate{p}}, err
	case "$exists":
		p := value{true, func(v bson.RawValue) bool { return v.Type != 0 }}
		if truth(v) {
			return p, nil
		}
		return not{[]predicate{p}}, nil
	case "$type":
		return compileType(v)
	case "$not":
		return compileNot(v)
	case "$size":
		return compileSize(v)
	case "$all":
		return compileAll(v)
	case "$elemMatch":
		return compileElemMatch(v)
	}
	if !strings.HasPrefix(op, "$") {
		return nil, fmt.Errorf("field %q stands among operators", op)
	}
	return nil, &UnsupportedError{op}
}

func newComparison(op string, want bson.RawValue) (predicate, error) {
	if want.Type == bson.TypeUndefined {
		return nil, errors.New("nothing compares with undefined")
	}
	if want.Type == bson.TypeRegex && op != "$eq" {
		return nil, fmt.Errorf("%s takes no regular expression", op)
	}
	return value{true, func(got bson.RawValue) bool { return comparison(op, got, want) }}, nil
}

// comparison compares values of one place in the order of types only, with three exceptions: null
// equals missing, everything is between MinKey and MaxKey, and NaN equals NaN but has no order.
func comparison(op string, got, want bson.RawValue) bool {
	g, w := canonical(got.Type), canonical(want.Type)
	if g != w {
		switch {
		case g+w == canonical(bson.TypeNull) && g*w == 0: // null and missing
			return op == "$eq" || op == "$lte" || op == "$gte"
		case want.Type == bson.TypeMaxKey:
			return op == "$lt" || op == "$lte"
		case want.Type == bson.TypeMinKey:
			return op == "$gt" || op == "$gte"
		}
		return false
	}
	if isNaN(got) || isNaN(want) {
		return isNaN(got) && isNaN(want) && op != "$lt" && op != "$gt"
	}
	d := compare(got, want)
	switch op {
	case "$eq":
		return d == 0
	case "$gt":
		return d > 0
	case "$gte":
		return d >= 0
	case "$lt":
		return d < 0
	}
	return d <= 0
}

func compileIn(op string, v bson.RawValue) (predicate, error) {
	values, err := arrayOf(op, v)
	if err != nil {
		return nil, err
	}
	var any []predicate
	for _, v := range values {
		p, err := compileElement(op, v)
		if err != nil {
			return nil, err
		}
		any = append(any, p)
	}
	return value{true, func(v bson.RawValue) bool {
		for _, p := range any {
			if p.matchValue(v) {
				return true
			}
		}
		return false
	}}, nil
}

// compileElement compiles an element of $in or $all: a value, or a regular expression.
func compileElement(op string, v bson.RawValue) (predicate, error) {
	if v.Type == bson.TypeRegex {
		return compileRegexValue(v)
	}
	if doc, ok := v.DocumentOK(); ok {
		if elems, err := doc.Elements(); err == nil && len(elems) > 0 && strings.HasPrefix(elems[0].Key(), "$") {
			return nil, fmt.Errorf("%s takes values, not operators (%s)", op, elems[0].Key())
		}
	}
	return newComparison("$eq", v)
}

func compileNot(v bson.RawValue) (predicate, error) {
	if v.Type == bson.TypeRegex {
		p, err := compileRegexValue(v)
		return not{[]predicate{p}}, err
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, errors.New("$not needs operators or a regular expression")
	}
	elems, err := doc.Elements()
	if err != nil || len(elems) == 0 {
		return nil, errors.New("$not needs at least one operator")
	}
	preds, err := compileOperators(elems)
	return not{preds}, err
}

func compileSize(v bson.RawValue) (predicate, error) {
	n, ok := wholeNumber(v)
	if !ok || n < 0 {
		return nil, errors.New("$size needs a whole number that is not negative")
	}
	return value{false, func(v bson.RawValue) bool {
		elems, ok := elements(v)
		return ok && int64(len(elems)) == n
	}}, nil
}

func compileAll(v bson.RawValue) (predicate, error) {
	values, err := arrayOf("$all", v)
	if err != nil {
		return nil, err
	}
	var all []predicate
	for _, v := range values {
		p, err := compileAllElement(v)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return both{all}, nil
}

func compileAllElement(v bson.RawValue) (predicate, error) {
	if doc, ok := v.DocumentOK(); ok {
		if elems, err := doc.Elements(); err == nil && len(elems) == 1 && elems[0].Key() == "$elemMatch" {
			return compileElemMatch(elems[0].Value())
		}
	}
	return compileElement("$all", v)
}

// compileElemMatch tells the two forms apart by the first key: an operator asks for an element that
// satisfies operators, anything else (also $and, $or, $nor) for a document that matches a query.
func compileElemMatch(v bson.RawValue) (predicate, error) {
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, errors.New("$elemMatch needs a document")
	}
	elems, err := doc.Elements()
	if err != nil {
		return nil, err
	}
	var one func(bson.RawValue) bool
	if len(elems) > 0 && strings.HasPrefix(elems[0].Key(), "$") && !isLogic(elems[0].Key()) {
		preds, err := compileOperators(elems)
		if err != nil {
			return nil, err
		}
		one = func(v bson.RawValue) bool {
			for _, p := range preds {
				if !p.matchValue(v) {
					return false
				}
			}
			return true
		}
	} else {
		query, err := compileQuery(doc)
		if err != nil {
			return nil, err
		}
		one = func(v bson.RawValue) bool {
			return (v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray) && query.match(bson.Raw(v.Value))
		}
	}
	return value{false, func(v bson.RawValue) bool {
		elems, ok := elements(v)
		for i := 0; ok && i < len(elems); i++ {
			if one(elems[i].Value()) {
				return true
			}
		}
		return false
	}}, nil
}

func isLogic(op string) bool { return op == "$and" || op == "$or" || op == "$nor" }

func compileRegexValue(v bson.RawValue) (predicate, error) {
	pattern, flags := v.Regex()
	return newRegex(pattern, flags)
}

func compileRegexOperator(v bson.RawValue, options *bson.RawValue) (predicate, error) {
	var pattern, flags string
	switch v.Type {
	case bson.TypeString:
		pattern = v.StringValue()
	case bson.TypeRegex:
		pattern, flags = v.Regex()
	default:
		return nil, errors.New("$regex needs a string or a regular expression")
	}
	if options != nil {
		s, ok := options.StringValueOK()
		if !ok {
			return nil, errors.New("$options needs a string")
		}
		if flags != "" {
			return nil, errors.New("options are set both in $regex and in $options")
		}
		flags = s
	}
	return newRegex(pattern, flags)
}

func newRegex(pattern, flags string) (predicate, error) {
	source := pattern
	if flags != "" {
		if bad := strings.Trim(flags, "ims"); bad != "" {
			return nil, fmt.Errorf("option %q of a regular expression is not supported (i, m and s are)", bad)
		}
		source = "(?" + flags + ")" + pattern
	}
	re, err := regexp.Compile(source)
	if err != nil {
		return nil, fmt.Errorf("regular expression: %w", err)
	}
	return value{true, func(v bson.RawValue) bool {
		switch v.Type {
		case bson.TypeString, bson.TypeSymbol:
			return re.Match(v.Value[4 : len(v.Value)-1])
		case bson.TypeRegex: // a stored expression matches itself
			p, f := v.Regex()
			return p == pattern && f == flags
		}
		return false
	}}, nil
}

func arrayOf(op string, v bson.RawValue) ([]bson.RawValue, error) {
	arr, ok := v.ArrayOK()
	if !ok {
		return nil, fmt.Errorf("%s needs an array", op)
	}
	return arr.Values()
}

func elements(v bson.RawValue) ([]bson.RawElement, bool) {
	if v.Type != bson.TypeArray {
		return nil, false
	}
	elems, err := bson.Raw(v.Value).Elements()
	return elems, err == nil
}

// truth is MongoDB's: false, zero, null and undefined are false.
func truth(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeBoolean:
		return v.Boolean()
	case bson.TypeNull, bson.TypeUndefined:
		return false
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		n := newNumber(v)
		return n.special != 0 || n.sign() != 0
	}
	return true
}

func wholeNumber(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32:
		return int64(v.Int32()), true
	case bson.TypeInt64:
		return v.Int64(), true
	case bson.TypeDouble:
		f := v.Double()
		return int64(f), f == math.Trunc(f) && math.Abs(f) < 1<<53
	}
	return 0, false
}
