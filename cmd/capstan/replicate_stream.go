package main

import (
	"context"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// replicateStream runs a route between two streams until it ends or is asked to stop.
func replicateStream(ctx context.Context, env *environ, st sourceTarget, o replicateOptions) error {
	from, err := record.ParseNamespace(o.stream)
	if err != nil {
		return usageError("--stream: %w", err)
	}
	if len(st.Scope.Include)+len(st.Scope.Exclude) > 0 {
		return usageError("--stream names the one stream; --include and --exclude are for collections")
	}
	set, err := scope.Compile(st.Scope)
	if err != nil {
		return err
	}
	cfg := mongodb.StreamRouteConfig{Route: o.name, Link: replicator.StreamConfig{
		Filter: set.Filter(from), Owner: owner(), Existing: replicator.Existing(o.existing), Until: replicator.Until(o.until), Resync: o.resync,
		SaveEvery: o.save, Logger: env.log,
	}}
	link, closeRoute, err := mongodb.OpenStreamRoute(st.Source, st.Target, from, set.Target(from), cfg)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = closeRoute(cctx) // nothing is in progress
	}()
	return runRoute(ctx, env, link)
}
