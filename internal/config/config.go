// Package config finds out the settings that all subcommands share: the connection string and the
// logs. A flag wins over the environment, the environment over the file, the file over the default,
// and each value remembers where it came from.
//
// It also holds the one function that hides secrets, Redact.
package config

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// The defaults of Settings.
const (
	DefaultURI       = "mongodb://127.0.0.1:27017"
	DefaultLogLevel  = "warn"
	DefaultLogFormat = "auto"
	DefaultColor     = "auto"
)

// What some settings may be.
var (
	logLevels  = []string{"trace", "debug", "info", "warn", "error", "off"}
	logFormats = []string{"auto", "text", "json"}
	colors     = []string{"auto", "always", "never"}
)

// maxURIBytes bounds what is read as a connection string from a file or from standard input.
const maxURIBytes = 64 << 10

// Error is a configuration that cannot be used: which setting, where it came from, and why.
type Error struct {
	// Key is the setting's name, "" if the file as a whole is bad.
	Key string
	// Source is where the value came from, as shown by `capstan config show`.
	Source string
	Err    error
}

func (e *Error) Error() string {
	where := e.Source
	if e.Key != "" {
		where = e.Key + " (" + e.Source + ")"
	}
	return fmt.Sprintf("configuration: %s: %v", where, e.Err)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Value is one setting and where it came from: "default", "file capstan.yaml", "env CAPSTAN_URI", "flag --uri".
type Value struct {
	Text   string
	Source string
}

// Settings is what all subcommands share.
type Settings struct {
	// URI is MongoDB's connection string, with its password: never print it without Redact.
	URI Value
	// LogLevel is trace, debug, info, warn, error or off.
	LogLevel Value
	// LogFormat is auto (text on a terminal, else JSON), text or json.
	LogFormat Value
	// Color is auto, always or never.
	Color Value
	// ArgvSecret is true if the URI came from the command line and holds a password.
	ArgvSecret bool
}

// Input is where settings come from.
type Input struct {
	// Flag returns a flag's value and whether it was given on the command line, by its name without
	// dashes. nil: no flags.
	Flag func(name string) (string, bool)
	// Getenv reads the environment. nil: none.
	Getenv func(string) string
	// Stdin is read if the URI is "-". nil: refused.
	Stdin io.Reader
}

// Load finds out the settings. It reads files, and standard input if the URI is "-"; it connects to
// nothing. All errors are *Error.
func Load(in Input) (Settings, error) {
	in = in.withNone()
	path := in.first("config", "", "", "")
	var f file
	if path.Text != "" {
		var err error
		if f, err = readFile(path.Text, in.Getenv); err != nil {
			return Settings{}, &Error{Source: "file " + path.Text, Err: err}
		}
	}
	src := "file " + path.Text
	s := Settings{
		LogLevel:  in.first("log-level", f.Log.Level, src, DefaultLogLevel),
		LogFormat: in.first("log-format", f.Log.Format, src, DefaultLogFormat),
		Color:     in.first("color", f.Color, src, DefaultColor),
	}
	for _, c := range []struct {
		key string
		v   Value
		ok  []string
	}{
		{"log-level", s.LogLevel, logLevels},
		{"log-format", s.LogFormat, logFormats},
		{"color", s.Color, colors},
	} {
		if err := oneOf(c.key, c.v, c.ok); err != nil {
			return Settings{}, err
		}
	}
	var err error
	s.URI, s.ArgvSecret, err = in.uri("uri", f.URI, f.URIFile, src, DefaultURI)
	return s, err
}

func noFlag(string) (string, bool) { return "", false }
func noEnv(string) string          { return "" }

// withNone fills what is nil with what finds nothing.
func (in Input) withNone() Input {
	if in.Flag == nil {
		in.Flag = noFlag
	}
	if in.Getenv == nil {
		in.Getenv = noEnv
	}
	return in
}

// EnvName derives a flag's environment variable: --log-level is CAPSTAN_LOG_LEVEL.
func EnvName(flag string) string {
	return "CAPSTAN_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// first returns the value of the first source that has one.
func (in Input) first(flag, fromFile, fileSource, def string) Value {
	if v, ok := in.Flag(flag); ok {
		return Value{Text: v, Source: "flag --" + flag}
	}
	if v := in.Getenv(EnvName(flag)); v != "" {
		return Value{Text: v, Source: "env " + EnvName(flag)}
	}
	if fromFile != "" {
		return Value{Text: fromFile, Source: fileSource}
	}
	return Value{Text: def, Source: "default"}
}

// LoadURI finds out a connection string that only some commands have, "source-uri" for instance: the flags --source-uri and
// --source-uri-file win over the environment (CAPSTAN_SOURCE_URI, CAPSTAN_SOURCE_URI_FILE), and within one source both at
// once are a mistake. "-" reads the next line of standard input. argvSecret says that it came from the command line and holds
// a password. An empty Text means that nobody gave one. It connects to nothing; all errors are *Error.
func LoadURI(in Input, name string) (v Value, argvSecret bool, err error) {
	return in.withNone().uri(name, "", "", "", "")
}

// uri looks at a connection string's two flags together, and at what a file says of both.
func (in Input) uri(name, fromFile, fileFromFile, src, def string) (Value, bool, error) {
	flagURI, hasURI := in.Flag(name)
	flagFile, hasFile := in.Flag(name + "-file")
	env, envOfFile := EnvName(name), EnvName(name+"-file")
	envURI, envFile := in.Getenv(env), in.Getenv(envOfFile)
	for _, s := range []struct {
		name, nameOfFile string
		uri, file        string
		hasURI, hasFile  bool
		argv             bool
	}{
		{"flag --" + name, "flag --" + name + "-file", flagURI, flagFile, hasURI, hasFile, true},
		{"env " + env, "env " + envOfFile, envURI, envFile, envURI != "", envFile != "", false},
		{src, src, fromFile, fileFromFile, fromFile != "", fileFromFile != "", false},
	} {
		switch {
		case s.hasURI && s.hasFile:
			return Value{}, false, &Error{Key: name, Source: s.name, Err: fmt.Errorf("%s and %s-file are both given; give one", name, name)}
		case s.hasURI:
			v, err := in.uriValue(name, s.uri, s.name)
			return v, s.argv && s.uri != "-" && HasPassword(v.Text), err
		case s.hasFile:
			v, err := uriFromFile(name, s.file, s.nameOfFile)
			return v, false, err
		}
	}
	return Value{Text: def, Source: "default"}, false, nil
}

func (in Input) uriValue(name, text, source string) (Value, error) {
	if text != "-" {
		return checkURI(name, text, source)
	}
	if in.Stdin == nil {
		return Value{}, &Error{Key: name, Source: source, Err: fmt.Errorf("standard input is not available")}
	}
	line, err := readLine(in.Stdin)
	if err != nil {
		return Value{}, &Error{Key: name, Source: "standard input", Err: err}
	}
	return checkURI(name, line, "standard input")
}

func uriFromFile(name, path, source string) (Value, error) {
	fd, err := os.Open(path)
	if err != nil {
		return Value{}, &Error{Key: name, Source: source, Err: err}
	}
	defer func() { _ = fd.Close() }()
	b, err := io.ReadAll(io.LimitReader(fd, maxURIBytes))
	if err != nil {
		return Value{}, &Error{Key: name, Source: source, Err: err}
	}
	return checkURI(name, strings.TrimSpace(string(b)), source+" "+path)
}

// checkURI looks at the scheme only: the driver says the rest.
func checkURI(name, text, source string) (Value, error) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "mongodb://") && !strings.HasPrefix(text, "mongodb+srv://") {
		// Not quoted: a mistyped scheme may stand before a password.
		return Value{}, &Error{Key: name, Source: source, Err: fmt.Errorf("a connection string starts with mongodb:// or mongodb+srv://")}
	}
	return Value{Text: text, Source: source}, nil
}

// HasPassword reports whether a connection string holds a password or another secret. A port that is no
// number is none, although Redact hides it: someone may have forgotten the host.
func HasPassword(uri string) bool {
	return strings.Contains(uri, "@") && Redact(uri) != uri || secretOption.MatchString(uri)
}

// readLine reads one line byte by byte, so that what follows it stays in r for the command.
func readLine(r io.Reader) (string, error) {
	var line []byte
	one := make([]byte, 1)
	for len(line) < maxURIBytes {
		n, err := r.Read(one)
		if n == 1 {
			if one[0] == '\n' {
				return string(line), nil
			}
			line = append(line, one[0])
		}
		if err == io.EOF {
			return string(line), nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("its first line is longer than %d bytes", maxURIBytes)
}

func oneOf(key string, v Value, ok []string) error {
	for _, o := range ok {
		if v.Text == o {
			return nil
		}
	}
	return &Error{Key: key, Source: v.Source, Err: fmt.Errorf("%q is not one of %s", v.Text, strings.Join(ok, ", "))}
}
