package main

import (
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/config"
)

// scopeFlags are those that --route stands for.
var scopeFlags = []string{"source-uri", "source-uri-file", "target-uri", "target-uri-file", "include", "exclude", "rename", "filter"}

// parse finds out what is compared with what: by the flags, or by a route of the daemon. It connects to nothing.
func (f *verifyFlags) parse(env *environ, cmd *cobra.Command) (sourceTarget, error) {
	if !cmd.Flags().Changed("route") {
		return f.sides.parse(env, cmd)
	}
	for _, name := range scopeFlags {
		if cmd.Flags().Changed(name) {
			return sourceTarget{}, usageError("--route and --%s are both given: the route says what is compared with what; leave one of them out", name)
		}
	}
	in := env.input(cmd)
	in.Stdin = nil
	d, err := config.LoadDaemon(in)
	if err != nil {
		return sourceTarget{}, err
	}
	if d.Path == "" {
		return sourceTarget{}, usageError("--route needs the configuration file of capstan serve: -c capstan.yaml, or CAPSTAN_CONFIG")
	}
	r, t, err := findRoute(d, f.route)
	if err != nil {
		return sourceTarget{}, err
	}
	if r.Stream != "" {
		f.newTimestamps = true // the route gives each message a ts of the target
	}
	st := sourceTarget{Scope: r.Scope}
	if st.Source, err = clientOptionsOf("source.uri", config.Value{Text: r.Source, Source: "route " + r.Name}); err != nil {
		return st, err
	}
	if st.Target, err = clientOptionsOf("targets.uri", config.Value{Text: t.URI, Source: "route " + r.Link(t)}); err != nil {
		return st, err
	}
	env.sides = []*options.ClientOptions{st.Source, st.Target}
	return st, nil
}

// findRoute returns the route that name means, ROUTE or ROUTE/TARGET.
func findRoute(d config.Daemon, name string) (config.Route, config.Target, error) {
	var links []string
	for _, r := range d.Routes {
		var own []string
		for _, t := range r.Targets {
			if r.Link(t) == name {
				return r, t, nil
			}
			own = append(own, r.Link(t))
		}
		switch {
		case r.Name != name:
		case len(r.Targets) == 1:
			return r, r.Targets[0], nil
		default:
			return r, config.Target{}, usageError("--route %s has several targets; name one: %s", name, strings.Join(own, ", "))
		}
		links = append(links, own...)
	}
	if len(links) == 0 {
		return config.Route{}, config.Target{}, usageError("--route %s: %s has no routes", name, d.Path)
	}
	if best := nearestName(name, d.Routes); best != "" {
		return config.Route{}, config.Target{}, usageError("--route %s: %s has no such route; did you mean %s?", name, d.Path, best)
	}
	return config.Route{}, config.Target{}, usageError("--route %s: %s has no such route; it has %s", name, d.Path, strings.Join(links, ", "))
}

// nearestName returns the name of a replication that name may be a misspelling of, or "".
func nearestName(name string, routes []config.Route) string {
	best, least := "", 3 // further away is no misspelling; a name that is right but for its target shows the list
	for _, r := range routes {
		for _, t := range r.Targets {
			d := distance(name, r.Link(t))
			if !strings.Contains(name, "/") {
				d = min(d, distance(name, r.Name))
			}
			if d < least {
				best, least = r.Link(t), d
			}
		}
	}
	return best
}
