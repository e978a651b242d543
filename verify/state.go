package verify

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// run is the state of one Run.
type run struct {
	cfg            Config
	source, target *side
	begin          time.Time
	// big is held while a window of large documents is in memory.
	big chan struct{}
	// arrived tells the judge of suspects; room tells a scan that there are fewer. 1: a signal that is already there is enough.
	arrived, room chan struct{}
	pairs         []*pair
	file          *progressFile // nil: none

	mu     sync.Mutex // guards what follows, and the state of every pair
	queue  queue
	all    map[*suspect]struct{} // without a verdict, also while they are looked at
	weight int
	listed int
	diffs  int
	before float64 // seconds of earlier runs
	resume bool
}

// state is what is known of one pair. Guarded by run.mu.
type state struct {
	report Namespace
	spans  []*span
	done   bool // all spans are
	// onlyTS counts the messages that differ only in the ts that a server gave them.
	onlyTS int64
}

// finished returns what is known as it is reported.
func (s *state) finished() Namespace {
	n := s.report
	n.Differences = arrange(n.Differences)
	if s.onlyTS > 0 {
		n.Findings = append(slices.Clone(n.Findings), Finding{About: AboutCollection, Note: true, Text: fmt.Sprintf(
			"has %s different in ts alone: a stream route makes ts anew: compare with --new-timestamps", plural(s.onlyTS, "message"))})
	}
	return n
}

// span is one range [next, hi) of _ids that is still to be compared; zero values are open ends.
type span struct {
	next, hi bson.RawValue
	done     bool
}

func newRun(cfg Config, source, target *side) *run {
	return &run{
		cfg: cfg, source: source, target: target, begin: time.Now(),
		big: make(chan struct{}, 1), arrived: make(chan struct{}, 1), room: make(chan struct{}, 1),
		all: make(map[*suspect]struct{}),
	}
}

func (r *run) at(s *span) (next bson.RawValue, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.next, s.done
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// commit adds a window's result, and moves the range behind it: in one step, so that what is saved as progress fits
// together. It blocks while too many suspects wait.
func (r *run) commit(ctx context.Context, p *pair, s *span, w *window) error {
	if err := r.waitForRoom(ctx, len(w.suspects)); err != nil {
		return err
	}
	r.mu.Lock()
	n := &p.state.report
	n.SourceDocuments += int64(len(w.source.docs))
	n.TargetDocuments += int64(len(w.target.docs))
	n.Scanned += w.scanned
	n.Bytes += int64(w.source.bytes)
	n.Equal += w.equal
	r.suspect(w.suspects...)
	s.next, s.done = clone(w.next), w.end
	if w.end {
		s.next = bson.RawValue{}
	}
	r.mu.Unlock()
	if f := r.cfg.Hooks.OnWindow; f != nil {
		f(p.source.ns, w.scanned, int64(w.source.bytes))
	}
	return r.save(false)
}

func clone(v bson.RawValue) bson.RawValue {
	v.Value = append([]byte(nil), v.Value...)
	return v
}

// waitForRoom waits until n more suspects fit. One window always fits into an empty queue.
func (r *run) waitForRoom(ctx context.Context, n int) error {
	for n > 0 {
		r.mu.Lock()
		ok := len(r.all) == 0 || len(r.all)+n <= maxPending && r.weight < maxPendingBytes
		r.mu.Unlock()
		if ok {
			signal(r.room) // for the next that waits
			return nil
		}
		select {
		case <-r.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// suspect hands documents to the judge. r.mu is held.
func (r *run) suspect(list ...*suspect) {
	for _, s := range list {
		s.due = time.Now()
		r.all[s] = struct{}{}
		r.weight += s.weight()
		heap.Push(&r.queue, s)
	}
	if len(list) > 0 {
		signal(r.arrived)
	}
}

func (r *run) pendingCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// close gives a suspect its verdict: "" for equal. r.mu is held.
func (r *run) close(s *suspect, kind string, source, target bson.Raw) {
	delete(r.all, s)
	r.weight -= s.weight()
	signal(r.room)
	n := &s.p.state.report
	id := s.id
	if source != nil {
		id = idOf(source)
		if s.p.collated && canonical(id) != s.key {
			return // the source spells this _id in another way: it is a suspect of its own
		}
	}
	if kind == "" {
		if source != nil {
			n.Equal++
		}
		return
	}
	if kind == Different && s.p.capped() && !s.p.newTS && isMessage(source) && equalButTS(source, target) {
		s.p.state.onlyTS++
	}
	var paths []PathDiff
	if kind == Different && r.diffs < r.cfg.Diffs && r.listed < r.cfg.MaxDifferences {
		r.diffs++
		paths = s.p.diff(source, target)
	}
	r.differ(n, kind, id, paths)
}

// differ counts and lists a document that differs. r.mu is held.
func (r *run) differ(n *Namespace, kind string, id bson.RawValue, paths []PathDiff) {
	switch kind {
	case Missing:
		n.Missing++
	case Extra:
		n.Extra++
	case Different:
		n.Different++
	case Changing:
		n.Changing++
	case Moved:
		n.Moved++
	}
	if r.listed >= r.cfg.MaxDifferences {
		return
	}
	r.listed++
	n.Differences = append(n.Differences, Difference{Kind: kind, ID: idText(id), Paths: paths})
}
