package main

import (
	"context"
	"errors"
	"strings"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
)

// linkMaker makes the link of a route to one of its targets. It connects to nothing.
type linkMaker func(env *environ, r config.Route, t config.Target, b daemon.Begin) (daemon.Link, func(context.Context), error)

// noRoutes says that there is nothing to do.
const noRoutes = "there are none, and capstan serve replicates what stands there: capstan config --help shows one"

// routesOf returns what the daemon runs. Its error is a *config.Error: a file without routes is more likely cut off than meant.
func routesOf(env *environ, d config.Daemon) ([]daemon.Route, error) {
	if len(d.Routes) == 0 {
		return nil, &config.Error{Key: "routes", Source: "file " + d.Path, Err: errors.New(noRoutes)}
	}
	var routes []daemon.Route
	for _, r := range d.Routes {
		for _, t := range r.Targets {
			routes = append(routes, daemon.Route{
				Name: r.Link(t), Fingerprint: r.Fingerprint(t), Paused: r.Paused, Facts: factsOf(r, t),
				Build: func(b daemon.Begin) (daemon.Link, func(context.Context), error) { return env.newLink(env, r, t, b) },
			})
		}
	}
	return routes, nil
}

func factsOf(r config.Route, t config.Target) daemon.Facts {
	f := daemon.Facts{
		Source: config.Redact(r.Source), Target: config.Redact(t.URI), // I10
		Stream: r.Stream, Include: r.Scope.Include, Exclude: r.Scope.Exclude,
		Existing: r.Existing, OnLost: r.OnLost, Shared: r.Shared, KeepTTL: r.KeepTTL,
	}
	if r.Stream != "" {
		f.Include = nil
	}
	for _, one := range r.Scope.Rename {
		f.Rename = append(f.Rename, one.From+"="+one.To)
	}
	for _, one := range r.Filters {
		f.Filters = append(f.Filters, one.Namespace+"="+strings.Join(strings.Fields(one.Query), " "))
	}
	return f
}
