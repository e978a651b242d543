package failover

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/seed-12ef14e5/capstan/record"
)

// run is one history to be judged: what a writer was asked to write, and what it said.
type run struct {
	docs     []bson.Raw
	acked    map[record.ID]bool
	rejected map[record.ID]bool
	unknown  map[record.ID]bool
	end      error
}

var simUUID = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}

// play writes docs in batches of the given sizes to s, going on behind a message that is refused, as
// a producer does, and stopping at any other error.
func play(t *testing.T, s *sim, c Config, docs []bson.Raw, sizes []int) run {
	r := run{docs: docs, acked: map[record.ID]bool{}, rejected: map[record.ID]bool{}, unknown: map[record.ID]bool{}}
	synctest.Test(t, func(t *testing.T) {
		l, err := New(nil, c)
		if err != nil {
			t.Error(err)
			return
		}
		w := newStreamWriter(l, s, "db", "s", StreamConfig{UUID: simUUID})
		for at := 0; at < len(docs) && r.end == nil; sizes = append(sizes[1:], sizes[0]) {
			batch := docs[at:min(len(docs), at+sizes[0])]
			applied, err := w.WriteBatch(t.Context(), batch)
			for _, d := range batch[:applied] {
				r.acked[idOf(d)] = true
			}
			at += applied
			if e, ok := errors.AsType[*record.RejectedError](err); ok {
				if e.Index != applied {
					t.Errorf("applied %d, rejected at %d", applied, e.Index)
				}
				r.rejected[e.ID] = true
				at++
				continue
			}
			if e, ok := errors.AsType[*record.UnknownOutcomeError](err); ok {
				for _, id := range e.IDs {
					r.unknown[id] = true
				}
			}
			r.end = err
		}
	})
	return r
}

// wrong names what history, the ids of all documents ever committed in their order, contradicts.
func (r run) wrong(history []record.ID, before ...record.ID) []string {
	var wrong []string
	last := -1
	for i, d := range r.docs {
		id := idOf(d)
		n := 0
		for at, h := range history {
			if h != id {
				continue
			}
			if n++; n == 1 && at < last {
				wrong = append(wrong, fmt.Sprintf("message %d stands before one that was sent earlier", i))
			}
			last = max(last, at)
		}
		switch {
		case n > 1:
			wrong = append(wrong, fmt.Sprintf("message %d is stored %d times", i, n))
		case r.acked[id] && n == 0:
			wrong = append(wrong, fmt.Sprintf("message %d was acknowledged and is not stored", i))
		case n == 1 && !r.acked[id] && !r.unknown[id] && !slices.Contains(before, id):
			wrong = append(wrong, fmt.Sprintf("message %d is stored and was reported as not written (rejected: %t)", i, r.rejected[id]))
		}
	}
	return wrong
}

// scripts draws what happens to the commands of a run.
func scripts(t *rapid.T, kinds []fault) []tick {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) tick {
		return tick{
			fault:   rapid.SampledFrom(kinds).Draw(t, "fault"),
			k:       rapid.IntRange(0, 6).Draw(t, "k"),
			commit:  rapid.Bool().Draw(t, "commit"),
			foreign: rapid.SampledFrom([]int{0, 0, 0, 1, 3, 9}).Draw(t, "foreign"),
		}
	}), 0, 30).Draw(t, "script")
}

func draw(t *rapid.T, kinds []fault, capacities ...int) (*sim, []bson.Raw, []int) {
	s := &sim{capacity: rapid.SampledFrom(capacities).Draw(t, "capacity"), script: scripts(t, kinds), bad: map[record.ID]bool{}}
	if rapid.Bool().Draw(t, "primed") {
		s.store(encode(bson.D{{Key: "_id", Value: record.PrimerID}}))
		s.commit()
	}
	docs := messages("a", 1, rapid.IntRange(1, 30).Draw(t, "messages"))
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(docs)-1), 0, 2).Draw(t, "bad") {
		s.bad[idOf(docs[i])] = true
	}
	if s.capacity == 0 { // what an earlier run stored and others evicted since is not protected
		for _, doc := range docs[:rapid.SampledFrom([]int{0, 0, 1, len(docs) / 2}).Draw(t, "stored before")] {
			if !s.bad[idOf(doc)] {
				s.store(doc)
				s.before = append(s.before, idOf(doc))
			}
		}
		if rapid.Bool().Draw(t, "committed") {
			s.commit()
		}
	}
	return s, docs, rapid.SliceOfN(rapid.IntRange(1, 10), 1, 4).Draw(t, "batches")
}

// I1, I4: whatever happens to the commands, what is acknowledged is stored once and in order, and
// what is stored was acknowledged or reported as unknown.
func TestEveryHistoryIsExactlyOnceAndInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, docs, sizes := draw(rt, []fault{none, none, notSent, lostBefore, lostAfter, lostMidway, uncommitted, notPrimary, refusedMidway, notPrimaryAt, election},
			0, 0, 100, 12, 5)
		r := play(t, s, Config{}, docs, sizes)
		s.commit()
		if wrong := r.wrong(s.stable.history, s.before...); len(wrong) > 0 {
			rt.Fatalf("%v; the run ended with %v", wrong, r.end)
		}
		if r.end != nil && s.capacity == 0 && len(s.stable.docs) > 0 && !errors.Is(r.end, errEvicted) {
			rt.Fatalf("gave up although the server recovered: %v", r.end)
		}
	})
}

// A single server that was frozen runs what is in its sockets after it goes on: the attempts that
// were given up run late, between later ones.
func TestLateExecutionStoresNothingTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, docs, sizes := draw(rt, []fault{none, none, late, late, lostBefore, lostAfter, lostMidway}, 0)
		r := play(t, s, Config{}, docs, sizes)
		for _, cmd := range s.delayed {
			s.apply(cmd, -1)
		}
		s.commit()
		if wrong := r.wrong(s.stable.history, s.before...); len(wrong) > 0 {
			rt.Fatalf("%v; the run ended with %v", wrong, r.end)
		}
	})
}

// Negative control: with w: 1 an election takes acknowledged messages away, and the checker sees it.
func TestTheCheckerFindsLoss(t *testing.T) {
	t.Parallel()
	s := &sim{script: []tick{{}, {}, {fault: election}}}
	docs := messages("a", 1, 2)
	r := play(t, s, Config{WriteConcern: One}, docs, []int{1})
	s.commit()
	if len(r.wrong(s.stable.history)) == 0 {
		t.Errorf("an acknowledged message was rolled back, and the checker says nothing: %v, history %v", r.acked, s.stable.history)
	}
}

// Negative control: sending again without the eviction rule stores an evicted message twice, and the
// checker sees it.
func TestTheCheckerFindsASecondCopyOfAnEvictedMessage(t *testing.T) {
	t.Parallel()
	s := &sim{capacity: 5, script: []tick{{}, {fault: lostAfter}, {fault: lostBefore, foreign: 9}, {commit: true}}}
	docs := messages("a", 1, 1)
	r := play(t, s, Config{}, docs, []int{1})
	if !errors.Is(r.end, errEvicted) || !r.unknown[idOf(docs[0])] {
		t.Fatalf("the eviction rule did not hold: %v", r.end)
	}
	s.store(docs[0]) // what a writer without the rule would do
	s.commit()
	if wrong := r.wrong(s.stable.history); !slices.Contains(wrong, "message 0 is stored 2 times") {
		t.Errorf("the checker says %v", wrong)
	}
}

// A duplicate that the majority has, and that is evicted before it can be compared, was stored.
func TestADuplicateThatIsEvictedBeforeItIsComparedIsApplied(t *testing.T) {
	t.Parallel()
	docs := messages("a", 1, 1)
	s := &sim{capacity: 5, script: []tick{{}, {}, {foreign: 9, commit: true}}}
	s.store(docs[0])
	s.commit()
	r := play(t, s, Config{}, docs, []int{1})
	s.commit()
	if wrong := r.wrong(s.stable.history); r.end != nil || len(wrong) > 0 {
		t.Errorf("%v, %v", r.end, wrong)
	}
}

// A batch that is larger than the stream evicts its own beginning: of that, nobody can say anything.
func TestABatchThatEvictsItsOwnBeginningIsUnknown(t *testing.T) {
	t.Parallel()
	docs := messages("a", 1, 9)
	s := &sim{capacity: 5, script: []tick{{}, {fault: lostAfter}}}
	s.store(encode(bson.D{{Key: "_id", Value: record.PrimerID}}))
	s.commit()
	r := play(t, s, Config{}, docs, []int{9})
	s.commit()
	if wrong := r.wrong(s.stable.history); !errors.Is(r.end, errEvicted) || len(r.unknown) != 9 || len(wrong) > 0 {
		t.Errorf("%v, %v", r.end, wrong)
	}
}
