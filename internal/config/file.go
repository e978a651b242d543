package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// file is the configuration file. Its keys are documented in sample.yaml.
type file struct {
	URI     string  `yaml:"uri"`
	URIFile string  `yaml:"uri_file"`
	Color   string  `yaml:"color"`
	Log     logFile `yaml:"log"`
}

// logFile is the part about logs.
type logFile struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

// readFile parses a file strictly (unknown and duplicate keys are errors with their line) and then
// expands its values.
func readFile(path string, getenv func(string) string) (file, error) {
	fd, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	defer func() { _ = fd.Close() }()
	text, err := io.ReadAll(io.LimitReader(fd, maxFileBytes+1))
	if err != nil {
		return file{}, err
	}
	if len(text) > maxFileBytes {
		return file{}, fmt.Errorf("longer than %d bytes", maxFileBytes)
	}
	return parse(text, getenv)
}

func parse(text []byte, getenv func(string) string) (file, error) {
	var f file
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil && !errors.Is(err, io.EOF) { // EOF: an empty file
		return file{}, yamlError(err)
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		return file{}, fmt.Errorf("line %d: a second YAML document", more.Line)
	}
	return f, expandStrings(reflect.ValueOf(&f).Elem(), getenv)
}

// goType matches what yaml says about Go types, which means nothing to the person who wrote the file.
var goType = regexp.MustCompile(` in type [\w.]+| into [\w.]+`)

func yamlError(err error) error {
	var te *yaml.TypeError
	if !errors.As(err, &te) {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	lines := make([]string, len(te.Errors))
	for i, l := range te.Errors {
		l = goType.ReplaceAllString(l, "")
		if at, key, ok := strings.Cut(l, ": field "); ok && strings.HasSuffix(key, " not found") {
			l = at + ": unknown key " + strings.TrimSuffix(key, " not found")
		}
		lines[i] = l
	}
	return errors.New(strings.Join(lines, "; "))
}

// expandStrings expands every string of a struct. It works on values after parsing: what a variable
// holds is never parsed as YAML.
func expandStrings(v reflect.Value, getenv func(string) string) error {
	for i := range v.NumField() {
		f := v.Field(i)
		switch f.Kind() {
		case reflect.Struct:
			if err := expandStrings(f, getenv); err != nil {
				return err
			}
		case reflect.String:
			s, err := expand(f.String(), getenv)
			if err != nil {
				return fmt.Errorf("%s: %w", v.Type().Field(i).Tag.Get("yaml"), err)
			}
			f.SetString(s)
		}
	}
	return nil
}

var variable = regexp.MustCompile(`\$\$|\$\{[^}]*\}|\$`)

// expand replaces ${VAR}, ${VAR:-default}, ${file:/path} and $$. Everything else behind a dollar is
// an error: a forgotten variable must not become an empty password.
func expand(s string, getenv func(string) string) (string, error) {
	var bad error
	out := variable.ReplaceAllStringFunc(s, func(m string) string {
		v, err := expandOne(m, getenv)
		if err != nil && bad == nil {
			bad = err
		}
		return v
	})
	return out, bad
}

func expandOne(m string, getenv func(string) string) (string, error) {
	switch m {
	case "$$":
		return "$", nil
	case "$":
		return "", errors.New(`a single $ (write $$ for a dollar, ${NAME} for a variable)`)
	}
	name := m[2 : len(m)-1]
	if path, ok := strings.CutPrefix(name, "file:"); ok {
		b, err := os.ReadFile(path)
		return strings.TrimRight(string(b), "\r\n"), err
	}
	name, def, hasDefault := strings.Cut(name, ":-")
	if v := getenv(name); v != "" {
		return v, nil
	}
	if !hasDefault {
		return "", fmt.Errorf("the environment variable %s is not set", name)
	}
	return def, nil
}
