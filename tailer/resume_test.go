package tailer

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// all reads from start to the end.
func all(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection, cfg Config) *tally {
	t.Helper()
	cfg.UntilEnd = true
	s := unopened(t, d, coll, cfg)
	a := newTally()
	if cfg.Start.Where == record.After {
		for src, seq := range cfg.Start.Marks {
			a.last[src] = seq
		}
	}
	for r, err := range s.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		a.add(t, r)
	}
	_ = s.Close()
	return a
}

// I3: a resume begins right behind what was done, from any place, with marks or without.
func TestResumeDeliversWhatIsBehindThePositionAndNothingElse(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		ws := []*writer{{coll: coll, src: "a/1"}, {coll: coll, src: "b/1"}, {coll: coll, src: "c/1"}}
		for i := range 60 {
			ws[i%3].send(t, 1+i%4)
		}
		whole := all(t, d, coll, Config{Start: record.Start{Where: record.Earliest}})
		marks := map[string]int64{}
		for i, r := range whole.records {
			marks[r.Src] = r.Seq
			if i%13 != 0 {
				continue
			}
			want := whole.records[i+1:]
			for name, start := range map[string]record.Start{
				"marks":    {Where: record.After, Position: r.Position, Marks: marks},
				"position": {Where: record.After, Position: r.Position},
				"id alone": {Where: record.After, Position: record.Position{ID: r.Position.ID}},
			} {
				got := all(t, d, coll, Config{Start: start})
				if !slices.EqualFunc(got.records, want, func(a, b record.Record) bool { return a.Position == b.Position && a.Kind == b.Kind }) {
					t.Fatalf("%s after %d: got %d records, want %d", name, i, len(got.records), len(want))
				}
			}
		}
	})
}

func TestAtTimeBeginsWithTheFirstMessageOfThatSecond(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	at := uint32(1_700_000_000)
	w := &writer{coll: coll, src: "a/1", ts: func() bson.Timestamp { at++; return bson.Timestamp{T: at, I: 1} }}
	w.send(t, 100)
	a := all(t, d, coll, Config{Start: record.Start{Where: record.AtTime, Time: time.Unix(1_700_000_061, 0)}})
	if len(a.records) != 40 || a.records[0].Seq != 61 {
		t.Fatalf("got %d records from %d", len(a.records), a.records[0].Seq)
	}
}

func TestAPositionThatIsATimeGoesByTimeAndMarks(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w, o := &writer{coll: coll, src: "a/1"}, &writer{coll: coll, src: "b/1"}
	o.send(t, 1)
	w.send(t, 10)
	ts := all(t, d, coll, Config{Start: record.Start{Where: record.Earliest}}).records[3].Position.TS
	a := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: record.Position{TS: ts}}})
	if len(a.records) != 7 || len(a.gaps) != 0 {
		t.Fatalf("got %d records, gaps %v", len(a.records), a.gaps)
	}
	a = all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: record.Position{TS: ts}, Marks: map[string]int64{"a/1": 8}}})
	if len(a.records) != 2 || len(a.gaps) != 0 {
		t.Fatalf("got %d records, gaps %v", len(a.records), a.gaps)
	}
	a = all(t, d, coll, Config{Start: record.Start{Where: record.After, Marks: map[string]int64{"a/1": 8, "b/1": 1}}})
	if len(a.records) != 2 || len(a.gaps) != 0 {
		t.Fatalf("got %d records, gaps %v", len(a.records), a.gaps)
	}
}

// I5: a position that was typed and is not there is said, with what is known.
func TestAPositionThatIsNotThereIsReported(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1"}
	w.send(t, 10)
	ts := all(t, d, coll, Config{Start: record.Start{Where: record.Earliest}}).records[3].Position.TS
	a := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: record.Position{TS: ts, ID: record.NewID()}}})
	if len(a.gaps) != 1 || a.gaps[0].Cause != record.CauseMissing || a.delivered["a/1"] != 6 {
		t.Fatalf("got %v, %v", a.delivered, a.gaps)
	}
}

func TestAPositionThatWasOverwrittenYieldsAGapWithWhatIsKnown(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 20)
	a, b := &writer{coll: coll, src: "a/1"}, &writer{coll: coll, src: "b/1"}
	a.send(t, 5)
	pos := all(t, d, coll, Config{Start: record.Start{Where: record.Earliest}}).records[4].Position
	b.send(t, 10)
	a.send(t, 20)
	b.send(t, 2)

	typed := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: pos}})
	if len(typed.gaps) != 1 || typed.gaps[0].Exact() != 0 || typed.atMost["a/1"] != 7 || typed.atMost["b/1"] != 10 {
		t.Fatalf("got %v", typed.gaps)
	}
	marked := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: pos, Marks: map[string]int64{"a/1": 5}}})
	if len(marked.gaps) != 1 || marked.lost["a/1"] != 2 || marked.atMost["b/1"] != 10 || marked.total("a/1") != 20 {
		t.Fatalf("got %v %v", marked.gaps, marked.delivered)
	}
}

// The clock of a standalone server that restarts can be behind: the bound on ts must not hide what is
// new, neither at the opening nor while the tail is open.
func TestAClockThatSteppedBackHidesNothing(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	at := uint32(1_700_000_000)
	ts := func() bson.Timestamp { at++; return bson.Timestamp{T: at, I: 1} }
	w := &writer{coll: coll, src: "a/1", ts: ts}
	old := &writer{coll: coll, src: "old/1", ts: ts}
	old.send(t, 50)
	w.send(t, 100)
	whole := all(t, d, coll, Config{Start: record.Start{Where: record.Earliest}})
	pos := whole.records[149].Position
	start := record.Start{Where: record.After, Position: pos, Marks: map[string]int64{"a/1": 100}}

	s := open(t, d, coll, Config{Start: start, Await: 50 * time.Millisecond})
	silent(t, s)
	at = 1_600_000_000
	born := &writer{coll: coll, src: "born/1", ts: ts}
	born.send(t, 10)
	w.send(t, 10)
	a := newTally()
	a.last["a/1"] = 100
	a.until(t, s, "born/1", 10)
	a.until(t, s, "a/1", 110)
	if a.delivered["old/1"] != 0 || len(a.gaps) != 0 {
		t.Fatalf("got %v %v", a.delivered, a.gaps)
	}

	// A second reader, when the newest message is below the bound.
	b := all(t, d, coll, Config{Start: start})
	if b.delivered["born/1"] != 10 || b.delivered["a/1"] != 10 || b.delivered["old/1"] != 0 || len(b.gaps) != 0 {
		t.Fatalf("got %v %v", b.delivered, b.gaps)
	}

	// A third one, when the newest message is above it again and a hole shows.
	at = 1_800_000_000
	born.send(t, 1)
	c := all(t, d, coll, Config{Start: start})
	if c.delivered["born/1"] != 11 || c.delivered["a/1"] != 10 || c.delivered["old/1"] != 0 || len(c.gaps) != 0 {
		t.Fatalf("got %v %v", c.delivered, c.gaps)
	}
}

// T8, T9: ObjectIds of several clients do not rise with the insertion.
func TestALowerIdBehindAHigherOneIsDelivered(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	var ids []bson.ObjectID
	for range 20 {
		ids = append(ids, bson.NewObjectID())
	}
	for seq, id := range slices.Backward(ids) {
		n := int64(len(ids) - seq)
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "src", Value: "a/1"}, {Key: "seq", Value: n}, {Key: "ts", Value: bson.Timestamp{}}}); err != nil {
			t.Fatal(err)
		}
	}
	a := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: record.Position{ID: record.ObjectID(ids[10])}}})
	if a.delivered["a/1"] != 10 {
		t.Fatalf("got %v", a.delivered)
	}
}

func TestAStreamOfAnotherProgramResumesByItsIds(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		if err := coll.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		makeForeign(t, coll, 10)
		s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 50 * time.Millisecond})
		a := newTally()
		a.read(t, s, func() bool { return len(a.records) == 10 })
		killCursors(t, d, coll)
		insertForeign(t, coll, 10, 5)
		a.read(t, s, func() bool { return len(a.records) == 15 })
		silent(t, s)
		for i, r := range a.records {
			if v := r.Raw.Lookup("n").AsInt64(); v != int64(i) || r.Ours() {
				t.Fatalf("record %d is %d", i, v)
			}
		}
		got := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: a.records[4].Position}})
		if len(got.records) != 10 {
			t.Fatalf("got %d", len(got.records))
		}
		got = all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: record.Position{ID: record.IDOf(bson.RawValue{Type: bson.TypeInt32, Value: []byte{99, 0, 0, 0}})}}})
		if len(got.records) != 16 || len(got.gaps) != 1 || !got.gaps[0].Uncounted {
			t.Fatalf("got %d, gaps %v", len(got.records), got.gaps)
		}
	})
}

func makeForeign(t *testing.T, coll *mongo.Collection, n int) {
	t.Helper()
	if err := coll.Database().RunCommand(t.Context(), bson.D{{Key: "create", Value: coll.Name()}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}}).Err(); err != nil {
		t.Fatal(err)
	}
	insertForeign(t, coll, 0, n)
}

func insertForeign(t *testing.T, coll *mongo.Collection, from, n int) {
	t.Helper()
	for i := range n {
		if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: -(from + i)}, {Key: "n", Value: from + i}}); err != nil {
			t.Fatal(err)
		}
	}
}
