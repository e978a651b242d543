package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/internal/mongoerr"
	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// maxErrorText bounds the error text of a dead letter, in bytes: a panic brings its whole stack.
	maxErrorText = 16 << 10
	// partSize is how many bytes of a document that does not fit into a letter one part holds.
	partSize = 8 << 20
)

// DeadLetters keeps the records that a consumer gave up, in an ordinary (not capped) collection, one
// document each: who gave up, where the record stands, why, after how many attempts, when, and the
// whole original document under "document".
//
// The _id is made of the consumer's name and the position, so the same letter is stored once, however
// often it comes; the last one counts. An original that is too large to be a field of another
// document (MongoDB stores 16 MiB at most), or that the server takes at the top level only, is kept as
// its BSON bytes in further documents ("parts"), which are written first. Get puts it together again.
//
// Writes are acknowledged by a majority. They replace what is there and compare nothing; the attempts of one
// Add share a session, so a late execution of one is fenced off as Mongo says. Safe for concurrent use. The client belongs to the caller.
type DeadLetters struct {
	coll *mongo.Collection
	m    *Mongo // for its time-outs and sessions
}

// letter is a dead letter as the collection holds it.
type letter struct {
	ID       string    `bson:"_id"`
	Version  int       `bson:"version"`
	Consumer string    `bson:"consumer"`
	Stream   string    `bson:"stream"`
	Position string    `bson:"position"`
	Src      string    `bson:"src,omitempty"`
	Seq      int64     `bson:"seq,omitempty"`
	Subject  string    `bson:"subject,omitempty"`
	Error    string    `bson:"error"`
	Attempts int       `bson:"attempts"`
	Time     time.Time `bson:"time"`
	Document bson.Raw  `bson:"document,omitempty"`
	Parts    int       `bson:"parts,omitempty"`
}

// part is a piece of an original's BSON bytes.
type part struct {
	ID    string `bson:"_id"`
	Of    string `bson:"part_of"`
	Bytes []byte `bson:"bytes"`
}

// NewDeadLetters returns a store in coll. It does no I/O; the collection is made by the first letter.
// Errors: a Config that is out of range.
func NewDeadLetters(coll *mongo.Collection, doer Doer, cfg MongoConfig) (*DeadLetters, error) {
	m, err := NewMongo(coll, doer, cfg)
	if err != nil {
		return nil, err
	}
	return &DeadLetters{coll: m.coll, m: m}, nil
}

// Add stores the letter and returns nil when a majority has it. It blocks until then or until
// MongoConfig.Timeout, and may be repeated.
func (d *DeadLetters) Add(ctx context.Context, dl record.DeadLetter) error {
	l := letterOf(dl)
	err := d.m.session(ctx, func(ctx context.Context) error {
		whole := l
		whole.Document = dl.Record.Raw
		if b, err := bson.Marshal(whole); err == nil && len(b) <= record.MaxDocumentSize {
			err := d.put(ctx, l.ID, whole)
			if err == nil || !refused(err) {
				return err
			}
			// Refused, perhaps for what is inside (too deeply nested by one level, say): as bytes it passes.
		}
		return d.addParts(ctx, l, dl.Record.Raw)
	})
	if err != nil {
		return fmt.Errorf("store dead letter %q: %w", l.ID, err)
	}
	return nil
}

// refused reports whether err says that the server will never take what was sent.
func refused(err error) bool {
	w := mongoerr.Classify(err).Write
	return w == mongoerr.WriteRejected || w == mongoerr.WriteStop
}

// addParts stores the letter with its document in parts. The parts come first: a letter that exists
// is complete.
func (d *DeadLetters) addParts(ctx context.Context, l letter, doc bson.Raw) error {
	for rest := []byte(doc); len(rest) > 0; {
		n := min(len(rest), partSize)
		l.Parts++
		p := part{ID: partID(l.ID, l.Parts), Of: l.ID, Bytes: rest[:n]}
		if err := d.put(ctx, p.ID, p); err != nil {
			return fmt.Errorf("store part %d of the document: %w", l.Parts, err)
		}
		rest = rest[n:]
	}
	return d.put(ctx, l.ID, l)
}

// put stores doc under id, in the place of what is there. Two upserts of one _id at the same time collide, and
// the second attempt replaces.
func (d *DeadLetters) put(ctx context.Context, id string, doc any) error {
	return d.m.doer.Do(ctx, "store dead letter", func(ctx context.Context) error {
		_, err := d.coll.ReplaceOne(ctx, byName(id), doc, options.Replace().SetUpsert(true))
		return err
	})
}

// Get returns the dead letter of a consumer at a position, with its whole original document, or
// ErrNotFound.
func (d *DeadLetters) Get(ctx context.Context, consumer string, at record.Position) (record.DeadLetter, error) {
	id := letterID(consumer, at)
	var l letter
	err := d.m.reading(ctx, "load dead letter", func(ctx context.Context) error {
		l = letter{}
		if err := d.findOne(ctx, id, &l); err != nil {
			return err
		}
		for n := 1; n <= l.Parts; n++ {
			var p part
			if err := d.findOne(ctx, partID(id, n), &p); err != nil {
				return err
			}
			l.Document = append(l.Document, p.Bytes...)
		}
		return nil
	})
	if err != nil {
		return record.DeadLetter{}, fmt.Errorf("load dead letter %q: %w", id, err)
	}
	return l.deadLetter(at)
}

func (d *DeadLetters) findOne(ctx context.Context, id string, into any) error {
	err := d.coll.FindOne(ctx, byName(id)).Decode(into)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return ErrNotFound
	}
	return err
}

func (l letter) deadLetter(at record.Position) (record.DeadLetter, error) {
	if l.Version != formatVersion {
		return record.DeadLetter{}, &CorruptError{Path: fmt.Sprintf("dead letter %q", l.ID),
			Err: fmt.Errorf("it has version %d and this capstan reads version %d only", l.Version, formatVersion)}
	}
	r, err := record.Decode(l.Document, record.Interner{})
	if err != nil && len(l.Document) > 0 {
		return record.DeadLetter{}, &CorruptError{Path: fmt.Sprintf("dead letter %q", l.ID), Err: err}
	}
	r.Position = at
	return record.DeadLetter{
		Consumer: l.Consumer, Stream: l.Stream, Record: r, Err: l.Error, Attempts: l.Attempts, Time: l.Time.UTC(),
	}, nil
}

func letterOf(dl record.DeadLetter) letter {
	r := dl.Record
	return letter{
		ID: letterID(dl.Consumer, r.Position), Version: formatVersion, Consumer: dl.Consumer, Stream: dl.Stream,
		Position: r.Position.String(), Src: r.Src, Seq: r.Seq, Subject: r.Subject,
		Error: shorten(dl.Err), Attempts: dl.Attempts, Time: dl.Time.UTC(),
	}
}

func letterID(consumer string, at record.Position) string { return consumer + " at " + at.String() }

func partID(letter string, n int) string { return fmt.Sprintf("%s, part %d", letter, n) }

// shorten cuts a text to maxErrorText and makes it valid UTF-8.
func shorten(s string) string {
	const cut = " … (cut)"
	if len(s) > maxErrorText {
		end := maxErrorText - len(cut)
		for end > 0 && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end] + cut
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
