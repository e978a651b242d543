package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// phases are the values of the label phase.
var phases = []replicator.Phase{
	replicator.PhaseStarting, replicator.PhaseCopying, replicator.PhaseCatchingUp, replicator.PhaseLive, replicator.PhasePaused,
	replicator.PhaseLostHistory, replicator.PhaseFailed, replicator.PhaseFinalized,
}

// statuses collects what routes say of themselves when it is asked: a value that is not known is no sample, rather than a zero.
type statuses struct {
	routes func() []daemon.RouteStatus
	phase  *prometheus.Desc
	values []value
}

// value is one metric of a route.
type value struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	// of returns the value, and whether it is known.
	of func(s daemon.RouteStatus, now time.Time) (float64, bool)
}

func newStatuses(routes func() []daemon.RouteStatus) *statuses {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("capstan_"+name, help, append([]string{"route"}, more...), nil)
	}
	c := &statuses{routes: routes, phase: desc("route_phase", "1 for the phase that the route is in, 0 for the others.", "phase")}
	add := func(name, help string, kind prometheus.ValueType, of func(daemon.RouteStatus, time.Time) (float64, bool)) {
		c.values = append(c.values, value{desc(name, help), kind, of})
	}
	point := func(p replicator.Point) (float64, bool) { return float64(p.Unix), p.Unix > 0 }
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add("source_lag_seconds", "How far what is applied is behind the source's newest committed operation, by the source's clock.", gauge,
		func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return known(s.LagSeconds) })
	add("lag_operations", "Operations in the source's oplog behind what is applied, of this route or not; counted up to 100000.", gauge,
		func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return known(s.LagOperations) })
	add("source_position_timestamp_seconds", "The cluster time up to which everything is applied.", gauge,
		func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return point(s.Applied) })
	add("source_head_timestamp_seconds", "The cluster time of the source's newest committed operation.", gauge,
		func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return point(s.Head) })
	add("checkpoint_age_seconds", "How long ago, by this machine's clock, the operation of the stored checkpoint was.", gauge,
		func(s daemon.RouteStatus, now time.Time) (float64, bool) {
			at, ok := point(s.Checkpoint)
			return max(float64(now.UnixMilli())/1000-at, 0), ok
		})
	add("oplog_left_seconds", "How long the source's oplog still holds the checkpoint at its present pace.", gauge,
		func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return known(s.OplogLeftSeconds) })
	add("dead_letters", "Documents that were set aside and wait for a retry.", gauge,
		func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return float64(s.Letters), true })
	add("held_ttl_indexes", "TTL indexes that are held back until the route is finalized.", gauge,
		func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return float64(s.HeldTTL), true })
	for name, of := range map[string]struct {
		help string
		of   func(replicator.Totals) int64
	}{
		"copy_documents_scanned_total": {"Documents that the copy looked at, over all runs.", func(t replicator.Totals) int64 { return t.Scanned }},
		"copy_documents_matched_total": {"Documents of those that the filter let pass and that are written.", func(t replicator.Totals) int64 { return t.Matched }},
		"copied_bytes_total":           {"Bytes of documents that the copy wrote.", func(t replicator.Totals) int64 { return t.CopiedBytes }},
		"changes_read_total":           {"Changes that were read, over all runs.", func(t replicator.Totals) int64 { return t.Read }},
		"changes_skipped_total":        {"Changes of those that were not for the destination.", func(t replicator.Totals) int64 { return t.Skipped }},
		"conflicts_total":              {"Conflicts of unique indexes that were resolved.", func(t replicator.Totals) int64 { return t.Conflicts }},
	} {
		add(name, of.help, counter, func(s daemon.RouteStatus, _ time.Time) (float64, bool) { return float64(of.of(s.Totals)), true })
	}
	return c
}

func known[T int64 | float64](v *T) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return float64(*v), true
}

// Describe implements prometheus.Collector.
func (c *statuses) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.phase
	for _, v := range c.values {
		ch <- v.desc
	}
}

// Collect implements prometheus.Collector.
func (c *statuses) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	for _, s := range c.routes() {
		for _, p := range phases {
			in := 0.0
			if s.Phase == p {
				in = 1
			}
			ch <- prometheus.MustNewConstMetric(c.phase, prometheus.GaugeValue, in, s.Route, string(p))
		}
		for _, v := range c.values {
			if n, ok := v.of(s, now); ok {
				ch <- prometheus.MustNewConstMetric(v.desc, v.kind, n, s.Route)
			}
		}
	}
}
