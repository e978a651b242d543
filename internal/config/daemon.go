package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/scope"
)

// The defaults of Daemon and of its routes. Those of routes are package replicator's, as a test shows.
const (
	DefaultAdminListen  = "127.0.0.1:9477"
	DefaultDrainTimeout = 30 * time.Second
	DefaultRestartMax   = time.Minute
	DefaultExisting     = "refuse"
	DefaultOnLost       = "stop"
	DefaultWorkers      = 4
	DefaultReaders      = 2
	DefaultBatch        = 4000
	DefaultSaveEvery    = time.Second
	DefaultMaxLetters   = 1000
	// MinTokenBytes is the least length of a token.
	MinTokenBytes = 16
	// maxParallel bounds workers and readers.
	maxParallel = 64
)

// Daemon is what `capstan serve` runs by.
type Daemon struct {
	// Path is the file's.
	Path string
	// Admin is the admin listener.
	Admin Admin
	// DrainTimeout is how long a stop may take for what is in progress, RestartMax the longest wait before a failed route is begun again.
	DrainTimeout, RestartMax time.Duration
	// Paused starts every route paused.
	Paused bool
	Routes []Route

	settings []Setting
}

// Admin configures the admin listener.
type Admin struct {
	// Listen is HOST:PORT, unix:PATH, or "off".
	Listen string
	// Hosts are names of this machine that a request may ask for.
	Hosts []string
	// Token is asked for by what changes anything; "" refuses all of that. Never print it.
	Token string
	// Pprof serves /debug/pprof.
	Pprof bool
}

// Route is one replication with its destinations.
type Route struct {
	Name   string
	Source string // a connection string with its password
	Scope  scope.Config
	// Filters are the queries of Scope as they were written.
	Filters []Filter
	// Stream is DATABASE.COLLECTION if the route replicates a stream; then Scope selects it too, so that overlaps are found.
	Stream  string
	Targets []Target
	// The options are as in replicator.Config.
	Existing, OnLost                            string
	Workers, Readers, Batch, Window, MaxLetters int
	SaveEvery                                   time.Duration
	Shared, KeepTTL, Paused                     bool
}

// Filter is a query on the documents of the namespaces that fit a pattern, in Extended JSON.
type Filter struct {
	Namespace, Query string
}

// Target is one destination of a route.
type Target struct {
	Name string
	URI  string // a connection string with its password
}

// Link returns the name of the replication to a target: the route's, with "/" and the target's where that has one.
func (r Route) Link(t Target) string {
	if t.Name == "" {
		return r.Name
	}
	return r.Name + "/" + t.Name
}

// Fingerprint identifies everything that a replication to t runs by: when it is another one after a reload, it is begun again.
// It is made of secrets and tells nothing about them.
func (r Route) Fingerprint(t Target) string {
	r.Targets = []Target{t}
	b, err := json.Marshal(r) // strings, numbers and bytes: no error
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Setting is one line of `capstan config show`: a key, its value without secrets, and where that came from.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Settings returns every setting of the daemon with its source, for people: without secrets (I10).
func (d Daemon) Settings() []Setting { return d.settings }

// LoadDaemon reads the configuration of the daemon: the file that --config or CAPSTAN_CONFIG names, with flags and
// environment over it. Without a file it returns the defaults. It reads files, and connects to nothing. Its error is an *Error that
// holds everything that is wrong.
func LoadDaemon(in Input) (Daemon, error) {
	in = in.withNone()
	path := in.first("config", "", "", "")
	b := &builder{in: in, source: "file " + path.Text, decoder: &decoder{}}
	var f file
	if path.Text != "" {
		text, err := readText(path.Text)
		if err != nil {
			return Daemon{}, &Error{Source: b.source, Err: err}
		}
		f, b.decoder = parseAll(text, filepath.Dir(path.Text), in.Getenv)
	}
	d := b.daemon(f)
	d.Path, d.settings = path.Text, b.settings
	if problems := b.sorted(); len(problems) > 0 {
		where := b.source
		if path.Text == "" {
			where = "flags and environment"
		}
		return Daemon{}, &Error{Source: where, Err: problems}
	}
	return d, nil
}

// LoadAdmin finds out where the daemon's admin listener is, and its token, for a client: like LoadDaemon, but what is wrong elsewhere
// in the file does not matter, and a token that may not be read is tokenErr.
func LoadAdmin(in Input) (a Admin, tokenErr, err error) {
	in = in.withNone()
	path := in.first("config", "", "", "")
	b := &builder{in: in, source: "file " + path.Text, decoder: &decoder{}}
	var f file
	if path.Text != "" {
		text, err := readText(path.Text)
		if err != nil {
			return Admin{}, nil, &Error{Source: b.source, Err: err}
		}
		f, b.decoder = parseAll(text, filepath.Dir(path.Text), in.Getenv)
		b.problems = nil
	}
	a = b.admin(f.Admin)
	for _, p := range b.problems {
		if strings.HasPrefix(p.path, "admin.token") {
			tokenErr = &Error{Key: p.path, Source: b.source, Err: errors.New(p.text)}
		}
	}
	return a, tokenErr, nil
}

// builder makes a Daemon of a file, and remembers where each value came from.
type builder struct {
	*decoder
	in       Input
	source   string
	settings []Setting
}

// show adds a line for config show. Redact takes passwords out of connection strings.
func (b *builder) show(key, value, source string) {
	b.settings = append(b.settings, Setting{Key: key, Value: Redact(value), Source: source})
}

// from says where a key of the file got its value.
func (b *builder) from(path string) string {
	if b.given(path) {
		return fmt.Sprintf("%s line %d", b.source, b.lines[path])
	}
	return "default"
}

// over returns what a flag or the environment says about a key: admin.listen is --admin-listen and CAPSTAN_ADMIN_LISTEN.
func (b *builder) over(path string) (Value, bool) {
	v := b.in.first(strings.NewReplacer(".", "-", "_", "-").Replace(path), "", "", "")
	return v, v.Source != "default"
}

func (b *builder) text(path, fromFile, def string) string {
	v, ok := b.over(path)
	switch {
	case ok:
	case b.given(path) && fromFile != "":
		v = Value{Text: fromFile, Source: b.from(path)}
	default:
		v = Value{Text: def, Source: "default"}
	}
	b.show(path, v.Text, v.Source)
	return v.Text
}

func (b *builder) bool(path string, fromFile bool) bool {
	v, ok := b.over(path)
	if !ok {
		b.show(path, strconv.FormatBool(fromFile), b.from(path))
		return fromFile
	}
	if v.Text != "true" && v.Text != "false" {
		b.problem(0, path, "%q (%s) is not true or false", v.Text, v.Source)
	}
	b.show(path, v.Text, v.Source)
	return v.Text == "true"
}

// duration returns a positive duration.
func (b *builder) duration(path string, fromFile, def time.Duration) time.Duration {
	source := b.from(path)
	value := fromFile
	if v, ok := b.over(path); ok {
		var err error
		source = v.Source
		if value, err = parseDuration(v.Text); err != nil {
			b.problem(0, path, "%v (%s)", err, v.Source)
			return def
		}
	} else if !b.given(path) {
		value = def
	}
	if value <= 0 {
		b.at(path, "%v must be longer than nothing", value)
	}
	b.show(path, shortDuration(value), source)
	return value
}

// shortDuration leaves out zero minutes and seconds: 1m and not 1m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (b *builder) daemon(f file) Daemon {
	d := Daemon{
		Admin:        b.admin(f.Admin),
		DrainTimeout: b.duration("drain_timeout", f.DrainTimeout, DefaultDrainTimeout),
		RestartMax:   b.duration("restart_max", f.RestartMax, DefaultRestartMax),
		Paused:       b.bool("paused", f.Paused),
	}
	for i, r := range f.Routes {
		d.Routes = append(d.Routes, b.route(fmt.Sprintf("routes[%d]", i), r))
	}
	b.together(d.Routes)
	b.shared(f)
	return d
}

// shared checks the settings that all commands share: whoever checks a file is told what is wrong with these, too.
func (b *builder) shared(f file) {
	for _, c := range []struct {
		key, flag, value, def string
		ok                    []string
	}{
		{"log.level", "log-level", f.Log.Level, DefaultLogLevel, logLevels},
		{"log.format", "log-format", f.Log.Format, DefaultLogFormat, logFormats},
		{"color", "color", f.Color, DefaultColor, colors},
	} {
		v := b.in.first(c.flag, c.value, "", c.def)
		if err := oneOf(c.key, v, c.ok); err != nil {
			b.at(c.key, "%v", errors.Unwrap(err))
		}
	}
	if f.URI == "-" {
		return // a line of standard input, which is read once
	}
	key := "uri"
	if f.URI == "" {
		key = "uri_file"
	}
	v, _, err := (Input{Flag: noFlag, Getenv: noEnv}).uri("uri", f.URI, f.URIFile, b.source, DefaultURI)
	if err != nil {
		err = errors.Unwrap(err)
	} else {
		err = checkConnection(v.Text)
	}
	if err != nil {
		b.at(key, "%v", err)
	}
}

func (b *builder) admin(f adminFile) Admin {
	a := Admin{
		Listen: b.text("admin.listen", f.Listen, DefaultAdminListen),
		Hosts:  f.Hosts,
		Pprof:  b.bool("admin.pprof", f.Pprof),
	}
	b.show("admin.hosts", strings.Join(f.Hosts, ", "), b.from("admin.hosts"))
	a.Token = b.token(f)
	if a.Token != "" && len(a.Token) < MinTokenBytes {
		b.at("admin.token", "a token has at least %d characters: openssl rand -hex 32 makes one", MinTokenBytes)
	}
	reachable, err := Reachable(a.Listen)
	switch {
	case err != nil:
		b.at("admin.listen", "%v", err)
	case reachable && len(a.Token) < MinTokenBytes:
		b.at("admin.listen", "%s can be reached from other machines: set admin.token or admin.token_file, or listen on 127.0.0.1 or unix:PATH", a.Listen)
	}
	return a
}

// token looks at token and token_file together, the stronger source first, as for a connection string.
func (b *builder) token(f adminFile) string {
	v, hasToken := b.over("admin.token")
	file, hasFile := b.over("admin.token_file")
	if !hasToken && !hasFile {
		v, hasToken = Value{Text: f.Token, Source: b.from("admin.token")}, f.Token != ""
		file, hasFile = Value{Text: f.TokenFile, Source: b.from("admin.token_file")}, f.TokenFile != ""
	}
	switch {
	case hasToken && hasFile:
		b.at("admin.token_file", "token and token_file are both given; give one")
	case hasToken:
		b.show("admin.token", hidden, v.Source)
		return v.Text
	case hasFile:
		text, err := ReadSecret(file.Text)
		if err != nil {
			b.at("admin.token_file", "%v", err)
		}
		b.show("admin.token", hidden, file.Source+" "+file.Text)
		return text
	default:
		b.show("admin.token", "", "default")
	}
	return ""
}

// ReadSecret reads a secret from a file: its content without the line's end. An empty one is an error.
func ReadSecret(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", errors.New(path + " is empty")
	}
	return secret, nil
}
