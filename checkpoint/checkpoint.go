// Package checkpoint stores where a consumer may resume: in memory, in a file, or in MongoDB.
//
// It promises three things, the same for every store. A name has one holder: Acquire takes it over,
// and whoever held it before gets a *record.FencedError at its next Save. A Save compares owner and
// revision with what is stored, so a checkpoint is never replaced by an older one. What cannot be read
// is an error and never an empty checkpoint. It promises nothing about the records themselves: what
// may be saved is the consumer's business.
//
// The package also keeps the dead letters of a consumer in a collection (DeadLetters).
//
// checkpointtest is the suite that every store passes.
package checkpoint

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-12ef14e5/capstan/record"
)

// MaxNameLength is the longest name of a checkpoint, in bytes. It keeps a name usable as the _id of
// a document and in a log line.
const MaxNameLength = 512

// OwnerByHand is the owner of a checkpoint that a person stored with Set without naming an owner.
const OwnerByHand = record.OwnerByHand

// ErrNotFound says that no checkpoint (or dead letter) is stored under a name.
var ErrNotFound = errors.New("nothing stored under this name")

// ErrBadName says that a text cannot be the name of a checkpoint or of an owner.
var ErrBadName = errors.New("bad name")

// OtherStreamError says that a name is in use for another stream, and that something has been done
// under it (its checkpoint is not record.Checkpoint.IsZero). Nothing was changed.
type OtherStreamError struct {
	Name string
	// Stored is the stream that the checkpoint belongs to, Asked the one that was asked for.
	Stored, Asked string
}

func (e *OtherStreamError) Error() string {
	return fmt.Sprintf("checkpoint %q belongs to stream %s and not to %s: use another name, or delete the checkpoint first",
		e.Name, e.Stored, e.Asked)
}

// CorruptError says that stored bytes are no checkpoint: cut off, damaged, or of another version.
// It is never treated as an empty checkpoint, as that would skip or repeat everything.
type CorruptError struct {
	// Path says which file, or which document of which collection.
	Path string
	// Err is what is wrong with it.
	Err error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("checkpoint store %s cannot be read: %v; nothing was changed: restore it from a copy, "+
		"or move it away and set the position by hand (capstan checkpoint set)", e.Path, e.Err)
}

// Unwrap returns what is wrong.
func (e *CorruptError) Unwrap() error { return e.Err }

func checkName(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: the %s is empty", ErrBadName, what)
	case len(s) > MaxNameLength:
		return fmt.Errorf("%w: the %s has %d bytes, the most is %d", ErrBadName, what, len(s), MaxNameLength)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Errorf("%w: the %s %q is not text", ErrBadName, what, s)
	}
	return nil
}

func checkAcquire(name, owner string) error {
	return errors.Join(checkName("name", name), checkName("owner", owner))
}

// takeOver returns what Acquire stores over cur (the zero Checkpoint if there is none).
func takeOver(cur record.Checkpoint, name, stream, owner string, now time.Time) (record.Checkpoint, error) {
	next := cur.Clone()
	if cur.Stream != "" && stream != "" && cur.Stream != stream {
		if !cur.IsZero() {
			return record.Checkpoint{}, &OtherStreamError{Name: name, Stored: cur.Stream, Asked: stream}
		}
		// Nothing was done under the name yet, as when the stream was mistyped: there is nothing to protect.
		next.Fingerprint = ""
	}
	next.Name, next.Owner, next.Updated = name, owner, now
	if stream != "" {
		next.Stream = stream
	}
	next.Revision = cur.Revision + 1 // fences the holder before, also where it has the same owner
	return next, nil
}

// replace returns what Save stores over cur, or a *record.FencedError.
func replace(cur record.Checkpoint, found bool, cp record.Checkpoint, now time.Time) (record.Checkpoint, error) {
	if !found {
		return record.Checkpoint{}, &record.FencedError{Name: cp.Name, Owner: record.OwnerNobody}
	}
	if cur.Owner != cp.Owner || cur.Revision != cp.Revision {
		return record.Checkpoint{}, &record.FencedError{Name: cp.Name, Owner: cur.Owner, Revision: cur.Revision}
	}
	next := cp.Clone()
	if next.Stream == "" {
		next.Stream = cur.Stream
	}
	next.Revision++
	next.Updated = now
	return next, nil
}

// byHand returns what Set stores over cur (the zero Checkpoint if there is none).
func byHand(cur, cp record.Checkpoint, now time.Time) record.Checkpoint {
	next := cp.Clone()
	if next.Stream == "" {
		next.Stream = cur.Stream
	}
	if next.Owner == "" {
		next.Owner = OwnerByHand
	}
	next.Revision = cur.Revision + 1
	next.Updated = now
	return next
}

// clock returns the time to store: UTC, in the millisecond resolution that all stores can keep.
func clock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
