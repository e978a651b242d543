// Package metrics turns the hooks and states of roles into Prometheus metrics, in a registry of its own. Names begin with capstan_, units are
// base units, and labels are bounded: a route's name comes from the configuration, and nothing that data or clients say is ever a label.
package metrics

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// Build says what the binary is made of.
type Build struct{ Version, Commit, Go, Driver string }

// Metrics holds the daemon's metrics. Safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry

	applied, applyErrors, retries, restarts, phases *prometheus.CounterVec
	applyDelay                                      *prometheus.HistogramVec
	reloads                                         *prometheus.CounterVec
	reloaded                                        prometheus.Gauge
}

// delays are the buckets of a change's way: half a millisecond to a minute.
var delays = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// New returns Metrics in a registry of their own, with those of the process and of the Go runtime.
func New(b Build) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "capstan", Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry:    prometheus.NewRegistry(),
		applied:     counter("apply_ops_total", "Changes that were applied, by what they did: insert, replace, update, delete and so on.", "route", "op"),
		applyErrors: counter("apply_errors_total", "What could not be applied, by class: dead_letter for a document, else why a run of the route ended.", "route", "class"),
		retries:     counter("retries_total", "Errors that may pass and after which the route went on trying.", "route"),
		restarts:    counter("route_restarts_total", "How often the daemon began the route again after it had failed.", "route"),
		phases:      counter("route_phase_changes_total", "How often the route came into the phase.", "route", "phase"),
		applyDelay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "capstan", Name: "apply_delay_seconds", Buckets: delays,
			Help: "How far the last change of a batch was behind this machine's clock when it was applied.",
		}, []string{"route"}),
		reloads: counter("config_reloads_total", "Reloads of the configuration, by result: ok or error.", "result"),
		reloaded: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "capstan", Name: "config_reload_success_timestamp_seconds", Help: "When the configuration was last read successfully.",
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "capstan", Name: "build_info", Help: "Always 1; the labels say what the binary is made of.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "go_version": b.Go, "driver": b.Driver},
	})
	info.Set(1)
	up := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "capstan", Name: "up", Help: "Always 1 while the daemon runs."})
	up.Set(1)
	for _, result := range []string{"ok", "error"} {
		m.reloads.WithLabelValues(result)
	}
	m.registry.MustRegister(info, up, m.applied, m.applyErrors, m.retries, m.restarts, m.phases, m.applyDelay, m.reloads, m.reloaded,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Registry: m.registry})
}

// Gatherer returns the registry, for tests.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Watch adds what the routes say of themselves whenever they are asked.
func (m *Metrics) Watch(routes func() []daemon.RouteStatus) {
	m.registry.MustRegister(newStatuses(routes))
}

// Reloaded counts a reload; nil is success. The first reading of the configuration counts for the time only.
func (m *Metrics) Reloaded(err error) {
	if err != nil {
		m.reloads.WithLabelValues("error").Inc()
		return
	}
	m.reloads.WithLabelValues("ok").Inc()
	m.reloaded.SetToCurrentTime()
}

// Loaded notes when the configuration was first read.
func (m *Metrics) Loaded() { m.reloaded.SetToCurrentTime() }

// Hooks returns the hooks of a daemon.
func (m *Metrics) Hooks() daemon.Hooks {
	return daemon.Hooks{
		OfRoute:   m.ofRoute,
		OnFailed:  func(route string, err error) { m.applyErrors.WithLabelValues(route, Class(err)).Inc() },
		OnRestart: func(route string) { m.restarts.WithLabelValues(route).Inc() },
		OnGone:    m.forget,
	}
}

func (m *Metrics) ofRoute(route string) replicator.Hooks {
	// Created at once, so that a rate has a beginning.
	retries, letters, delay := m.retries.WithLabelValues(route), m.applyErrors.WithLabelValues(route, "dead_letter"), m.applyDelay.WithLabelValues(route)
	m.restarts.WithLabelValues(route)
	return replicator.Hooks{
		OnApplied: func(ops map[string]int, behind time.Duration) {
			for op, n := range ops {
				m.applied.WithLabelValues(route, operation(op)).Add(float64(n))
			}
			delay.Observe(max(behind, 0).Seconds()) // the two clocks may differ
		},
		OnPhase:  func(p replicator.Phase) { m.phases.WithLabelValues(route, string(p)).Inc() },
		OnLetter: func(replicator.Letter) { letters.Inc() },
		OnRetry:  func(error) { retries.Inc() },
	}
}

// operations are the values of the label op: the names come from a server and are bounded here.
var operations = map[string]bool{
	"insert": true, "replace": true, "update": true, "delete": true, "put": true, "remove": true, "message": true, "create": true, "drop": true, "rename": true,
	"dropDatabase": true, "createIndexes": true, "dropIndexes": true, "modify": true, "gap": true,
}

func operation(op string) string {
	if operations[op] {
		return op
	}
	return "other"
}

// forget removes the series of a route that is no longer there.
func (m *Metrics) forget(route string) {
	labels := prometheus.Labels{"route": route}
	for _, v := range []*prometheus.CounterVec{m.applied, m.applyErrors, m.retries, m.restarts, m.phases} {
		v.DeletePartialMatch(labels)
	}
	m.applyDelay.DeletePartialMatch(labels)
}

// Class names why a run of a route ended, in few words.
func Class(err error) string {
	switch {
	case errors.As(err, new(*replicator.LostError)):
		return "lost_history"
	case errors.As(err, new(*record.FencedError)):
		return "fenced"
	case errors.As(err, new(*replicator.MismatchError)), errors.As(err, new(*replicator.RecreatedError)):
		return "mismatch"
	case errors.As(err, new(*replicator.BusyError)):
		return "busy"
	case errors.Is(err, replicator.ErrTooManyLetters):
		return "dead_letters"
	case errors.Is(err, replicator.ErrNotEmpty), errors.Is(err, replicator.ErrOverlap), errors.Is(err, replicator.ErrLoop):
		return "destination"
	case mongoerr.BadCredentials(err), mongoerr.IsUnauthorized(err):
		return "unauthorized"
	case mongoerr.CannotConnect(err):
		return "unreachable"
	}
	return "other"
}
