// Package stored is the form in which stores of routes keep a replicator.State: one for all of them, so that what one remembers none
// forgets.
package stored

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
)

// Version is the layout of State. A store refuses what has another one.
const Version = 1

// State is a replicator.State as a document or in a file, with BSON or Extended JSON. It is meant to be read by people; positions and _ids are in text form,
// as not every _id may stand everywhere inside a document.
type State struct {
	Route       string           `bson:"_id"`
	Version     int              `bson:"version"`
	Owner       string           `bson:"owner"`
	Revision    int64            `bson:"revision"`
	Clean       bool             `bson:"clean"`
	Token       bson.ObjectID    `bson:"token"` // of the write that made this revision
	Fingerprint string           `bson:"fingerprint"`
	Source      identityForm     `bson:"source"`
	Target      identityForm     `bson:"target"`
	Phase       string           `bson:"phase"`
	Paused      bool             `bson:"paused"`
	Reason      string           `bson:"reason"`
	Was         string           `bson:"was"`
	WasLive     bool             `bson:"was_live"`
	Shared      bool             `bson:"shared"`
	Listed      bson.Timestamp   `bson:"listed,omitempty"` // a server fills an empty one
	Start       string           `bson:"start"`
	Position    string           `bson:"position"`
	Caught      string           `bson:"caught"`
	Resync      bool             `bson:"resync"`
	Copies      int              `bson:"copies"`
	Collections []collectionForm `bson:"collections"`
	Sessions    []bson.Raw       `bson:"sessions"`
	Held        []heldForm       `bson:"held"`
	Delayed     []delayedForm    `bson:"delayed"`
	Totals      totalsForm       `bson:"totals"`
	Updated     time.Time        `bson:"updated"`
}

type identityForm struct {
	SetName string `bson:"set"`
	SetID   string `bson:"set_id"`
	Version string `bson:"version"`
}

type nameForm struct {
	DB   string `bson:"db"`
	Coll string `bson:"coll"`
}

type heldForm struct {
	Namespace nameForm `bson:"ns"`
	Index     string   `bson:"index"`
	Seconds   int64    `bson:"seconds"`
}

type delayedForm struct {
	Op         string   `bson:"op"`
	Collection nameForm `bson:"ns"`
	// Description is kept as bytes: an index may have keys that no stored document has.
	Description []byte `bson:"description"`
}

type collectionForm struct {
	UUID      string         `bson:"uuid"`
	Source    nameForm       `bson:"source"`
	Target    nameForm       `bson:"target"`
	Kind      string         `bson:"kind"`
	Ranges    []rangeForm    `bson:"ranges"` // null before the copy
	Copied    bool           `bson:"copied"`
	Documents int64          `bson:"documents"`
	Bytes     int64          `bson:"bytes"`
	Created   bool           `bson:"created"`
	Serial    bool           `bson:"serial"`
	Seen      bson.Timestamp `bson:"seen"`
}

type rangeForm struct {
	From    string `bson:"from,omitempty"`
	To      string `bson:"to,omitempty"`
	Natural bool   `bson:"natural,omitempty"`
	At      string `bson:"at,omitempty"`
	Done    bool   `bson:"done"`
	Scanned int64  `bson:"scanned"`
	Matched int64  `bson:"matched"`
}

type totalsForm struct {
	Scanned     int64 `bson:"scanned"`
	Matched     int64 `bson:"matched"`
	CopiedBytes int64 `bson:"copied_bytes"`
	Read        int64 `bson:"read"`
	Applied     int64 `bson:"applied"`
	Skipped     int64 `bson:"skipped"`
	Conflicts   int64 `bson:"conflicts"`
	Letters     int64 `bson:"letters"`
}

// Of returns the stored form of s.
func Of(s replicator.State) State {
	out := State{
		Route: s.Route, Version: Version, Owner: s.Owner, Revision: s.Revision, Clean: s.Clean, Fingerprint: s.Fingerprint,
		Source: identityForm(s.Source), Target: identityForm(s.Target), Phase: string(s.Phase), Paused: s.Paused, Reason: Shorten(s.Reason),
		Was: string(s.Was), WasLive: s.WasLive, Shared: s.Shared, Listed: bson.Timestamp(s.Listed),
		Start: s.Start.String(), Position: s.Position.String(), Caught: s.Caught.String(), Resync: s.Resync, Copies: s.Copies,
		Sessions: s.Sessions, Totals: totalsForm(s.Totals), Updated: s.Updated.UTC(),
	}
	for _, h := range s.Held {
		out.Held = append(out.Held, heldForm{Namespace: nameForm(h.Namespace), Index: h.Index, Seconds: h.Seconds})
	}
	for _, d := range s.Delayed {
		out.Delayed = append(out.Delayed, delayedForm{Op: d.Op, Collection: nameForm(d.Collection), Description: d.Description})
	}
	for _, c := range s.Collections {
		sc := collectionForm{UUID: c.UUID, Source: nameForm(c.Source), Target: nameForm(c.Target), Kind: string(c.Kind), Copied: c.Copied,
			Documents: c.Documents, Bytes: c.Bytes, Created: c.Created,
			Serial: c.Serial, Seen: bson.Timestamp(c.Seen)}
		if c.Ranges != nil {
			sc.Ranges = make([]rangeForm, len(c.Ranges))
		}
		for i, r := range c.Ranges {
			sc.Ranges[i] = rangeForm{From: r.From.String(), To: r.To.String(), Natural: r.Natural, At: r.At.String(), Done: r.Done, Scanned: r.Scanned, Matched: r.Matched}
		}
		out.Collections = append(out.Collections, sc)
	}
	return out
}

// Replicator returns what is stored. The error says what cannot be true of a stored state.
func (s State) Replicator() (replicator.State, error) {
	if s.Version != Version {
		return replicator.State{}, fmt.Errorf("it has version %d and this capstan reads version %d only", s.Version, Version)
	}
	if s.Route == "" || s.Owner == "" || s.Revision < 1 {
		return replicator.State{}, fmt.Errorf("route %q, owner %q and revision %d cannot be", s.Route, s.Owner, s.Revision)
	}
	out := replicator.State{
		Route: s.Route, Owner: s.Owner, Revision: s.Revision, Clean: s.Clean, Fingerprint: s.Fingerprint,
		Source: replicator.Identity(s.Source), Target: replicator.Identity(s.Target), Phase: replicator.Phase(s.Phase), Paused: s.Paused, Reason: s.Reason,
		Resync: s.Resync, Copies: s.Copies, Sessions: s.Sessions, Totals: replicator.Totals(s.Totals), Updated: s.Updated.UTC(),
		Was: replicator.Phase(s.Was), WasLive: s.WasLive, Shared: s.Shared, Listed: record.Timestamp(s.Listed),
	}
	for _, p := range []struct {
		name, text string
		into       *record.Position
	}{{"start", s.Start, &out.Start}, {"position", s.Position, &out.Position}, {"caught", s.Caught, &out.Caught}} {
		at, err := record.ParsePosition(p.text)
		if err != nil {
			return replicator.State{}, fmt.Errorf("field %s: %w", p.name, err)
		}
		*p.into = at
	}
	for _, h := range s.Held {
		out.Held = append(out.Held, replicator.Held{Namespace: record.Namespace(h.Namespace), Index: h.Index, Seconds: h.Seconds})
	}
	for _, d := range s.Delayed {
		out.Delayed = append(out.Delayed, replicator.Delayed{Op: d.Op, Collection: record.Namespace(d.Collection), Description: d.Description})
	}
	for _, c := range s.Collections {
		oc, err := c.collection()
		if err != nil {
			return replicator.State{}, fmt.Errorf("collection %s.%s: %w", c.Source.DB, c.Source.Coll, err)
		}
		out.Collections = append(out.Collections, oc)
	}
	return out, nil
}

func (c collectionForm) collection() (replicator.CollectionState, error) {
	out := replicator.CollectionState{UUID: c.UUID, Source: record.Namespace(c.Source), Target: record.Namespace(c.Target),
		Kind: replicator.CollectionKind(c.Kind), Copied: c.Copied, Documents: c.Documents, Bytes: c.Bytes, Created: c.Created,
		Serial: c.Serial, Seen: record.Timestamp(c.Seen)}
	if c.Ranges != nil {
		out.Ranges = make([]replicator.Range, len(c.Ranges))
	}
	for i, r := range c.Ranges {
		out.Ranges[i] = replicator.Range{Natural: r.Natural, Done: r.Done, Scanned: r.Scanned, Matched: r.Matched}
		for _, id := range []struct {
			text string
			into *record.ID
		}{{r.From, &out.Ranges[i].From}, {r.To, &out.Ranges[i].To}, {r.At, &out.Ranges[i].At}} {
			v, err := record.ParseID(id.text)
			if err != nil {
				return out, fmt.Errorf("range %d: %w", i, err)
			}
			*id.into = v
		}
	}
	return out, nil
}

// MaxReason bounds the text of a reason, in bytes.
const MaxReason = 16 << 10

// Shorten cuts a text to MaxReason and makes it valid UTF-8.
func Shorten(s string) string {
	const cut = " … (cut)"
	if len(s) > MaxReason {
		end := MaxReason - len(cut)
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + cut
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
