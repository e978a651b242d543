package localcluster

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheZeroConfigIsValidAndLimitsAreNamed(t *testing.T) {
	if err := (Config{}).withDefaults().validate(); err != nil {
		t.Error(err)
	}
	for want, cfg := range map[string]Config{
		"Members is 2":    {Members: 2},
		"CacheMB is 100":  {CacheMB: 100},
		"OplogMB is -1":   {OplogMB: -1},
		"StartTimeout is": {StartTimeout: -1},
	} {
		if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestFindLooksInTheEnvironmentThenOnPathThenInTheCache(t *testing.T) {
	binary := func(path string) string {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dir := t.TempDir()
	cache, home := filepath.Join(dir, "cache"), filepath.Join(dir, "home")
	t.Setenv("SUDO_USER", "")
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", "relative") // not absolute: to be ignored
	t.Setenv("PATH", filepath.Join(dir, "bin"))
	t.Setenv(MongodVar, "")
	expect := func(want string) {
		t.Helper()
		if got, err := Find(); got != want || err != nil {
			t.Errorf("found %q, %v; want %q", got, err, want)
		}
	}
	if _, err := Find(); !errors.Is(err, ErrNoMongod) || !strings.Contains(err.Error(), "scripts/get-mongod") {
		t.Errorf("nothing there: %v", err)
	}
	sub := filepath.Join("capstan", "mongod", DefaultVersion, "mongod")
	expect(binary(filepath.Join(home, ".cache", sub)))
	t.Setenv("XDG_CACHE_HOME", cache)
	expect(binary(filepath.Join(cache, sub)))
	expect(binary(filepath.Join(dir, "bin", "mongod")))
	t.Setenv(MongodVar, binary(filepath.Join(dir, "own", "server")))
	expect(filepath.Join(dir, "own", "server"))
	t.Setenv(MongodVar, filepath.Join(dir, "missing"))
	if _, err := Find(); !errors.Is(err, ErrNoMongod) || !strings.Contains(err.Error(), MongodVar) {
		t.Errorf("a wrong %s: %v", MongodVar, err)
	}
}

func TestTheStateSurvivesARoundTripAndAForeignOneIsRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := loadState(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no state: %v", err)
	}
	st := freshState(Config{Members: 3, Auth: true})
	if err := st.save(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, stateFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the password has mode %v, %v", info.Mode(), err)
	}
	got, err := loadState(dir)
	if err != nil || got.Set != st.Set || got.Password != st.Password || len(got.Members) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"version": 99}`} {
		if err := os.WriteFile(filepath.Join(dir, stateFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("state %q: %v", bad, err)
		}
	}
}

func TestTheURINamesMembersCredentialsAndTLS(t *testing.T) {
	st := state{Members: []memberState{{Name: "m0", Port: 20001}, {Name: "m1", Port: 20002}}, User: "root", Password: "p@/:", TLS: true}
	got := st.uri("/d", st.Members, url.Values{"replicaSet": {"s"}})
	want := "mongodb://root:p%40%2F%3A@127.0.0.1:20001,127.0.0.1:20002/?authSource=admin&replicaSet=s&tls=true&tlsCAFile=%2Fd%2Fca.pem"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAnErrorQuotesTheLinesThatExplainIt(t *testing.T) {
	dir := t.TempDir()
	log, out := filepath.Join(dir, "log"), filepath.Join(dir, "out")
	write := func(path string, lines ...string) {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(log, `{"t":{},"s":"E","c":"OLD","msg":"an earlier run"}`)
	offset := fileSize(log)
	write(log, `{"t":{},"s":"E","c":"OLD","msg":"an earlier run"}`,
		`{"t":{},"s":"I","c":"CONTROL","id":1,"msg":"starting"}`,
		`{"t":{},"s":"E","c":"STORAGE","id":2,"msg":"cannot open","attr":{"error":"no space"}}`,
		`{"t":{},"s":"I","c":"CONTROL","id":23138,"msg":"Shutting down"}`)
	write(out, "a missing library")
	got := quoteLog(log, offset, out)
	for _, want := range []string{"a missing library", `E STORAGE: cannot open {"error":"no space"}`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	for _, not := range []string{"an earlier run", "starting"} {
		if strings.Contains(got, not) {
			t.Errorf("%q is in %s", not, got)
		}
	}
	if got := quoteLog(filepath.Join(dir, "none"), 0, filepath.Join(dir, "none")); got != "it wrote no output" {
		t.Errorf("got %q", got)
	}
}
