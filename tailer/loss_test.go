package tailer

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// I5, section 4.1: exactly as many inserts as the buffer holds, while the cursor stands idle at the last
// message: the server says "position lost", and nothing is. Only seq counts.
func TestAPositionLostWithoutLossIsNoGap(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 10)
		w := &writer{coll: coll, src: "a/1"}
		w.send(t, 4) // with the primer, the reader is at 5
		var why reasons
		idle, release, gaps := make(chan struct{}), make(chan struct{}), make(chan record.Gap, 10)
		var first sync.Once
		s := unopened(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 50 * time.Millisecond, Hooks: Hooks{
			OnReopen: why.add,
			OnGap:    func(g record.Gap) { gaps <- g },
			OnBatch: func(int, int) { // called by the goroutine that reads, between two getMores
				first.Do(func() {
					close(idle)
					select {
					case <-release:
					case <-t.Context().Done():
					}
				})
			},
		}})
		s.pull.start(t.Context())
		<-idle
		w.send(t, 10)
		close(release)
		a := newTally()
		a.until(t, s, w.src, w.seq)
		lost := <-gaps
		// Not by its text: the reason is what mongoerr says of code 136.
		want := reason(mongo.CommandError{Code: 136, Name: "CappedPositionLost"})
		if got := why.all(); len(got) != 1 || got[0] != want {
			t.Errorf("the tail was opened again because of %q, want %q once", got, want)
		}
		if lost.Cause != record.CauseRollover || lost.After.IsZero() || lost.Most() != 0 || len(lost.Lost) != 0 || lost.Uncounted || len(lost.Open) != 0 {
			t.Errorf("position lost, 0 messages lost: got %+v", lost)
		}
		if a.delivered[w.src] != 14 || len(a.gaps) != 0 || len(gaps) != 0 {
			t.Errorf("delivered %v, gaps %v, %d more", a.delivered, a.gaps, len(gaps))
		}
		silent(t, s)
	})
}

// I5: the same for a reader that is not there while the buffer turns over once.
func TestAResumeAtAnOverwrittenPositionWithoutLossIsNoGap(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 10)
		w := &writer{coll: coll, src: "a/1"}
		w.send(t, 9) // with the primer the buffer is full
		at := all(t, d, coll, Config{Start: record.Start{Where: record.Earliest}}).records[8]
		w.send(t, 10)
		var gaps []record.Gap
		b := all(t, d, coll, Config{
			Start: record.Start{Where: record.After, Position: at.Position, Marks: map[string]int64{w.src: 9}},
			Hooks: Hooks{OnGap: func(g record.Gap) { gaps = append(gaps, g) }},
		})
		if b.delivered[w.src] != 10 || len(b.gaps) != 0 {
			t.Errorf("got %v %v", b.delivered, b.gaps)
		}
		if len(gaps) != 1 || gaps[0].Most() != 0 || gaps[0].Cause != record.CauseRollover {
			t.Errorf("position lost, 0 messages lost: got %v", gaps)
		}
	})
}

// I5: a reader that keeps up, as well as it can, with a buffer that turns over at every insert.
func TestABufferThatTurnsOverAtOnceIsAccountedFor(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 10)
		w := &writer{coll: coll, src: "a/1"}
		s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 50 * time.Millisecond})
		a := newTally()
		for range 20 {
			w.send(t, 10)
			a.until(t, s, w.src, w.seq)
		}
		if a.total(w.src) != 200 || a.atMost[w.src] != 0 {
			t.Errorf("got %v and %v, at most %v", a.delivered, a.lost, a.atMost)
		}
	})
}

// I5: the sum of delivered and lost is what was sent, exact per src, for a reader that is far too slow.
func TestASlowTailCountsExactlyWhatItLost(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		const perSrc = 6000
		makeStream(t, coll, 1<<20, 0)
		s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, BatchSize: 500})
		ws := []*writer{{coll: coll, src: "a/1", pad: 100}, {coll: coll, src: "b/1", pad: 100}, {coll: coll, src: "c/1", pad: 100}}
		var sending sync.WaitGroup
		for _, w := range ws {
			sending.Go(func() {
				for range perSrc / 100 {
					w.send(t, 100)
				}
			})
		}
		a := newTally()
		done := func() bool { return a.last["a/1"] >= perSrc && a.last["b/1"] >= perSrc && a.last["c/1"] >= perSrc }
		n := 0
		a.read(t, s, func() bool {
			if n++; n%500 == 0 && !done() && n < 6000 {
				time.Sleep(50 * time.Millisecond) // the handler
			}
			if n == 2000 {
				sending.Wait() // stays behind by the whole stream
				for _, w := range ws {
					w.send(t, 1) // each has a last message that stays
				}
			}
			return done()
		})
		for _, w := range ws {
			a.until(t, s, w.src, perSrc+1)
			if got := a.total(w.src); got != perSrc+1 {
				t.Errorf("%s: delivered %d + lost %d = %d, want %d", w.src, a.delivered[w.src], a.lost[w.src], got, perSrc+1)
			}
			if a.lost[w.src] == 0 || a.atMost[w.src] != 0 {
				t.Errorf("%s: lost %d, at most %d", w.src, a.lost[w.src], a.atMost[w.src])
			}
		}
		for _, g := range a.gaps {
			if g.Cause != record.CauseRollover {
				t.Errorf("got %v", g.String())
			}
		}
	})
}

func TestStopOnGapEndsWithTheGap(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 10)
	w := &writer{coll: coll, src: "a/1"}
	w.send(t, 5)
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, OnGap: StopOnGap, Await: 50 * time.Millisecond})
	a := newTally()
	a.until(t, s, "a/1", 5)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.send(t, 30)
	s = unopened(t, d, coll, Config{Start: record.Start{Where: record.After, Position: a.records[4].Position, Marks: map[string]int64{"a/1": 5}}, OnGap: StopOnGap})
	_, err := s.Next(t.Context())
	ge, ok := errors.AsType[*GapError](err)
	if !ok || ge.Gap.Exact() != 20 || len(ge.Gap.Lost) != 1 || ge.Gap.Lost[0].From != 6 {
		t.Fatalf("got %v", err)
	}
	if _, again := s.Next(t.Context()); !errors.Is(again, err) {
		t.Fatalf("got %v", again)
	}
}

// A src that is not back yet is listed as open, and its loss follows when it is.
func TestASrcThatComesBackLaterHasAGapOfItsOwn(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 20)
	a, b, born := &writer{coll: coll, src: "a/1"}, &writer{coll: coll, src: "b/1"}, &writer{coll: coll, src: "new/1"}
	a.send(t, 5)
	b.send(t, 5)
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 50 * time.Millisecond})
	got := newTally()
	got.until(t, s, "b/1", 5)
	// Three inserts that the reader's cursor cannot follow: it is killed by the last, larger than the buffer.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.send(t, 7)
	born.send(t, 3)
	a.send(t, 40)
	s = open(t, d, coll, Config{Start: record.Start{Where: record.After, Position: got.records[9].Position, Marks: maps.Clone(got.last)}, Await: 50 * time.Millisecond})
	got.until(t, s, "a/1", 45)
	silent(t, s)
	if len(got.gaps) != 1 || got.lost["a/1"] != 20 || !slices.Equal(got.gaps[0].Open, []string{"b/1"}) {
		t.Fatalf("got %v", got.gaps)
	}
	b.send(t, 1)
	born.send(t, 1)
	got.until(t, s, "b/1", 13)
	got.until(t, s, "new/1", 4)
	if got.lost["b/1"] != 7 || got.atMost["new/1"] != 3 || got.total("a/1") != 45 || got.total("b/1") != 13 {
		t.Fatalf("got %v %v", got.lost, got.gaps)
	}
}

// A reader that saw the stream's birth knows that every src begins with 1.
func TestAReaderFromTheBirthCountsSrcsThatItNeverSaw(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 20)
	release := make(chan struct{})
	a, b := &writer{coll: coll, src: "a/1"}, &writer{coll: coll, src: "b/1"}
	a.send(t, 2)
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 50 * time.Millisecond, Filter: func(doc bson.Raw) bool {
		if doc.Lookup("seq").AsInt64() == 3 && doc.Lookup("src").StringValue() == "a/1" {
			<-release // the reader stands still while the stream turns over
		}
		return true
	}})
	got := newTally()
	got.until(t, s, "a/1", 2)
	a.send(t, 1)
	b.send(t, 50)
	a.send(t, 5)
	close(release)
	got.until(t, s, "a/1", 8)
	if got.lost["b/1"] != 35 || got.total("b/1") != 50 || got.total("a/1") != 8 {
		t.Fatalf("got %v %v %v", got.delivered, got.lost, got.gaps)
	}
}

func TestMessagesThatAnApplicationDeletesAreMissing(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1"}
	w.send(t, 20)
	if _, err := coll.DeleteMany(t.Context(), bson.D{{Key: "seq", Value: bson.D{{Key: "$in", Value: bson.A{7, 8, 20}}}}}); err != nil {
		t.Fatal(err)
	}
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 50 * time.Millisecond})
	a := newTally()
	a.until(t, s, "a/1", 19)
	if a.lost["a/1"] != 2 || a.gaps[0].Cause != record.CauseMissing {
		t.Fatalf("got %v", a.gaps)
	}
	// The message under the cursor: the server says position lost, and the stream did not roll over.
	if _, err := coll.DeleteOne(t.Context(), bson.D{{Key: "seq", Value: 19}}); err != nil {
		t.Fatal(err)
	}
	w.send(t, 2)
	a.until(t, s, "a/1", 22)
	if a.lost["a/1"] != 3 || a.gaps[1].Cause != record.CauseMissing || a.gaps[1].Exact() != 1 {
		t.Fatalf("got %v", a.gaps)
	}
}

func TestAShrunkStreamIsReadOn(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1", pad: 100}
	w.send(t, 100)
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 50 * time.Millisecond})
	a := newTally()
	a.until(t, s, "a/1", 100)
	if err := coll.Database().RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "s"}, {Key: "cappedSize", Value: 4096}}).Err(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		w.send(t, 10)
		a.until(t, s, "a/1", w.seq)
	}
	if a.total("a/1") != 150 {
		t.Fatalf("got %v %v", a.delivered, a.lost)
	}
}

func TestSubjectAndFilterComeAfterCountingAndThePositionMoves(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		w := &writer{coll: coll, src: "a/1"}
		w.sendSubject(t, 50, "x.no")
		w.sendSubject(t, 2, "x.yes")
		w.sendSubject(t, 50, "x.no")
		cfg := Config{Start: record.Start{Where: record.Earliest}, Subject: "*.yes", Progress: time.Millisecond, UntilEnd: true,
			Filter: func(doc bson.Raw) bool { return doc.Lookup("seq").AsInt64() != 51 }}
		s := unopened(t, d, coll, cfg)
		var messages []record.Record
		var last record.Record
		for r, err := range s.All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			last = r
			if r.Kind == record.KindMessage {
				messages = append(messages, r)
			}
		}
		if len(messages) != 1 || messages[0].Seq != 52 || messages[0].Subject != "x.yes" {
			t.Fatalf("got %v", messages)
		}
		if last.Kind != record.KindProgress || last.Progress["a/1"] != 102 || last.Position.IsZero() {
			t.Fatalf("got %+v", last)
		}
		w.sendSubject(t, 1, "x.yes")
		cfg.Start = record.Start{Where: record.After, Position: last.Position, Marks: last.Progress}
		if a := all(t, d, coll, cfg); a.delivered["a/1"] != 1 || len(a.gaps) != 0 {
			t.Fatalf("got %v %v", a.delivered, a.gaps)
		}
	})
}

// An idle tail costs at most two commands a second.
func TestAnIdleTailCostsAtMostTwoCommandsASecond(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		(&writer{coll: coll, src: "a/1"}).send(t, 10)
		commands := counter()
		o := d.Options().SetMonitor(&event.CommandMonitor{Started: commands.started})
		s, err := New(o, coll.Database().Name(), coll.Name(), Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		before, start := commands.n(), time.Now()
		time.Sleep(4 * time.Second)
		n, took := commands.n()-before, time.Since(start)
		if rate := float64(n-1) / took.Seconds(); rate > 2 || n == 0 {
			t.Fatalf("%d commands in %s", n, took)
		}
	})
}
