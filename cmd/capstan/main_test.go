package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// TestMain lets the test binary be the command too: under the name capstan it is one.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "capstan" {
		if os.Getenv(fakeLinks) != "" {
			env := newEnviron(os.Stdin, os.Stdout, os.Stderr, os.Getenv)
			env.newLink = newFakeLink
			os.Exit(env.run(context.Background(), os.Args[1:]))
		}
		main()
	}
	mongotest.Main(m)
}

// capstanPath returns the path of a capstan made of this test binary.
func capstanPath(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "capstan")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// scripts are run with the command capstan, and with the command code: "code N capstan …" demands an
// exit code.
func scripts(t *testing.T, dir string, env map[string]string) {
	bin := filepath.Dir(capstanPath(t))
	notName := regexp.MustCompile(`[^a-z0-9]+`)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", dir),
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", bin+string(filepath.ListSeparator)+e.Getenv("PATH"))
			e.Setenv("DB", "s"+notName.ReplaceAllString(filepath.Base(e.WorkDir), "_"))
			for k, v := range env {
				e.Setenv(k, v)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": demandCode},
	})
}

func demandCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("%s ended with code %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

func TestTheCommandLineWithoutAServer(t *testing.T) { scripts(t, "plain", nil) }

func TestTheCommandLineOnARealServer(t *testing.T) {
	scripts(t, "mongo", map[string]string{"CAPSTAN_URI": mongotest.Standalone(t).URI})
}
