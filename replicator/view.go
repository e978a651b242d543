package replicator

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// view is what a status shows beside the state. Guarded by Link.mu.
type view struct {
	phase          Phase
	since          time.Time
	reason         string
	lastError      string
	source, target Identity
	// Positions: each only grows, until a resync.
	read, applied, saved record.Position
	clock                Clock
	clockErr             string
	letters              int64
	recopied             bool // this run has begun the copy again by itself
	notes                []string
	lateAt               time.Time     // when delayed changes were tried last
	lateWait             time.Duration // how long it is until they are tried again
	rate                 rate
}

// maxNotes bounds the notes of a status.
const maxNotes = 100

// show changes the phase that a status shows.
func (l *Link) show(p Phase) { l.showFor(p, "") }

func (l *Link) showFor(p Phase, reason string) {
	l.mu.Lock()
	same := l.view.phase == p
	if !same {
		l.view.since = time.Now()
	}
	l.view.phase, l.view.reason = p, reason
	l.wakeLocked()
	l.mu.Unlock()
	if !same && l.cfg.Hooks.OnPhase != nil {
		l.cfg.Hooks.OnPhase(p)
	}
}

// trouble notes an error that may pass.
func (l *Link) trouble(err error) {
	l.set1(func() { l.view.lastError = err.Error() })
	if l.cfg.Hooks.OnRetry != nil {
		l.cfg.Hooks.OnRetry(err)
	}
}

// note tells an operator something, once.
func (l *Link) note(text string) {
	l.mu.Lock()
	known := slices.Contains(l.view.notes, text)
	if !known && len(l.view.notes) < maxNotes {
		l.view.notes = append(l.view.notes, text)
	}
	l.mu.Unlock()
	if !known {
		l.log.Warn().Str("note", text).Msg("about the replication")
	}
}

// Status returns where the link is. It does not block.
func (l *Link) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, s := &l.view, &l.state
	st := Status{
		Route: l.route, Phase: v.phase, Reason: v.reason, LastError: v.lastError, Source: v.source, Target: v.target,
		Read: point(v.read), Applied: point(v.applied), Checkpoint: point(v.saved), Head: point(record.Position{TS: v.clock.Head}),
		Totals: s.Totals, Letters: v.letters, HeldTTL: len(s.Held), Notes: slices.Clone(v.notes),
		Since: v.since, Updated: time.Now(), Copy: l.copyStatus(),
	}
	if v.phase == PhasePaused {
		st.Paused = s.Phase
	}
	if v.clockErr != "" {
		st.Notes = append(st.Notes, "the source's clock cannot be read: "+v.clockErr)
	}
	for _, d := range s.Delayed {
		st.Notes = append(st.Notes, fmt.Sprintf("%s: %s %v waits until no two documents of the destination have equal values; it is tried again", d.Collection, d.Op, d.Description))
	}
	l.lag(&st)
	return st
}

// lag fills in what depends on the source's clock.
func (l *Link) lag(st *Status) {
	v := &l.view
	if v.clock.Head.IsZero() || v.applied.IsZero() {
		return
	}
	lag := 0.0
	if v.applied.TS.Compare(v.clock.Head) < 0 {
		lag = float64(v.clock.Head.T) - float64(v.applied.TS.T)
	}
	st.LagSeconds = &lag
	switch {
	case lag == 0 && v.applied.TS.Compare(v.clock.Head) >= 0:
		st.LagOperations = new(int64)
	case v.clock.Behind >= 0:
		n := v.clock.Behind
		st.LagOperations = &n
	}
	if !v.clock.Oldest.IsZero() && !v.saved.IsZero() {
		left := max(float64(v.saved.TS.T)-float64(v.clock.Oldest.T), 0)
		st.OplogLeftSeconds = &left
	}
}

func (l *Link) copyStatus() CopyStatus {
	c := CopyStatus{Collections: len(l.state.Collections)}
	t := l.state.Totals
	c.Scanned, c.Matched, c.Written = t.Scanned, t.Matched, t.CopiedBytes
	copying := l.state.Phase == PhaseCopying
	for _, one := range l.state.Collections {
		p := CollectionProgress{Name: one.Source, Documents: one.Documents, Done: one.Copied}
		for _, r := range one.Ranges {
			p.Scanned += r.Scanned
			p.Matched += r.Matched
		}
		if one.Copied {
			c.Copied++
		}
		c.Documents += one.Documents
		c.Bytes += one.Bytes
		if copying {
			c.PerCollection = append(c.PerCollection, p)
		}
	}
	if copying {
		c.DocumentsPerSecond, c.BytesPerSecond = l.view.rate.now(time.Now())
		if c.DocumentsPerSecond > 0 {
			left := max(float64(c.Documents-c.Scanned)/c.DocumentsPerSecond, 0)
			c.SecondsLeft = &left
		}
	}
	return c
}

func point(p record.Position) Point {
	if p.IsZero() {
		return Point{}
	}
	pt := Point{Time: fmt.Sprintf("%d.%d", p.TS.T, p.TS.I), Unix: p.TS.T}
	if !p.ID.IsZero() {
		pt.Position = p.String()
	}
	return pt
}

// rateSpan is over how many seconds a rate is taken.
const rateSpan = 10

// rate counts documents and bytes of the last rateSpan seconds.
type rate struct {
	start   time.Time
	buckets [rateSpan]struct {
		second      int64
		docs, bytes int64
	}
}

func (r *rate) add(docs, bytes int64) {
	now := time.Now()
	if r.start.IsZero() {
		r.start = now
	}
	s := now.Unix()
	b := &r.buckets[s%rateSpan]
	if b.second != s {
		b.second, b.docs, b.bytes = s, 0, 0
	}
	b.docs += docs
	b.bytes += bytes
}

func (r *rate) now(now time.Time) (docs, bytes float64) {
	if r.start.IsZero() {
		return 0, 0
	}
	span := min(now.Sub(r.start).Seconds(), rateSpan)
	if span <= 0 {
		return 0, 0
	}
	for _, b := range r.buckets {
		if now.Unix()-b.second < rateSpan {
			docs += float64(b.docs)
			bytes += float64(b.bytes)
		}
	}
	return docs / span, bytes / span
}
