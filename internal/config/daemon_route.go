package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/match"
	"github.com/seed-12ef14e5/capstan/scope"
)

// name is what routes and targets may be called: it stands in a path, in a label, and in the key of a checkpoint.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

func (b *builder) name(path, text string) {
	if !name.MatchString(text) {
		b.at(path, "%q is no name: use up to 63 letters, digits, and . _ -, beginning with a letter or digit", text)
	}
}

func (b *builder) route(path string, f routeFile) Route {
	in := path + "."
	if f.Name == "" {
		b.at(in+"name", "a route needs a name: its checkpoint is stored under it")
	} else {
		b.name(in+"name", f.Name)
	}
	b.show(in+"name", f.Name, b.from(in+"name"))
	r := Route{Name: f.Name, Stream: f.Stream, Shared: f.Shared, KeepTTL: f.KeepTTL, Paused: f.Paused}
	r.Source = b.uri(in+"source", f.Source.URI, f.Source.URIFile)
	b.scope(in, f, &r)
	for i, t := range f.Targets {
		at := fmt.Sprintf("%stargets[%d]", in, i)
		if t.Name != "" {
			b.name(at+".name", t.Name)
		} else if len(f.Targets) > 1 {
			b.at(at, "a route with several targets needs a name for each")
		}
		b.show(at+".name", t.Name, b.from(at+".name"))
		r.Targets = append(r.Targets, Target{Name: t.Name, URI: b.uri(at, t.URI, t.URIFile)})
	}
	if len(f.Targets) == 0 {
		b.at(in+"targets", "a route needs a target")
	}
	r.Existing = b.choice(in+"existing", f.Existing, DefaultExisting, "refuse", "merge", "drop")
	r.OnLost = b.choice(in+"on_lost", f.OnLost, DefaultOnLost, "stop", "resync")
	r.Workers = b.number(in+"workers", f.Workers, DefaultWorkers, 1, maxParallel)
	r.Readers = b.number(in+"readers", f.Readers, DefaultReaders, 1, maxParallel)
	r.Batch = b.number(in+"batch", f.Batch, DefaultBatch, 1, 1<<20)
	r.Window = b.number(in+"window", f.Window, 0, 0, 1<<20)
	r.SaveEvery = b.routeDuration(in+"save_every", f.SaveEvery, DefaultSaveEvery)
	r.MaxLetters = b.number(in+"max_letters", f.MaxLetters, DefaultMaxLetters, -1, 1<<30)
	for _, s := range []struct {
		key string
		v   bool
	}{{"shared", f.Shared}, {"keep_ttl", f.KeepTTL}, {"paused", f.Paused}} {
		b.show(in+s.key, strconv.FormatBool(s.v), b.from(in+s.key))
	}
	return r
}

func (b *builder) scope(in string, f routeFile, r *Route) {
	r.Scope = scope.Config{Include: f.Include, Exclude: f.Exclude}
	var renames, filters []string
	for i, one := range f.Rename {
		r.Scope.Rename = append(r.Scope.Rename, scope.Rename{From: one.From, To: one.To})
		renames = append(renames, one.From+"="+one.To)
		if _, err := scope.Compile(scope.Config{Rename: r.Scope.Rename[i:]}); err != nil {
			b.at(fmt.Sprintf("%srename[%d]", in, i), "%v", errors.Unwrap(err))
		}
	}
	for i, one := range f.Filters {
		at := fmt.Sprintf("%sfilters[%d]", in, i)
		var query bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(one.Query), false, &query); err != nil {
			b.at(at+".query", "not a query in Extended JSON: %v", err)
			continue
		}
		if _, err := match.Compile(query); err != nil {
			b.at(at+".query", "%v", err)
		}
		r.Filters = append(r.Filters, Filter{one.Namespace, string(one.Query)})
		r.Scope.Filters = append(r.Scope.Filters, scope.Filter{Pattern: one.Namespace, Query: query})
		filters = append(filters, one.Namespace+": "+string(one.Query))
		if _, err := scope.Compile(scope.Config{Include: []string{one.Namespace}}); err != nil {
			b.at(at+".namespace", "%v", errors.Unwrap(err))
		}
	}
	for key, list := range map[string][]string{"include": f.Include, "exclude": f.Exclude} {
		for i, text := range list {
			if _, err := scope.Compile(scope.Config{Include: []string{text}}); err != nil {
				b.at(fmt.Sprintf("%s%s[%d]", in, key, i), "%v", errors.Unwrap(err)) // without the name of the list
			}
		}
	}
	if f.Stream != "" {
		if db, coll, ok := strings.Cut(f.Stream, "."); !ok || db == "" || coll == "" || strings.Contains(f.Stream, "*") {
			b.at(in+"stream", "%q is no DATABASE.COLLECTION", f.Stream)
		}
		if len(f.Include)+len(f.Exclude)+len(f.Filters) > 0 {
			b.at(in+"stream", "a route is for a stream, or has include, exclude and filters; not both")
		}
		r.Scope.Include = []string{f.Stream}
		b.onlyForStream(in, f)
	}
	b.show(in+"include", strings.Join(f.Include, ", "), b.from(in+"include"))
	b.show(in+"exclude", strings.Join(f.Exclude, ", "), b.from(in+"exclude"))
	b.show(in+"rename", strings.Join(renames, ", "), b.from(in+"rename"))
	b.show(in+"filters", strings.Join(filters, "; "), b.from(in+"filters"))
	b.show(in+"stream", f.Stream, b.from(in+"stream"))
}

// onlyForStream refuses what means nothing for a stream, which one ordered writer replicates.
func (b *builder) onlyForStream(in string, f routeFile) {
	for _, key := range []string{"on_lost", "workers", "readers", "batch", "window", "shared", "keep_ttl", "max_letters"} {
		if b.given(in + key) {
			b.at(in+key, "a route for a stream has no such option")
		}
	}
	if f.Existing == "drop" {
		b.at(in+"existing", "for a stream it is refuse or merge")
	}
}

// uri returns a side's connection string, from uri or uri_file.
func (b *builder) uri(path, text, file string) string {
	v := Value{Text: text, Source: b.from(path + ".uri")}
	var err error
	at := path + ".uri"
	switch {
	case text != "" && file != "":
		err = errors.New("uri and uri_file are both given; give one")
	case file != "":
		at = path + ".uri_file"
		v.Source = b.from(at) + " " + file
		v.Text, err = ReadSecret(file)
	case text == "": // at says nothing if it is a variable that is not set
		err = errors.New("a connection string is missing: give uri or uri_file")
	}
	if err == nil {
		err = checkConnection(v.Text)
	}
	if err != nil {
		b.at(at, "%v", err)
		return ""
	}
	b.show(path+".uri", v.Text, v.Source)
	return v.Text
}

// checkConnection parses a connection string as the driver does, except one whose hosts are in the DNS: to look them up belongs to
// connecting. What the driver says may quote a part of a password, so it is not passed on where there is one (I10).
func checkConnection(uri string) error {
	if strings.HasPrefix(uri, "mongodb+srv://") {
		return nil
	}
	if !strings.HasPrefix(uri, "mongodb://") {
		return errors.New("a connection string starts with mongodb:// or mongodb+srv://")
	}
	err := options.Client().ApplyURI(uri).Validate()
	if err != nil && Redact(uri) != uri {
		return errors.New("it cannot be parsed (what the driver says may quote the password and is not shown): in the user's name and the " +
			"password, an at sign is written %40, a colon %3A, a slash %2F and a percent sign %25")
	}
	return err
}

func (b *builder) choice(path, fromFile, def string, ok ...string) string {
	v := fromFile
	if v == "" {
		v = def
	}
	if !slices.Contains(ok, v) {
		b.at(path, "%q is not one of %s", v, strings.Join(ok, ", "))
	}
	b.show(path, v, b.from(path))
	return v
}

func (b *builder) number(path string, fromFile, def, least, most int) int {
	v := fromFile
	if !b.given(path) {
		v = def
	}
	if v < least || v > most {
		b.at(path, "%d is not %d to %d", v, least, most)
	}
	b.show(path, strconv.Itoa(v), b.from(path))
	return v
}

// routeDuration is duration for what has no flag and no variable.
func (b *builder) routeDuration(path string, fromFile, def time.Duration) time.Duration {
	v := fromFile
	if !b.given(path) {
		v = def
	}
	if v <= 0 {
		b.at(path, "%v must be longer than nothing", v)
	}
	b.show(path, shortDuration(v), b.from(path))
	return v
}

// link is the replication of a route to one of its targets.
type link struct {
	at, name string
	route    Route
	target   Target
	// set is nil if the scope cannot be compiled: then only the name is compared. plain is set without renames.
	set, plain *scope.Set
}

// together checks the routes against one another: names, and that no two write to the same collections. What cannot be compared
// because it is wrong by itself is left out.
func (b *builder) together(routes []Route) {
	var links []link
	for i, r := range routes {
		at := fmt.Sprintf("routes[%d]", i)
		set, plain := b.sets(at, r)
		for j, t := range r.Targets {
			one := link{fmt.Sprintf("%s.targets[%d]", at, j), r.Link(t), r, t, set, plain}
			b.compare(one, links)
			links = append(links, one)
		}
	}
}

// sets compiles a route's scope, with renames and without; nil, if something is wrong in it.
func (b *builder) sets(at string, r Route) (set, plain *scope.Set) {
	set, err := scope.Compile(r.Scope)
	if err == nil {
		plain, err = scope.Compile(scope.Config{Include: r.Scope.Include, Exclude: r.Scope.Exclude})
	}
	if err == nil {
		return set, plain
	}
	if !slices.ContainsFunc(b.problems, func(p problem) bool { return strings.HasPrefix(p.path, at+".") }) {
		b.at(at, "%v", err)
	}
	return nil, nil
}

// compare checks a link by itself and against those before it.
func (b *builder) compare(one link, before []link) {
	for _, other := range before {
		if one.name == other.name && one.route.Name != "" {
			b.at(one.at, "the name %s is used by %s already", one.name, other.at) // unless it lacks a name of its own
		}
	}
	hosts := hostsOf(one.target.URI)
	if one.set != nil {
		if ns, loop := scope.Overlap(one.set, one.plain); loop && meet(hosts, hostsOf(one.route.Source)) {
			b.also(one.at, "route %s would replicate %s into itself: rename it, or choose another target", one.name, ns)
		}
	}
	for _, other := range before {
		if one.set == nil || other.set == nil || one.route.Shared && other.route.Shared || !meet(hosts, hostsOf(other.target.URI)) {
			continue
		}
		if ns, overlap := scope.Overlap(one.set, other.set); overlap {
			b.also(one.at, "routes %s and %s both write to %s: change rename or include, or, if their documents differ in _id, "+
				"set shared: true in both", other.name, one.name, ns)
		}
	}
}

// hostsOf returns the hosts of a connection string, with their ports, in lower case. It looks nothing up: two names of one server are
// two servers here.
func hostsOf(uri string) []string {
	_, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return nil // reported already
	}
	srv := strings.HasPrefix(uri, "mongodb+srv://")
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		rest = rest[:end]
	}
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	hosts := strings.Split(strings.ToLower(rest), ",")
	for i, h := range hosts {
		if _, _, err := net.SplitHostPort(h); err != nil && !srv {
			hosts[i] = h + ":27017"
		}
	}
	return hosts
}

func meet(a, b []string) bool {
	return slices.ContainsFunc(a, func(h string) bool { return slices.Contains(b, h) })
}

// Reachable reports whether an address of the admin listener can be reached from other machines. Its error says what an address is.
func Reachable(listen string) (bool, error) {
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		if path == "" {
			return false, errors.New("unix: needs a path")
		}
		return false, nil
	}
	if listen == "off" {
		return false, nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port == "" {
		return false, fmt.Errorf("%q is not HOST:PORT, unix:PATH or off", listen)
	}
	if host == "localhost" {
		return false, nil
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.IsLoopback(), nil
}
