package main

import (
	"context"
	"strings"

	"github.com/seed-12ef14e5/capstan/failover"
	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// newMongoLink makes links between real deployments.
func newMongoLink(env *environ, r config.Route, t config.Target, b daemon.Begin) (daemon.Link, func(context.Context), error) {
	source, err := clientOptionsOf("source.uri", config.Value{Text: r.Source, Source: "route " + r.Name})
	if err != nil {
		return nil, nil, err
	}
	target, err := clientOptionsOf("targets.uri", config.Value{Text: t.URI, Source: "route " + r.Link(t)})
	if err != nil {
		return nil, nil, err
	}
	// The layers try again for minutes before the link hears of it.
	layers := failover.Config{Hooks: failover.Hooks{OnRetry: func(r failover.Retry) { b.Hooks.OnRetry(r.Err) }}}
	if r.Stream != "" {
		from, to, err := streamNames(r)
		if err != nil {
			return nil, nil, err
		}
		link, closeRoute, err := mongodb.OpenStreamRoute(source, target, from, to, mongodb.StreamRouteConfig{
			Route: r.Link(t), Failover: layers,
			Link: replicator.StreamConfig{
				Owner: owner(), Existing: replicator.Existing(r.Existing), Resync: b.Resync, Paused: b.Paused,
				SaveEvery: r.SaveEvery, Logger: env.log, Hooks: b.Hooks,
			},
		})
		if err != nil {
			return nil, nil, err
		}
		return link, func(ctx context.Context) { _ = closeRoute(ctx) }, nil // all is over
	}
	route, err := mongodb.OpenRoute(source, target, r.Link(t), replicator.Config{
		Scope: r.Scope, Owner: owner(), Existing: replicator.Existing(r.Existing), OnLost: replicator.OnLost(r.OnLost),
		Paused: b.Paused, Resync: b.Resync, Stay: true, Shared: r.Shared, KeepTTL: r.KeepTTL,
		Workers: r.Workers, Readers: r.Readers, Window: r.Window, Batch: r.Batch, SaveEvery: r.SaveEvery, MaxLetters: r.MaxLetters,
		Logger: env.log, Hooks: b.Hooks,
	}, mongodb.RouteConfig{Logger: env.log, Failover: layers})
	if err != nil {
		return nil, nil, err
	}
	return route.Link, func(ctx context.Context) { _ = route.Close(ctx) }, nil // all is over
}

// streamNames returns the names of a route's stream at both sides.
func streamNames(r config.Route) (from, to record.Namespace, err error) {
	set, err := scope.Compile(r.Scope)
	if err != nil {
		return from, to, err
	}
	from.DB, from.Coll, _ = strings.Cut(r.Stream, ".")
	return from, set.Target(from), nil
}
