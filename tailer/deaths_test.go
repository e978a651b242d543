package tailer

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/record"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// reasons collects why a tail was opened again.
type reasons struct {
	mu  sync.Mutex
	why []string
}

func (r *reasons) add(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = append(r.why, why)
}

func (r *reasons) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.why)
}

func (r *reasons) wait(t *testing.T, n int) {
	t.Helper()
	eventually(t, func() bool { return len(r.all()) >= n })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testPatience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen in time")
		}
	}
}

// killCursors kills every cursor on the collection.
func killCursors(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
	t.Helper()
	for _, op := range currentOps(t, coll) {
		id, ok := op.Lookup("cursor", "cursorId").AsInt64OK()
		if !ok {
			continue
		}
		if err := coll.Database().RunCommand(t.Context(), bson.D{{Key: "killCursors", Value: coll.Name()}, {Key: "cursors", Value: bson.A{id}}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func currentOps(t *testing.T, coll *mongo.Collection) []bson.Raw {
	t.Helper()
	cur, err := coll.Database().Client().Database("admin").Aggregate(t.Context(), mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}}}},
		{{Key: "$match", Value: bson.D{{Key: "ns", Value: coll.Database().Name() + "." + coll.Name()}, {Key: "cursor", Value: bson.D{{Key: "$exists", Value: true}}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var ops []bson.Raw
	if err := cur.All(t.Context(), &ops); err != nil {
		t.Fatal(err)
	}
	return ops
}

// T10, T11 and section 4.1: a cursor that is killed costs nothing.
func TestAKilledCursorCostsNothing(t *testing.T) {
	for name, kill := range map[string]func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection){
		"killCursors": killCursors,
		"killOp": func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
			for _, op := range currentOps(t, coll) {
				if id, err := op.LookupErr("opid"); err == nil {
					if err := coll.Database().Client().Database("admin").RunCommand(t.Context(), bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: id}}).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
				makeStream(t, coll, 1<<20, 0)
				w := &writer{coll: coll, src: "a/1"}
				w.send(t, 10)
				var why reasons
				s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 100 * time.Millisecond, Hooks: Hooks{OnReopen: why.add}})
				a := newTally()
				a.until(t, s, "a/1", 10)
				for i := range 3 {
					eventually(t, func() bool {
						kill(t, d, coll)
						return len(why.all()) > i
					})
					w.send(t, 10)
					a.until(t, s, "a/1", w.seq)
				}
				silent(t, s)
				if a.delivered["a/1"] != 40 || len(a.gaps) != 0 {
					t.Fatalf("got %v %v", a.delivered, a.gaps)
				}
			})
		})
	}
}

// T3: a stream that is dropped and created again is reported as such and read from its beginning.
func TestARecreatedStreamIsReportedAndReadFromItsBeginning(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		w := &writer{coll: coll, src: "a/1"}
		w.send(t, 10)
		s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 100 * time.Millisecond})
		a := newTally()
		a.until(t, s, "a/1", 10)
		old := a.records[9]
		if err := coll.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.seq += 3 // lost with the old one
		time.Sleep(200 * time.Millisecond)
		makeStream(t, coll, 1<<20, 0)
		o := &writer{coll: coll, src: "b/1"}
		o.send(t, 2)
		w.send(t, 5)
		a.until(t, s, "a/1", 18)
		a.until(t, s, "b/1", 2)
		if len(a.gaps) < 1 || a.gaps[0].Cause != record.CauseRecreated || a.gaps[0].After != old.Position || a.lost["a/1"] != 3 || a.delivered["a/1"] != 15 {
			t.Fatalf("got %v %v", a.delivered, a.gaps)
		}
		gap, last := a.records[10], a.records[len(a.records)-1]
		if gap.Kind != record.KindGap || gap.Fingerprint == old.Fingerprint || gap.Fingerprint != last.Fingerprint || gap.Position.IsZero() {
			t.Fatalf("got %+v", gap)
		}
		silent(t, s)

		// A checkpoint at the gap resumes behind it, and one of the old stream sees the gap again.
		b := all(t, d, coll, Config{Start: record.Start{Where: record.After, Position: gap.Position, Marks: map[string]int64{"a/1": 13}, Fingerprint: gap.Fingerprint}})
		if b.delivered["a/1"] != 5 || b.delivered["b/1"] != 2 || len(b.gaps) != 0 {
			t.Fatalf("got %v %v", b.delivered, b.gaps)
		}
		start := record.Start{Where: record.After, Position: old.Position, Marks: map[string]int64{"a/1": 10}, Fingerprint: old.Fingerprint}
		c := all(t, d, coll, Config{Start: start})
		if c.delivered["a/1"] != 5 || c.lost["a/1"] != 3 || c.gaps[0].Cause != record.CauseRecreated {
			t.Fatalf("got %v %v", c.delivered, c.gaps)
		}
		stop := unopened(t, d, coll, Config{Start: start, OnGap: StopOnGap})
		_, err := stop.Next(t.Context())
		if ge, ok := errors.AsType[*GapError](err); !ok || ge.Gap.Cause != record.CauseRecreated {
			t.Fatalf("got %v", err)
		}
	})
}

func TestARenamedStreamEndsWithItsNewName(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		(&writer{coll: coll, src: "a/1"}).send(t, 1)
		s := open(t, d, coll, Config{Await: 100 * time.Millisecond})
		db := coll.Database()
		err := db.Client().Database("admin").RunCommand(t.Context(), bson.D{
			{Key: "renameCollection", Value: db.Name() + ".s"}, {Key: "to", Value: db.Name() + ".other"},
		}).Err()
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Next(t.Context())
		re, ok := errors.AsType[*RenamedError](err)
		if !ok || re.To != db.Name()+".other" {
			t.Fatalf("got %v", err)
		}
		if _, again := s.Next(t.Context()); !errors.Is(again, err) {
			t.Fatalf("got %v", again)
		}
	})
}

// T4.
func TestAStreamThatIsNoLongerCappedEndsWithWhatToDo(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeStream(t, coll, 1<<20, 0)
		(&writer{coll: coll, src: "a/1"}).send(t, 1)
		s := open(t, d, coll, Config{Await: 100 * time.Millisecond})
		if err := coll.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		(&writer{coll: coll, src: "a/1"}).send(t, 1) // creates a collection that is not capped
		_, err := s.Next(t.Context())
		if nc, ok := errors.AsType[*NotCappedError](err); !ok || nc.Kind != "collection" {
			t.Fatalf("got %v", err)
		}
		if err := coll.Database().CreateView(t.Context(), "v", "s", mongo.Pipeline{}); err != nil {
			t.Fatal(err)
		}
		_, err = unopened(t, d, coll.Database().Collection("v"), Config{}).Next(t.Context())
		if nc, ok := errors.AsType[*NotCappedError](err); !ok || nc.Kind != "view" {
			t.Fatalf("got %v", err)
		}
	})
}

func TestAConvertedStreamIsARecreatedOne(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	makeStream(t, coll, 1<<20, 0)
	w := &writer{coll: coll, src: "a/1"}
	w.send(t, 10)
	s := open(t, d, coll, Config{Start: record.Start{Where: record.Earliest}, Await: 100 * time.Millisecond})
	a := newTally()
	a.until(t, s, "a/1", 10)
	if err := coll.Database().RunCommand(t.Context(), bson.D{{Key: "convertToCapped", Value: "s"}, {Key: "size", Value: 1 << 18}}).Err(); err != nil {
		t.Fatal(err)
	}
	w.send(t, 10)
	a.until(t, s, "a/1", 20)
	if len(a.gaps) != 1 || a.gaps[0].Cause != record.CauseRecreated || a.gaps[0].Most() != 0 || a.delivered["a/1"] != 20 {
		t.Fatalf("got %v %v", a.delivered, a.gaps)
	}
}

// T1, T2, T5, T6.
func TestAMissingOrEmptyStreamIsWaitedFor(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		var waits reasons
		s := open(t, d, coll, Config{Hooks: Hooks{OnWait: waits.add}})
		silent(t, s)
		makeForeign(t, coll, 0)
		time.Sleep(300 * time.Millisecond)
		insertForeign(t, coll, 0, 3)
		a := newTally()
		a.read(t, s, func() bool { return len(a.records) == 3 })
		if n := len(waits.all()); n == 0 || n > 40 {
			t.Fatalf("looked %d times", n)
		}
	})
}

func TestAnEmptyStreamOfOursIsPrimed(t *testing.T) {
	both(t, func(t *testing.T, d *mongotest.Deployment, coll *mongo.Collection) {
		makeForeign(t, coll, 0)
		s := open(t, d, coll, Config{Prime: prime})
		w := &writer{coll: coll, src: "a/1"}
		w.send(t, 3)
		a := newTally()
		a.until(t, s, "a/1", 3)
		if n, err := coll.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: record.PrimerID}}); err != nil || n != 1 {
			t.Fatalf("got %d primers, %v", n, err)
		}
	})
}

func TestAMissingStreamFailsByPolicy(t *testing.T) {
	d := mongotest.Standalone(t)
	coll := d.DB(t).Collection("s")
	if _, err := unopened(t, d, coll, Config{Wait: FailIfMissing}).Next(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	makeStream(t, coll, 1<<20, 0)
	s := open(t, d, coll, Config{Wait: FailIfMissing, Await: 50 * time.Millisecond})
	if err := coll.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}
