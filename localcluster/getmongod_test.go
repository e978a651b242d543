package localcluster

import (
	"bytes"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// getMongod runs scripts/get-mongod with nothing but env and a PATH of dir/bin, which holds what
// the test puts there, links to the tools that the script needs, and no mongod.
type getMongod struct {
	t   *testing.T
	dir string
	env map[string]string
}

func newGetMongod(t *testing.T) *getMongod {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the script's tools differ elsewhere")
	}
	g := &getMongod{t: t, dir: t.TempDir(), env: map[string]string{}}
	g.env["HOME"] = filepath.Join(g.dir, "home")
	g.env["PATH"] = filepath.Join(g.dir, "bin")
	if err := os.MkdirAll(g.env["PATH"], 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tool := range strings.Fields("bash sh cat chmod chown cut dirname flock getent grep head id ldconfig ldd mkdir mktemp mv rm sed sha256sum uname") {
		path, err := exec.LookPath(tool)
		if err != nil {
			continue // the script copes
		}
		if err := os.Symlink(path, filepath.Join(g.env["PATH"], tool)); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// stub puts a shell script at a path below dir, in place of whatever was there.
func (g *getMongod) stub(path, body string) string {
	g.t.Helper()
	path = filepath.Join(g.dir, path)
	_ = os.Remove(path) // perhaps a link to the real tool
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		g.t.Fatal(err)
	}
	return path
}

func (g *getMongod) run() (stdout, stderr string, err error) {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), "bash", "../scripts/get-mongod")
	for k, v := range g.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func (g *getMongod) refuses(want string) {
	g.t.Helper()
	out, errs, err := g.run()
	if err == nil || out != "" || !strings.Contains(errs, want) {
		g.t.Errorf("printed %q, %v, said %s\nwant an error with %q", out, err, errs, want)
	}
}

func TestGetMongodAndFindAgreeOnThePlaceAndItsOrder(t *testing.T) {
	g := newGetMongod(t)
	for _, k := range []string{"SUDO_USER", "XDG_CACHE_HOME", MongodVar} {
		t.Setenv(k, "")
	}
	agree := func(want string) {
		t.Helper()
		for k, v := range g.env {
			t.Setenv(k, v)
		}
		out, errs, err := g.run()
		found, ferr := Find()
		if err != nil || ferr != nil || out != want+"\n" || found != want {
			t.Errorf("script %q (%v, %s), Find %q (%v); want %q", out, err, errs, found, ferr, want)
		}
	}
	sub := filepath.Join("capstan", "mongod", DefaultVersion, "mongod")
	agree(g.stub(filepath.Join("home", ".cache", sub), "exit 0"))
	g.env["XDG_CACHE_HOME"] = filepath.Join(g.dir, "cache")
	agree(g.stub(filepath.Join("cache", sub), "exit 0"))
	agree(g.stub(filepath.Join("bin", "mongod"), "exit 0"))
	g.env[MongodVar] = g.stub("own/server", "exit 0")
	agree(g.env[MongodVar])
	g.env[MongodVar] = filepath.Join(g.dir, "missing")
	g.refuses("is not an executable file")
}

// Under sudo the binary that the invoking user has installed is used, and not downloaded again.
func TestUnderSudoGetMongodAndFindLookIntoTheInvokingUsersCache(t *testing.T) {
	g := newGetMongod(t)
	users := g.stub(filepath.Join("invoker", ".cache", "capstan", "mongod", DefaultVersion, "mongod"), "exit 0")
	g.stub(filepath.Join("home", ".cache", "capstan", "mongod", DefaultVersion, "mongod"), "exit 0") // root's own
	g.stub("bin/id", "echo 0")
	g.stub("bin/getent", `[ "$*" = "passwd invoker" ] && echo invoker:x:1000:1000::`+filepath.Join(g.dir, "invoker")+`:/bin/sh`)
	g.env["SUDO_USER"] = "invoker"
	if out, errs, err := g.run(); err != nil || out != users+"\n" {
		t.Errorf("printed %q, %v, said %s; want %s", out, err, errs, users)
	}
	if os.Geteuid() != 0 {
		t.Skip("that Find does the same is seen as root only")
	}
	u, err := user.Lookup("daemon") // a user whom every system has
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("SUDO_USER", u.Username)
	if got, want := cachedPaths()[0], filepath.Join(u.HomeDir, ".cache", "capstan", "mongod", DefaultVersion, "mongod"); got != want {
		t.Errorf("Find looks into %s first, want %s", got, want)
	}
}

func TestGetMongodSaysWhatIsMissing(t *testing.T) {
	t.Run("another system", func(t *testing.T) {
		g := newGetMongod(t)
		g.stub("bin/uname", `[ "$1" = -s ] && echo Darwin || echo arm64`)
		g.refuses("Three ways to get a mongod")
	})
	t.Run("pip, not as root", func(t *testing.T) {
		g := newGetMongod(t)
		g.stub("bin/uname", `[ "$1" = -s ] && echo Linux || echo x86_64`)
		g.stub("bin/id", "echo 1000")
		g.stub("bin/apt-get", "exit 1")
		g.stub("bin/python3", "echo 'No module named pip' >&2; exit 1")
		g.refuses("run: sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends python3 python3-pip")
	})
	t.Run("pip, as root, and apt-get provides it", func(t *testing.T) {
		g := newGetMongod(t)
		g.stub("bin/uname", `[ "$1" = -s ] && echo Linux || echo x86_64`)
		g.stub("bin/id", "echo 0")
		g.stub("bin/apt-get", `echo "apt-get $*"; : > `+filepath.Join(g.dir, "installed"))
		g.stub("bin/python3", `[ -e `+filepath.Join(g.dir, "installed")+` ] && [ "$3" = --version ]`)
		g.refuses("pip could not download")
		if _, errs, _ := g.run(); strings.Contains(errs, "apt-get install") {
			t.Errorf("installs again: %s", errs)
		}
	})
}

func TestGetMongodInstallsNothingFromAnUnexpectedFile(t *testing.T) {
	g := newGetMongod(t)
	g.stub("bin/uname", `[ "$1" = -s ] && echo Linux || echo x86_64`)
	g.stub("bin/apt-get", "exit 1")
	g.stub("bin/ldconfig", "echo libcurl.so.4")
	// It stands in for pip and puts another file where the wheel should be.
	g.stub("bin/python3", `[ "$3" = --version ] && exit 0
while [ $# -gt 0 ]; do [ "$1" = --dest ] && echo bad > "$2/x.whl"; shift; done`)
	g.refuses("sha256 differs")
	var left []string
	err := filepath.WalkDir(g.env["HOME"], func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != ".lock" {
			left = append(left, path)
		}
		return err
	})
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestGetNetworkInstallsOrSaysWhatIsMissing(t *testing.T) {
	run := func(g *getMongod) (string, error) {
		// The tools of this computer are in /usr/sbin, which the script adds: cut off by a copy without that.
		script, err := os.ReadFile("../scripts/get-network")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(string(script), "PATH=$PATH:/usr/sbin:/sbin", ""))
		for k, v := range g.env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	g := newGetMongod(t)
	g.stub("bin/uname", "echo Linux")
	g.stub("bin/apt-get", `echo "apt-get $*"; [ "$1" = update ] || for t in ip nft; do printf '#!/bin/sh\n' > `+g.env["PATH"]+`/$t; chmod 755 `+g.env["PATH"]+`/$t; done`)
	g.stub("bin/id", "echo 1000")
	if out, err := run(g); err == nil || !strings.Contains(out, "sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends iproute2 nftables'") {
		t.Errorf("as a user: %v, %s", err, out)
	}
	g.stub("bin/id", "echo 0")
	if out, err := run(g); err != nil || !strings.Contains(out, "apt-get install -y --no-install-recommends iproute2 nftables") {
		t.Errorf("as root: %v, %s", err, out)
	}
	if out, err := run(g); err != nil || out != "" {
		t.Errorf("with everything there: %v, %s", err, out)
	}
	g.stub("bin/uname", "echo Darwin")
	if out, err := run(g); err == nil || !strings.Contains(out, "need Linux") {
		t.Errorf("elsewhere: %v, %s", err, out)
	}
}
