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

// playCollection writes docs in batches of the given sizes to s, which is an ordinary collection, and returns
// what is wrong with the outcomes by themselves.
func playCollection(t *testing.T, s *sim, c Config, docs []bson.Raw, sizes []int) (r run, wrong []string) {
	r = run{docs: docs, acked: map[record.ID]bool{}, rejected: map[record.ID]bool{}, unknown: map[record.ID]bool{}}
	synctest.Test(t, func(t *testing.T) {
		l, err := New(nil, c)
		if err != nil {
			t.Error(err)
			return
		}
		w := newCollectionWriter(l, func(bool) server { return s }, "db", "c", CollectionConfig{})
		for at := 0; at < len(docs); sizes = append(sizes[1:], sizes[0]) {
			batch := docs[at:min(len(docs), at+sizes[0])]
			at += len(batch)
			outcomes, err := w.InsertMany(t.Context(), batch)
			var ids []record.ID
			for i, o := range outcomes {
				_, refused := errors.AsType[*record.RejectedError](o.Err)
				switch id := idOf(batch[i]); {
				case o.State == Applied:
					r.acked[id] = true
				case o.State == Unknown:
					r.unknown[id] = true
					ids = append(ids, id)
				case refused:
					r.rejected[id] = true
				}
			}
			named, _ := errors.AsType[*record.UnknownOutcomeError](err)
			if (named != nil) != (len(ids) > 0) || named != nil && !slices.Equal(named.IDs, ids) {
				wrong = append(wrong, fmt.Sprintf("unknown are %v, the error says %v", ids, err))
			}
			if e, ok := errors.AsType[*BatchError](err); (err == nil) != (states(outcomes)[Applied] == len(batch)) || ok && states(outcomes) != [3]int{e.Unknown, e.Applied, e.NotApplied} {
				wrong = append(wrong, fmt.Sprintf("outcomes %v, error %v", states(outcomes), err))
			}
			if _, refused := errors.AsType[*record.RejectedError](err); err != nil && !refused {
				r.end = err
			}
		}
	})
	return r, wrong
}

// unorderedWrong is run.wrong without the order: an ordinary collection has none.
func (r run) unorderedWrong(history []record.ID, before ...record.ID) []string {
	var all []string
	for i := range r.docs {
		one := run{docs: r.docs[i : i+1], acked: r.acked, rejected: r.rejected, unknown: r.unknown}
		for _, w := range one.wrong(history, before...) {
			all = append(all, fmt.Sprintf("%d: %s", i, w))
		}
	}
	return all
}

// I1: whatever happens to the commands, what is acknowledged is stored once, what is stored was acknowledged or
// reported as unknown, and what was refused is not stored.
func TestEveryHistoryOfACollectionIsExactlyOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var kinds []fault
		for f := none; f < faults; f++ {
			if f != late {
				kinds = append(kinds, f)
			}
		}
		s, docs, sizes := draw(rt, kinds, 0)
		r, wrong := playCollection(t, s, Config{}, docs, sizes)
		s.commit()
		if wrong = append(wrong, r.unorderedWrong(s.stable.history, s.before...)...); len(wrong) > 0 {
			rt.Fatalf("%v; the run ended with %v", wrong, r.end)
		}
		if r.end != nil {
			rt.Fatalf("gave up although the server recovered: %v", r.end)
		}
	})
}

// A single server that was frozen runs what is in its sockets after it goes on.
func TestLateExecutionStoresNoDocumentTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, docs, sizes := draw(rt, []fault{none, none, late, late, lostBefore, lostAfter, lostMidway}, 0)
		r, wrong := playCollection(t, s, Config{}, docs, sizes)
		for _, cmd := range s.delayed {
			s.apply(cmd, -1)
		}
		s.commit()
		if wrong = append(wrong, r.unorderedWrong(s.stable.history, s.before...)...); len(wrong) > 0 {
			rt.Fatalf("%v; the run ended with %v", wrong, r.end)
		}
	})
}

// Negative control: with w: 1 an election takes acknowledged documents away, and the checker sees it.
func TestTheCheckerFindsLossInACollection(t *testing.T) {
	t.Parallel()
	s := &sim{script: []tick{{}, {fault: election}}}
	r, _ := playCollection(t, s, Config{WriteConcern: One}, messages("a", 1, 2), []int{1})
	s.commit()
	if len(r.unorderedWrong(s.stable.history)) == 0 {
		t.Errorf("an acknowledged document was rolled back, and the checker says nothing: %v, history %v", r.acked, s.stable.history)
	}
}
