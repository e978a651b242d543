package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/replicator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "0123456789abcdef"

// fake is a Daemon with one good and one failed route.
type fake struct {
	mu    sync.Mutex
	calls []string
	err   error
	well  bool
}

func (f *fake) Routes() []daemon.RouteStatus {
	good := daemon.RouteStatus{Status: replicator.Status{Route: "good", Phase: replicator.PhaseLive}}
	bad := daemon.RouteStatus{Status: replicator.Status{Route: "bad/x", Phase: replicator.PhaseFailed, Reason: "disk\nfull"}}
	if f.well {
		return []daemon.RouteStatus{good}
	}
	return []daemon.RouteStatus{good, bad}
}

func (f *fake) Control(_ context.Context, route string, verb daemon.Verb) (daemon.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, string(verb)+" "+route)
	return daemon.Result{Route: route, Verb: verb, Phase: replicator.PhasePaused}, f.err
}

type tcp struct{}

func (tcp) Network() string { return "tcp" }
func (tcp) String() string  { return "127.0.0.1:9477" }

// resting is a Daemon whose routes are well, and need a look all the same.
type resting struct{ fake }

func (*resting) Routes() []daemon.RouteStatus {
	return []daemon.RouteStatus{
		{Status: replicator.Status{Route: "idle", Phase: replicator.PhasePaused, Letters: 1}},
		{Status: replicator.Status{Route: "done", Phase: replicator.PhaseFinalized}},
		{Status: replicator.Status{Route: "full", Phase: replicator.PhaseLive, Letters: 7}},
	}
}

// ask sends one request to a Server; change may change it.
func ask(d Daemon, cfg Config, method, path string, change func(*http.Request)) (int, string) {
	r := httptest.NewRequestWithContext(context.Background(), method, path, nil)
	r.Host = "127.0.0.1:9477"
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	New(d, cfg).Handler(tcp{}).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func bearer(t string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+t) }
}

func withToken() Config { return Config{Token: func() string { return token }} }

func TestReadinessNamesTheRouteThatIsNotWell(t *testing.T) {
	t.Parallel()
	if code, body := ask(&fake{}, Config{}, "GET", "/livez", nil); code != 200 || body != "ok\n" {
		t.Errorf("livez: %d %q", code, body)
	}
	code, body := ask(&fake{}, Config{}, "GET", "/readyz", nil)
	if code != 503 || body != "[+] good: live\n[-] bad/x: failed: disk full\nnot ready\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if code, body := ask(&fake{well: true}, Config{}, "GET", "/readyz", nil); code != 200 || body != "ok\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if code, body := ask(&fake{well: true}, Config{}, "GET", "/readyz?verbose", nil); code != 200 || body != "[+] good: live\nok\n" {
		t.Errorf("readyz?verbose: %d %q", code, body)
	}
}

func TestReadinessTellsOfPausesAndDeadLetters(t *testing.T) {
	t.Parallel()
	code, body := ask(&resting{}, Config{}, "GET", "/readyz?verbose", nil)
	if code != 200 || body != "[+] idle: paused; 1 dead letter\n[+] done: finalized\n[+] full: live; 7 dead letters\nok\n" {
		t.Errorf("readyz?verbose: %d %q", code, body)
	}
}

func TestControlNeedsTheToken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		cfg    Config
		change func(*http.Request)
		want   int
		hint   string
	}{
		{"no token is configured", Config{}, bearer(token), 403, "admin.token_file"},
		{"none is given", withToken(), nil, 401, "Authorization: Bearer"},
		{"a wrong one", withToken(), bearer(token + "x"), 401, "Authorization: Bearer"},
		{"a prefix", withToken(), bearer(token[:15]), 401, "Authorization: Bearer"},
		{"another scheme", withToken(), func(r *http.Request) { r.Header.Set("Authorization", "Basic "+token) }, 401, "Authorization: Bearer"},
		{"the right one", withToken(), bearer(token), 200, ""},
	} {
		d := &fake{}
		code, body := ask(d, c.cfg, "POST", "/routes/good/pause", c.change)
		if code != c.want || !strings.Contains(body, c.hint) || !json.Valid([]byte(body)) {
			t.Errorf("%s: %d %s", c.name, code, body)
		}
		if called := len(d.calls) == 1; called != (c.want == 200) {
			t.Errorf("%s: the daemon was told %v", c.name, d.calls)
		}
		if strings.Contains(body, token) {
			t.Errorf("%s: the answer holds the token", c.name)
		}
	}
	d := &fake{}
	if code, body := ask(d, withToken(), "GET", "/routes/good/pause", bearer(token)); code == 200 || len(d.calls) > 0 {
		t.Errorf("GET changes something: %d %s", code, body)
	}
}

func TestEachVerbReachesItsRouteAndErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path string
		err  error
		want int
		text string
	}{
		{"/routes/bad/x/resync", nil, 200, `"resync"`},
		{"/routes/good/dance", nil, 404, "pause, resume"},
		{"/routes/good/pause", &daemon.UnknownRouteError{Route: "good", Known: []string{"other"}}, 404, "there are: other"},
		{"/routes/good/pause", &daemon.StateError{Route: "good", Verb: "pause", Phase: "failed", Hint: "do that"}, 409, "do that"},
		{"/routes/good/finalize", replicator.ErrNotLive, 409, "capstan status"},
		{"/routes/good/pause", errors.New("mongodb://u:hunter2@h"), 500, "mongodb://u:***@h"},
		{"/nothing", nil, 404, "/readyz"},
	} {
		d := &fake{err: c.err}
		code, body := ask(d, withToken(), "POST", c.path, bearer(token))
		if code != c.want || !strings.Contains(body, c.text) || !json.Valid([]byte(body)) {
			t.Errorf("%s: %d %s", c.path, code, body)
		}
	}
}

func TestAPageInABrowserCanNeitherReadNorChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"a name that resolves here (DNS rebinding)", func(r *http.Request) { r.Host = "evil.example:9477" }, 421},
		{"a name that begins like one of ours", func(r *http.Request) { r.Host = "localhost.evil.example" }, 421},
		{"a page of another origin", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, 403},
		{"a page without an origin", func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		{"an image in a page", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"a page of this address", func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:9477") }, 200},
		{"localhost", func(r *http.Request) { r.Host = "LOCALHOST:9477" }, 200},
		{"IPv6", func(r *http.Request) { r.Host = "[::1]:9477" }, 200},
		{"a configured name", func(r *http.Request) { r.Host = "db1.example:9477" }, 200},
	} {
		if code, body := ask(&fake{}, Config{Hosts: []string{"db1.example"}}, "GET", "/status", c.change); code != c.want {
			t.Errorf("%s: %d %s", c.name, code, body)
		}
	}
}

func TestProfilesAreServedOnlyWhenEnabled(t *testing.T) {
	t.Parallel()
	if code, _ := ask(&fake{}, Config{}, "GET", "/debug/pprof/", nil); code != 404 {
		t.Errorf("got %d", code)
	}
	if code, _ := ask(&fake{}, Config{Pprof: true}, "GET", "/debug/pprof/", nil); code != 200 {
		t.Errorf("enabled: got %d", code)
	}
}

func TestAUnixSocketServesAndIsReplacedWhenItIsStale(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "admin.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ln, err := Listen(ctx, "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	d := &fake{}
	go func() { done <- New(d, withToken()).Run(ctx, ln) }()
	if _, err := Listen(ctx, "unix:"+path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a socket in use: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	c := NewClient("unix:" + path)
	s, _, err := c.Status(ctx)
	if err != nil || len(s.Routes) != 2 || s.Ready || !s.Config.Control || s.Routes[1].Route != "bad/x" {
		t.Errorf("%+v, %v", s, err)
	}
	if r, err := c.Control(ctx, "bad/x", daemon.Pause, token); err != nil || r.Route != "bad/x" || r.Phase != replicator.PhasePaused {
		t.Errorf("%+v, %v", r, err)
	}
	var answer *AnswerError
	if _, err := c.Control(ctx, "good", daemon.Pause, "wrong"); !errors.As(err, &answer) || answer.Code != 401 {
		t.Errorf("got %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, _, err := c.Status(t.Context()); !errors.As(err, new(*UnreachableError)) {
		t.Errorf("after the end: %v", err)
	}
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), "unix:"+plain); err == nil {
		t.Error("a plain file is replaced by a socket")
	}
}

func TestAStopDoesNotWaitForASlowRequest(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ln, err := Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- New(&fake{}, Config{}).Run(ctx, ln) }()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /status HTTP/1.1\r\n"); err != nil { // and never the rest
		t.Fatal(err)
	}
	cancel()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("Run does not end")
	}
}
