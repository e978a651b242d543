package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTheSampleHoldsEveryKeyWithItsDefault(t *testing.T) {
	t.Parallel()
	f, err := parse([]byte(Sample()), ".", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	want := file{URI: DefaultURI, Color: DefaultColor, DrainTimeout: DefaultDrainTimeout, RestartMax: DefaultRestartMax, Routes: []routeFile{}}
	want.Log = logFile{DefaultLogLevel, DefaultLogFormat}
	want.Admin = adminFile{Listen: DefaultAdminListen, Hosts: []string{}}
	if !reflect.DeepEqual(f, want) {
		t.Errorf("the sample says %+v, the defaults are %+v", f, want)
	}
	if !strings.Contains(Sample(), "# uri_file:") {
		t.Error("the sample does not show uri_file")
	}
}

// TestTheStrongestSourceWins tries every combination of sources.
func TestTheStrongestSourceWins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		flags, env := map[string]string{}, map[string]string{}
		levels := []string{"debug", "info", "error"}
		want, source := DefaultLogLevel, "default"
		path := filepath.Join(dir, "c.yaml")
		if rapid.Bool().Draw(t, "file") {
			want, source = levels[0], "file "+path
			if err := os.WriteFile(path, []byte("log: {level: "+want+"}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "named by flag") {
				flags["config"] = path
			} else {
				env["CAPSTAN_CONFIG"] = path
			}
		}
		if rapid.Bool().Draw(t, "env") {
			want, source = levels[1], "env CAPSTAN_LOG_LEVEL"
			env["CAPSTAN_LOG_LEVEL"] = want
		}
		if rapid.Bool().Draw(t, "flag") {
			want, source = levels[2], "flag --log-level"
			flags["log-level"] = want
		}
		s, err := Load(Input{
			Flag:   func(n string) (string, bool) { v, ok := flags[n]; return v, ok },
			Getenv: func(n string) string { return env[n] },
		})
		if err != nil {
			t.Fatal(err)
		}
		if s.LogLevel != (Value{want, source}) {
			t.Fatalf("got %+v, want %s from %s", s.LogLevel, want, source)
		}
	})
}

func TestBadFilesSayWhere(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"uri: mongodb://h\nnonsense: 1\n": "line 2: unknown key nonsense",
		"log:\n  levle: info\n":           "line 2: unknown key levle",
		"uri: a\nuri: b\n":                "line 2",
		"uri: [1, 2]\n":                   "line 1",
		"uri: a\n---\nuri: b\n":           "second YAML document",
		"uri: \"a\n":                      "line",
		"uri: mongodb://${MISSING}\n":     "MISSING is not set",
		"uri: mongodb://$HOME\n":          "write $$ for a dollar",
		"uri: ${file:/does/not/exist}\n":  "no such file",
	} {
		_, err := parse([]byte(text), ".", func(string) string { return "" })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse(%q) = %v, want an error with %q", text, err, want)
		}
	}
	if _, err := parse(nil, ".", nil); err != nil {
		t.Errorf("an empty file is an error: %v", err)
	}
}

func TestExpandedValuesAreNotParsedAgain(t *testing.T) {
	t.Parallel()
	env := func(n string) string { return map[string]string{"P": `x": [y] ${Q} $$ #`}[n] }
	f, err := parse([]byte("uri: mongodb://u:${P}@h/$$\n"), ".", env)
	if err != nil {
		t.Fatal(err)
	}
	if want := `mongodb://u:x": [y] ${Q} $$ #@h/$`; f.URI != want {
		t.Errorf("got %q, want %q", f.URI, want)
	}
}

func TestTheURIIsReadFromItsFirstLineOnly(t *testing.T) {
	t.Parallel()
	in := strings.NewReader("mongodb://u:p@h\nfirst message\n")
	s, err := Load(Input{Flag: func(n string) (string, bool) { return "-", n == "uri" }, Stdin: in})
	if err != nil {
		t.Fatal(err)
	}
	if s.URI.Text != "mongodb://u:p@h" {
		t.Errorf("got %+v", s.URI)
	}
	if rest := in.Len(); rest != len("first message\n") {
		t.Errorf("%d bytes are left for the command, want the messages", rest)
	}
}

func TestErrorsAreTyped(t *testing.T) {
	t.Parallel()
	_, err := Load(Input{Flag: func(n string) (string, bool) { return "http://u:p@h", n == "uri" }})
	var e *Error
	if !errors.As(err, &e) || e.Key != "uri" || strings.Contains(err.Error(), "p@h") {
		t.Errorf("got %v", err)
	}
}
