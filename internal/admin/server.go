// Package admin is the HTTP listener for operators and monitoring: /livez, /readyz, /metrics, /status, and control verbs behind a token.
//
// It promises: without a token nothing can be changed; a browser that was lured here can neither read nor change anything; no
// handler runs for ever; there are no secrets in what it says.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// The bounds of requests.
const (
	// readTimeout bounds a request's head and body, answerTimeout what only looks at state, ControlTimeout a control verb.
	readTimeout    = 10 * time.Second
	answerTimeout  = 10 * time.Second
	ControlTimeout = 5 * time.Minute
	// writeTimeout is above all of them, and above a CPU profile of the usual length.
	writeTimeout = ControlTimeout + 30*time.Second
	idleTimeout  = time.Minute
	// stopTimeout is how long requests in progress may take when the listener is closed.
	stopTimeout    = 3 * time.Second
	maxHeaderBytes = 16 << 10
)

// Daemon is what is looked at and controlled: *daemon.Supervisor.
type Daemon interface {
	Routes() []daemon.RouteStatus
	Control(ctx context.Context, route string, verb daemon.Verb) (daemon.Result, error)
}

// Status is the answer of /status.
type Status struct {
	Version map[string]string `json:"version"`
	// Started is when the process began to serve.
	Started time.Time `json:"started"`
	// Ready is what /readyz says.
	Ready bool `json:"ready"`
	// Config says which file is in force.
	Config ConfigStatus         `json:"config"`
	Routes []daemon.RouteStatus `json:"routes"`
}

// ConfigStatus says which configuration is in force.
type ConfigStatus struct {
	Path   string    `json:"path"`
	Loaded time.Time `json:"loaded"`
	// Error is why the last reload was refused, "" if it was not. The configuration before it is in force.
	Error string `json:"reload_error,omitempty"`
	// Restart lists keys that were changed in the file and take effect when the daemon is started again.
	Restart []string `json:"needs_restart,omitempty"`
	// Paused: it was started with every route paused.
	Paused bool `json:"started_paused"`
	// Control is true if a token is set, so that control verbs work.
	Control bool `json:"control"`
}

// Config configures a Server. The zero Config is valid: control verbs are refused, and there are no metrics.
type Config struct {
	// Hosts are names under which the server may be asked, beside IP addresses, localhost and Listen's host.
	Hosts []string
	// Token returns what control verbs ask for; "" refuses them. nil means "".
	Token func() string
	// Metrics serves /metrics; nil: there is none.
	Metrics http.Handler
	// Pprof serves /debug/pprof, which tells much about the process.
	Pprof bool
	// Version and ConfigStatus are shown by /status; both may be nil.
	Version      map[string]string
	ConfigStatus func() ConfigStatus
	// Logger takes what an operator wants to know. The zero Logger is silent.
	Logger zerolog.Logger
}

// Server answers requests. Safe for concurrent use.
type Server struct {
	daemon  Daemon
	cfg     Config
	log     zerolog.Logger
	started time.Time
}

// New returns a Server. It does no I/O.
func New(d Daemon, cfg Config) *Server {
	if cfg.Token == nil {
		cfg.Token = func() string { return "" }
	}
	if cfg.ConfigStatus == nil {
		cfg.ConfigStatus = func() ConfigStatus { return ConfigStatus{} }
	}
	return &Server{daemon: d, cfg: cfg, log: cfg.Logger.With().Str("component", "admin").Logger(), started: time.Now()}
}

// Run serves on ln until ctx ends, closes it, and returns nil when the requests in progress are answered or cut.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler: s.Handler(ln.Addr()), ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := srv.Shutdown(stopping); err != nil {
		_ = srv.Close() // cuts what is left
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler returns what answers requests on a listener with that address.
func (s *Server) Handler(addr net.Addr) http.Handler {
	mux := http.NewServeMux()
	quick := func(h http.HandlerFunc) http.Handler {
		return http.TimeoutHandler(h, answerTimeout, `{"error":"no answer in time","hint":"the daemon is overloaded or hangs: look at its log"}`)
	}
	mux.Handle("GET /livez", quick(func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }))
	mux.Handle("GET /readyz", quick(s.readyz))
	mux.Handle("GET /status", quick(s.status))
	mux.HandleFunc("POST /routes/{route}/{verb}", s.control)
	mux.HandleFunc("POST /routes/{route}/{target}/{verb}", s.control)
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", http.TimeoutHandler(s.cfg.Metrics, answerTimeout, "no answer in time\n"))
	}
	if s.cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, r.Method+" "+r.URL.Path+" is not served here",
			"GET /livez, /readyz, /metrics, /status; POST /routes/NAME/pause, resume, resync, finalize, retry")
	})
	return s.guard(addr, mux)
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	routes := s.daemon.Routes()
	code, verdict := http.StatusOK, "ok"
	var b strings.Builder
	for _, one := range routes {
		mark := "+"
		if !one.Well() {
			mark = "-"
			code, verdict = http.StatusServiceUnavailable, "not ready"
		}
		b.WriteString("[" + mark + "] " + one.Route + ": " + string(one.Phase))
		if why := firstOf(one.Reason, one.LastError); why != "" {
			b.WriteString(": " + strings.ReplaceAll(why, "\n", " "))
		}
		switch {
		case one.Letters == 1:
			b.WriteString("; 1 dead letter")
		case one.Letters > 1:
			fmt.Fprintf(&b, "; %d dead letters", one.Letters)
		}
		b.WriteString("\n")
	}
	if r.URL.Query().Has("verbose") || code != http.StatusOK {
		verdict = b.String() + verdict
	}
	text(w, code, verdict+"\n")
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	st := Status{
		Version: s.cfg.Version, Started: s.started, Ready: true, Config: s.cfg.ConfigStatus(), Routes: s.daemon.Routes(),
	}
	st.Config.Control = s.cfg.Token() != ""
	for _, r := range st.Routes {
		st.Ready = st.Ready && r.Well()
	}
	answer(w, http.StatusOK, st)
}

func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(w, r) {
		return
	}
	route := r.PathValue("route")
	if target := r.PathValue("target"); target != "" {
		route += "/" + target
	}
	verb := daemon.Verb(r.PathValue("verb"))
	if !known(verb) {
		fail(w, http.StatusNotFound, "there is no verb "+string(verb), "pause, resume, resync, finalize, retry")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), ControlTimeout)
	defer cancel()
	result, err := s.daemon.Control(ctx, route, verb)
	var state *daemon.StateError
	switch {
	case err == nil:
		answer(w, http.StatusOK, result)
	case errors.As(err, new(*daemon.UnknownRouteError)):
		fail(w, http.StatusNotFound, err.Error(), "capstan status lists the routes")
	case errors.As(err, &state):
		fail(w, http.StatusConflict, err.Error(), state.Hint)
	case errors.Is(err, replicator.ErrNotLive), errors.Is(err, replicator.ErrFinalized):
		fail(w, http.StatusConflict, err.Error(), "capstan status shows where the route is")
	case ctx.Err() != nil:
		fail(w, http.StatusGatewayTimeout, "the route was told to "+string(verb)+" and has not done so in time", "capstan status shows whether it does later")
	default:
		fail(w, http.StatusInternalServerError, err.Error(), "the daemon's log says more")
	}
}

func known(v daemon.Verb) bool {
	for _, k := range daemon.Verbs() {
		if v == k {
			return true
		}
	}
	return false
}

// Failure is the body of an answer that is an error.
type Failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

func fail(w http.ResponseWriter, code int, what, hint string) {
	answer(w, code, Failure{config.Redact(what), hint}) // I10: servers quote what they were sent
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the one who asked is gone, then
}

func text(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body)) // as above
}
