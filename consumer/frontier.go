package consumer

import (
	"context"
	"sync"

	"github.com/seed-12ef14e5/capstan/record"
)

// frontier knows which records are in flight and what the safe position is: the one with everything
// at or below it done. Records are numbered 1, 2, 3 … in the order of the source. Completion out of
// order is held: the frontier moves over a record only when everything before it is done.
//
// It is a ring of MaxInFlight slots and not a heap or a set of done numbers: the window bounds the
// distance between reading and the safe position, so a record that takes for ever stops reading
// instead of growing a set behind it. The full policy is to block the reader. Safe for concurrent
// use; add is for one goroutine.
type frontier struct {
	maxBytes int64
	every    uint64        // ask for a checkpoint after so many records
	ask      chan struct{} // one token: a checkpoint is due
	space    chan struct{} // one token: a waiting add should look again

	mu      sync.Mutex
	ring    []slot
	next    uint64 // number of the next record
	low     uint64 // everything below is done: number of the first record that is not
	bytes   int64  // documents of records that are not done
	open    int    // records that are not done
	waiting bool   // add waits for space
	dirty   uint64 // records passed since the last snapshot
	version uint64 // counts changes of what snapshot returns

	position    record.Position
	fingerprint string
	marks       *marks
	safeTime    int64
	seen        record.Position
	seenTime    int64
}

type slot struct {
	rec  record.Record
	done bool
}

func newFrontier(cfg *Config, from record.Checkpoint) *frontier {
	return &frontier{
		maxBytes: cfg.MaxInFlightBytes, every: uint64(cfg.CheckpointRecords),
		ask: make(chan struct{}, 1), space: make(chan struct{}, 1),
		ring: make([]slot, cfg.MaxInFlight), next: 1, low: 1,
		position: from.Position, fingerprint: from.Fingerprint, marks: newMarks(cfg.MaxMarks, from.Marks),
		seen: from.Position,
	}
}

func (f *frontier) slot(n uint64) *slot { return &f.ring[n%uint64(len(f.ring))] }

// add takes the next record in and returns its number. It blocks while the window is full and
// returns false when ctx ends first.
func (f *frontier) add(ctx context.Context, rec record.Record) (n uint64, ok bool) {
	size := int64(len(rec.Raw))
	f.mu.Lock()
	for f.next-f.low >= uint64(len(f.ring)) || (f.bytes > 0 && f.bytes+size > f.maxBytes) {
		f.waiting = true
		f.mu.Unlock()
		select {
		case <-f.space:
		case <-ctx.Done():
			return 0, false
		}
		f.mu.Lock()
	}
	f.waiting = false
	n = f.next
	f.next++
	f.open++
	f.bytes += size
	*f.slot(n) = slot{rec: rec}
	f.seen, f.seenTime = rec.Position, rec.Time
	f.mu.Unlock()
	return n, true
}

// record returns the record with that number, which must be in flight and not done: until done is
// called its slot belongs to the caller, for reading.
func (f *frontier) record(n uint64) *record.Record { return &f.slot(n).rec }

// lookup returns a copy of a record that is in flight, or false if it is done.
func (f *frontier) lookup(n uint64) (record.Record, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n < f.low || n >= f.next || f.slot(n).done {
		return record.Record{}, false
	}
	return f.slot(n).rec, true
}

// done notes that a record needs nothing more, and moves the frontier as far as it goes.
func (f *frontier) done(n uint64) {
	f.mu.Lock()
	s := f.slot(n)
	if n < f.low || n >= f.next || s.done {
		f.mu.Unlock()
		return
	}
	s.done = true
	f.open--
	f.bytes -= int64(len(s.rec.Raw))
	s.rec.Raw, s.rec.Subject = nil, "" // the document is not needed to move over it
	for f.low < f.next && f.slot(f.low).done {
		f.pass(f.slot(f.low))
		f.low++
	}
	if f.dirty >= f.every {
		signal(f.ask)
	}
	if f.waiting && f.roomy() {
		f.waiting = false
		signal(f.space)
	}
	f.mu.Unlock()
}

// pass moves the safe position over one record. It is the one place where that happens.
// I2: everything before it was passed, and it is done itself.
func (f *frontier) pass(s *slot) {
	r := &s.rec
	if !r.Position.IsZero() {
		f.position, f.safeTime = r.Position, r.Time
	}
	if r.Fingerprint != "" {
		f.fingerprint = r.Fingerprint
	}
	switch r.Kind {
	case record.KindMessage:
		if r.Ours() {
			f.marks.advance(r.Src, r.Seq)
		}
	case record.KindProgress:
		for src, seq := range r.Progress {
			f.marks.advance(src, seq)
		}
	case record.KindGap:
		if r.Gap != nil {
			for _, l := range r.Gap.Lost { // accounted for: without this the loss would be reported again
				f.marks.advance(l.Src, l.To)
			}
		}
	}
	*s = slot{done: true}
	f.dirty++
	f.version++
}

// roomy reports whether a waiting add should be woken: not for every single slot, as two goroutines
// that take turns at a full window pay a context switch per record.
func (f *frontier) roomy() bool {
	used := f.next - f.low
	size := uint64(len(f.ring))
	if used >= size {
		return false
	}
	if uint64(f.open) > size/2 && size-used < max(1, size/16) {
		return false
	}
	return f.bytes == 0 || f.bytes <= f.maxBytes-f.maxBytes/16
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a token is there already
	}
}

// anchorMargin is how far before the first record's time the position in front of it is. Messages of
// other srcs that stand behind it may have an earlier time: the server stamps it before an insert gets
// its turn (5.6 s early was measured), and a reader that goes by time alone would pass them.
const anchorMargin = 60 // seconds

// begin sets the position in front of the first record, where nothing is known yet: a time without an
// _id, and the record's src up to the seq before it. It reports whether there is anything to store.
func (f *frontier) begin(first record.Record) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.position.IsZero() && len(f.marks.all) == 0 {
		if ts := first.Position.TS; !ts.IsZero() {
			f.position.TS = record.Timestamp{T: ts.T - min(ts.T, anchorMargin)}
		}
		if first.Ours() {
			f.marks.advance(first.Src, first.Seq-1)
		}
		f.fingerprint = first.Fingerprint
		f.version++
	}
	return !f.position.IsZero() || len(f.marks.all) > 0
}

// snapshot puts the safe position into cp and returns it with the version that it has.
func (f *frontier) snapshot(cp record.Checkpoint) (record.Checkpoint, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = 0
	cp.Position, cp.Fingerprint, cp.Marks = f.position, f.fingerprint, f.marks.snapshot()
	return cp, f.version
}

func (f *frontier) status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Status{
		Seen: f.seen, SeenTime: f.seenTime, Safe: f.position, SafeTime: f.safeTime,
		InFlight: f.open, Held: int(f.next-f.low) - f.open,
		Read: f.next - 1, Done: f.low - 1,
	}
}
