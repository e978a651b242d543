package tailer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestMain(m *testing.M) { mongotest.Main(m) }

// testPatience is how long a test waits for something that must happen: the machine may be loaded.
const testPatience = 60 * time.Second

// makeStream creates a capped collection with its primer.
func makeStream(t testing.TB, coll *mongo.Collection, size, maxDocs int64) {
	t.Helper()
	o := options.CreateCollection().SetCapped(true).SetSizeInBytes(size)
	if maxDocs > 0 {
		o.SetMaxDocuments(maxDocs)
	}
	if err := coll.Database().CreateCollection(t.Context(), coll.Name(), o); err != nil {
		t.Fatal(err)
	}
	primeStream(t, coll)
}

func primeStream(t testing.TB, coll *mongo.Collection) {
	t.Helper()
	if err := prime(t.Context(), coll); err != nil {
		t.Fatal(err)
	}
}

func prime(ctx context.Context, coll *mongo.Collection) error {
	_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: record.PrimerID}, {Key: "time", Value: int64(0)}, {Key: "ts", Value: bson.Timestamp{}}})
	if mongo.IsDuplicateKeyError(err) {
		return nil
	}
	return err
}

// writer writes messages of one src, in the layout of the design, and remembers them. A fault makes
// it send the same messages again.
type writer struct {
	coll *mongo.Collection
	src  string
	seq  int64
	pad  int
	ts   func() bson.Timestamp // nil: the server fills it
}

func (w *writer) doc(subject string) bson.D {
	w.seq++
	ts := bson.Timestamp{}
	if w.ts != nil {
		ts = w.ts()
	}
	d := bson.D{
		{Key: "_id", Value: bson.NewObjectID()},
		{Key: "time", Value: time.Now().UnixMicro()},
		{Key: "src", Value: w.src},
		{Key: "seq", Value: w.seq},
		{Key: "ts", Value: ts},
	}
	if subject != "" {
		d = append(d, bson.E{Key: "subject", Value: subject})
	}
	return append(d, bson.E{Key: "data", Value: make([]byte, w.pad)})
}

// send writes n messages in one ordered insert.
func (w *writer) send(t testing.TB, n int) {
	t.Helper()
	w.sendSubject(t, n, "")
}

func (w *writer) sendSubject(t testing.TB, n int, subject string) {
	t.Helper()
	docs := make([]bson.D, n)
	for i := range docs {
		docs[i] = w.doc(subject)
	}
	if err := w.insert(t.Context(), docs); err != nil {
		t.Fatalf("insert: %v", err)
	}
}

// insert writes docs until each is stored, in order.
func (w *writer) insert(ctx context.Context, docs []bson.D) error {
	for {
		actx, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := w.coll.InsertMany(actx, docs)
		cancel()
		var be mongo.BulkWriteException
		switch {
		case err == nil:
			return nil
		case errors.As(err, &be) && len(be.WriteErrors) == 1 && be.WriteErrors[0].Code == 11000:
			docs = docs[be.WriteErrors[0].Index+1:] // ours, from the attempt before
			if len(docs) == 0 {
				return nil
			}
			continue
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// open returns an opened stream that is closed with the test.
func open(t testing.TB, d *mongotest.Deployment, coll *mongo.Collection, cfg Config) *Stream {
	t.Helper()
	s := unopened(t, d, coll, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	if err := s.Open(ctx); err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func unopened(t testing.TB, d *mongotest.Deployment, coll *mongo.Collection, cfg Config) *Stream {
	t.Helper()
	s, err := New(d.Options(), coll.Database().Name(), coll.Name(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// tally is what a test has received.
type tally struct {
	mu        sync.Mutex
	last      map[string]int64
	delivered map[string]int64
	lost      map[string]int64
	atMost    map[string]int64
	gaps      []record.Gap
	records   []record.Record
}

func newTally() *tally {
	return &tally{last: map[string]int64{}, delivered: map[string]int64{}, lost: map[string]int64{}, atMost: map[string]int64{}}
}

// add checks the order per src and that nothing comes twice, and that no hole comes without a gap.
func (a *tally) add(t testing.TB, r record.Record) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records = append(a.records, r)
	switch r.Kind {
	case record.KindGap:
		a.gaps = append(a.gaps, *r.Gap)
		for _, l := range r.Gap.Lost {
			if l.Exact {
				a.lost[l.Src] += l.Count()
				if l.From != a.last[l.Src]+1 {
					t.Errorf("a gap of %s from %d, after %d", l.Src, l.From, a.last[l.Src])
				}
			} else {
				a.atMost[l.Src] += l.Count()
			}
			a.last[l.Src] = l.To
		}
	case record.KindMessage:
		last, known := a.last[r.Src]
		if r.Ours() && known && r.Seq != last+1 {
			t.Errorf("%s: %d after %d", r.Src, r.Seq, last)
		}
		a.last[r.Src] = r.Seq
		a.delivered[r.Src]++
	}
}

func (a *tally) total(src string) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.delivered[src] + a.lost[src]
}

// read takes records until enough returns true.
func (a *tally) read(t testing.TB, s *Stream, enough func() bool) {
	t.Helper()
	for !enough() {
		ctx, cancel := context.WithTimeout(t.Context(), testPatience)
		r, err := s.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("next: %v (delivered %v, lost %v)", err, a.delivered, a.lost)
		}
		a.add(t, r)
	}
}

// until reads until src has been accounted for up to seq.
func (a *tally) until(t testing.TB, s *Stream, src string, seq int64) {
	t.Helper()
	a.read(t, s, func() bool { return a.last[src] >= seq })
}

// silent checks that nothing comes within a short time.
func silent(t testing.TB, s *Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if r, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v %+v, want nothing", err, r)
	}
}

// both runs a test on a standalone server and on a replica set.
func both(t *testing.T, run func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection)) {
	t.Run("standalone", func(t *testing.T) {
		t.Parallel()
		d := mongotest.Standalone(t)
		run(t, d, d.DB(t).Collection("s"))
	})
	t.Run("replica set", func(t *testing.T) {
		t.Parallel()
		d := mongotest.ReplicaSet(t)
		run(t, d, d.DB(t).Collection("s"))
	})
}

func testOptions() *options.ClientOptions {
	return options.Client().ApplyURI("mongodb://127.0.0.1:1")
}
