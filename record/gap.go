package record

import (
	"fmt"
	"strings"
)

// GapCause says how messages came to be lost to a reader.
type GapCause string

// The causes of a gap.
const (
	// CauseRollover: the capped collection overwrote messages that the reader had not yet read.
	CauseRollover GapCause = "rollover"
	// CauseRecreated: the stream was dropped and created again; what was unread in the old one is gone.
	CauseRecreated GapCause = "recreated"
	// CauseMissing: messages are absent although the stream did not roll over (deleted by an
	// application, or lost by the server).
	CauseMissing GapCause = "missing"
)

// Loss is what is known of the messages of one src in a gap.
type Loss struct {
	Src string
	// From and To are the first and last lost seq, both included. Count is To-From+1, or 0.
	From, To int64
	// Exact is true where the src was seen before and after the gap (or the reader had seen the stream
	// from its birth): exactly From..To were lost. Otherwise the src was first seen behind the gap, and
	// of From..To those that were sent after the reader's start were lost: up to Count.
	Exact bool
}

// Count returns the number of messages in the range.
func (l Loss) Count() int64 {
	if l.To < l.From {
		return 0
	}
	return l.To - l.From + 1
}

// Gap describes messages lost to a reader.
type Gap struct {
	Cause GapCause
	// After is the last position read before the gap (zero: none), Before the first one behind it (zero:
	// not known yet).
	After, Before Position
	// Lost has one entry per src that is known to have lost something; empty means that the position was
	// lost but no message was: "position lost, 0 messages lost".
	Lost []Loss
	// Open lists srcs seen before the gap and not yet behind it. If one of them comes back, its loss
	// follows in a gap of its own.
	Open []string
	// Uncounted is true in streams of other programs, whose messages carry no src and seq: the loss
	// cannot be counted.
	Uncounted bool
}

// Exact returns how many messages are known to be lost: the sum over the exact entries of Lost.
// It is the least that was lost.
func (g *Gap) Exact() int64 {
	var n int64
	for _, l := range g.Lost {
		if l.Exact {
			n += l.Count()
		}
	}
	return n
}

// Most returns the sum over all entries of Lost, exact or not. It bounds the loss of the srcs that are
// named there, and of no others: see Complete.
func (g *Gap) Most() int64 {
	var n int64
	for _, l := range g.Lost {
		n += l.Count()
	}
	return n
}

// Complete reports whether Exact is all that was lost as far as anyone can tell: every src was seen
// before and after. It is false while a src is Open, where one was first seen behind the gap (others
// may have come and gone inside it), and where nothing can be counted.
func (g *Gap) Complete() bool {
	return !g.Uncounted && len(g.Open) == 0 && g.Exact() == g.Most()
}

// String returns one line for people: the cause, the count, and the count per src.
func (g *Gap) String() string {
	why := map[GapCause]string{
		CauseRollover:  "position lost, overwritten by newer messages",
		CauseRecreated: "position lost, the stream was created anew",
		CauseMissing:   "messages are missing in the stream",
	}[g.Cause]
	count := fmt.Sprintf("%d messages lost", g.Exact())
	switch {
	case g.Uncounted:
		count = "its messages have no src and seq, so the loss cannot be counted"
	case !g.Complete():
		count = "at least " + count
	}
	parts := make([]string, 0, len(g.Lost)+len(g.Open))
	for _, l := range g.Lost {
		if l.Exact {
			parts = append(parts, fmt.Sprintf("%s: %d, seq %d to %d", l.Src, l.Count(), l.From, l.To))
		} else {
			parts = append(parts, fmt.Sprintf("%s, not seen before: up to %d, seq %d to %d", l.Src, l.Count(), l.From, l.To))
		}
	}
	for _, src := range g.Open {
		parts = append(parts, src+": not seen since, so not counted yet")
	}
	if len(parts) > 0 {
		count += " (" + strings.Join(parts, "; ") + ")"
	}
	return why + ": " + count
}
