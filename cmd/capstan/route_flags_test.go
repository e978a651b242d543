package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/scope"
)

// parseSides parses a command line of a command that has nothing but the flags of two sides.
func parseSides(t *testing.T, stdin string, vars map[string]string, args ...string) (st sourceTarget, stderr string, err error) {
	t.Helper()
	var out bytes.Buffer
	env := newEnviron(strings.NewReader(stdin), &out, &out, func(name string) string { return vars[name] })
	cmd := &cobra.Command{Use: "x", SilenceUsage: true, SilenceErrors: true}
	flags := addSourceTargetFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		st, err = flags.parse(env, cmd)
		return err
	}
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(context.WithoutCancel(t.Context()))
	return st, out.String(), err
}

func TestASideComesFromTheStrongestSource(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"CAPSTAN_SOURCE_URI": "mongodb://a:1", "CAPSTAN_TARGET_URI": "mongodb://b:1"}
	st, stderr, err := parseSides(t, "", vars, "--source-uri", "mongodb://u:hunter2@c:1")
	if err != nil {
		t.Fatal(err)
	}
	if st.Source.Hosts[0] != "c:1" || st.Target.Hosts[0] != "b:1" {
		t.Errorf("got source %v, target %v", st.Source.Hosts, st.Target.Hosts)
	}
	if strings.Count(stderr, "may be visible") != 1 || !strings.Contains(stderr, "--source-uri-file") || strings.Contains(stderr, "hunter2") {
		t.Errorf("the warning about the password is %q", stderr)
	}
}

func TestBothSidesAreReadFromStandardInputLineByLine(t *testing.T) {
	t.Parallel()
	st, stderr, err := parseSides(t, "mongodb://u:hunter2@a:1\nmongodb://b:1\n", nil, "--source-uri", "-", "--target-uri", "-")
	if err != nil {
		t.Fatal(err)
	}
	if st.Source.Hosts[0] != "a:1" || st.Target.Hosts[0] != "b:1" || stderr != "" {
		t.Errorf("got source %v, target %v, stderr %q", st.Source.Hosts, st.Target.Hosts, stderr)
	}
}

func TestABadSideIsNamed(t *testing.T) {
	t.Parallel()
	both := map[string]string{"CAPSTAN_SOURCE_URI": "mongodb://a:1", "CAPSTAN_TARGET_URI": "mongodb://b:1"}
	for want, c := range map[string]struct {
		vars map[string]string
		args []string
		code int
	}{
		"--target-uri is missing":                       {map[string]string{"CAPSTAN_SOURCE_URI": "mongodb://a:1"}, nil, exitUsage},
		"target-uri (env CAPSTAN_TARGET_URI)":           {map[string]string{"CAPSTAN_SOURCE_URI": "mongodb://a:1", "CAPSTAN_TARGET_URI": "http://x"}, nil, exitConfig},
		"source-uri and source-uri-file are both given": {both, []string{"--source-uri", "mongodb://a:1", "--source-uri-file", "x"}, exitConfig},
		"--rename \"a.b\"":                              {both, []string{"--rename", "a.b"}, exitUsage},
		"has more than one =":                           {both, []string{"--rename", "a=b=c"}, exitUsage},
		"include: not a pattern of namespaces":          {both, []string{"--include", "shop..x"}, exitUsage},
		"rename a.b=c.*":                                {both, []string{"--rename", "a.b=c.*"}, exitUsage},
		"--filter {":                                    {both, []string{"--filter", "{"}, exitUsage},
		"want JSON, or NAMESPACES=JSON":                 {both, []string{"--filter", "shop.x"}, exitUsage},
		"include: not a pattern":                        {both, []string{"--include", "a b"}, exitUsage},
	} {
		_, _, err := parseSides(t, "", c.vars, c.args...)
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != c.code {
			t.Errorf("got code %d, %v; want code %d and %q", exitCode(err), err, c.code, want)
		}
	}
	_, _, err := parseSides(t, "", map[string]string{"CAPSTAN_SOURCE_URI": "mongodb://u:p%@x:y@h"}, "--target-uri", "mongodb://b:1")
	if conf := (*config.Error)(nil); !errors.As(err, &conf) || conf.Key != "source-uri" || strings.Contains(err.Error(), "p%") {
		t.Errorf("got %v", err)
	}
}

func TestTheFlagsSayWhichDocumentsTakePart(t *testing.T) {
	t.Parallel()
	uris := map[string]string{"CAPSTAN_SOURCE_URI": "mongodb://a:1", "CAPSTAN_TARGET_URI": "mongodb://b:1"}
	st, _, err := parseSides(t, "", uris, "--include", "shop.*", "--include", "a,b.c", "--exclude", "shop.tmp*", "--rename", "shop=copy",
		"--rename", "a,b.c=d.e", "--filter", `shop.orders={"z":1,"a":{"$gt":2}}`, "--filter", `{"x":"="}`)
	if err != nil {
		t.Fatal(err)
	}
	c := st.Scope
	if len(c.Include) != 2 || c.Include[1] != "a,b.c" || c.Exclude[0] != "shop.tmp*" ||
		c.Rename[0] != (scope.Rename{From: "shop.*", To: "copy.*"}) || c.Rename[1] != (scope.Rename{From: "a,b.c", To: "d.e"}) {
		t.Errorf("got %+v", c)
	}
	if len(c.Filters) != 2 || c.Filters[0].Pattern != "shop.orders" || c.Filters[1].Pattern != "*.*" ||
		c.Filters[0].Query.String() != `{"z": {"$numberInt":"1"},"a": {"$gt": {"$numberInt":"2"}}}` {
		t.Errorf("got %v", c.Filters)
	}
}
