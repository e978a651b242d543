package main

import (
	"net/url"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
)

// TestWrongCredentialsAndMissingRightsAreToldApart also cites I10: no output holds a password.
func TestWrongCredentialsAndMissingRightsAreToldApart(t *testing.T) {
	t.Parallel()
	d := mongotest.Own(t, localcluster.Config{Members: 1, Auth: true})
	db := d.DB(t)
	err := db.RunCommand(t.Context(), bson.D{
		{Key: "createUser", Value: "reader"}, {Key: "pwd", Value: "hunter2"}, {Key: "roles", Value: bson.A{"read"}},
	}).Err()
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(d.URI)
	if err != nil {
		t.Fatal(err)
	}
	as := func(user *url.Userinfo, authSource string) string {
		v := *u
		v.User = user
		q := v.Query()
		q.Set("authSource", authSource)
		v.RawQuery = q.Encode()
		return v.String()
	}
	if _, stderr, code := capstan(t, d.URI, "stream", "create", db.Name()+".s"); code != 0 {
		t.Fatalf("code %d:\n%s", code, stderr)
	}
	anonymous := *u
	anonymous.User, anonymous.RawQuery = nil, ""
	reader := as(url.UserPassword("reader", "hunter2"), db.Name())
	for _, c := range []struct {
		name, uri, want string
		code            int
		args            []string
	}{
		{"a wrong password", as(url.UserPassword("root", "hunter3"), "admin"), "refused the user or the password", exitConnect, []string{"tail", db.Name() + ".s", "--exit-at-end"}},
		{"a wrong password of a producer", as(url.UserPassword("root", "hunter3"), "admin"), "refused the user or the password", exitConnect, []string{"produce", db.Name() + ".s"}},
		{"no user", anonymous.String(), "names none", exitConnect, []string{"tail", db.Name() + ".s", "--exit-at-end"}},
		{"no right to create", reader, "lacks the privilege createCollection", exitFailed, []string{"produce", db.Name() + ".new", "--create"}},
		{"no right to store a position", reader, "needs the role readWrite", exitFailed, []string{"tail", db.Name() + ".s", "--durable", "d"}},
		{"the right to read is enough to tail", reader, "delivered 0", exitOK, []string{"tail", db.Name() + ".s", "--exit-at-end", "--from", "earliest"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, c.uri, strings.NewReader("x\n"), c.args...)
			if code := p.code(t); code != c.code || !strings.Contains(p.stderr.String(), c.want) {
				t.Errorf("code %d, want %d with %q:\n%s", code, c.code, c.want, p.stderr.String())
			}
			if strings.Contains(p.stderr.String()+p.stdout.String(), "hunter") {
				t.Errorf("a password is printed:\n%s", p.stderr.String())
			}
		})
	}
}
