package experiment

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/seed-12ef14e5/capstan/record"
)

// payloadAlphabet is what payloads are made of: text that compresses about as well as real log lines
// do (5 bits of entropy in 8), so that the server's journal has real work.
const payloadAlphabet = "abcdefghijklmnopqrstuvwxyz012345"

// payloads returns n texts of size bytes each, the same ones for the same seed.
func payloads(n, size int, seed uint64) []string {
	rng := rand.New(rand.NewPCG(seed, 0))
	out := make([]string, n)
	b := make([]byte, size)
	for i := range out {
		for j := range b {
			b[j] = payloadAlphabet[rng.IntN(len(payloadAlphabet))]
		}
		out[i] = string(b)
	}
	return out
}

// block is a number of messages in the layout of a stream, encoded back to back, that can be sent
// again and again: stamp gives them new identities in place. It is what an ideal producer would hold.
type block struct {
	docs []byte
	// ids, times, seqs and stamps (field ts) are where the values stand in docs, one per message.
	ids, times, seqs, stamps []int
	next                     int64 // the seq of the next stamp's first message
	oid                      bson.ObjectID
}

func newBlock(src string, data []string) *block {
	b := &block{next: 1, oid: bson.NewObjectID()}
	// stamp counts in the last four bytes, as this process's other ObjectIds do: what tells them apart.
	binary.BigEndian.PutUint32(b.oid[4:], rand.Uint32())
	for _, d := range data {
		var idx int32
		idx, b.docs = bsoncore.AppendDocumentStart(b.docs)
		b.docs = bsoncore.AppendObjectIDElement(b.docs, record.FieldID, bson.ObjectID{})
		b.ids = append(b.ids, len(b.docs)-12)
		b.docs = bsoncore.AppendInt64Element(b.docs, record.FieldTime, 0)
		b.times = append(b.times, len(b.docs)-8)
		b.docs = bsoncore.AppendStringElement(b.docs, record.FieldSrc, src)
		b.docs = bsoncore.AppendInt64Element(b.docs, record.FieldSeq, 0)
		b.seqs = append(b.seqs, len(b.docs)-8)
		b.docs = bsoncore.AppendTimestampElement(b.docs, record.FieldTS, 0, 0) // the server fills it
		b.stamps = append(b.stamps, len(b.docs)-8)
		b.docs = bsoncore.AppendStringElement(b.docs, record.FieldData, d)
		b.docs, _ = bsoncore.AppendDocumentEnd(b.docs, idx) // the error is for a bad idx only
	}
	return b
}

// stamp gives every message a new _id, the next seq and the time now.
func (b *block) stamp(now time.Time) {
	for i := range b.ids {
		// The last four bytes count; four thousand million messages are enough for an experiment.
		binary.BigEndian.PutUint32(b.oid[8:], binary.BigEndian.Uint32(b.oid[8:])+1)
		copy(b.docs[b.ids[i]:], b.oid[:])
		binary.LittleEndian.PutUint64(b.docs[b.times[i]:], uint64(now.UnixMicro()))
		binary.LittleEndian.PutUint64(b.docs[b.seqs[i]:], uint64(b.next))
		b.next++
	}
}

// backdate sets the server's timestamps, which mongod keeps as they are when they are not empty:
// message i of the block is from second at(i), with i as the increment.
func (b *block) backdate(at func(i int) time.Time) {
	for i, p := range b.stamps {
		binary.LittleEndian.PutUint32(b.docs[p:], uint32(i+1))
		binary.LittleEndian.PutUint32(b.docs[p+4:], uint32(at(i).Unix()))
	}
}

// documents returns the messages as single documents that alias the block.
func (b *block) documents() []bson.Raw {
	var out []bson.Raw
	for rest := b.docs; len(rest) > 0; {
		n := binary.LittleEndian.Uint32(rest)
		out = append(out, bson.Raw(rest[:n:n]))
		rest = rest[n:]
	}
	return out
}
