package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// file is the configuration file. Its keys are documented in etc/capstan.yaml.
type file struct {
	URI     string  `yaml:"uri"`
	URIFile string  `yaml:"uri_file"`
	Color   string  `yaml:"color"`
	Log     logFile `yaml:"log"`

	// Those of capstan serve.
	Admin        adminFile     `yaml:"admin"`
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	RestartMax   time.Duration `yaml:"restart_max"`
	Paused       bool          `yaml:"paused"`
	Routes       []routeFile   `yaml:"routes"`
}

// logFile is the part about logs.
type logFile struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

// adminFile is the part about the admin listener.
type adminFile struct {
	Listen    string   `yaml:"listen"`
	Hosts     []string `yaml:"hosts"`
	Token     string   `yaml:"token"`
	TokenFile string   `yaml:"token_file"`
	Pprof     bool     `yaml:"pprof"`
}

// routeFile is one route.
type routeFile struct {
	Name       string        `yaml:"name"`
	Source     sideFile      `yaml:"source"`
	Include    []string      `yaml:"include"`
	Exclude    []string      `yaml:"exclude"`
	Rename     []renameFile  `yaml:"rename"`
	Filters    []filterFile  `yaml:"filters"`
	Stream     string        `yaml:"stream"`
	Targets    []targetFile  `yaml:"targets"`
	Existing   string        `yaml:"existing"`
	OnLost     string        `yaml:"on_lost"`
	Workers    int           `yaml:"workers"`
	Readers    int           `yaml:"readers"`
	Batch      int           `yaml:"batch"`
	Window     int           `yaml:"window"`
	SaveEvery  time.Duration `yaml:"save_every"`
	Shared     bool          `yaml:"shared"`
	KeepTTL    bool          `yaml:"keep_ttl"`
	MaxLetters int           `yaml:"max_letters"`
	Paused     bool          `yaml:"paused"`
}

// sideFile is a deployment.
type sideFile struct {
	URI     string `yaml:"uri"`
	URIFile string `yaml:"uri_file"`
}

// targetFile is a destination.
type targetFile struct {
	Name    string `yaml:"name"`
	URI     string `yaml:"uri"`
	URIFile string `yaml:"uri_file"`
}

type renameFile struct {
	From string `yaml:"from"`
	To   string `yaml:"to"`
}

type filterFile struct {
	Namespace string `yaml:"namespace"`
	// Query is taken as it is: operators begin with a dollar.
	Query literal `yaml:"query"`
}

// literal is a text in which nothing is expanded.
type literal string

// readFile reads a file for the settings that all commands share: what those of the daemon lack because a variable is not set,
// or a file of secrets may not be read, does not matter here.
func readFile(path string, getenv func(string) string) (file, error) {
	text, err := readText(path)
	if err != nil {
		return file{}, err
	}
	return parse(text, filepath.Dir(path), getenv)
}

// locate makes the names of files relative to the folder that the file is in, wherever it is read from.
func (f *file) locate(dir string) {
	names := []*string{&f.URIFile, &f.Admin.TokenFile}
	for i := range f.Routes {
		r := &f.Routes[i]
		names = append(names, &r.Source.URIFile)
		for j := range r.Targets {
			names = append(names, &r.Targets[j].URIFile)
		}
	}
	for _, name := range names {
		*name = beside(dir, *name)
	}
}

// beside returns what a name of a file means in a configuration file in dir.
func beside(dir, name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func readText(path string) ([]byte, error) {
	fd, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = fd.Close() }()
	text, err := io.ReadAll(io.LimitReader(fd, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("longer than %d bytes", maxFileBytes)
	}
	return text, err
}

func parse(text []byte, dir string, getenv func(string) string) (file, error) {
	f, d := parseAll(text, dir, getenv)
	shared := slices.DeleteFunc(d.sorted(), func(p problem) bool {
		return p.unset && (strings.HasPrefix(p.path, "routes") || strings.HasPrefix(p.path, "admin"))
	})
	if len(shared) > 0 {
		return file{}, shared
	}
	return f, nil
}

// parseAll parses a file strictly: unknown and duplicate keys are problems with their line. It goes on behind a mistake, so that
// all of them are found. The names of files in it are relative to dir, the folder that the file is in.
func parseAll(text []byte, dir string, getenv func(string) string) (file, *decoder) {
	var f file
	d := &decoder{getenv: getenv, dir: dir, lines: map[string]int{}}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // an empty file
		return f, d
	case err != nil:
		d.problem(0, "", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return f, d
	}
	d.decode(doc.Content[0], reflect.ValueOf(&f).Elem(), "")
	f.locate(dir)
	if err := dec.Decode(&more); err == nil {
		d.problem(more.Line, "", "a second YAML document")
	} else if !errors.Is(err, io.EOF) {
		d.problem(0, "", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return f, d
}

var variable = regexp.MustCompile(`\$\$|\$\{[^}]*\}|\$`)

// expand replaces ${VAR}, ${VAR:-default}, ${file:/path} (relative to dir) and $$. Everything else behind a dollar is
// an error: a forgotten variable must not become an empty password.
func expand(s, dir string, getenv func(string) string) (string, error) {
	var bad error
	out := variable.ReplaceAllStringFunc(s, func(m string) string {
		v, err := expandOne(m, dir, getenv)
		if err != nil && bad == nil {
			bad = err
		}
		return v
	})
	return out, bad
}

func expandOne(m, dir string, getenv func(string) string) (string, error) {
	switch m {
	case "$$":
		return "$", nil
	case "$":
		return "", errors.New(`a single $ (write $$ for a dollar, ${NAME} for a variable)`)
	}
	name := m[2 : len(m)-1]
	if path, ok := strings.CutPrefix(name, "file:"); ok {
		b, err := os.ReadFile(beside(dir, path))
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
