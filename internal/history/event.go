// Package history records what happened to messages in a run (sent, acknowledged, delivered, handled,
// stored, lost) and judges it: the oracle of the end-to-end tests and of `capstan demo`.
//
// It promises that a run in which an acknowledged message is missing, doubled, out of order, invented
// or wrongly counted as lost is never judged good, as long as the events themselves are true. It knows
// nothing of MongoDB and cannot see what nobody recorded.
package history

import "fmt"

// Kind says what happened to a message.
type Kind uint8

// The kinds of events. Their order is the order of a message's life.
const (
	// KindSent: the message was handed to a producer.
	KindSent Kind = iota + 1
	// KindAcknowledged: the producer said that it is in the stream.
	KindAcknowledged
	// KindRejected: the producer said that it is certainly not in the stream.
	KindRejected
	// KindUnknown: the producer could not say; it is there once or not at all.
	KindUnknown
	// KindResumed: a reader was started (again). Deliveries before and after it belong to two runs.
	KindResumed
	// KindDelivered: a reader got it.
	KindDelivered
	// KindHandled: the reader's handler did its work.
	KindHandled
	// KindLost: a reader reported Key.Seq to To of Key.Src as lost.
	KindLost
	// KindStored: one copy of its effect was found in the destination, when all was over.
	KindStored
)

var kindNames = [...]string{
	KindSent: "sent", KindAcknowledged: "acknowledged", KindRejected: "rejected", KindUnknown: "unknown",
	KindResumed: "resumed", KindDelivered: "delivered", KindHandled: "handled", KindLost: "lost", KindStored: "stored",
}

// String returns the word that is used in event files.
func (k Kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// MarshalText implements encoding.TextMarshaler.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(text []byte) error {
	for i, name := range kindNames {
		if name != "" && name == string(text) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("kind of event %q: not known", text)
}

// Key names a message in a history. Src is what keeps an order (a producer, or a file) and Seq the
// place in that order: 1, 2, 3 … as the sender meant it. They may be the src and seq of the stream or
// logical ones carried in the payload (a file's name and the number of the line); within one history
// it must be one or the other.
type Key struct {
	Src string
	Seq int64
}

// String returns "src#seq".
func (k Key) String() string { return fmt.Sprintf("%s#%d", k.Src, k.Seq) }

// Event is one thing that happened. The order of the events of one reader is the order in which they
// happened; between readers and producers the order means nothing.
type Event struct {
	Kind Kind
	Key  Key
	// Reader is who saw it: with Resumed, Delivered, Handled and Lost.
	Reader string
	// To is the last lost seq, included, and Exact says whether the count is claimed to be exact: with
	// Lost.
	To    int64
	Exact bool
	// At is when it was recorded, in microseconds since the Unix epoch; for people only.
	At int64
}
