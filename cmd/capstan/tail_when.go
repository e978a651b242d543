package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// parseMoment reads a place in a stream as a person writes it: a position as capstan prints it, a
// time in RFC 3339 or shorter (in UTC then), or a duration ago (-10m, -1d). now is the time from which durations count.
func parseMoment(s string, now time.Time) (pos record.Position, at time.Time, err error) {
	if strings.HasPrefix(s, "-") {
		d, err := parseAgo(s)
		if err != nil {
			return pos, at, fmt.Errorf("%q is no duration (for example -10m, -36h or -2d)", s)
		}
		return pos, now.Add(d), nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", time.DateTime, "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.Parse(layout, s); err == nil {
			return pos, t, nil // without a zone it is UTC, as everything that is printed
		}
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return pos, t, nil
	}
	if p, err := record.ParsePosition(s); err == nil && !p.IsZero() {
		return p, at, nil
	}
	return pos, at, fmt.Errorf("%q is neither a position (as capstan prints it), nor a time (2026-11-30, 2026-11-30 21:00 or 2026-11-30T21:00:00Z, in UTC), nor a duration ago (-10m, -2d)", s)
}

// parseAgo reads a negative duration, which may begin with days: -10m, -1d, -1d12h.
func parseAgo(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseInt(days, 10, 16) // 89 years
	if err != nil || strings.HasPrefix(rest, "-") {
		return 0, fmt.Errorf("bad number of days")
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration("-" + rest)
	return d + more, err
}

// parseStart reads --from.
func parseStart(s string, now time.Time) (record.Start, error) {
	switch s {
	case "earliest":
		return record.Start{Where: record.Earliest}, nil
	case "latest":
		return record.Start{Where: record.Latest}, nil
	}
	pos, at, err := parseMoment(s, now)
	switch {
	case err != nil:
		return record.Start{}, usageError("--from: %w; or earliest or latest", err)
	case !pos.IsZero():
		return record.Start{Where: record.After, Position: pos}, nil
	}
	return record.Start{Where: record.AtTime, Time: at}, nil
}

// until says where a tail ends. The zero until never does.
type until struct {
	pos record.Position
	at  time.Time
}

// untilSlack is how much later than a position's timestamp its message may stand in the stream:
// timestamps are set before an insert gets its turn (5.6 s early was seen), so order by them is rough.
const untilSlack = 10 // seconds

func parseUntil(s string, now time.Time) (until, error) {
	if s == "" {
		return until{}, nil
	}
	pos, at, err := parseMoment(s, now)
	if err != nil {
		return until{}, usageError("--until: %w", err)
	}
	return until{pos, at}, nil
}

func (u until) set() bool { return u != until{} }

// past reports whether all that is wanted has been stored already, so that the end of the data ends
// the tail too.
func (u until) past(now time.Time) bool {
	return u.set() && !u.at.After(now)
}

// last reports whether r is the last record wanted, inclusive.
func (u until) last(r record.Record) bool { return !u.pos.IsZero() && r.Position.ID == u.pos.ID }

// beyond reports whether r is no longer wanted, and nothing behind it is.
func (u until) beyond(r record.Record) bool {
	_, change := record.TokenOf(r.Position)
	switch {
	case !u.pos.IsZero() && change: // in a change stream order by position is exact
		return r.Position.Compare(u.pos) > 0
	case !u.pos.IsZero():
		return int64(r.Position.TS.T) > int64(u.pos.TS.T)+untilSlack
	case u.at.IsZero():
		return false
	case !r.Position.TS.IsZero():
		return !time.Unix(int64(r.Position.TS.T), 0).Before(u.at)
	}
	return r.Time != 0 && !time.UnixMicro(r.Time).Before(u.at)
}
