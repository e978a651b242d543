package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/internal/match"
)

// linkMaker makes the link of a route to one of its targets. It connects to nothing.
type linkMaker func(env *environ, r config.Route, t config.Target, b daemon.Begin) (daemon.Link, func(context.Context), error)

// routesOf returns what the daemon runs. Its error is a *config.Error with everything that only the packages that use a value can say.
func routesOf(env *environ, d config.Daemon) ([]daemon.Route, error) {
	var routes []daemon.Route
	var wrong []error
	for i, r := range d.Routes {
		for j, f := range r.Scope.Filters {
			if _, err := match.Compile(f.Query); err != nil {
				wrong = append(wrong, fmt.Errorf("routes[%d].filters[%d].query: %w", i, j, err))
			}
		}
		for _, t := range r.Targets {
			routes = append(routes, daemon.Route{
				Name: r.Link(t), Fingerprint: r.Fingerprint(t), Paused: r.Paused, Facts: factsOf(r, t),
				Build: func(b daemon.Begin) (daemon.Link, func(context.Context), error) { return env.newLink(env, r, t, b) },
			})
		}
	}
	if len(wrong) > 0 {
		return nil, &config.Error{Source: "file " + d.Path, Err: errors.Join(wrong...)}
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
