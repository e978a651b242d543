package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-12ef14e5/capstan/record"
)

// formatVersion is the layout of entry. A store refuses what has another one.
const formatVersion = 1

// entry is a checkpoint as the file and the collection hold it. It is meant to be read by people:
// the position is in text form, and marks are an array of pairs, as the name of a src may hold dots,
// slashes and dollars, which make bad keys.
type entry struct {
	Name        string    `json:"name" bson:"_id"`
	Version     int       `json:"version" bson:"version"`
	Stream      string    `json:"stream" bson:"stream"`
	Fingerprint string    `json:"fingerprint,omitempty" bson:"fingerprint,omitempty"`
	Position    string    `json:"position" bson:"position"`
	Marks       []mark    `json:"marks" bson:"marks"`
	Lines       int64     `json:"lines,omitempty" bson:"lines,omitempty"`
	Bytes       int64     `json:"bytes,omitempty" bson:"bytes,omitempty"`
	Owner       string    `json:"owner" bson:"owner"`
	Revision    int64     `json:"revision" bson:"revision"`
	Updated     time.Time `json:"updated" bson:"updated"`
}

// mark is the highest seq of one src that is done.
type mark struct {
	Src string `json:"src" bson:"src"`
	Seq int64  `json:"seq" bson:"seq"`
}

// entryOf returns the stored form of cp. A src that is no valid UTF-8 (another program's; JSON cannot
// hold it) is left out: without its mark it may be delivered again, which is allowed, and never less.
func entryOf(cp record.Checkpoint) entry {
	marks := make([]mark, 0, len(cp.Marks))
	for src, seq := range cp.Marks {
		if utf8.ValidString(src) {
			marks = append(marks, mark{Src: src, Seq: seq})
		}
	}
	slices.SortFunc(marks, func(a, b mark) int { return strings.Compare(a.Src, b.Src) })
	return entry{
		Name: cp.Name, Version: formatVersion, Stream: cp.Stream, Fingerprint: cp.Fingerprint,
		Position: cp.Position.String(), Marks: marks, Lines: cp.Lines, Bytes: cp.Bytes,
		Owner: cp.Owner, Revision: cp.Revision, Updated: cp.Updated.UTC(),
	}
}

// checkpoint returns what e stands for. The error says what cannot be true of a stored entry.
func (e entry) checkpoint() (record.Checkpoint, error) {
	if e.Version != formatVersion {
		return record.Checkpoint{}, fmt.Errorf("entry %q has version %d and this capstan reads version %d only",
			e.Name, e.Version, formatVersion)
	}
	if err := checkName("name", e.Name); err != nil {
		return record.Checkpoint{}, err
	}
	pos, err := record.ParsePosition(e.Position)
	if err != nil {
		return record.Checkpoint{}, fmt.Errorf("entry %q: %w", e.Name, err)
	}
	if e.Revision < 1 || e.Lines < 0 || e.Bytes < 0 {
		return record.Checkpoint{}, fmt.Errorf("entry %q: revision %d, lines %d, bytes %d cannot be",
			e.Name, e.Revision, e.Lines, e.Bytes)
	}
	cp := record.Checkpoint{
		Name: e.Name, Stream: e.Stream, Fingerprint: e.Fingerprint, Position: pos, Lines: e.Lines, Bytes: e.Bytes,
		Owner: e.Owner, Revision: e.Revision, Updated: e.Updated.UTC(),
	}
	if len(e.Marks) > 0 {
		cp.Marks = make(map[string]int64, len(e.Marks))
	}
	for _, m := range e.Marks {
		if _, twice := cp.Marks[m.Src]; twice {
			return record.Checkpoint{}, fmt.Errorf("entry %q: src %q has two marks", e.Name, m.Src)
		}
		if m.Src == "" || m.Seq < 0 {
			return record.Checkpoint{}, fmt.Errorf("entry %q: mark {%q, %d} cannot be", e.Name, m.Src, m.Seq)
		}
		cp.Marks[m.Src] = m.Seq
	}
	return cp, nil
}

var errTwoEntries = errors.New("two entries have one name")
