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
	// of From..To those that were sent after the reader's start were lost: at most Count.
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

// Most returns the sum over all entries of Lost, exact or not.
func (g *Gap) Most() int64 {
	var n int64
	for _, l := range g.Lost {
		n += l.Count()
	}
	return n
}

// String returns one line for people: the cause, the count, and the count per src.
func (g *Gap) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "position lost by %s: ", g.Cause)
	switch exact, most := g.Exact(), g.Most(); {
	case g.Uncounted:
		b.WriteString("messages without src and seq, so the loss cannot be counted")
	case exact == most:
		fmt.Fprintf(&b, "%d messages lost", exact)
	default:
		fmt.Fprintf(&b, "at least %d and at most %d messages lost", exact, most)
	}
	for i, l := range g.Lost {
		sep := "; "
		if i == 0 {
			sep = " ("
		}
		mark := ""
		if !l.Exact {
			mark = "at most "
		}
		fmt.Fprintf(&b, "%s%s: %s%d, seq %d to %d", sep, l.Src, mark, l.Count(), l.From, l.To)
	}
	if len(g.Lost) > 0 {
		b.WriteString(")")
	}
	return b.String()
}
