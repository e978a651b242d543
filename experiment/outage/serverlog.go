package outage

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Identifiers of the lines of a mongod's log, which are the same in every version since 4.4, as seen on
// 6.0.5.
const (
	logDryRun     = 21438 // "Conducting a dry run election to see if we could be elected"
	logNoDryRun   = 21437 // "Skipping dry run and running for election": after a step-down's hand-over
	logWon        = 21450 // "Election succeeded, assuming primary role"
	logComplete   = 21331 // "Transition to primary complete; database writes are now permitted"
	logSyncSource = 21088 // "Changed sync source"
	logState      = 21358 // "Replica set state transition"
)

// logLineBytes is the longest line that is looked at. Lines that belong to an outage have some hundred
// bytes; a line may have megabytes, such as that of a slow command.
const logLineBytes = 64 << 10

// logComponents are in the lines that belong to an outage: the others need not be decoded.
var logComponents = [][]byte{[]byte(`"c":"ELECTION"`), []byte(`"c":"REPL"`)}

// logLine is a line of a mongod's log.
type logLine struct {
	T struct {
		Date time.Time `json:"$date"`
	} `json:"t"`
	ID   int    `json:"id"`
	Msg  string `json:"msg"`
	Attr struct {
		OldSyncSource string `json:"oldSyncSource"`
		NewSyncSource string `json:"newSyncSource"`
		OldState      string `json:"oldState"`
		NewState      string `json:"newState"`
	} `json:"attr"`
}

// ReadServerLog returns what a member's log (JSON, one line each) tells of an outage from one moment to
// another, both included, in the order of the log. toMoment turns the log's wall clock, which has
// milliseconds, into a Moment. Lines that are no log lines, are too long, or are cut off at the end
// (the member was killed, or is writing) are left out. Errors are those of r.
func ReadServerLog(r io.Reader, member string, toMoment func(time.Time) Moment, from, to Moment) ([]ServerEvent, error) {
	lines := bufio.NewReaderSize(r, logLineBytes)
	var out []ServerEvent
	for {
		line, err := lines.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n')
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("read log of %s: %w", member, err)
		}
		if long {
			continue
		}
		if e, date, ok := serverEvent(line); ok {
			e.At, e.Member = toMoment(date), member
			if e.At >= from && e.At <= to {
				out = append(out, e)
			}
		}
	}
}

// serverEvent returns what a line tells of an outage, and its time; ok is false if it tells nothing.
func serverEvent(line []byte) (e ServerEvent, date time.Time, ok bool) {
	if !bytes.Contains(line, logComponents[0]) && !bytes.Contains(line, logComponents[1]) {
		return e, date, false
	}
	var l logLine
	if json.Unmarshal(line, &l) != nil || l.T.Date.IsZero() {
		return e, date, false
	}
	e.Text = l.Msg
	switch l.ID {
	case logDryRun, logNoDryRun:
		e.What = ElectionStarted
	case logWon:
		e.What = ElectionWon
	case logComplete:
		e.What = TransitionComplete
	case logSyncSource:
		e.What, e.Text = SyncSourceChanged, l.Attr.OldSyncSource+" to "+l.Attr.NewSyncSource
	case logState:
		e.Text = l.Attr.OldState + " to " + l.Attr.NewState
		switch {
		case l.Attr.NewState == "ROLLBACK":
			e.What = RollbackBegun
		case l.Attr.OldState == "PRIMARY":
			e.What = SteppedDown
		}
	}
	return e, l.T.Date, e.What != ""
}
