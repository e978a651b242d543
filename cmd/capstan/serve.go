package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/seed-12ef14e5/capstan/internal/admin"
	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/internal/metrics"
	"github.com/seed-12ef14e5/capstan/internal/systemd"
)

const serveHelp = `Run the routes of a configuration file, side by side, until a signal.

A route that fails or loses its position stops no other: it stays visible in capstan status, /readyz and the metrics. What may pass is tried
again. SIGHUP reads the file again: routes that did not change are not touched; if anything is wrong, nothing is
changed. SIGTERM and Ctrl-C stop all routes after what is in progress, within --drain-timeout; a second signal stops at once.

The admin listener serves /livez, /readyz, /metrics and /status, and control verbs to whoever has the token. capstan config --help shows
every key of the file.

Exit codes: 0 stopped, and every route was well; 5 a route has lost its position; 1 a route had failed, or was cut off by the drain timeout.`

func newServeCmd(env *environ) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "run the routes of a configuration file: the daemon",
		Long:  serveHelp,
		Example: `  capstan serve -c capstan.yaml
  capstan serve -c capstan.yaml --paused --admin-listen unix:/run/capstan/admin.sock
  capstan config check -c capstan.yaml && pkill -HUP -f 'capstan serve'  # under systemd: systemctl reload capstan`,
		Args: exactArgs(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), env, cmd) },
	}
	f := cmd.Flags()
	f.Bool("paused", false, "start every route paused (capstan replicate resume NAME starts one)")
	f.Duration("drain-timeout", config.DefaultDrainTimeout, "how long a stop may take for what is in progress")
	f.Duration("restart-max", config.DefaultRestartMax, "longest wait before a route that failed is begun again")
	f.String("admin-listen", config.DefaultAdminListen, "HOST:PORT or unix:PATH of the admin listener, or off")
	f.String("admin-token-file", "", "file that holds the token for control verbs")
	f.Bool("admin-pprof", false, "serve /debug/pprof on the admin listener")
	return cmd
}

// server is a running `capstan serve`.
type server struct {
	env     *environ
	input   config.Input
	log     zerolog.Logger
	metrics *metrics.Metrics
	routes  *daemon.Supervisor
	systemd *systemd.Notifier
	ready   atomic.Bool

	mu     sync.Mutex
	config config.Daemon
	status admin.ConfigStatus
}

func serve(ctx context.Context, env *environ, cmd *cobra.Command) error {
	in := env.input(cmd)
	in.Stdin = nil
	d, err := config.LoadDaemon(in)
	if err != nil {
		return err
	}
	if d.Path == "" {
		return usageError("capstan serve needs a configuration file: -c capstan.yaml, or CAPSTAN_CONFIG")
	}
	routes, err := routesOf(env, d)
	if err != nil {
		return err
	}
	s := &server{env: env, input: in, log: env.log, metrics: newMetrics(), config: d}
	if env.settings.LogLevel.Source == "default" && !env.quiet && env.verbose == 0 {
		s.log = s.log.Level(zerolog.InfoLevel) // nobody looks at a daemon: its log says what it did
		env.log = s.log
	}
	s.status = admin.ConfigStatus{Path: d.Path, Loaded: time.Now(), Paused: d.Paused}
	cfg := s.supervision(d)
	cfg.Paused, cfg.Logger, cfg.Hooks = d.Paused, s.log, s.metrics.Hooks()
	cfg.Redact = func(text string) string { return config.Redact(withoutDump(text)) } // I10
	if s.routes, err = daemon.New(cfg); err != nil {
		return err
	}
	s.metrics.Watch(s.routes.Routes)
	s.metrics.Loaded()
	if s.systemd, err = systemd.New(env.getenv("NOTIFY_SOCKET")); err != nil {
		return err
	}
	defer func() { _ = s.systemd.Close() }()
	return s.run(ctx, routes)
}

func newMetrics() *metrics.Metrics {
	b := buildInfo()
	return metrics.New(metrics.Build{Version: b.Version, Commit: b.Commit, Go: b.Go, Driver: b.Driver})
}

// supervision is the part of a Supervisor's settings that a reload takes up.
func (s *server) supervision(d config.Daemon) daemon.Config {
	return daemon.Config{DrainTimeout: d.DrainTimeout, RestartMax: d.RestartMax}
}

// run serves until ctx ends. The order of the end: the routes drain first, and until they have, the admin listener answers and the service
// manager hears of life; it would take a long drain for a hang otherwise.
func (s *server) run(ctx context.Context, routes []daemon.Route) error {
	hangup := s.env.stop.onHangup()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	beside, endBeside := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer endBeside()
	if listen := s.config.Admin.Listen; listen != "off" {
		ln, err := admin.Listen(ctx, listen)
		if err != nil {
			return err
		}
		srv := admin.New(s.routes, s.adminConfig())
		s.log.Info().Str("address", ln.Addr().String()).Msg("admin listener is open")
		wg.Go(func() {
			if err := srv.Run(beside, ln); err != nil {
				fail(err)
			}
		})
	}
	getenv := s.env.getenv
	watchdog := systemd.Watchdog(getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID"), os.Getpid())
	wg.Go(func() {
		s.routes.Watch(beside, s.systemd, watchdog, func() {
			s.ready.Store(true)
			s.log.Info().Str("routes", s.routes.Line()).Msg("every route was connected, or has failed")
		})
	})
	wg.Go(func() {
		for {
			select {
			case <-hangup:
				s.reload(ctx)
			case <-ctx.Done():
				s.tell(s.systemd.Stopping())
				s.log.Info().AnErr("cause", context.Cause(ctx)).Msg("stopping")
				return
			}
		}
	})
	err := s.routes.Run(ctx, routes)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err) // not a signal: the admin listener broke
	}
	s.log.Info().Err(err).Msg("stopped")
	return err
}

func (s *server) tell(err error) {
	if err != nil {
		s.log.Debug().Err(err).Msg("the service manager was not reached")
	}
}

func (s *server) adminConfig() admin.Config {
	b := buildInfo()
	return admin.Config{
		Hosts: s.config.Admin.Hosts, Pprof: s.config.Admin.Pprof, Metrics: s.metrics.Handler(), Logger: s.log,
		Version: map[string]string{"version": b.Version, "commit": b.Commit, "go": b.Go, "driver": b.Driver},
		Token: func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.config.Admin.Token
		},
		ConfigStatus: func() admin.ConfigStatus {
			s.mu.Lock()
			defer s.mu.Unlock()
			st := s.status
			st.Restart = slices.Clone(st.Restart)
			return st
		},
	}
}

// reload reads the configuration again, and takes it up if everything in it is right.
func (s *server) reload(ctx context.Context) {
	if s.ready.Load() { // before that the manager waits for another READY
		s.tell(s.systemd.Reloading())
		defer func() { s.tell(s.systemd.Ready()) }()
	}
	d, err := config.LoadDaemon(s.input)
	var routes []daemon.Route
	if err == nil {
		routes, err = routesOf(s.env, d)
	}
	s.metrics.Reloaded(err)
	if err != nil {
		s.log.Error().Err(err).Msg("the new configuration is wrong; the old one stays in force")
		s.mu.Lock()
		s.status.Error = config.Redact(err.Error())
		s.mu.Unlock()
		return
	}
	changes, err := s.routes.Reload(ctx, routes, s.supervision(d))
	if err != nil {
		return // stopping
	}
	restart := s.needRestart(d)
	s.mu.Lock()
	s.config.Routes, s.config.Admin.Token = d.Routes, d.Admin.Token
	s.status.Loaded, s.status.Error, s.status.Restart = time.Now(), "", restart
	s.mu.Unlock()
	s.log.Info().Strs("kept", changes.Kept).Strs("started", changes.Started).Strs("restarted", changes.Restarted).
		Strs("stopped", changes.Stopped).Msg("configuration reloaded")
	if len(restart) > 0 {
		s.log.Warn().Strs("keys", restart).Msg("these keys take effect when the daemon is started again")
	}
}

// needRestart names what differs from the configuration that the process was started with and a reload cannot take up.
func (s *server) needRestart(d config.Daemon) []string {
	differs := map[string]bool{
		"admin.listen": d.Admin.Listen != s.config.Admin.Listen,
		"admin.hosts":  !slices.Equal(d.Admin.Hosts, s.config.Admin.Hosts),
		"admin.pprof":  d.Admin.Pprof != s.config.Admin.Pprof,
		"paused":       d.Paused != s.config.Paused,
	}
	if now, err := config.Load(s.input); err == nil { // it is wrong only in what a daemon does not use
		was := s.env.settings
		differs["log.level"] = now.LogLevel.Text != was.LogLevel.Text
		differs["log.format"] = now.LogFormat.Text != was.LogFormat.Text
		differs["color"] = now.Color.Text != was.Color.Text
	}
	maps.DeleteFunc(differs, func(_ string, yes bool) bool { return !yes })
	return slices.Sorted(maps.Keys(differs))
}
