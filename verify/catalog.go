package verify

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/scope"
)

// HeldBackTTL is the expireAfterSeconds with which a route holds a TTL index of the target back until it is finalized.
const HeldBackTTL = 1<<31 - 1

// databases returns the names of a side's databases that may take part.
func (s *side) databases(ctx context.Context) ([]string, error) {
	var names []string
	err := s.again(ctx, "list databases", func(ctx context.Context, _ int) (err error) {
		names, err = s.client.ListDatabaseNames(ctx, bson.D{})
		return err
	})
	return slices.DeleteFunc(names, func(db string) bool { return scope.System(record.Namespace{DB: db, Coll: "x"}) }), err
}

// collections returns a database's collections and views, without the server's own.
func (s *side) collections(ctx context.Context, db string) ([]collection, error) {
	var infos []bson.Raw
	err := s.again(ctx, "list collections of "+db, func(ctx context.Context, _ int) error {
		cur, err := s.client.Database(db).ListCollections(ctx, bson.D{}, options.ListCollections().SetNameOnly(false))
		if err != nil {
			return err
		}
		infos = nil
		return cur.All(ctx, &infos)
	})
	var list []collection
	for _, info := range infos {
		c := collection{ns: record.Namespace{DB: db, Coll: info.Lookup("name").StringValue()}, exists: true}
		if scope.System(c.ns) {
			continue
		}
		c.kind, _ = info.Lookup("type").StringValueOK()
		c.options, _ = info.Lookup("options").DocumentOK()
		if _, id, ok := info.Lookup("info", "uuid").BinaryOK(); ok {
			c.uuid = fmt.Sprintf("%x", id)
		}
		list = append(list, c)
	}
	return list, err
}

// readIndexes fills the indexes of a collection, by their names.
func (s *side) readIndexes(ctx context.Context, c *collection) error {
	if !c.exists || c.kind == KindView {
		return nil
	}
	var specs []bson.Raw
	err := s.again(ctx, "list indexes of "+c.ns.String(), func(ctx context.Context, _ int) error {
		cur, err := s.client.Database(c.ns.DB).Collection(c.ns.Coll).Indexes().List(ctx)
		if err != nil {
			return err
		}
		specs = nil
		return cur.All(ctx, &specs)
	})
	if mongoerr.IsNotFound(err) {
		err = nil // dropped since it was listed
	}
	c.indexes = make(map[string]bson.Raw, len(specs))
	for _, spec := range specs {
		name, _ := spec.Lookup("name").StringValueOK()
		c.indexes[name] = spec
	}
	return err
}

// list finds what is to be compared: every collection of the source that takes part, with what the target has under its
// name there, and every collection of the target that a collection of the source would be copied to, were it there.
func (r *run) list(ctx context.Context, set *scope.Set) error {
	there := make(map[record.Namespace]collection)
	targets, err := r.target.databases(ctx)
	if err != nil {
		return err
	}
	for _, db := range targets {
		list, err := r.target.collections(ctx, db)
		if err != nil {
			return err
		}
		for _, c := range list {
			there[c.ns] = c
		}
	}
	origins := make(map[record.Namespace]record.Namespace)
	sources, err := r.source.databases(ctx)
	if err != nil {
		return err
	}
	for _, db := range sources {
		list, err := r.source.collections(ctx, db)
		if err != nil {
			return err
		}
		for _, c := range list {
			if !set.Matches(c.ns) {
				continue
			}
			to := set.Target(c.ns)
			if first, ok := origins[to]; ok {
				return fmt.Errorf("verify: %s and %s of the source have one name at the target, %s: compare them one after the other", first, c.ns, to)
			}
			origins[to] = c.ns
			p := &pair{source: c, target: collection{ns: to}, query: set.Filter(c.ns)}
			if t, ok := there[to]; ok {
				p.target = t
			}
			delete(there, to)
			r.pairs = append(r.pairs, p)
		}
	}
	for ns, c := range there {
		if origins := set.Origins(ns); len(origins) > 0 {
			r.pairs = append(r.pairs, &pair{source: collection{ns: origins[0]}, target: c})
		}
	}
	slices.SortFunc(r.pairs, func(a, b *pair) int { return strings.Compare(a.source.ns.String(), b.source.ns.String()) })
	return nil
}

// describe compares what is not documents, and prepares the comparison of those.
func (r *run) describe(ctx context.Context, p *pair, set *scope.Set) error {
	if !r.cfg.NoIndexes {
		if err := r.source.readIndexes(ctx, &p.source); err != nil {
			return err
		}
		if err := r.target.readIndexes(ctx, &p.target); err != nil {
			return err
		}
	}
	n := &p.state.report
	*n = Namespace{Source: p.source.ns, Target: p.target.ns, Kind: p.source.kind}
	switch {
	case !p.target.exists:
		n.Findings = []Finding{{About: AboutCollection, Text: "is missing at the target"}}
		return nil
	case !p.source.exists:
		n.Kind = p.target.kind
		n.Findings = []Finding{{About: AboutCollection, Text: "is extra at the target: the source has none"}}
		return nil
	case p.source.kind != p.target.kind:
		n.Findings = []Finding{{About: AboutCollection, Text: fmt.Sprintf("is a %s at the source and a %s at the target", p.source.kind, p.target.kind)}}
		return nil
	}
	n.Findings = append(r.cfg.optionFindings(p, set), r.cfg.indexFindings(p)...)
	p.collated = p.source.options.Lookup("collation").Type != 0 || p.target.options.Lookup("collation").Type != 0
	p.newTS = r.cfg.NewTimestamps && p.capped()
	return nil
}

// capped reports whether both sides are.
func (p *pair) capped() bool {
	a, _ := p.source.options.Lookup("capped").BooleanOK()
	b, _ := p.target.options.Lookup("capped").BooleanOK()
	return a && b
}

// implied are the values that an option has where it is not given.
var implied = map[string]bson.D{
	"validationLevel":  {{Key: "v", Value: "strict"}},
	"validationAction": {{Key: "v", Value: "error"}},
	"capped":           {{Key: "v", Value: false}},
}

// onlyNoted are options that say nothing of documents and that a route leaves to the target.
var onlyNoted = []string{"changeStreamPreAndPostImages", "storageEngine", "indexOptionDefaults"}

func (c Config) optionFindings(p *pair, set *scope.Set) []Finding {
	a, b := fields(p.source.options), fields(p.target.options)
	if from, ok := a["viewOn"]; ok {
		// A view follows its collection to the name it has at the target.
		to := set.Target(record.Namespace{DB: p.source.ns.DB, Coll: from.StringValue()})
		if to.DB == p.target.ns.DB {
			a["viewOn"] = stringValue(to.Coll)
		}
	}
	var found []Finding
	for _, name := range names(a, b) {
		x, y := orImplied(name, a[name]), orImplied(name, b[name])
		if name == "uuid" || equalSetting(name, x, y) {
			continue
		}
		f := Finding{About: AboutOption, Name: name, Source: text(a[name]), Target: text(b[name]), Text: "differs"}
		f.Note = slices.Contains(onlyNoted, name)
		if name == "expireAfterSeconds" && !c.StrictTTL && heldBack(y) && x.Type != 0 {
			f.Note, f.Text = true, "is held back at the target"
		}
		found = append(found, f)
	}
	return found
}

// indexFindings compares the indexes by their names. The one on _id has no properties of its own.
func (c Config) indexFindings(p *pair) []Finding {
	var found []Finding
	all := slices.Sorted(maps.Keys(p.source.indexes))
	for name := range p.target.indexes {
		if _, ok := p.source.indexes[name]; !ok {
			all = append(all, name)
		}
	}
	for _, name := range all {
		a, b := p.source.indexes[name], p.target.indexes[name]
		switch {
		case name == "_id_":
		case b == nil:
			found = append(found, Finding{About: AboutIndex, Name: name, Text: "is missing at the target", Source: text(document(a))})
		case a == nil:
			found = append(found, Finding{About: AboutIndex, Name: name, Text: "is extra at the target", Target: text(document(b))})
		default:
			found = append(found, c.propertyFindings(name, fields(a), fields(b))...)
		}
	}
	return found
}

func (c Config) propertyFindings(index string, a, b map[string]bson.RawValue) []Finding {
	var found []Finding
	for _, name := range names(a, b) {
		x, y := a[name], b[name]
		if name == "v" || name == "ns" || equalSetting(name, x, y) {
			continue
		}
		f := Finding{About: AboutIndex, Name: index, Source: text(x), Target: text(y), Text: "its " + name + " differs"}
		if name == "expireAfterSeconds" && !c.StrictTTL && heldBack(y) && x.Type != 0 {
			f.Note, f.Text = true, "its expireAfterSeconds is held back at the target"
		}
		found = append(found, f)
	}
	return found
}

func heldBack(v bson.RawValue) bool {
	n, ok := v.AsInt64OK()
	return ok && n == HeldBackTTL
}

func orImplied(name string, v bson.RawValue) bson.RawValue {
	def, ok := implied[name]
	if v.Type != 0 || !ok {
		return v
	}
	raw, err := bson.Marshal(def)
	if err != nil {
		return v
	}
	return bson.Raw(raw).Lookup("v")
}

// ofNumbers are settings in which the type of a number means nothing: servers and drivers choose it.
var ofNumbers = []string{"key", "weights", "size", "max", "expireAfterSeconds", "bits", "min", "textIndexVersion", "2dsphereIndexVersion", "collation", "clusteredIndex", "timeseries"}

// equalSetting compares two values of a setting: queries and pipelines byte for byte.
func equalSetting(name string, a, b bson.RawValue) bool {
	if sameValue(a, b) {
		return true
	}
	if a.Type == 0 || b.Type == 0 {
		v := a
		if a.Type == 0 {
			v = b
		}
		off, ok := v.BooleanOK()
		return ok && !off // not given is false
	}
	if !slices.Contains(ofNumbers, name) {
		return false
	}
	if name == "collation" { // its version is the server's
		return sameCollation(a, b)
	}
	return canonical(a) == canonical(b)
}

func sameCollation(a, b bson.RawValue) bool {
	x, okA := a.DocumentOK()
	y, okB := b.DocumentOK()
	if !okA || !okB {
		return false
	}
	p, q := fields(x), fields(y)
	for _, name := range names(p, q) {
		if name != "version" && canonicalOrNone(p[name]) != canonicalOrNone(q[name]) {
			return false
		}
	}
	return true
}

func canonicalOrNone(v bson.RawValue) string {
	if v.Type == 0 {
		return ""
	}
	return canonical(v)
}

func fields(doc bson.Raw) map[string]bson.RawValue {
	m := make(map[string]bson.RawValue)
	elems, err := doc.Elements()
	if err != nil {
		return m
	}
	for _, e := range elems {
		m[e.Key()] = e.Value()
	}
	return m
}

// names returns the keys of both maps, sorted.
func names(a, b map[string]bson.RawValue) []string {
	list := slices.Sorted(maps.Keys(a))
	for name := range b {
		if _, ok := a[name]; !ok {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

func document(doc bson.Raw) bson.RawValue {
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
}

func stringValue(s string) bson.RawValue {
	t, v, err := bson.MarshalValue(s)
	if err != nil {
		return bson.RawValue{}
	}
	return bson.RawValue{Type: t, Value: bytes.Clone(v)}
}
