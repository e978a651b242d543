package scope

import (
	"slices"

	"github.com/seed-12ef14e5/capstan/record"
)

// Unused returns one text for each include, exclude, rename and filter that fits none of the source's namespaces:
// "include shopp.*", "exclude shop.tmp", "rename shop.a to shop.b", "filter of shop.orderz". Most are misspelt. names
// are all namespaces of the source, also those that an exclude takes out; MongoDB's own and capstan's count for none.
func (s *Set) Unused(names []record.Namespace) []string {
	names = slices.DeleteFunc(slices.Clone(names), System)
	var unused []string
	check := func(text string, fits func(record.Namespace) bool) {
		if !slices.ContainsFunc(names, fits) {
			unused = append(unused, text)
		}
	}
	for _, p := range s.include {
		check("include "+p.text, p.fits)
	}
	for _, p := range s.exclude {
		check("exclude "+p.text, p.fits)
	}
	for _, r := range s.renames {
		check("rename "+side(r.from)+" to "+side(r.to), func(ns record.Namespace) bool {
			return r.from == ns || r.from.Coll == "" && r.from.DB == ns.DB
		})
	}
	for _, f := range s.filters {
		check("filter of "+f.pattern.text, f.pattern.fits)
	}
	return unused
}

func (p pattern) fits(ns record.Namespace) bool { return p.re.MatchString(ns.String()) }

// side is one side of a rename as it is written.
func side(ns record.Namespace) string {
	if ns.Coll == "" {
		return ns.DB + ".*"
	}
	return ns.String()
}
