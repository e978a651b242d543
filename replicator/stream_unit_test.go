package replicator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

func streamDoc(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// The reader waits while the queue is full, and a message that is larger than the queue passes when nothing else is there.
func TestAStreamQueueIsBoundedAndLetsOneLargeMessagePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newStreamQueue(3, 100)
		ctx, cancel := context.WithCancel(t.Context())
		put := make(chan int, 100)
		go func() {
			for i, size := range []int{500, 40, 40, 40, 1, 1, 1, 1} {
				if q.put(ctx, record.Record{Seq: int64(i), Raw: make(bson.Raw, size)}) != nil {
					q.end(errors.New("stopped"))
					return
				}
				put <- i
			}
			q.end(errors.New("the end"))
		}()
		var got []int64
		for _, want := range []int{1, 3, 6, 8} { // what has been put before each look
			synctest.Wait()
			if len(put) != want {
				t.Fatalf("%d messages are let in, want %d", len(put), want)
			}
			batch, err := q.take(nil, 10, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range batch {
				got = append(got, r.Seq)
			}
		}
		if fmt.Sprint(got) != "[0 1 2 3 4 5 6 7]" {
			t.Errorf("taken: %v", got)
		}
		<-q.filled
		if _, err := q.take(nil, 10, 100); err == nil {
			t.Error("the end is not told")
		}
		cancel()
	})
}

// A batch ends at the number of messages or bytes, and what is left is announced again.
func TestAStreamQueueGivesBatches(t *testing.T) {
	t.Parallel()
	q := newStreamQueue(100, 1000)
	for i := range 10 {
		if err := q.put(t.Context(), record.Record{Seq: int64(i), Raw: make(bson.Raw, 10)}); err != nil {
			t.Fatal(err)
		}
	}
	var sizes []int
	for range 4 {
		<-q.filled
		n := 4
		if len(sizes) == 1 {
			n = 100
		}
		batch, err := q.take(nil, n, 35)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(batch))
	}
	if fmt.Sprint(sizes) != "[3 3 3 1]" || !q.empty() {
		t.Errorf("batches of %v", sizes)
	}
}

func TestTSIsMadeAnewAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]bson.D{
		"ours":        {{Key: "_id", Value: 1}, {Key: "ts", Value: bson.Timestamp{T: 7, I: 8}}, {Key: "data", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: 1, I: 2}}}}},
		"no ts":       {{Key: "_id", Value: 1}},
		"ts of a man": {{Key: "_id", Value: 1}, {Key: "ts", Value: "today"}},
	} {
		doc, want := streamDoc(t, d), d
		if _, ok := d[len(d)-1].Value.(bson.D); ok {
			want = bson.D{d[0], {Key: "ts", Value: bson.Timestamp{}}, d[2]}
		}
		renewTS(doc)
		if string(doc) != string(streamDoc(t, want)) {
			t.Errorf("%s: %s", name, doc)
		}
	}
}

func TestStreamMarksForgetWhatWasSilentForLongest(t *testing.T) {
	t.Parallel()
	m := newStreamMarks(4, map[string]int64{"old": 5})
	for i := range 6 {
		m.advance(fmt.Sprint(i), int64(i+1))
		m.advance("often", int64(i))
	}
	m.advance("often", 2) // never back
	got := m.snapshot()
	if len(got) != 4 || got["often"] != 5 || got["5"] != 6 || got["old"] != 0 {
		t.Errorf("marks %v", got)
	}
}

// The records of a batch share no memory with what is written, so that the source's ts is left alone.
func TestDocumentsAreCopies(t *testing.T) {
	t.Parallel()
	raw := streamDoc(t, bson.D{{Key: "_id", Value: 1}, {Key: "src", Value: "a/1"}, {Key: "seq", Value: int64(3)}, {Key: "ts", Value: bson.Timestamp{T: 9, I: 9}}})
	rec, err := record.Decode(raw, record.Interner{})
	if err != nil {
		t.Fatal(err)
	}
	r := &streamRun{}
	docs, bytes := r.documents([]streamItem{{rec: &rec, matched: true, write: true}, {rec: &rec, matched: true}})
	if len(docs) != 1 || bytes != int64(len(raw)) {
		t.Fatalf("%d documents of %d bytes", len(docs), bytes)
	}
	if ts, i := docs[0].Lookup("ts").Timestamp(); ts != 0 || i != 0 {
		t.Errorf("ts is %d.%d, want 0.0", ts, i)
	}
	if ts, _ := rec.Raw.Lookup("ts").Timestamp(); ts != 9 {
		t.Error("the record was changed")
	}
}

func TestTheRateOfAStreamIsThatOfTheLastSeconds(t *testing.T) {
	t.Parallel()
	var s streamRate
	at := time.Now()
	for i := range 100 {
		docs := int64(i) * 1000
		if i > 50 {
			docs = 50_000
		}
		s.note(at.Add(time.Duration(i)*time.Second), docs, 2*docs)
		if i == 50 && (s.perSecond != 1000 || s.byteRates != 2000) {
			t.Errorf("%f messages and %f bytes per second, want 1000 and 2000", s.perSecond, s.byteRates)
		}
	}
	if s.perSecond != 0 {
		t.Errorf("%f messages per second when nothing comes", s.perSecond)
	}
}

func TestTheZeroStreamConfigIsValid(t *testing.T) {
	t.Parallel()
	if _, err := NewStreamLink("r", nil, nil, nil, StreamConfig{}); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]StreamConfig{
		"Batch": {Batch: -1}, "BatchBytes": {BatchBytes: record.MaxDocumentSize + 1}, "SaveEvery": {SaveEvery: -1}, "MaxMarks": {MaxMarks: -1},
		"Existing": {Existing: DropExisting}, "Until": {Until: "soon"}, "Subject": {Subject: "a.>.b"},
	} {
		if _, err := NewStreamLink("r", nil, nil, nil, c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := NewStreamLink("", nil, nil, nil, StreamConfig{}); err == nil {
		t.Error("a route without a name is accepted")
	}
}

// fencedStore is a store whose route has another owner by now.
type fencedStore struct{ saves int }

func (*fencedStore) Acquire(_ context.Context, name, of, owner string) (record.Checkpoint, error) {
	return record.Checkpoint{Name: name, Stream: of, Owner: owner}, nil
}

func (s *fencedStore) Save(_ context.Context, cp record.Checkpoint) (record.Checkpoint, error) {
	s.saves++
	return cp, &record.FencedError{Name: cp.Name, Owner: "another"}
}

// I1: a process that was stopped for long and wakes up with messages in hand finds out that the route is another's before it writes.
func TestAProcessThatWakesUpAsksForItsLeaseBeforeItWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &fencedStore{}
		l, err := NewStreamLink("r", nil, nil, store, StreamConfig{})
		if err != nil {
			t.Fatal(err)
		}
		r := &streamRun{l: l, marks: newStreamMarks(10, nil), saved: time.Now(), dst: StreamInfo{Size: 1000}}
		if err := r.makeRoom(t.Context(), 1, 100); err != nil || store.saves != 0 {
			t.Errorf("within the lease: %v after %d saves", err, store.saves)
		}
		time.Sleep(streamLease + time.Second)
		if err := r.makeRoom(t.Context(), 1, 100); !errors.As(err, new(*record.FencedError)) {
			t.Errorf("after the lease: %v, want *FencedError", err)
		}
		r.saved, r.unsavedDocs, r.unsavedBytes = time.Now(), 4, 450
		if err := r.makeRoom(t.Context(), 1, 60); !errors.As(err, new(*record.FencedError)) {
			t.Errorf("where a write could evict what the checkpoint has not passed: %v, want a save", err)
		}
	})
}
