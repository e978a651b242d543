package replicator

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// streamStatus is what Status is made of, below StreamLink.mu.
type streamStatus struct {
	phase         Phase
	paused        bool
	since         time.Time
	reason, last  string
	source        StreamInfo
	target        StreamInfo
	applied, safe record.Position
	head          StreamHead
	lag           *float64
	counts        streamCounts
	rate          streamRate
	gaps          int64
	lost          int64
	open          bool // the loss is larger than lost, or not known
	lastGap       string
}

// streamCounts count messages.
type streamCounts struct {
	scanned, matched, written, bytes int64
	foreign                          bool
	last                             *record.Record
}

// streamRate measures over the last ten seconds or so.
type streamRate struct {
	at, before           time.Time
	docs, docsBefore     int64
	bytes, bytesBefore   int64
	perSecond, byteRates float64
}

const streamRateWindow = 5 * time.Second

func (s *streamRate) note(now time.Time, docs, bytes int64) {
	if s.before.IsZero() {
		s.before, s.at = now, now
		s.docsBefore, s.docs, s.bytesBefore, s.bytes = docs, docs, bytes, bytes
	}
	if d := now.Sub(s.before).Seconds(); d > 0 {
		s.perSecond, s.byteRates = float64(docs-s.docsBefore)/d, float64(bytes-s.bytesBefore)/d
	}
	if now.Sub(s.at) >= streamRateWindow {
		s.before, s.docsBefore, s.bytesBefore = s.at, s.docs, s.bytes
		s.at, s.docs, s.bytes = now, docs, bytes
	}
}

// Lost returns how many messages the source has lost to this run, as far as is known the least, and in how many gaps. It
// does not block.
func (l *StreamLink) Lost() (messages, gaps int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status.lost, l.status.gaps
}

// Status returns where the link is. It does not block. Copy counts the messages of this run, of all phases: Scanned those that
// were read, Matched those that Subject and Filter let pass. LagOperations is not known for a stream;
// OplogLeftSeconds is how long the source, at its mean pace, still holds the first message that is not replicated.
func (l *StreamLink) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.status
	out := Status{
		Route: l.route, Phase: s.phase, Reason: s.reason, LastError: s.last,
		Source: s.source.Identity, Target: s.target.Identity,
		Read: streamPoint(s.applied), Applied: streamPoint(s.applied), Checkpoint: streamPoint(s.safe), Head: streamPoint(s.head.Position),
		LagSeconds: s.lag, OplogLeftSeconds: s.head.Left,
		Totals: Totals{
			Scanned: s.counts.scanned, Matched: s.counts.matched, CopiedBytes: s.counts.bytes,
			Read: s.counts.scanned, Applied: s.counts.written, Skipped: s.counts.scanned - s.counts.written,
		},
		Notes: l.notes(), Since: s.since, Updated: time.Now(),
	}
	out.Head.Position = ""
	if s.paused && (s.phase == PhaseCopying || s.phase == PhaseCatchingUp || s.phase == PhaseLive) {
		out.Phase, out.Paused, out.Reason = PhasePaused, s.phase, "paused by a person"
	}
	c := &out.Copy
	*c = CopyStatus{
		Documents: s.source.Messages, Bytes: s.source.Bytes, Scanned: s.counts.scanned, Matched: s.counts.matched, Written: s.counts.bytes,
		DocumentsPerSecond: s.rate.perSecond, BytesPerSecond: s.rate.byteRates,
	}
	if s.source.UUID != "" {
		c.Collections = 1
	}
	switch s.phase {
	case PhaseCopying:
		if left := s.source.Messages - s.counts.scanned; s.rate.perSecond > 0 {
			seconds := float64(max(left, 0)) / s.rate.perSecond
			c.SecondsLeft = &seconds
		}
		c.PerCollection = []CollectionProgress{{Name: s.source.Name, Documents: s.source.Messages, Scanned: s.counts.scanned, Matched: s.counts.matched}}
	case PhaseCatchingUp, PhaseLive, PhaseFinalized:
		c.Copied = c.Collections
	}
	return out
}

func streamPoint(p record.Position) Point {
	if p.IsZero() {
		return Point{}
	}
	return Point{Time: fmt.Sprintf("%d.%d", p.TS.T, p.TS.I), Unix: uint32(streamSeconds(p)), Position: p.String()}
}

// streamSeconds is when a message was written, in seconds since the Unix epoch, as far as its position tells; else 0.
func streamSeconds(p record.Position) int64 {
	if p.TS.T > 0 {
		return int64(p.TS.T)
	}
	if id, ok := p.ID.ObjectID(); ok {
		return id.Timestamp().Unix()
	}
	return 0
}

// notes says what an operator should know.
func (l *StreamLink) notes() []string {
	s := &l.status
	var notes []string
	if !l.subject.MatchesAll() || l.filter != nil {
		notes = append(notes, "a subject or filter selects messages: what is left out is missing at the destination as holes of seq, by design, and its readers report these as missing messages")
	}
	if s.counts.foreign {
		notes = append(notes, "the source has messages without src and seq: natural order is kept, and a loss cannot be counted")
	}
	if s.source.UUID != "" && s.source.Identity.SetName == "" {
		notes = append(notes, "the source is not a member of a replica set: what it acknowledged in the last moments before a crash may be gone there and be here")
	}
	if s.target.Size > 0 && s.target.Size < s.source.Size || s.target.Max > 0 && (s.source.Max == 0 || s.target.Max < s.source.Max) {
		notes = append(notes, "the destination is smaller than the source and remembers less")
	}
	if s.gaps > 0 {
		least := ""
		if s.open {
			least = "at least "
		}
		notes = append(notes, fmt.Sprintf("the source lost %s%d messages to this route, in %d gaps; they are missing at the destination; the last one: %s", least, s.lost, s.gaps, s.lastGap))
	}
	return notes
}

func (l *StreamLink) describe(source, target StreamInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.source, l.status.target = source, target
}

// enter changes the phase.
func (l *StreamLink) enter(p Phase, source StreamInfo) {
	l.mu.Lock()
	changed := l.status.phase != p
	if l.status.source = source; changed {
		l.status.phase, l.status.since = p, time.Now()
	}
	l.mu.Unlock()
	if !changed {
		return
	}
	l.log.Info().Str("phase", string(p)).Msg("the stream route has entered a phase")
	if hook := l.cfg.Hooks.OnPhase; hook != nil {
		hook(p)
	}
}

// failed is called when Run ends with err.
func (l *StreamLink) failed(err error) {
	phase := PhaseFailed
	if _, ok := errors.AsType[*RecreatedError](err); ok {
		phase = PhaseLostHistory // only a resync helps
	}
	l.mu.Lock()
	l.status.phase, l.status.reason, l.status.paused, l.status.since = phase, err.Error(), false, time.Now()
	l.mu.Unlock()
	if hook := l.cfg.Hooks.OnPhase; hook != nil {
		hook(phase)
	}
}

func (l *StreamLink) phase() Phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status.phase
}

func (l *StreamLink) isLive() bool { return l.phase() == PhaseLive }

func (l *StreamLink) setPaused(paused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.paused = paused
}

// trouble notes an error that may pass, nil that it has.
func (l *StreamLink) trouble(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.status.last = ""
	case l.status.last == "":
		l.log.Warn().Err(err).Msg("the stream route tries again")
		fallthrough
	default:
		l.status.last = err.Error()
	}
}

// waiting is called by the reader while there is nothing to read from.
func (l *StreamLink) waiting(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.last = "waiting for the source: " + reason
}

func (l *StreamLink) applied() record.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status.applied
}

func (l *StreamLink) stored(at record.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.safe = at
}

// count adds what the frontier has passed.
func (l *StreamLink) count(n streamCounts, at record.Position) {
	l.mu.Lock()
	s := &l.status
	c := &s.counts
	c.scanned, c.matched, c.written, c.bytes, c.foreign = c.scanned+n.scanned, c.matched+n.matched, c.written+n.written, c.bytes+n.bytes, c.foreign || n.foreign
	s.applied, s.last = at, ""
	s.rate.note(time.Now(), c.scanned, c.bytes)
	copying := s.phase == PhaseCopying
	l.mu.Unlock()
	if n.scanned == 0 {
		return
	}
	if hook := l.cfg.Hooks.OnCopied; hook != nil && copying {
		hook(n.scanned, n.written, n.bytes)
	}
	if hook := l.cfg.Hooks.OnApplied; hook != nil && !copying {
		behind := time.Duration(0)
		if n.last.Time > 0 {
			behind = time.Since(time.UnixMicro(n.last.Time))
		}
		hook(map[string]int{"insert": int(n.written)}, behind)
	}
}

func (l *StreamLink) gap(g record.Gap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.status
	s.gaps++
	s.lost += g.Exact()
	s.open = s.open || !g.Complete()
	s.lastGap = g.String()
}

// headed notes the end of the source; passed is whether everything up to it is applied.
func (l *StreamLink) headed(head StreamHead, passed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.status
	s.head = head
	s.rate.note(time.Now(), s.counts.scanned, s.counts.bytes)
	from, to := streamSeconds(s.applied), streamSeconds(head.Position)
	lag := float64(max(to-from, 0))
	switch {
	case passed:
		lag = 0
	case from == 0 || to == 0:
		s.lag = nil
		return
	}
	s.lag = &lag
}
