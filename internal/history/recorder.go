package history

import (
	"sync"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// chunkSize is the number of events that a recorder allocates at once. Chunks are never copied, so
// recording has no pause where a slice of 100,000s of events would grow.
const chunkSize = 8192

// Recorder keeps events in memory. The zero Recorder is ready to use; all methods are safe for
// concurrent use, never block on I/O, and take well under a microsecond.
type Recorder struct {
	mu     sync.Mutex
	chunks [][]Event
	n      int
}

// Add records e as it is; where e.At is 0 it becomes now.
func (r *Recorder) Add(e Event) {
	if e.At == 0 {
		e.At = time.Now().UnixMicro()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.chunks); n == 0 || len(r.chunks[n-1]) == chunkSize {
		r.chunks = append(r.chunks, make([]Event, 0, chunkSize))
	}
	last := &r.chunks[len(r.chunks)-1]
	*last = append(*last, e)
	r.n++
}

// Sent records that k was handed to a producer. Record it before the call that sends.
func (r *Recorder) Sent(k Key) { r.Add(Event{Kind: KindSent, Key: k}) }

// Acknowledged records that the producer said k is in the stream.
func (r *Recorder) Acknowledged(k Key) { r.Add(Event{Kind: KindAcknowledged, Key: k}) }

// Rejected records that the producer said k is certainly not in the stream.
func (r *Recorder) Rejected(k Key) { r.Add(Event{Kind: KindRejected, Key: k}) }

// Unknown records that the producer could not say whether k is in the stream.
func (r *Recorder) Unknown(k Key) { r.Add(Event{Kind: KindUnknown, Key: k}) }

// Stored records that one copy of k's effect was found in the destination.
func (r *Recorder) Stored(k Key) { r.Add(Event{Kind: KindStored, Key: k}) }

// Reader returns a recorder for what the reader of that name sees.
func (r *Recorder) Reader(name string) *Reader { return &Reader{name: name, to: r} }

// Len returns the number of events recorded so far.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// Events returns a copy of everything recorded so far, in the order of recording.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Event, 0, r.n)
	for _, c := range r.chunks {
		all = append(all, c...)
	}
	return all
}

// adder is where a Reader puts its events: a Recorder or a File.
type adder interface{ Add(Event) }

// Reader records the events of one reader. It is safe for concurrent use, but the order of the calls
// is the order that is judged.
type Reader struct {
	name string
	to   adder
}

// Resumed records that the reader starts, or starts again. An at-least-once reader may get again what
// it got before; anything else that comes twice is a violation.
func (r *Reader) Resumed() { r.to.Add(Event{Kind: KindResumed, Reader: r.name}) }

// Delivered records that the reader got k.
func (r *Reader) Delivered(k Key) { r.to.Add(Event{Kind: KindDelivered, Reader: r.name, Key: k}) }

// Handled records that the work for k is done.
func (r *Reader) Handled(k Key) { r.to.Add(Event{Kind: KindHandled, Reader: r.name, Key: k}) }

// Lost records that the reader was told that from to to (both included) of src are lost to it.
func (r *Reader) Lost(src string, from, to int64, exact bool) {
	r.to.Add(Event{Kind: KindLost, Reader: r.name, Key: Key{Src: src, Seq: from}, To: to, Exact: exact})
}

// Gap records every loss that g reports.
func (r *Reader) Gap(g *record.Gap) {
	for _, l := range g.Lost {
		r.Lost(l.Src, l.From, l.To, l.Exact)
	}
}
