package main

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-12ef14e5/capstan/internal/admin"
	"github.com/seed-12ef14e5/capstan/internal/daemon"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// writeStatus writes a daemon's status for people.
func writeStatus(b *bytes.Buffer, s admin.Status, now time.Time) {
	fmt.Fprintf(b, "capstan %s, up %s; %s", s.Version["version"], span(now.Sub(s.Started)), plural(len(s.Routes), "route"))
	if !s.Ready {
		b.WriteString("; NOT READY")
	}
	fmt.Fprintf(b, "\nconfiguration %s, read %s ago", oneLine(s.Config.Path), span(now.Sub(s.Config.Loaded)))
	if s.Config.Paused {
		b.WriteString("; started with --paused")
	}
	if !s.Config.Control {
		b.WriteString("; no token is set, so control verbs are refused")
	}
	b.WriteByte('\n')
	if s.Config.Error != "" {
		fmt.Fprintf(b, "the last reload was refused: %s\n", oneLine(s.Config.Error))
	}
	if len(s.Config.Restart) > 0 {
		fmt.Fprintf(b, "takes effect after a restart: %s\n", strings.Join(s.Config.Restart, ", "))
	}
	for _, r := range s.Routes {
		b.WriteByte('\n')
		writeRoute(b, r, now)
	}
}

func writeRoute(b *bytes.Buffer, r daemon.RouteStatus, now time.Time) {
	line := func(key, format string, args ...any) {
		fmt.Fprintf(b, "  %-13s "+format+"\n", append([]any{key}, args...)...)
	}
	fmt.Fprintf(b, "%s  %s", r.Route, strings.ToUpper(string(r.Phase)))
	if r.Paused != "" {
		fmt.Fprintf(b, " (while %s)", r.Paused)
	}
	if !r.Since.IsZero() {
		fmt.Fprintf(b, " for %s", span(now.Sub(r.Since)))
	}
	b.WriteByte('\n')
	if r.Reason != "" {
		line("reason", "%s", oneLine(r.Reason))
	}
	if r.LastError != "" {
		line("trying again", "%s", oneLine(r.LastError))
	}
	switch {
	case r.Again:
		line("next", "begun again by itself; it failed %s since it last got anywhere", plural(r.Failures, "time"))
	case nextStep(r) != "":
		line("next", "%s", nextStep(r))
	}
	line("from", "%s%s", r.Config.Source, deployment(r.Source))
	line("to", "%s%s", r.Config.Target, deployment(r.Target))
	line("what", "%s", subject(r.Config))
	if lag := lagOf(r); lag != "" {
		line("lag", "%s", lag)
	}
	for _, p := range []struct {
		key string
		p   replicator.Point
	}{{"read", r.Read}, {"applied", r.Applied}, {"checkpoint", r.Checkpoint}, {"source head", r.Head}} {
		if p.p.Time != "" {
			line(p.key, "%s  %s", p.p.Time, time.Unix(int64(p.p.Unix), 0).UTC().Format(time.RFC3339))
		}
	}
	if r.OplogLeftSeconds != nil {
		line("oplog left", "%s before the checkpoint would be lost", span(secondsOf(*r.OplogLeftSeconds)))
	}
	writeCopy(line, r)
	if t := r.Totals; t.Read > 0 {
		line("changes", "%s read, %s applied, %s not for the destination; %s of unique indexes resolved",
			humanize.Comma(t.Read), humanize.Comma(t.Applied), humanize.Comma(t.Skipped), plural(int(t.Conflicts), "conflict"))
	}
	if r.Letters > 0 {
		line("dead letters", "%s (capstan replicate retry %s applies them again)", humanize.Comma(r.Letters), r.Route)
	}
	if r.HeldTTL > 0 {
		line("ttl", "%s held back until capstan replicate finalize %s", plural(r.HeldTTL, "index"), r.Route)
	}
	for _, n := range r.Notes {
		line("note", "%s", oneLine(n))
	}
}

// writeCopy says how far the copy is.
func writeCopy(line func(string, string, ...any), r daemon.RouteStatus) {
	c := r.Copy
	if c.Collections == 0 {
		return
	}
	share := ""
	if c.Documents > 0 {
		share = fmt.Sprintf(" (%.1f%%)", min(100, 100*float64(c.Scanned)/float64(c.Documents)))
	}
	line("copy", "%d of %s; scanned %s of about %s documents%s, matched %s, wrote %s", c.Copied, plural(c.Collections, "collection"),
		humanize.Comma(c.Scanned), humanize.Comma(c.Documents), share, humanize.Comma(c.Matched), humanize.IBytes(uint64(max(c.Written, 0))))
	if c.DocumentsPerSecond > 0 || c.SecondsLeft != nil {
		left := "not known yet"
		if c.SecondsLeft != nil {
			left = "about " + span(secondsOf(*c.SecondsLeft))
		}
		line("", "%s documents/s, %s/s; time left: %s", humanize.Comma(int64(c.DocumentsPerSecond)), humanize.IBytes(uint64(max(c.BytesPerSecond, 0))), left)
	}
	for _, p := range c.PerCollection {
		if !p.Done && p.Scanned > 0 {
			line("", "%s: scanned %s of about %s, matched %s", oneLine(p.Name.String()), humanize.Comma(p.Scanned), humanize.Comma(p.Documents), humanize.Comma(p.Matched))
		}
	}
}

// nextStep says what a person can do about a phase.
func nextStep(r daemon.RouteStatus) string {
	switch r.Phase {
	case replicator.PhasePaused:
		return "capstan replicate resume " + r.Route
	case replicator.PhaseLostHistory:
		return "capstan replicate resync " + r.Route + " copies again, comparing with what is there"
	case replicator.PhaseFailed:
		return "mend what the reason says, then capstan replicate resume " + r.Route
	}
	return ""
}

func deployment(i replicator.Identity) string {
	switch {
	case i.Version == "" && i.SetName == "":
		return ""
	case i.SetName == "":
		return " (MongoDB " + i.Version + ")"
	}
	return " (set " + i.SetName + ", MongoDB " + i.Version + ")"
}

// subject says what a route is about.
func subject(f daemon.Facts) string {
	if f.Stream != "" {
		return "stream " + f.Stream
	}
	text := "everything"
	if len(f.Include) > 0 {
		text = strings.Join(f.Include, ", ")
	}
	for _, more := range []struct {
		word string
		list []string
	}{{"without", f.Exclude}, {"renamed", f.Rename}, {"filtered", f.Filters}} {
		if len(more.list) > 0 {
			text += "; " + more.word + " " + strings.Join(more.list, ", ")
		}
	}
	return oneLine(text)
}

func lagOf(r daemon.RouteStatus) string {
	var parts []string
	if r.LagSeconds != nil {
		parts = append(parts, fmt.Sprintf("%.1f s", *r.LagSeconds))
	}
	if r.LagOperations != nil {
		n := humanize.Comma(*r.LagOperations)
		if *r.LagOperations >= replicator.MaxBehind {
			n = "at least " + n
		}
		parts = append(parts, n+" operations")
	}
	return strings.Join(parts, ", ")
}

// oneLine is what a server says on one line, where it cannot move a terminal's cursor.
func oneLine(s string) string { return string(appendVisible(nil, strings.ReplaceAll(s, "\n", " "))) }

func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "x"):
		return humanize.Comma(int64(n)) + " " + what + "es"
	}
	return humanize.Comma(int64(n)) + " " + what + "s"
}

func secondsOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// span is a duration for people: 3d4h, 2h3m, 4m5s, 6s.
func span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	day := 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}
