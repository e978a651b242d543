// Package outage is the failover experiment: it breaks a replica set on this machine in every way that
// it knows, while clients in network namespaces of their own write, read and tail, and judges
// afterwards what was acknowledged, lost, doubled or left unknown, and where the time went.
//
// It repeats and extends an experiment of 2015 ("Why not everything is so simple with MongoDB"): three
// members, a writer and a reader that each act once a second, and the primary's machine stopped, not
// its process killed.
package outage

import (
	"time"

	"golang.org/x/sys/unix"
)

// Moment is a point in time in microseconds on the machine's monotonic clock (CLOCK_MONOTONIC), which
// all processes of one machine share, in all of its network namespaces, and which no clock step moves.
type Moment int64

// Now returns the present moment.
func Now() Moment {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // the clock exists on every Linux
	}
	return Moment(ts.Nano() / int64(time.Microsecond))
}

// Add returns m moved by d.
func (m Moment) Add(d time.Duration) Moment { return m + Moment(d.Microseconds()) }

// Sub returns the time from o to m.
func (m Moment) Sub(o Moment) time.Duration { return time.Duration(m-o) * time.Microsecond }

// Role says what a client process of the experiment does.
type Role string

// The roles. Each is one process; those of the first three are capstan's failover layer.
const (
	// Writer inserts {time, value, title, type} into an ordinary collection, once a second unless told.
	Writer Role = "writer"
	// Reader reads the newest of these with secondaryPreferred and read concern majority, as often.
	Reader Role = "reader"
	// Prober sends messages to a stream, 50 times a second, one after the other, for resolution; and reads
	// with secondaryPreferred as often, beside that.
	Prober Role = "prober"
	// Plain is what a user writes without capstan: one InsertOne after the other, driver defaults, no
	// deadline. It is the control that hangs.
	Plain Role = "plain"
	// FreshID is a client with deadlines that makes a new _id for each attempt: the control that doubles.
	FreshID Role = "fresh-id"
	// One is a client that asks for w: 1: the control that loses.
	One Role = "w1"
	// Cluster is the same as Members, from a place that no fault cuts off.
	Cluster Role = "cluster"
	// Members writes to each member directly, many times a second: it says when a majority write could
	// be acknowledged to someone who stands where it stands.
	Members Role = "members"
)

// Kind says what an Event tells.
type Kind string

// The kinds of events.
const (
	// KindReady: connected, and done with one call.
	KindReady Kind = "ready"
	// KindWrite: a call that writes has returned. Every call has one.
	KindWrite Kind = "write"
	// KindRead: a call that reads has returned.
	KindRead Kind = "read"
	// KindTry: an attempt within a call has failed. Attempts that succeed are not told.
	KindTry Kind = "try"
	// KindProbe: a direct write to Member has returned; OK says whether a majority has it.
	KindProbe Kind = "probe"
	// KindEnd: the process ends by itself; Conns and Overrun are final.
	KindEnd Kind = "end"
)

// Outcomes of a write, as the client was told.
const (
	Applied    = "applied"
	NotApplied = "not applied"
	Unknown    = "unknown"
)

// Event is one line of a client's output.
type Event struct {
	Role Role `json:"role"`
	Kind Kind `json:"kind"`
	// Start and Took are of the call, attempt or probe. Took is in microseconds.
	Start Moment `json:"start"`
	Took  int64  `json:"took_us"`
	// Seq numbers a role's writes from 1, and apart from these its reads.
	Seq int64 `json:"seq,omitempty"`
	// OK: the write was acknowledged, the read answered, the probe committed.
	OK bool `json:"ok"`
	// Outcome of a write that is not OK: NotApplied or Unknown.
	Outcome string `json:"outcome,omitempty"`
	// Attempts is how many commands the call took, those that only looked what is stored among them.
	Attempts int `json:"attempts,omitempty"`
	// Doubtful counts the attempts of the call whose outcome was unknown at first. Found, of an attempt that
	// failed, says that it found the document stored, by an earlier one.
	Doubtful int  `json:"doubtful,omitempty"`
	Found    bool `json:"found,omitempty"`
	// Src is the writer of the document: the writer's name, or the prober's src ("name/incarnation"). With Seq
	// (Seen, of a read) it names a document, whatever its _id.
	Src string `json:"src,omitempty"`
	// Seen is the highest seq that a read found, Stale the age of that document in microseconds.
	Seen  int64 `json:"seen,omitempty"`
	Stale int64 `json:"stale_us,omitempty"`
	// Member is the address of the member, as far as it is known.
	Member string `json:"member,omitempty"`
	// Deadline is the bound of the call in microseconds, 0 for none.
	Deadline int64 `json:"deadline_us,omitempty"`
	// Conns is how many connections of its pools the process has opened up to now.
	Conns int64 `json:"conns,omitempty"`
	// Overrun is by how much a control timer of the same process was late at most during the call, in
	// microseconds: what the machine, not the client, is to blame for.
	Overrun int64  `json:"overrun_us,omitempty"`
	Err     string `json:"err,omitempty"`
}

// End returns the moment at which the call returned.
func (e Event) End() Moment { return e.Start + Moment(e.Took) }
