package mongodb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/scope"
)

// Severity says what a Finding means for a route.
type Severity string

// The severities.
const (
	// SeverityOK: looked at, and as it should be.
	SeverityOK Severity = "ok"
	// SeverityNote: it replicates, in a way that one should know.
	SeverityNote Severity = "note"
	// SeverityWarning: it does not replicate, or may go wrong.
	SeverityWarning Severity = "warning"
	// SeverityBlocker: the route would refuse to start, or must not.
	SeverityBlocker Severity = "blocker"
)

func (s Severity) rank() int {
	return slices.Index([]Severity{SeverityBlocker, SeverityWarning, SeverityNote, SeverityOK}, s)
}

// Finding is one thing that a Preflight has seen.
type Finding struct {
	Severity Severity `json:"severity"`
	// Code names the kind of finding, for programs: see the Code constants.
	Code string `json:"code"`
	// Namespace is the source's collection that it is about, "" if it is about none.
	Namespace string `json:"namespace,omitempty"`
	// Text is what is so, Do what a person can do about it ("" if nothing has to be done).
	Text string `json:"text"`
	Do   string `json:"do,omitempty"`
}

// The codes of findings.
const (
	CodeSource           = "source"
	CodeSharded          = "sharded"
	CodeNoReplicaSet     = "no-replica-set"
	CodeVersion          = "version"
	CodeFCV              = "compatibility-version"
	CodePermission       = "permission"
	CodeNothing          = "nothing-selected"
	CodeTimeseries       = "time-series"
	CodeView             = "view"
	CodeViewSource       = "view-source"
	CodeCapped           = "capped"
	CodeCappedFilter     = "capped-filter"
	CodeClustered        = "clustered"
	CodeValidator        = "validator"
	CodeCollation        = "collation"
	CodePreImages        = "pre-images"
	CodeEncrypted        = "encrypted"
	CodeUniqueIndex      = "unique-index"
	CodeTTLIndex         = "ttl-index"
	CodeMixedIDs         = "mixed-ids"
	CodeFieldNames       = "field-names"
	CodeLargeDocuments   = "large-documents"
	CodeFilter           = "filter"
	CodeNameLength       = "name-length"
	CodeNameCollision    = "name-collision"
	CodeDatabaseCase     = "database-case"
	CodeOplogWindow      = "oplog-window"
	CodeTarget           = "target"
	CodeLoop             = "loop"
	CodeSameDeployment   = "same-deployment"
	CodeNotEmpty         = "not-empty"
	CodeExists           = "exists"
	CodeTargetStandalone = "target-standalone"
	CodeDisk             = "disk"
)

// Report is what a Preflight has found.
type Report struct {
	// Source and Target identify the deployments; Target is zero if none was given.
	Source replicator.Identity
	Target replicator.Identity
	// Collections counts what would be copied, Documents and Bytes are the source's estimates of it.
	Collections int
	Documents   int64
	Bytes       int64
	// ReadRate is what the source gave in a short sample, in bytes a second, and CopyTime the estimate that follows from it and from
	// AssumedRate; zero if there was nothing to read. OplogWindow is how far the source's oplog reaches back, zero if not known.
	ReadRate    float64       `json:"read_bytes_per_second"`
	CopyTime    time.Duration `json:"copy_time_ns"`
	OplogWindow time.Duration `json:"oplog_window_ns"`
	// Findings come with the worst first.
	Findings []Finding `json:"findings"`
}

// AssumedRate is how many documents a second a destination is taken to write, for the estimate of the copy's time. A mongod
// on two cores wrote 16,000 to 30,000 (measured on mongod 6.0.5).
const AssumedRate = 10_000

// Blocked reports whether a finding is a blocker.
func (r Report) Blocked() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == SeverityBlocker })
}

// Has reports whether there is a finding with the code.
func (r Report) Has(code string) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == code && f.Severity != SeverityOK })
}

// PreflightConfig says what a route would do. The zero PreflightConfig is a route with defaults.
type PreflightConfig struct {
	// Existing is the route's policy for what the destination holds.
	Existing replicator.Existing
	// KeepTTL is the route's: TTL indexes are not held back.
	KeepTTL bool
}

// Preflight looks at both sides of a route and says what will and what will not replicate. It reads only: it changes nothing on
// either side. dst are the options of the destination's client; nil looks at the source alone. What it costs is bounded: of large
// collections it looks at a sample, and says so.
//
// What is wrong with the deployments is a finding. The error says that a side could not be looked at at all.
func Preflight(ctx context.Context, src *Source, dst *options.ClientOptions, set *scope.Set, cfg PreflightConfig) (Report, error) {
	p := &preflight{src: src, set: set, cfg: cfg}
	if dst != nil {
		// What can read a source can read a destination. Only the primary knows what a write would meet.
		o := *dst
		o.ReadPreference = nil
		target, err := NewSource(&o, SourceConfig{Failover: src.cfg.Failover, Logger: src.cfg.Logger})
		if err != nil {
			return p.r, fmt.Errorf("preflight of the destination: %w", err)
		}
		defer func() { _ = target.Close(ctx) }()
		p.dst = target
	}
	if err := p.run(ctx); err != nil {
		return p.r, fmt.Errorf("preflight: %w", err)
	}
	slices.SortStableFunc(p.r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Namespace, b.Namespace))
	})
	return p.r, nil
}

// preflight is the state of one Preflight. It is for one goroutine.
type preflight struct {
	src, dst *Source
	set      *scope.Set
	cfg      PreflightConfig
	r        Report

	collections []replicator.Collection
}

func (p *preflight) add(s Severity, code string, ns record.Namespace, do, format string, args ...any) {
	p.r.Findings = append(p.r.Findings, Finding{Severity: s, Code: code, Namespace: ns.String(), Do: do, Text: fmt.Sprintf(format, args...)})
}

// none is the namespace of what is about no collection.
var none record.Namespace

func (p *preflight) run(ctx context.Context) error {
	usable, err := p.source(ctx)
	if err != nil {
		return err
	}
	if usable {
		if err := p.contents(ctx); err != nil {
			return err
		}
	}
	if p.dst != nil {
		if err := p.target(ctx); err != nil {
			return err
		}
	}
	if usable {
		return p.window(ctx)
	}
	return nil
}

// contents looks at what would be copied.
func (p *preflight) contents(ctx context.Context) error {
	all, err := p.src.Collections(ctx, p.set)
	if mongoerr.IsUnauthorized(err) {
		p.add(SeverityBlocker, CodePermission, none, "grant the source's user the role read on each database of the route, or readAnyDatabase", "what exists at the source may not be listed: %v", shortly(err))
		return nil
	}
	if err != nil {
		return err
	}
	p.collections = all
	for _, c := range all {
		if c.Kind == replicator.KindCollection || c.Kind == replicator.KindCapped {
			p.r.Collections++
			p.r.Documents += c.Documents
			p.r.Bytes += c.Bytes
		}
		p.options(c)
		p.indexes(c)
	}
	if len(all) == 0 {
		p.add(SeverityWarning, CodeNothing, none, "check the patterns of include and exclude; collections that are created later replicate if they fit", "nothing that exists at the source is selected")
	}
	p.names()
	for _, c := range all {
		if c.Kind != replicator.KindCollection && c.Kind != replicator.KindCapped {
			continue
		}
		if err := p.filter(ctx, c); err != nil {
			return err
		}
		if err := p.documents(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// shortly is an error without what package failover says around it.
func shortly(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
