package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds a configuration: aliases of aliases can make a small file huge.
const maxNodes = 100_000

// problem is one thing that is wrong in a file.
type problem struct {
	line int
	// path is the key's, for example routes[1].targets[0].uri; "" for the file as a whole.
	path string
	text string
	// unset is true for a variable or file that could not be put in: only those who need the value need to care.
	unset bool
}

// Problems is everything that is wrong in a configuration file, in the order of its lines.
type Problems []problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		switch {
		case one.line > 0 && one.path != "":
			lines[i] = fmt.Sprintf("line %d: %s: %s", one.line, one.path, one.text)
		case one.line > 0:
			lines[i] = fmt.Sprintf("line %d: %s", one.line, one.text)
		case one.path != "":
			lines[i] = one.path + ": " + one.text
		default:
			lines[i] = one.text
		}
	}
	if len(lines) == 1 {
		return lines[0]
	}
	return "\n  " + strings.Join(lines, "\n  ")
}

// decoder turns a YAML tree into structs, strictly, and goes on behind a mistake to find the others. yaml's own decoder stops at
// the first kind of mistake, knows no line of a value that is well-formed and wrong, and cannot expand a value
// before it becomes a number.
type decoder struct {
	getenv func(string) string
	// dir is the folder that the file is in.
	dir      string
	problems Problems
	// lines has the line of each key that was given, by its path.
	lines map[string]int
	nodes int
}

func (d *decoder) problem(line int, path, format string, args ...any) {
	d.problems = append(d.problems, problem{line: line, path: path, text: fmt.Sprintf(format, args...)})
}

// at reports a well-formed value that is wrong, with the line of its key or of the nearest one around it, unless something is
// reported of it already.
func (d *decoder) at(path, format string, args ...any) {
	if !slices.ContainsFunc(d.problems, func(p problem) bool { return p.path == path }) {
		d.also(path, format, args...)
	}
}

// also is at for what is wrong whatever else is.
func (d *decoder) also(path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if slices.ContainsFunc(d.problems, func(p problem) bool { return p.path == path && p.text == text }) {
		return
	}
	for p := path; p != ""; p = p[:max(0, strings.LastIndexAny(p, ".["))] {
		if line, ok := d.lines[p]; ok {
			d.problem(line, path, "%s", text)
			return
		}
	}
	d.problem(0, path, "%s", text)
}

// sorted returns the problems in the order of the file.
func (d *decoder) sorted() Problems {
	slices.SortStableFunc(d.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	return d.problems
}

// given reports whether a key is in the file with a value.
func (d *decoder) given(path string) bool { return d.lines[path] > 0 }

func (d *decoder) decode(n *yaml.Node, v reflect.Value, path string) {
	if d.nodes++; d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.problem(n.Line, path, "more than %d values", maxNodes)
		}
		return
	}
	if n.Kind == yaml.AliasNode {
		d.decode(n.Alias, v, path)
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return // a key without a value: as if it were not there
	}
	if path != "" {
		d.lines[path] = n.Line
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, v, path)
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.problem(n.Line, path, "want a list")
			return
		}
		list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			d.decode(item, list.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
		v.Set(list)
	default:
		d.scalar(n, v, path)
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.problem(n.Line, path, "want keys with values")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := key.Value
		if line, twice := seen[name]; twice {
			d.problem(key.Line, "", "%s is already set in line %d", name, line)
			continue
		}
		seen[name] = key.Line
		field := fieldOf(v, name)
		if !field.IsValid() {
			d.problem(key.Line, "", "unknown key %s%s", name, nearest(v, name))
			continue
		}
		d.decode(value, field, strings.TrimPrefix(path+"."+name, "."))
	}
}

func fieldOf(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("yaml") == key && key != "" {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// nearest names the keys that are allowed in a struct: they are few.
func nearest(v reflect.Value, name string) string {
	var keys []string
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("yaml")
		if key != "" {
			keys = append(keys, key)
		}
		if sortedLetters(key) == sortedLetters(name) || strings.HasPrefix(key, name) || strings.HasPrefix(name, key) && key != "" {
			return " (did you mean " + key + "?)"
		}
	}
	return " (known here: " + strings.Join(keys, ", ") + ")"
}

// sortedLetters makes names equal that differ by letters in another place, the commonest mistake.
func sortedLetters(s string) string {
	b := []byte(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)))
	slices.Sort(b)
	return string(b)
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.problem(n.Line, path, "want one value")
		return
	}
	if v.Type() == reflect.TypeFor[literal]() {
		v.SetString(n.Value)
		return
	}
	text, err := expand(n.Value, d.dir, d.getenv)
	if err != nil {
		d.problems = append(d.problems, problem{line: n.Line, path: path, text: err.Error(), unset: true})
		return
	}
	if err := setScalar(v, text); err != nil {
		d.problem(n.Line, path, "%v", err)
	}
}

// setScalar parses text by the type of v. What YAML would make of it (no, on, 0123, 1e3) does not matter.
func setScalar(v reflect.Value, text string) error {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := parseDuration(text)
		v.SetInt(int64(d))
		return err
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is not true or false", text)
		}
		v.SetBool(text == "true")
	case reflect.Int:
		i, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.SetInt(i)
	}
	return nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err == nil && strings.Trim(text, "0123456789") == "" && text != "0": // "0" needs no unit
	case err == nil:
		return d, nil
	case strings.Trim(text, "0123456789") == "" && text != "":
		return 0, fmt.Errorf("%q has no unit: write %ss for seconds (or ms, m, h)", text, text)
	}
	return 0, fmt.Errorf("%q is not a duration (want 500ms, 15s, 2m or 1h)", text)
}
