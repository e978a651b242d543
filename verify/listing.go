package verify

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
)

// kinds are the kinds of a Difference in the order in which they are listed.
var kinds = []string{Missing, Extra, Different, Moved, Changing}

// arrange returns differences in the order that Namespace.Differences promises: documents are found in no order.
func arrange(list []Difference) []Difference {
	type row struct {
		kind, paths, class int
		number             float64
		d                  Difference
	}
	rows := make([]row, len(list))
	for i, d := range list {
		rows[i] = row{kind: slices.Index(kinds, d.Kind), class: 1, d: d}
		if len(d.Paths) == 0 {
			rows[i].paths = 1
		}
		if n, ok := numberOf(d.ID); ok {
			rows[i].class, rows[i].number = 0, n
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.paths, b.paths), cmp.Compare(a.class, b.class),
			cmp.Compare(a.number, b.number), cmp.Compare(string(a.d.ID), string(b.d.ID)))
	})
	out := make([]Difference, len(rows))
	for i := range rows {
		out[i] = rows[i].d
	}
	return out
}

// numberOf returns the number that an _id in canonical Extended JSON is.
func numberOf(id json.RawMessage) (float64, bool) {
	var v map[string]any
	if json.Unmarshal(id, &v) != nil || len(v) != 1 {
		return 0, false
	}
	for _, key := range []string{"$numberInt", "$numberLong", "$numberDouble", "$numberDecimal"} {
		if s, ok := v[key].(string); ok {
			n, err := strconv.ParseFloat(s, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// First returns the report with at most n differing documents listed, of every kind some: the counts stay as they are.
func (r Report) First(n int) Report {
	r.Namespaces = slices.Clone(r.Namespaces)
	for i := range r.Namespaces {
		list := firstOfEach(r.Namespaces[i].Differences, n)
		r.Namespaces[i].Differences = list
		n -= len(list)
	}
	return r
}

// firstOfEach returns n of an arranged list, taken from each kind in turn, in the list's order.
func firstOfEach(list []Difference, n int) []Difference {
	if len(list) <= n {
		return list
	}
	left := make(map[string]int) // how many there are of a kind that are not taken
	for _, d := range list {
		left[d.Kind]++
	}
	take := make(map[string]int)
	for n > 0 {
		for _, kind := range kinds {
			if n > 0 && left[kind] > 0 {
				left[kind]--
				take[kind]++
				n--
			}
		}
	}
	var out []Difference
	for _, d := range list {
		if take[d.Kind] > 0 {
			take[d.Kind]--
			out = append(out, d)
		}
	}
	return out
}
