// Package scope says which namespaces a replication or a comparison is about, which of their documents, and
// under which names they are at the destination.
//
// It promises that a pattern means the same wherever it is used: in the copy, in the changes, in a comparison. It
// knows no server and reads nothing.
package scope

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// ErrBadPattern says that a text is no pattern of namespaces.
var ErrBadPattern = errors.New("not a pattern of namespaces (want DATABASE.COLLECTION, where * stands for any text: shop.*, shop.order_*, *.audit)")

// Config selects namespaces, maps their names, and filters their documents. The zero Config selects
// everything but MongoDB's own databases and capstan's.
type Config struct {
	// Include lists patterns; empty means all. A pattern is DATABASE.COLLECTION, where * stands for any text,
	// also an empty one; DATABASE alone means DATABASE.*.
	Include []string
	// Exclude lists patterns of what does not take part although Include selects it.
	Exclude []string
	// Rename maps names; the first that fits counts.
	Rename []Rename
	// Filters are queries on documents; the first whose Pattern fits counts.
	Filters []Filter
}

// Rename maps names of the source to names of the destination. From and To are both DATABASE.COLLECTION, or
// both DATABASE.*, which renames the database and keeps the names in it.
type Rename struct{ From, To string }

// Filter is a query in MongoDB's language on the documents of the namespaces that Pattern selects.
type Filter struct {
	Pattern string
	Query   bson.Raw
}

// Set is a compiled Config. Safe for concurrent use.
type Set struct {
	include, exclude []pattern
	renames          []rename
	filters          []filter
	fingerprint      string
}

type pattern struct {
	text     string
	db, coll string // as written
	re       *regexp.Regexp
}

type rename struct {
	from, to record.Namespace // Coll "" means the whole database
}

type filter struct {
	pattern pattern
	query   bson.Raw
}

// Own is the database at a destination in which capstan keeps what it must remember. It never takes part.
const Own = "capstan"

// Compile checks c. Errors name the text that is wrong and wrap ErrBadPattern.
func Compile(c Config) (*Set, error) {
	s := &Set{}
	var err error
	if s.include, err = compileAll(c.Include); err != nil {
		return nil, fmt.Errorf("include: %w", err)
	}
	if s.exclude, err = compileAll(c.Exclude); err != nil {
		return nil, fmt.Errorf("exclude: %w", err)
	}
	for _, r := range c.Rename {
		one, err := compileRename(r)
		if err != nil {
			return nil, fmt.Errorf("rename %s=%s: %w", r.From, r.To, err)
		}
		s.renames = append(s.renames, one)
	}
	for _, f := range c.Filters {
		p, err := compile(f.Pattern)
		if err != nil {
			return nil, fmt.Errorf("filter: %w", err)
		}
		if err := f.Query.Validate(); err != nil {
			return nil, fmt.Errorf("filter of %s: not a BSON document: %w", f.Pattern, err)
		}
		s.filters = append(s.filters, filter{p, slices.Clone(f.Query)})
	}
	s.fingerprint = fingerprint(c)
	return s, nil
}

func compileAll(texts []string) ([]pattern, error) {
	var all []pattern
	for _, t := range texts {
		p, err := compile(t)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func compile(text string) (pattern, error) {
	db, coll, dotted := strings.Cut(text, ".")
	if !dotted {
		coll = "*"
	}
	if db == "" || coll == "" || !legal(db, coll) {
		return pattern{}, fmt.Errorf("%w: %q", ErrBadPattern, text)
	}
	p := pattern{text: text, db: db, coll: coll}
	re, err := regexp.Compile(p.regexp())
	if err != nil {
		return pattern{}, fmt.Errorf("%w: %q: %w", ErrBadPattern, text, err)
	}
	p.re = re
	return p, nil
}

// legal reports whether a database and a collection may have these names. Blanks, quotes and slashes are none of a
// database's, but a collection may well have them. A dot at the beginning is none of a collection's; one at the end is
// taken for a slip although the server would allow it.
func legal(db, coll string) bool {
	return !strings.ContainsAny(db, " $\"\\/\x00") && !strings.ContainsAny(coll, "$\x00") &&
		!strings.HasPrefix(coll, ".") && !strings.HasSuffix(coll, ".")
}

func glob(s string) string { return strings.ReplaceAll(regexp.QuoteMeta(s), `\*`, `.*`) }

// regexp is the pattern as a regular expression on "database.collection". A * in the database's part stops
// at the dot.
func (p pattern) regexp() string {
	return `(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(p.db), `\*`, `[^.]*`) + `\.` + glob(p.coll) + `$`
}

func compileRename(r Rename) (rename, error) {
	fromDB, fromColl, _ := strings.Cut(r.From, ".")
	toDB, toColl, _ := strings.Cut(r.To, ".")
	if fromColl == "*" && toColl == "*" {
		fromColl, toColl = "", ""
	} else if fromColl == "" || toColl == "" {
		return rename{}, fmt.Errorf("%w: both sides are DATABASE.COLLECTION, or both are DATABASE.*", ErrBadPattern)
	}
	if fromDB == "" || toDB == "" || strings.Contains(fromDB+fromColl+toDB+toColl, "*") {
		return rename{}, fmt.Errorf("%w: a * stands for all collections of a database and for nothing else here", ErrBadPattern)
	}
	if !legal(fromDB, fromColl) || !legal(toDB, toColl) {
		return rename{}, fmt.Errorf("%w: no database or collection has such a name", ErrBadPattern)
	}
	if toDB == Own {
		return rename{}, fmt.Errorf("the database %q at the destination is capstan's own; choose another name", Own)
	}
	if System(record.Namespace{DB: toDB, Coll: toColl}) {
		return rename{}, fmt.Errorf("%w: %s is the server's own; choose another name", ErrBadPattern, r.To)
	}
	return rename{record.Namespace{DB: fromDB, Coll: fromColl}, record.Namespace{DB: toDB, Coll: toColl}}, nil
}

// System reports whether a namespace is MongoDB's or capstan's own, which never takes part.
func System(ns record.Namespace) bool {
	switch ns.DB {
	case "admin", "local", "config", Own:
		return true
	}
	return strings.HasPrefix(ns.Coll, "system.")
}

// Matches reports whether the source's namespace takes part.
func (s *Set) Matches(ns record.Namespace) bool {
	if System(ns) {
		return false
	}
	name := ns.String()
	fits := func(p pattern) bool { return p.re.MatchString(name) }
	return (len(s.include) == 0 || slices.ContainsFunc(s.include, fits)) && !slices.ContainsFunc(s.exclude, fits)
}

// Target returns the name at the destination of the source's namespace.
func (s *Set) Target(ns record.Namespace) record.Namespace {
	for _, r := range s.renames {
		switch {
		case r.from == ns:
			return r.to
		case r.from.Coll == "" && r.from.DB == ns.DB:
			return record.Namespace{DB: r.to.DB, Coll: ns.Coll}
		}
	}
	return ns
}

// Origins returns the names at the source of what the set would copy to a namespace of the destination: none if it
// never writes there, several if renames meet.
func (s *Set) Origins(target record.Namespace) []record.Namespace {
	candidates := []record.Namespace{target}
	for _, r := range s.renames {
		switch {
		case r.to == target:
			candidates = append(candidates, r.from)
		case r.to.Coll == "" && r.to.DB == target.DB:
			candidates = append(candidates, record.Namespace{DB: r.from.DB, Coll: target.Coll})
		}
	}
	var origins []record.Namespace
	for _, ns := range candidates {
		if s.Matches(ns) && s.Target(ns) == target && !slices.Contains(origins, ns) {
			origins = append(origins, ns)
		}
	}
	return origins
}

// Filter returns the query on the documents of the source's namespace, nil if all of them take part.
func (s *Set) Filter(ns record.Namespace) bson.Raw {
	for _, f := range s.filters {
		if f.pattern.re.MatchString(ns.String()) {
			return f.query
		}
	}
	return nil
}

// Filtered reports whether any namespace may have a filter.
func (s *Set) Filtered() bool { return len(s.filters) > 0 }

// Database returns the one database that takes part, "" if there may be several.
func (s *Set) Database() string {
	db := ""
	for _, p := range s.include {
		if strings.Contains(p.db, "*") || db != "" && p.db != db {
			return ""
		}
		db = p.db
	}
	return db
}

// Whole reports whether every collection of Database takes part: then a change stream of it needs no Match, which costs the server
// several microseconds an event.
func (s *Set) Whole() bool {
	if s.Database() == "" || len(s.exclude) > 0 {
		return false
	}
	return slices.ContainsFunc(s.include, func(p pattern) bool { return p.coll == "*" })
}

// maxNames bounds Names: MongoDB takes regular expressions of up to 32,764 bytes.
const maxNames = 30_000

// Names returns a regular expression, of RE2 and PCRE, on full names "database.collection" that fits every namespace of the set, and
// perhaps more; "" where it would fit all, or be too long for a server.
func (s *Set) Names() string {
	var all []string
	for _, p := range s.include {
		all = append(all, p.regexp())
	}
	if re := strings.Join(all, "|"); len(re) <= maxNames {
		return re
	}
	return ""
}

// Match returns the condition of a $match stage that lets the events of a change stream pass that are about
// namespaces of the set, by "ns" or, for a rename, by "to", and those that are about no collection.
func (s *Set) Match() bson.D {
	either := func(field string) bson.D {
		d := bson.D{}
		if in := alternatives(s.include, field); len(in) > 0 {
			d = append(d, bson.E{Key: "$or", Value: in})
		}
		if out := alternatives(s.exclude, field); len(out) > 0 {
			d = append(d, bson.E{Key: "$nor", Value: out})
		}
		return append(d,
			bson.E{Key: field + ".db", Value: bson.D{{Key: "$nin", Value: bson.A{"admin", "local", "config", Own}}}},
			bson.E{Key: field + ".coll", Value: bson.D{{Key: "$not", Value: bson.Regex{Pattern: `^system\.`}}}})
	}
	return bson.D{{Key: "$or", Value: bson.A{
		either("ns"),
		append(bson.D{{Key: "operationType", Value: "rename"}}, either("to")...),
		bson.D{{Key: "operationType", Value: bson.D{{Key: "$in", Value: bson.A{"invalidate", "dropDatabase"}}}}},
	}}}
}

func alternatives(ps []pattern, field string) bson.A {
	var or bson.A
	for _, p := range ps {
		one := bson.D{}
		if p.db != "*" {
			one = append(one, bson.E{Key: field + ".db", Value: exact(p.db)})
		}
		if p.coll != "*" {
			one = append(one, bson.E{Key: field + ".coll", Value: exact(p.coll)})
		}
		or = append(or, one)
	}
	return or
}

func exact(part string) any {
	if !strings.Contains(part, "*") {
		return part
	}
	return bson.Regex{Pattern: "^" + glob(part) + `\z`, Options: "s"} // not $, which lets a line feed follow
}

// Fingerprint identifies what the set means: two sets with the same fingerprint select, rename and filter
// alike. A checkpoint of one is of no use to the other otherwise.
func (s *Set) Fingerprint() string { return s.fingerprint }

func fingerprint(c Config) string {
	h := sha256.New()
	list := func(name string, texts []string) {
		texts = slices.Clone(texts)
		slices.Sort(texts)
		fmt.Fprintf(h, "%s %q\n", name, slices.Compact(texts))
	}
	list("include", c.Include)
	list("exclude", c.Exclude)
	for _, r := range c.Rename {
		fmt.Fprintf(h, "rename %q %q\n", r.From, r.To)
	}
	for _, f := range c.Filters {
		fmt.Fprintf(h, "filter %q %x\n", f.Pattern, []byte(f.Query))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Overlap returns a namespace of the destination that both sets may write to, and whether there is one, as far
// as patterns tell: it is exact for patterns without * and may warn too often for others.
func Overlap(a, b *Set) (string, bool) {
	for _, p := range a.targets() {
		for _, q := range b.targets() {
			if meets(p.db, q.db) && meets(p.coll, q.coll) {
				if strings.Contains(p.text, "*") {
					p = q // perhaps it says more
				}
				return p.text, true
			}
		}
	}
	return "", false
}

// targets returns the patterns of the destination's namespaces.
func (s *Set) targets() []pattern {
	in := s.include
	if len(in) == 0 {
		in = []pattern{{text: "*.*", db: "*", coll: "*"}}
	}
	var out []pattern
	for _, p := range in {
		if !strings.Contains(p.db+p.coll, "*") {
			ns := record.Namespace{DB: p.db, Coll: p.coll}
			if s.Matches(ns) {
				out = append(out, patternOf(s.Target(ns)))
			}
			continue
		}
		out = append(out, s.targetsOf(p)...)
	}
	return out
}

func patternOf(ns record.Namespace) pattern {
	return pattern{text: ns.String(), db: ns.DB, coll: ns.Coll}
}

// targetsOf returns the patterns of what a pattern with a * becomes: what every rename makes of it, and, unless one of them
// takes all of it, itself.
func (s *Set) targetsOf(p pattern) []pattern {
	var out []pattern
	for _, r := range s.renames {
		switch {
		case !meets(p.db, r.from.DB), r.from.Coll != "" && !meets(p.coll, r.from.Coll):
		case r.from.Coll == "":
			out = append(out, pattern{text: r.to.DB + "." + p.coll, db: r.to.DB, coll: p.coll})
			if p.db == r.from.DB {
				return out
			}
		case s.Matches(r.from) && s.Target(r.from) == r.to:
			out = append(out, patternOf(r.to))
		}
	}
	return append(out, p)
}

// meets reports whether some text fits both patterns.
func meets(a, b string) bool {
	// fits[j]: what is read of a can meet what is read of b up to j.
	fits := make([]bool, len(b)+1)
	fits[0] = true
	for j := 0; j < len(b) && b[j] == '*'; j++ {
		fits[j+1] = true
	}
	for i := range len(a) {
		next := make([]bool, len(b)+1)
		next[0] = a[i] == '*' && fits[0]
		for j := range len(b) {
			switch {
			case a[i] == '*' || b[j] == '*':
				// The * stands for nothing, or for what the other one has here.
				next[j+1] = a[i] == '*' && (fits[j+1] || next[j]) || b[j] == '*' && (next[j] || fits[j+1])
			default:
				next[j+1] = a[i] == b[j] && fits[j]
			}
		}
		fits = next
	}
	return fits[len(b)]
}
