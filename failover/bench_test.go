package failover

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// network is the least that can insert: one socket, one OP_MSG at a time, nothing looked at but "n".
type network struct {
	nc  net.Conn
	buf []byte
}

func (w *network) insert(_ context.Context, cmd bson.Raw) (bson.Raw, error) {
	const header = 16 + 4 + 1 // message header, flags, section kind
	w.buf = append(w.buf[:0], make([]byte, header)...)
	w.buf = append(w.buf, cmd...)
	binary.LittleEndian.PutUint32(w.buf, uint32(len(w.buf)))
	binary.LittleEndian.PutUint32(w.buf[12:], 2013) // OP_MSG
	if _, err := w.nc.Write(w.buf); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(w.nc, w.buf[:header]); err != nil {
		return nil, err
	}
	reply := make(bson.Raw, binary.LittleEndian.Uint32(w.buf)-header)
	_, err := io.ReadFull(w.nc, reply)
	return reply, err
}

// benchBatch makes messages and renews their _ids in place, as the server takes each only once.
type benchBatch struct {
	docs []bson.Raw
}

func newBenchBatch(n, payload int) *benchBatch {
	b := &benchBatch{}
	for i := range n {
		b.docs = append(b.docs, message("bench", int64(i+1), payload))
	}
	return b
}

func (b *benchBatch) renew() {
	const at = 4 + 1 + 4 // length, type, "_id"
	for _, doc := range b.docs {
		id := bson.NewObjectID()
		copy(doc[at:], id[:])
	}
}

// BenchmarkInsert compares a StreamWriter with a raw socket that sends the same documents to the same
// server: batches of 1,000 messages with a payload of 100 bytes, and single ones. The two take turns,
// so that what else the machine does falls on both. "ratio" is the writer's speed over the socket's.
func BenchmarkInsert(b *testing.B) {
	d := mongotest.Standalone(b)
	for _, size := range []struct {
		name string
		n    int
	}{{"batch of 1000", 1000}, {"single", 1}} {
		b.Run(size.name, func(b *testing.B) {
			s := newStream(b, d, Config{})
			batch := newBenchBatch(size.n, 100)
			nc, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", s.l.opts.Hosts[0])
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = nc.Close() }()
			raw, socket := newRawInsert(s, batch), &network{nc: nc}
			var writer, floor time.Duration
			for b.Loop() {
				batch.renew()
				start := time.Now()
				if _, err := s.w.WriteBatch(b.Context(), batch.docs); err != nil {
					b.Fatal(err)
				}
				writer += time.Since(start)
				batch.renew()
				cmd := raw.command(batch)
				start = time.Now()
				reply, err := socket.insert(b.Context(), cmd)
				if n, _ := reply.Lookup("n").AsInt64OK(); err != nil || n != int64(size.n) {
					b.Fatal(reply, err)
				}
				floor += time.Since(start)
			}
			b.ReportMetric(float64(size.n*b.N)/writer.Seconds(), "msg/s")
			b.ReportMetric(float64(size.n*b.N)/floor.Seconds(), "raw-msg/s")
			b.ReportMetric(floor.Seconds()/writer.Seconds(), "ratio")
		})
	}
}

// rawInsert is a command whose documents are copied in place, so that building it costs nothing.
type rawInsert struct {
	cmd bson.Raw
	at  []int
}

func newRawInsert(s *stream, batch *benchBatch) *rawInsert {
	docs := make(bson.A, len(batch.docs))
	for i, d := range batch.docs {
		docs[i] = d
	}
	r := &rawInsert{cmd: encode(bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: docs}, {Key: "$db", Value: s.coll.Database().Name()}})}
	array := r.cmd.Lookup("documents").Value
	values, _ := bson.RawArray(array).Values()
	from := len(r.cmd) - len(array) - len(encode(bson.D{{Key: "$db", Value: s.coll.Database().Name()}})) + 4
	off := 4
	for i, v := range values {
		off += 1 + len(strconv.Itoa(i)) + 1
		r.at = append(r.at, from+off)
		off += len(v.Value)
	}
	return r
}

func (r *rawInsert) command(batch *benchBatch) bson.Raw {
	for i, doc := range batch.docs {
		copy(r.cmd[r.at[i]:], doc)
	}
	return r.cmd
}

// BenchmarkCommand is the layer's own part of it, without a server.
func BenchmarkCommand(b *testing.B) {
	l, err := New(nil, Config{})
	if err != nil {
		b.Fatal(err)
	}
	w := newStreamWriter(l, nil, "db", "s", StreamConfig{UUID: simUUID, Size: streamSize})
	docs := newBenchBatch(1000, 100).docs
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := w.insertCommand(docs, DefaultAttemptTimeout); err != nil {
			b.Fatal(err)
		}
	}
}

// The price of the layer over the driver: the same documents, the same server, the same write concern, in
// turns, so that what else the machine does falls on both. "ratio" is the layer's speed over the driver's; it
// is to be 0.95 at least.
func BenchmarkInsertOne(b *testing.B) { sideBySide(b, 1) }

func BenchmarkInsertMany(b *testing.B) { sideBySide(b, 1000) }

func sideBySide(b *testing.B, n int) {
	for _, on := range []struct {
		name  string
		d     *mongotest.Deployment
		plain bool
	}{{"standalone", mongotest.Standalone(b), false}, {"standalone, without a held connection", mongotest.Standalone(b), true}, {"replica set", mongotest.ReplicaSet(b), false}} {
		b.Run(on.name, func(b *testing.B) {
			db := on.d.DB(b)
			l, err := New(on.d.Options(), Config{Plain: on.plain})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = l.Close(context.WithoutCancel(b.Context())) })
			concern := writeconcern.Majority()
			if on.name != "replica set" {
				concern = writeconcern.W1()
			}
			coll := db.Collection("driver", options.Collection().SetWriteConcern(concern))
			w := l.Collection(db.Name(), "layer", CollectionConfig{})
			batch := newBenchBatch(n, 100)
			docs := make([]any, n)
			for i := range docs {
				docs[i] = batch.docs[i]
			}
			ours := func() (err error) {
				if n == 1 {
					return w.InsertOne(b.Context(), batch.docs[0])
				}
				_, err = w.InsertMany(b.Context(), batch.docs)
				return err
			}
			theirs := func() (err error) {
				if n == 1 {
					_, err = coll.InsertOne(b.Context(), batch.docs[0])
				} else {
					_, err = coll.InsertMany(b.Context(), docs, options.InsertMany().SetOrdered(false))
				}
				return err
			}
			var layer, driver time.Duration
			timed := func(sum *time.Duration, f func() error) {
				batch.renew()
				start := time.Now()
				if err := f(); err != nil {
					b.Fatal(err)
				}
				*sum += time.Since(start)
			}
			for b.Loop() {
				timed(&layer, ours)
				timed(&driver, theirs)
			}
			b.ReportMetric(float64(layer.Microseconds())/float64(b.N), "layer-µs/op")
			b.ReportMetric(float64(driver.Microseconds())/float64(b.N), "driver-µs/op")
			b.ReportMetric(driver.Seconds()/layer.Seconds(), "ratio")
		})
	}
}
