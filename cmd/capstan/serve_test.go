package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/seed-12ef14e5/capstan/internal/admin"
)

const serveToken = "0123456789abcdef"

// daemonTest is a running `capstan serve` with fake links.
type daemonTest struct {
	*process
	dir, file, socket string
	client            *admin.Client
}

// routeText is a route of a configuration file.
func routeText(name, options string) string {
	return fmt.Sprintf("- {name: %s, source: {uri: 'mongodb://u:hunter2@s'}, include: [%s.*], targets: [{uri: 'mongodb://t'}]%s}\n", name, name, options)
}

// capstanCmd is a capstan with fake links that is not started yet.
func (d *daemonTest) capstanCmd(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.CommandContext(context.Background(), capstanPath(t), args...), ended: make(chan struct{})}
	p.Env = append(os.Environ(), fakeLinks+"="+d.dir, "CAPSTAN_CONFIG="+d.file)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

func (p *process) begin(t *testing.T) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.Wait() // ProcessState says how
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
}

// serving starts a daemon and waits until its listener answers.
func serving(t *testing.T, routes string, env []string, args ...string) *daemonTest {
	t.Helper()
	dir, err := os.MkdirTemp("", "serve") // t.TempDir may be too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &daemonTest{dir: dir, file: filepath.Join(dir, "capstan.yaml"), socket: "unix:" + filepath.Join(dir, "admin.sock")}
	d.client = admin.NewClient(d.socket)
	d.write(t, routes)
	d.process = d.capstanCmd(t, append([]string{"serve"}, args...)...)
	d.Env = append(d.Env, env...)
	d.begin(t)
	eventually(t, "the admin listener answers", func() bool { _, _, err := d.client.Status(t.Context()); return err == nil })
	return d
}

func (d *daemonTest) write(t *testing.T, routes string) {
	t.Helper()
	text := "admin: {listen: '" + d.socket + "', token: " + serveToken + "}\nroutes:\n" + routes
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// phases waits until the routes are these, "name phase".
func (d *daemonTest) phases(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	end := time.Now().Add(patience)
	for !slices.Equal(got, want) {
		if time.Now().After(end) {
			t.Fatalf("the routes are %q, want %q; stderr:\n%s", got, want, d.stderr.String())
		}
		time.Sleep(10 * time.Millisecond)
		s, _, err := d.client.Status(t.Context())
		if err != nil {
			continue
		}
		got = nil
		for _, r := range s.Routes {
			got = append(got, r.Route+" "+string(r.Phase))
		}
	}
}

func (d *daemonTest) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := d.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// run runs another capstan beside the daemon.
func (d *daemonTest) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := d.capstanCmd(t, args...)
	p.begin(t)
	code = p.code(t)
	return p.stdout.String(), p.stderr.String(), code
}

// TestAReloadTakesUpWhatChangedAndAMistakeChangesNothing: SIGHUP of a real process.
func TestAReloadTakesUpWhatChangedAndAMistakeChangesNothing(t *testing.T) {
	t.Parallel()
	d := serving(t, routeText("same", "")+routeText("changed", "")+routeText("removed", ""), nil)
	d.phases(t, "same live", "changed live", "removed live")
	began := func(name string) string {
		b, err := os.ReadFile(filepath.Join(d.dir, name))
		if err != nil {
			return ""
		}
		return string(b)
	}
	same, changed := began("same"), began("changed")
	d.write(t, routeText("same", "")+routeText("changed", ", workers: 8")+routeText("added", ""))
	d.signal(t, syscall.SIGHUP)
	d.phases(t, "same live", "changed live", "added live")
	eventually(t, "the changed route is begun again, the removed one ends", func() bool {
		now := began("changed")
		return now != "" && now != changed && began("removed") == ""
	})
	if began("same") != same {
		t.Error("the unchanged route was touched")
	}
	d.write(t, routeText("same", "")+routeText("other", ", wrokers: 8"))
	d.signal(t, syscall.SIGHUP)
	eventually(t, "the mistake is said", func() bool {
		s, _, err := d.client.Status(t.Context())
		return err == nil && strings.Contains(s.Config.Error, "line 4: unknown key wrokers (did you mean workers?)")
	})
	d.phases(t, "same live", "changed live", "added live")
	if n := strings.Count(d.stderr.String(), "the old one stays in force"); n != 1 {
		t.Errorf("the mistake is logged %d times", n)
	}
	// What a reload cannot take up is named.
	text, err := os.ReadFile(d.file)
	if err != nil {
		t.Fatal(err)
	}
	fixed := strings.Replace(strings.Replace(string(text), "wrokers", "workers", 1), "token:", "pprof: true, token:", 1)
	if err := os.WriteFile(d.file, []byte(fixed), 0o600); err != nil {
		t.Fatal(err)
	}
	d.signal(t, syscall.SIGHUP)
	d.phases(t, "same live", "other live")
	eventually(t, "the key is named", func() bool {
		s, _, err := d.client.Status(t.Context())
		return err == nil && s.Config.Error == "" && slices.Equal(s.Config.Restart, []string{"admin.pprof"})
	})
	d.signal(t, syscall.SIGTERM)
	if code := d.code(t); code != 0 {
		t.Errorf("code %d:\n%s", code, d.stderr.String())
	}
}

// TestTheExitCodeSaysHowTheRoutesWere cites I7: a stop drains, and what was wrong is not forgotten.
func TestTheExitCodeSaysHowTheRoutesWere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		routes string
		phases []string
		args   []string
		code   int
	}{
		{"all are well", routeText("a", "") + routeText("b", ""), []string{"a live", "b live"}, nil, 0},
		{"one has failed", routeText("a", "") + routeText("failing", ""), []string{"a live", "failing failed"}, nil, 1},
		{"one is lost", routeText("failing", "") + routeText("lost", ""), []string{"failing failed", "lost lost-history"}, nil, 5},
		{"one does not drain", routeText("slow", ""), []string{"slow live"}, []string{"--drain-timeout", "200ms"}, 1},
		{"idle", routeText("a", ""), []string{"a paused"}, []string{"--paused"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := serving(t, c.routes, nil, c.args...)
			d.phases(t, c.phases...)
			d.signal(t, syscall.SIGTERM)
			if code := d.code(t); code != c.code {
				t.Errorf("code %d, want %d:\n%s", code, c.code, d.stderr.String())
			}
			if s := d.stderr.String(); strings.Contains(s, "hunter2") {
				t.Errorf("a password is in the log:\n%s", s)
			}
		})
	}
}

func TestASecondSignalStopsTheDaemonAtOnce(t *testing.T) {
	t.Parallel()
	d := serving(t, routeText("slow", ""), nil, "--drain-timeout", "10m")
	d.phases(t, "slow live")
	d.signal(t, syscall.SIGTERM)
	eventually(t, "the drain begins", func() bool { return strings.Contains(d.stderr.String(), `"stopping"`) })
	d.signal(t, syscall.SIGTERM)
	if code := d.code(t); code != exitTerminated {
		t.Errorf("code %d:\n%s", code, d.stderr.String())
	}
}

// TestTheServiceManagerHearsOfEachStep runs the daemon under a socket as systemd's.
func TestTheServiceManagerHearsOfEachStep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var heard []string
	var listening sync.WaitGroup
	listening.Go(func() {
		for b := make([]byte, 4096); ; {
			n, err := manager.Read(b)
			if err != nil {
				return // closed
			}
			mu.Lock()
			heard = append(heard, string(b[:n]))
			mu.Unlock()
		}
	})
	defer listening.Wait()
	defer func() { _ = manager.Close() }()
	has := func(prefix string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.ContainsFunc(heard, func(s string) bool { return strings.HasPrefix(s, prefix) })
		}
	}
	d := serving(t, routeText("a", "")+routeText("failing", ""), []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=3000000"})
	for _, want := range []string{"READY=1", "STATUS=1 live, 1 failed; largest lag 0.4 s", "WATCHDOG=1"} {
		eventually(t, want, has(want))
	}
	d.signal(t, syscall.SIGHUP)
	eventually(t, "RELOADING", has("RELOADING=1\nMONOTONIC_USEC="))
	eventually(t, "READY again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		i := slices.IndexFunc(heard, func(s string) bool { return strings.HasPrefix(s, "RELOADING") })
		return slices.Contains(heard[i:], "READY=1")
	})
	d.signal(t, syscall.SIGTERM)
	d.code(t)
	eventually(t, "STOPPING", has("STOPPING=1"))
}

func TestAScrapeOfARunningDaemonPassesPromlint(t *testing.T) {
	t.Parallel()
	d := serving(t, routeText("a", "")+routeText("failing", ""), nil)
	d.phases(t, "a live", "failing failed")
	out := d.get(t, "/metrics")
	for _, want := range []string{`capstan_route_phase{phase="live",route="a"} 1`, `capstan_source_lag_seconds{route="a"} 0.4`, "capstan_up 1", "capstan_build_info{"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not there", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(out)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if strings.Contains(out, "hunter2") || strings.Contains(d.get(t, "/status"), "hunter2") {
		t.Error("a password is shown (I10)")
	}
}

func (d *daemonTest) get(t *testing.T, path string) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(d.socket, "unix:"))
	}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestStatusIsForPeopleAndForPrograms(t *testing.T) {
	t.Parallel()
	d := serving(t, routeText("a", "")+routeText("failing", "")+routeText("lost", ""), nil)
	d.phases(t, "a live", "failing failed", "lost lost-history")
	out, stderr, code := d.run(t, "status")
	if code != 0 {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for _, want := range []string{
		"3 routes; NOT READY", "a  LIVE for ", "mongodb://u:***@s (set rs0, MongoDB 6.0.5)", "0.4 s, 12 operations", "1700000000.1  2023-11-14T22:13:20Z",
		"2h0m before the checkpoint would be lost", "1 of 2 collections; scanned 340 of about 1,000 documents (34.0%), matched 12",
		"failing  FAILED", "mongodb://u:***@db1", "begun again by itself", "lost  LOST-HISTORY", "capstan replicate resync lost copies again",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not said", want)
		}
	}
	if t.Failed() || strings.Contains(out, "hunter2") {
		t.Errorf("got\n%s", out)
	}
	out, _, code = d.run(t, "status", "--output", "json", "-c", d.file)
	var s admin.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 || len(s.Routes) != 3 || s.Routes[0].LagSeconds == nil || s.Ready {
		t.Errorf("code %d, %v: %s", code, err, out)
	}
	w := d.capstanCmd(t, "status", "--watch", "--output", "json", "--admin", d.socket)
	w.begin(t)
	eventually(t, "two answers", func() bool { return strings.Count(w.stdout.String(), "\n") >= 2 })
	if err := w.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := w.code(t); code != 0 {
		t.Errorf("Ctrl-C ends --watch with %d", code)
	}
	_, stderr, code = d.run(t, "status", "--admin", "127.0.0.1:1")
	if code != exitConnect || !strings.Contains(stderr, "no daemon answers at 127.0.0.1:1") {
		t.Errorf("code %d: %s", code, stderr)
	}
}

func TestControlsTellTheDaemonAndNeedItsToken(t *testing.T) {
	t.Parallel()
	d := serving(t, routeText("a", "")+routeText("lost", ""), nil)
	d.phases(t, "a live", "lost lost-history")
	token := filepath.Join(d.dir, "token")
	if err := os.WriteFile(token, []byte(serveToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(d.dir, "wrong")
	if err := os.WriteFile(wrong, []byte("fedcba9876543210"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"pause", "a", "--admin", d.socket, "--token-file", token}, 0, "a is paused\n"},
		{[]string{"resume", "a"}, 0, "a is live\n"}, // address and token of the file
		{[]string{"retry", "a"}, 0, "a: 3 dead letters gone, 1 left\n"},
		{[]string{"pause", "a", "--token-file", wrong}, exitConnect, "the token is missing or wrong"},
		{[]string{"pause", "nobody"}, exitFailed, "there are: a, lost"},
		{[]string{"finalize", "a"}, exitFailed, "not live"},
		{[]string{"resume", "lost"}, exitFailed, "capstan replicate resync lost"},
		{[]string{"resync", "lost", "--output", "json"}, 0, `"verb":"resync"`},
		{[]string{"pause"}, exitUsage, "the name of a route"},
	} {
		stdout, stderr, code := d.run(t, append([]string{"replicate"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.text) {
			t.Errorf("%v: code %d, %s%s", c.args, code, stdout, stderr)
		}
	}
	d.phases(t, "a live", "lost live")
}
