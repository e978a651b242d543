package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/seed-12ef14e5/capstan/record"
)

// Report says what a run found. It can be written as JSON.
type Report struct {
	// Equal: every collection, option, index and document that was compared is equal. Documents that kept changing do not
	// make it false: nothing is known of them.
	Equal bool `json:"equal"`
	// Collections is how many pairs were compared.
	Collections int `json:"collections"`
	// Documents is how many documents are equal.
	Documents int64 `json:"documents"`
	// Seconds is how long all runs took that made this report, PerSecond how many documents of the source were compared in one.
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"documents_per_second"`
	// Resumed: an interrupted run's progress was used.
	Resumed bool `json:"resumed,omitempty"`
	// Namespaces are the collections and views of both sides, in order of their names.
	Namespaces []Namespace `json:"namespaces"`
}

// The kinds of what a Namespace is.
const (
	KindCollection = "collection"
	KindView       = "view"
	KindTimeseries = "timeseries"
)

// Namespace is what was found about one collection or view of the source and its pair at the target.
type Namespace struct {
	Source record.Namespace `json:"source"`
	Target record.Namespace `json:"target"`
	Kind   string           `json:"kind"`
	// Compared says in words what of the documents was compared, "" if nothing.
	Compared string `json:"compared,omitempty"`
	// Findings are about the collection itself, its options and its indexes.
	Findings []Finding `json:"findings,omitempty"`
	// SourceDocuments and TargetDocuments are how many documents were read; of the source, those that pass the filter.
	SourceDocuments int64 `json:"source_documents"`
	TargetDocuments int64 `json:"target_documents"`
	// Scanned is how many documents of the source were looked at, also those that do not pass the filter.
	Scanned int64 `json:"scanned"`
	// Equal, Missing, Extra, Different and Changing count documents: the same on both sides, only at the source, only at the
	// target, other content, and changed at the source between every look.
	Equal     int64 `json:"equal"`
	Missing   int64 `json:"missing"`
	Extra     int64 `json:"extra"`
	Different int64 `json:"different"`
	Changing  int64 `json:"changing"`
	// Moved counts the documents of a capped collection that are in another order.
	Moved int64 `json:"moved"`
	// OlderAtSource and OlderAtTarget count documents of a capped collection from before the oldest that both sides hold: the
	// other side has rolled over them. They are not compared.
	OlderAtSource int64   `json:"older_at_source,omitempty"`
	OlderAtTarget int64   `json:"older_at_target,omitempty"`
	Bytes         int64   `json:"bytes"`
	Seconds       float64 `json:"seconds"`
	// Differences lists documents that differ, Config.MaxDifferences in all namespaces: those that are Missing, then those that
	// are Extra, Different, Moved and Changing; of each kind, those with Paths first, in order of their _ids.
	Differences []Difference `json:"differences,omitempty"`
}

// What a Finding is about.
const (
	AboutCollection = "collection"
	AboutOption     = "option"
	AboutIndex      = "index"
)

// Finding is one difference of a collection, an option or an index.
type Finding struct {
	// About is AboutCollection, AboutOption or AboutIndex; Name is the option's or index's name.
	About string `json:"about"`
	Name  string `json:"name,omitempty"`
	// Text says it in words.
	Text string `json:"text"`
	// Source and Target are the values as canonical Extended JSON, "" where there is none.
	Source string `json:"source,omitempty"`
	Target string `json:"target,omitempty"`
	// Note: worth knowing, and no difference.
	Note bool `json:"note,omitempty"`
}

// The kinds of a Difference.
const (
	Missing   = "missing"
	Extra     = "extra"
	Different = "different"
	Changing  = "changing"
	Moved     = "moved"
)

// Difference is one document that differs.
type Difference struct {
	// Kind is Missing, Extra, Different, Changing or Moved.
	Kind string `json:"kind"`
	// ID is the _id at the source, or at the target where only that has one, as canonical Extended JSON.
	ID json.RawMessage `json:"id"`
	// Paths says what differs, for the first of the documents that are Different.
	Paths []PathDiff `json:"paths,omitempty"`
}

// PathDiff is one place in a document that differs.
type PathDiff struct {
	// Path is the field's, with dots; "" is the document as a whole.
	Path string `json:"path"`
	// Source and Target are the values as canonical Extended JSON, "" where there is none.
	Source string `json:"source"`
	Target string `json:"target"`
	// Text says what else differs, where the values read the same.
	Text string `json:"text,omitempty"`
}

// IsEqual reports whether nothing differs; notes and changing documents do not count.
func (n *Namespace) IsEqual() bool {
	for _, f := range n.Findings {
		if !f.Note {
			return false
		}
	}
	return n.Missing+n.Extra+n.Different+n.Moved == 0
}

// sum fills what is about all namespaces.
func (r *Report) sum() {
	r.Equal, r.Documents, r.Collections = true, 0, len(r.Namespaces)
	var read int64
	for i := range r.Namespaces {
		n := &r.Namespaces[i]
		r.Equal = r.Equal && n.IsEqual()
		r.Documents += n.Equal
		read += n.SourceDocuments
	}
	if r.Seconds > 0 {
		r.PerSecond = float64(read) / r.Seconds
	}
}

// Write writes the report for people: a line per collection, what was found in it, and the verdict as the last line.
func (r Report) Write(w io.Writer) error {
	var b strings.Builder
	var changing int64
	differ := 0
	for i := range r.Namespaces {
		n := &r.Namespaces[i]
		n.write(&b)
		changing += n.Changing
		if !n.IsEqual() {
			differ++
		}
	}
	switch {
	case r.Equal:
		fmt.Fprintf(&b, "verify: equal: %s, %s", plural(int64(r.Collections), "collection"), plural(r.Documents, "document"))
		if changing > 0 {
			fmt.Fprintf(&b, " (and %s changed too often to be compared)", plural(changing, "document"))
		}
	default:
		fmt.Fprintf(&b, "verify: DIFFERENT: %d of %s differ", differ, plural(int64(r.Collections), "collection"))
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

func (n *Namespace) write(b *strings.Builder) {
	b.WriteString(n.Source.String())
	if n.Target != n.Source {
		b.WriteString(" -> " + n.Target.String())
	}
	b.WriteString(": ")
	b.WriteString(n.verdict())
	b.WriteByte('\n')
	for _, f := range n.Findings {
		b.WriteString("  ")
		if f.Note {
			b.WriteString("note: ")
		}
		b.WriteString(f.about() + f.Text + "\n")
		if f.Source != "" || f.Target != "" {
			fmt.Fprintf(b, "    source: %s\n    target: %s\n", orNone(f.Source), orNone(f.Target))
		}
	}
	for _, d := range n.Differences {
		fmt.Fprintf(b, "  %s: %s\n", d.Kind, d.ID)
		for _, p := range d.Paths {
			path := p.Path
			if path == "" {
				path = "(document)"
			}
			fmt.Fprintf(b, "    %s: source %s, target %s", path, orNone(p.Source), orNone(p.Target))
			if p.Text != "" {
				b.WriteString(" (" + p.Text + ")")
			}
			b.WriteByte('\n')
		}
	}
	if listed := int64(len(n.Differences)); listed < n.Missing+n.Extra+n.Different+n.Changing+n.Moved {
		fmt.Fprintf(b, "  … and %d more (--max-differences)\n", n.Missing+n.Extra+n.Different+n.Changing+n.Moved-listed)
	}
}

func (f Finding) about() string {
	if f.Name == "" {
		return f.About + " "
	}
	return f.About + " " + f.Name + ": "
}

// verdict is a namespace in one line.
func (n *Namespace) verdict() string {
	var parts []string
	add := func(count int64, what string) {
		if count > 0 {
			parts = append(parts, commas(count)+" "+what)
		}
	}
	switch {
	case n.Kind != KindCollection && n.IsEqual():
		parts = append(parts, "equal "+n.Kind)
	case n.Kind != KindCollection:
		parts = append(parts, "DIFFERENT "+n.Kind)
	case n.IsEqual():
		parts = append(parts, "equal, "+plural(n.Equal, "document"))
	default:
		parts = append(parts, "DIFFERENT, "+commas(n.Equal)+" equal")
	}
	add(n.Missing, "missing")
	add(n.Extra, "extra")
	add(n.Different, "different")
	add(n.Moved, "in another order")
	add(n.Changing, "changing")
	add(n.OlderAtSource, "older only at the source")
	add(n.OlderAtTarget, "older only at the target")
	return strings.Join(parts, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return commas(n) + " " + what
}

// commas writes a number with a comma between thousands.
func commas(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
