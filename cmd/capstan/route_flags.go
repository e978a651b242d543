package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/scope"
)

// The two sides of a route, as flags and messages name them.
const (
	sideSource = "source"
	sideTarget = "target"
)

// sourceTargetFlags are the flags of the commands with a source and a target: where both are, which
// namespaces take part, under which names, and which of their documents.
type sourceTargetFlags struct {
	include, exclude, rename, filter []string
}

// sourceTarget is what the flags say.
type sourceTarget struct {
	// Source and Target are fresh options for clients; the libraries that own a client set what they need on top.
	Source, Target *options.ClientOptions
	// Scope has been compiled once: it is good.
	Scope scope.Config
}

// addSourceTargetFlags gives a command the flags. parse reads them when the command runs.
func addSourceTargetFlags(cmd *cobra.Command) *sourceTargetFlags {
	f := &sourceTargetFlags{}
	fl := cmd.Flags()
	for _, side := range []string{sideSource, sideTarget} {
		name := side + "-uri"
		fl.String(name, "", fmt.Sprintf("connection string of the %s (or %s); - reads it from standard input", side, config.EnvName(name)))
		fl.String(name+"-file", "", fmt.Sprintf("file that holds the connection string of the %s", side))
	}
	fl.StringArrayVar(&f.include, "include", nil, "namespaces that take part, DATABASE.COLLECTION, where * stands for any text; may be repeated (default all)")
	fl.StringArrayVar(&f.exclude, "exclude", nil, "namespaces that do not take part although --include selects them; may be repeated")
	fl.StringArrayVar(&f.rename, "rename", nil, "SOURCE=TARGET, both DATABASE.COLLECTION or both DATABASE: another name at the target; may be repeated")
	fl.StringArrayVar(&f.filter, "filter", nil, "query on documents, as JSON, or NAMESPACES=JSON for some namespaces only; may be repeated, the first that fits counts")
	return f
}

// parse finds out both connection strings and compiles the scope. It connects to nothing.
func (f *sourceTargetFlags) parse(env *environ, cmd *cobra.Command) (sourceTarget, error) {
	var st sourceTarget
	var err error
	if st.Source, err = sideOptions(env, cmd, sideSource); err != nil {
		return st, err
	}
	if st.Target, err = sideOptions(env, cmd, sideTarget); err != nil {
		return st, err
	}
	env.sides = []*options.ClientOptions{st.Source, st.Target}
	st.Scope, err = f.scope()
	return st, err
}

// sideOptions returns the options for a client of one side.
func sideOptions(env *environ, cmd *cobra.Command, side string) (*options.ClientOptions, error) {
	name := side + "-uri"
	uri, argvSecret, err := config.LoadURI(env.input(cmd), name)
	if err != nil {
		return nil, err
	}
	if uri.Text == "" {
		return nil, usageError("--%s is missing: give it, or %s, or --%s-file", name, config.EnvName(name), name)
	}
	if argvSecret {
		env.note("warning: the password in --%s may be visible to system status programs such as ps; use %s, --%s-file or --%s - instead",
			name, config.EnvName(name), name, name)
	}
	return clientOptionsOf(name, uri)
}

// scope returns what the flags select. It is compiled once, so that what is wrong is said before anything connects.
func (f *sourceTargetFlags) scope() (scope.Config, error) {
	c := scope.Config{Include: f.include, Exclude: f.exclude}
	for _, r := range f.rename {
		from, to, ok := strings.Cut(r, "=")
		if !ok {
			return c, usageError("--rename %q: want SOURCE=TARGET, for example shop.orders=archive.orders or shop=archive", r)
		}
		if strings.Contains(to, "=") {
			return c, usageError("--rename %q has more than one =: want one SOURCE=TARGET each time; repeat --rename for more, "+
				"and take the configuration file of capstan serve for a name that has a = in it", r)
		}
		if !strings.Contains(from+to, ".") {
			from, to = from+".*", to+".*"
		}
		c.Rename = append(c.Rename, scope.Rename{From: from, To: to})
	}
	for _, text := range f.filter {
		one, err := parseScopeFilter(text)
		if err != nil {
			return c, err
		}
		c.Filters = append(c.Filters, one)
	}
	if _, err := scope.Compile(c); err != nil {
		return c, usageError("%w", err)
	}
	return c, nil
}

// parseScopeFilter reads JSON, or NAMESPACES=JSON.
func parseScopeFilter(text string) (scope.Filter, error) {
	f := scope.Filter{Pattern: "*.*"}
	query := strings.TrimSpace(text)
	if !strings.HasPrefix(query, "{") {
		var ok bool
		if f.Pattern, query, ok = strings.Cut(query, "="); !ok {
			return f, usageError(`--filter %q: want JSON, or NAMESPACES=JSON, for example 'shop.orders={"region":"eu"}'`, text)
		}
	}
	v, err := extJSONToBSON([]byte(query))
	if err != nil {
		return f, usageError("--filter %s: %w", text, err)
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return f, usageError(`--filter %s: want a JSON object, for example {"region":"eu"}`, text)
	}
	f.Query = bson.Raw(slices.Clone(doc))
	return f, nil
}

// sideError says at which side something went wrong.
type sideError struct {
	side string
	err  error
}

func (e *sideError) Error() string { return e.side + ": " + e.err.Error() }
func (e *sideError) Unwrap() error { return e.err }

// reach asks both sides whether they answer and accept the user: a wrong address or password is said within
// seconds, and not when the patience of what follows ends. Errors are *sideError around *connectError.
func (st sourceTarget) reach(ctx context.Context) error {
	for _, s := range []struct {
		name string
		opts *options.ClientOptions
	}{{sideSource, st.Source}, {sideTarget, st.Target}} {
		_, closeClient, err := connectTo(ctx, s.opts)
		if err != nil {
			return &sideError{s.name, err}
		}
		closeClient()
	}
	return nil
}

// connectTo returns a client once some server answers and accepts the user. A set without a primary is no reason to
// fail. close disconnects; it may be called when ctx has ended.
func connectTo(ctx context.Context, opts *options.ClientOptions) (client *mongo.Client, closeClient func(), err error) {
	if client, err = mongo.Connect(opts); err != nil {
		return nil, nil, err
	}
	closeClient = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = client.Disconnect(ctx) // nothing is in progress
	}
	// The longer deadline is for a server that is found and then silent.
	probe, cancel := context.WithTimeout(ctx, selectTimeout+time.Second)
	defer cancel()
	if err := client.Ping(probe, readpref.Nearest()); err != nil {
		closeClient()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		return nil, nil, &connectError{err}
	}
	return client, closeClient, nil
}
