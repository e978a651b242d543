// Package record is the vocabulary that the other packages share: what travels inside capstan
// (Record), where a reader is (Position), what a reader lost (Gap), where it may resume
// (Checkpoint, Start), and what became of a write (the outcome errors).
//
// It promises nothing about delivery, order or duplicates by itself: it is values and their text
// forms. It imports the standard library and bson only.
package record

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Kind says what a Record is.
type Kind uint8

// The kinds of record.
const (
	// KindMessage is one document of a stream.
	KindMessage Kind = iota
	// KindGap reports messages lost to this reader (Record.Gap is set). It must be handled like a
	// message: a checkpoint behind it means that the loss has been reported.
	KindGap
	// KindProgress says that the reader moved over messages that its subject or filter rejected
	// (Record.Progress is set). There is nothing to handle; it lets a checkpoint move when a filter
	// matches nothing. Sources send it only when asked to.
	KindProgress
	// KindChange is one event of a change stream (Record.Change is set).
	KindChange
)

// String returns "message", "gap", "progress" or "change".
func (k Kind) String() string {
	switch k {
	case KindMessage:
		return "message"
	case KindGap:
		return "gap"
	case KindProgress:
		return "progress"
	case KindChange:
		return "change"
	}
	return "unknown"
}

// Record is what a source yields: a message, a change, a gap, or progress over rejected messages.
//
// Raw and what points into it (Subject, Change) must not be modified; they stay valid for as long as the
// Record is kept, whatever the source does next. A Record is safe to share between goroutines.
type Record struct {
	// Kind says which of the fields below are set. Position is set for all of them.
	Kind Kind
	// Position is that of this record: resuming after it means that it has been handled.
	Position Position
	// Fingerprint is the identity of the stream that it came from: the collection's UUID in hex. It
	// changes behind a gap of CauseRecreated.
	Fingerprint string

	// Src is the producer's name and incarnation, "" in other programs' collections.
	Src string
	// Seq is the message's number in its Src: 1, 2, 3 …; 0 in other programs' collections.
	Seq int64
	// Time is when Send was called, in microseconds since the Unix epoch by the producer's clock;
	// 0 if the document has none.
	Time int64
	// Subject is the message's dot-separated topic, "" if it has none. It shares Raw's memory.
	Subject string
	// Raw is the whole document, a copy owned by this Record.
	Raw bson.Raw

	// Gap is set on KindGap only.
	Gap *Gap
	// Progress is set on KindProgress only: the highest seq passed per src since the last record.
	Progress map[string]int64
	// Change is set on KindChange only.
	Change *Change
}

// Data returns the payload (field "data"), or the zero RawValue if there is none. In a document of
// another program it is whatever that program calls "data".
func (r Record) Data() bson.RawValue {
	v, err := r.Raw.LookupErr(FieldData)
	if err != nil {
		return bson.RawValue{}
	}
	return v
}

// Headers returns the headers document, or nil if there is none.
func (r Record) Headers() bson.Raw {
	v, err := r.Raw.LookupErr(FieldHeaders)
	if err != nil {
		return nil
	}
	doc, _ := v.DocumentOK()
	return doc
}

// Ours reports whether the message has capstan's layout (src and seq), so that loss can be counted.
func (r Record) Ours() bool { return r.Src != "" && r.Seq > 0 }
