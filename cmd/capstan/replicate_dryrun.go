package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-12ef14e5/capstan/internal/config"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
	"github.com/seed-12ef14e5/capstan/scope"
)

// preflightJSON is a report in JSON output: one object. Times are in seconds.
type preflightJSON struct {
	Source      *deploymentJSON   `json:"source"`
	Target      *deploymentJSON   `json:"target,omitempty"`
	Collections int               `json:"collections"`
	Documents   int64             `json:"documents"`
	Bytes       int64             `json:"bytes"`
	ReadRate    float64           `json:"read_bytes_per_second"`
	WriteRate   int               `json:"assumed_written_documents_per_second"`
	CopyTime    float64           `json:"copy_seconds"`
	OplogWindow *float64          `json:"oplog_window_seconds,omitempty"`
	Blocked     bool              `json:"blocked"`
	Findings    []mongodb.Finding `json:"findings"`
}

type deploymentJSON struct {
	Set     string `json:"set,omitempty"`
	SetID   string `json:"set_id,omitempty"`
	Version string `json:"version"`
}

func toDeploymentJSON(id replicator.Identity) *deploymentJSON {
	if id.Version == "" {
		return nil // nobody looked at it
	}
	return &deploymentJSON{id.SetName, id.SetID, id.Version}
}

// printPreflight writes what a preflight has found: for people, or with format json as one object. That something blocks the
// route is for the caller to say.
func printPreflight(env *environ, r mongodb.Report, format string) error {
	switch format {
	case outputJSON:
		out := preflightJSON{
			Source: toDeploymentJSON(r.Source), Target: toDeploymentJSON(r.Target), Collections: r.Collections, Documents: r.Documents, Bytes: r.Bytes,
			ReadRate: r.ReadRate, WriteRate: mongodb.AssumedRate, CopyTime: r.CopyTime.Seconds(), Blocked: r.Blocked(), Findings: make([]mongodb.Finding, len(r.Findings)),
		}
		if r.OplogWindow > 0 {
			out.OplogWindow = new(r.OplogWindow.Seconds())
		}
		for i, f := range r.Findings {
			f.Text, f.Do = config.Redact(f.Text), config.Redact(f.Do) // I10: a server's error may quote a connection string
			out.Findings[i] = f
		}
		return stdoutErr(json.NewEncoder(env.stdout).Encode(out))
	case outputText:
		_, err := env.stdout.Write([]byte(config.Redact(preflightText(r))))
		return stdoutErr(err)
	}
	return usageError("--output is text or json, not %q", format)
}

// preflightText is a report for people: the findings, the worst first, and a summary below them, where a terminal ends.
func preflightText(r mongodb.Report) string {
	var b strings.Builder
	count := map[mongodb.Severity]int{}
	for _, f := range r.Findings {
		count[f.Severity]++
		fmt.Fprintf(&b, "%-8s %s", strings.ToUpper(string(f.Severity)), f.Code)
		if f.Namespace != "" {
			fmt.Fprintf(&b, "  %s", visible(f.Namespace))
		}
		fmt.Fprintf(&b, "\n         %s\n", visible(f.Text))
		if f.Do != "" {
			fmt.Fprintf(&b, "         -> %s\n", visible(f.Do))
		}
	}
	if len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "collections  %d with about %s documents, %s\n", r.Collections, humanize.Comma(r.Documents), humanize.IBytes(uint64(max(0, r.Bytes))))
	if r.CopyTime > 0 {
		fmt.Fprintf(&b, "copy         about %v\n", r.CopyTime.Round(time.Second))
	}
	if r.OplogWindow > 0 {
		fmt.Fprintf(&b, "oplog        reaches back %v\n", r.OplogWindow)
	}
	fmt.Fprintf(&b, "findings     %d blockers, %d warnings, %d notes\n", count[mongodb.SeverityBlocker], count[mongodb.SeverityWarning], count[mongodb.SeverityNote])
	if r.Blocked() {
		b.WriteString("nothing was changed; the route would not start\n")
	} else {
		b.WriteString("nothing was changed; the route can start\n")
	}
	return b.String()
}

// replicateDryRun looks at both sides and says what a route would meet.
func replicateDryRun(ctx context.Context, env *environ, st sourceTarget, o replicateOptions) error {
	if o.stream != "" {
		return usageError("--dry-run is for collections, not for --stream")
	}
	set, err := scope.Compile(st.Scope)
	if err != nil {
		return err
	}
	src, err := mongodb.NewSource(st.Source, mongodb.SourceConfig{Logger: env.log})
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = src.Close(cctx) // nothing is in progress
	}()
	cfg := mongodb.PreflightConfig{Existing: replicator.Existing(o.existing), KeepTTL: o.keepTTL}
	findings, goesOn, err := knownRoutes(ctx, env, src, st, set, o)
	if err != nil {
		return err
	}
	if goesOn {
		cfg.Existing = replicator.MergeExisting // what is there is its own
	}
	report, err := mongodb.Preflight(ctx, src, st.Target, set, cfg)
	if err != nil {
		return err
	}
	report.Findings = append(findings, report.Findings...)
	if err := printPreflight(env, report, o.output); err != nil || !report.Blocked() {
		return err
	}
	return &codeError{code: exitFailed} // all has been said
}

// knownRoutes says what the routes that the destination remembers mean for this one, and whether it goes on where it was.
func knownRoutes(ctx context.Context, env *environ, src *mongodb.Source, st sourceTarget, set *scope.Set, o replicateOptions) (list []mongodb.Finding, goesOn bool, err error) {
	target, err := mongodb.NewTarget(st.Target, mongodb.TargetConfig{})
	if err != nil {
		return nil, false, err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = target.Close(cctx) // nothing is in progress
	}()
	store, err := mongodb.NewStore(target, mongodb.StoreConfig{})
	if err != nil {
		return nil, false, err
	}
	routes, err := store.List(ctx)
	if err != nil {
		env.log.Debug().Err(err).Msg("the routes of the destination cannot be read")
		return nil, false, nil // the preflight says which rights are missing
	}
	found, err := src.Collections(ctx, set)
	if err != nil {
		return nil, false, err
	}
	list = unusedParts(ctx, env, src, set)
	for _, r := range routes {
		switch {
		case r.Route != o.name:
			list = append(list, sharedWith(r, found, set, o)...)
		case r.Fingerprint != set.Fingerprint() && len(r.Collections) > 0 && !o.resync:
			list = append(list, mongodb.Finding{Severity: mongodb.SeverityBlocker, Code: "other-scope",
				Text: fmt.Sprintf("the destination has a checkpoint of route %q that was made with another scope", r.Route), Do: "--name NAME begins another route, --resync copies again"})
		default:
			goesOn = true
			list = append(list, mongodb.Finding{Severity: mongodb.SeverityNote, Code: "goes-on",
				Text: fmt.Sprintf("route %q is known to the destination (%s): it goes on where it was, and what the destination has is its own", r.Route, r.Phase)})
		}
	}
	return list, goesOn, nil
}

// sharedWith says which collections another route writes to.
func sharedWith(r replicator.State, found []replicator.Collection, set *scope.Set, o replicateOptions) (list []mongodb.Finding) {
	if r.Phase == replicator.PhaseFinalized || r.Shared && o.shared {
		return nil
	}
	for _, c := range r.Collections {
		for _, f := range found {
			if set.Target(f.Name) == c.Target {
				list = append(list, mongodb.Finding{Severity: mongodb.SeverityBlocker, Code: "other-route", Namespace: c.Target.String(),
					Text: fmt.Sprintf("route %q writes to it", r.Route), Do: "rename, declare both routes --shared, or forget that route: capstan replicate forget"})
			}
		}
	}
	return list
}

// unusedParts names the parts of the scope that fit nothing at the source.
func unusedParts(ctx context.Context, env *environ, src *mongodb.Source, set *scope.Set) (list []mongodb.Finding) {
	texts, err := replicator.Unused(ctx, src, set)
	if err != nil {
		env.log.Debug().Err(err).Msg("the source's collections cannot be listed")
		return nil // the preflight says which rights are missing
	}
	for _, text := range texts {
		list = append(list, mongodb.Finding{Severity: mongodb.SeverityWarning, Code: "fits-nothing",
			Text: text + " fits no collection that the source has now", Do: "correct it, if it is misspelt"})
	}
	return list
}
