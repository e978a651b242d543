package verify_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/verify"
)

func capped(t testing.TB, n int64, dbs ...*mongo.Database) {
	t.Helper()
	for _, db := range dbs {
		o := options.CreateCollection().SetCapped(true).SetSizeInBytes(64 << 20)
		if n > 0 {
			o.SetMaxDocuments(n)
		}
		do(t, db.CreateCollection(t.Context(), "c", o))
	}
}

// kinds counts a report's differences by kind.
func kinds(n verify.Namespace) string {
	return fmt.Sprintf("equal %d missing %d extra %d different %d moved %d older %d/%d",
		n.Equal, n.Missing, n.Extra, n.Different, n.Moved, n.OlderAtSource, n.OlderAtTarget)
}

func TestTheOrderOfCappedCollectionsIsCompared(t *testing.T) {
	t.Parallel()
	const n = 2000
	at := func(i int) string { return fmt.Sprintf(`{"$numberInt":"%d"}`, i) }
	for name, c := range map[string]struct {
		change func([]any) []any // what the target holds
		want   []string
		kinds  string
	}{
		"equal":               {func(d []any) []any { return d }, nil, "equal 2000 missing 0 extra 0 different 0 moved 0 older 0/0"},
		"two change places":   {func(d []any) []any { d[500], d[501] = d[501], d[500]; return d }, []string{"moved " + at(500)}, "equal 1999 missing 0 extra 0 different 0 moved 1 older 0/0"},
		"the first goes last": {func(d []any) []any { return append(d[1:], d[0]) }, []string{"moved " + at(0)}, "equal 1999 missing 0 extra 0 different 0 moved 1 older 0/0"},
		"the last goes first": {func(d []any) []any { return append(d[n-1:], d[:n-1]...) }, []string{"moved " + at(n-1)}, "equal 1999 missing 0 extra 0 different 0 moved 1 older 0/0"},
		"one is missing":      {func(d []any) []any { return slices.Delete(d, 700, 701) }, []string{"missing " + at(700)}, "equal 1999 missing 1 extra 0 different 0 moved 0 older 0/0"},
		"the first is missing": {func(d []any) []any { return d[1:] }, []string{"missing " + at(0)},
			"equal 1999 missing 1 extra 0 different 0 moved 0 older 0/0"}, // it is not full, so it was not evicted
		"the last are missing": {func(d []any) []any { return d[:n-2] }, []string{"missing " + at(n-2), "missing " + at(n-1)}, "equal 1998 missing 2 extra 0 different 0 moved 0 older 0/0"},
		"one is extra":         {func(d []any) []any { return slices.Insert(d, 3, any(bson.D{{Key: "_id", Value: "x"}})) }, []string{`extra "x"`}, "equal 2000 missing 0 extra 1 different 0 moved 0 older 0/0"},
		"one differs":          {func(d []any) []any { d[9] = bson.D{{Key: "_id", Value: 9}}; return d }, []string{"different " + at(9)}, "equal 1999 missing 0 extra 0 different 1 moved 0 older 0/0"},
		"all are missing":      {func(d []any) []any { return d[:0] }, nil, "equal 0 missing 2000 extra 0 different 0 moved 0 older 0/0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			capped(t, 0, s.source, s.target)
			docs := numbered(n)
			insert(t, "c", docs, s.source)
			insert(t, "c", c.change(slices.Clone(docs)), s.target)
			rep := s.run(t, s.config())
			if name != "all are missing" {
				expect(t, rep, c.want...)
			}
			if got := kinds(rep.Namespaces[0]); got != c.kinds {
				t.Errorf("got  %s\nwant %s", got, c.kinds)
			}
		})
	}
}

// TestWhatOnlyOneSideHasRolledOverIsNotCompared: capped collections of the same documents, one of which holds fewer.
func TestWhatOnlyOneSideHasRolledOverIsNotCompared(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source, target int64 // max
		want           string
		compared       string
	}{
		"target few":  {50_000, 3000, "equal 3000 missing 0 extra 0 different 0 moved 0 older 27000/0", "from the target's oldest on"},
		"source few":  {3000, 50_000, "equal 3000 missing 0 extra 0 different 0 moved 0 older 0/27000", "from the source's oldest on"},
		"target less": {30_000, 29_900, "equal 29900 missing 0 extra 0 different 0 moved 0 older 100/0", "from the target's oldest on"},
		"source less": {29_900, 30_000, "equal 29900 missing 0 extra 0 different 0 moved 0 older 0/100", "from the source's oldest on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSides(t)
			capped(t, c.source, s.source)
			capped(t, c.target, s.target)
			docs := make([]any, 30_000)
			for i := range docs {
				docs[i] = bson.D{{Key: "_id", Value: (i * 7919) % len(docs)}} // no order of _id
			}
			insert(t, "c", docs, s.source, s.target)
			rep := s.run(t, s.config())
			expect(t, rep, "option max: differs")
			n := rep.Namespaces[0]
			if got := kinds(n); got != c.want || !strings.Contains(n.Compared, c.compared) {
				t.Errorf("got  %s (%s)\nwant %s (%s)", got, n.Compared, c.want, c.compared)
			}
		})
	}
}

// TestARandomOrderIsNeverTakenForTheSame: what far places are changed is counted as moved, beyond what is held in memory too.
func TestARandomOrderIsNeverTakenForTheSame(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	capped(t, 0, s.source, s.target)
	docs := numbered(70_000)
	insert(t, "c", docs, s.source)
	far := append(slices.Clone(docs[1:]), docs[0]) // one goes further than any window
	insert(t, "c", far, s.target)
	cfg := s.config()
	rep := s.run(t, cfg)
	if got, want := kinds(rep.Namespaces[0]), "equal 69999 missing 0 extra 0 different 0 moved 1 older 0/0"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAShuffledCappedCollectionIsMovedAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	capped(t, 0, s.source, s.target)
	docs := numbered(40_000)
	insert(t, "c", docs, s.source)
	mixed := slices.Clone(docs)
	rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	insert(t, "c", mixed, s.target)
	n := s.run(t, s.config()).Namespaces[0]
	if n.Missing+n.Extra+n.Different != 0 || n.Moved < 30_000 || n.Moved+n.Equal != 40_000 {
		t.Errorf("got %s", kinds(n))
	}
}

// TestTheTimestampsOfStreamsMayDiffer: a route of streams lets the target's server make ts anew.
func TestTheTimestampsOfStreamsMayDiffer(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	capped(t, 0, s.source, s.target)
	message := func(i int, data any, ts uint32) bson.D {
		return bson.D{{Key: "_id", Value: i}, {Key: "seq", Value: int64(i)}, {Key: "ts", Value: bson.Timestamp{T: ts, I: 1}}, {Key: "data", Value: data}}
	}
	var src, dst []any
	dst = append(dst, bson.D{{Key: "_id", Value: record.PrimerID}, {Key: "time", Value: int64(0)}})
	for i := range 500 {
		data := any("same")
		if i == 42 {
			data = "other"
		}
		src, dst = append(src, message(i, "same", 1000)), append(dst, message(i, data, 2000))
	}
	insert(t, "c", src, s.source)
	insert(t, "c", dst, s.target)
	cfg := s.config()
	cfg.NewTimestamps = true
	expect(t, s.run(t, cfg), `different {"$numberInt":"42"}`)
	cfg.NewTimestamps = false
	if n := s.run(t, cfg).Namespaces[0]; n.Different != 500 || n.Extra != 1 {
		t.Errorf("with ts compared: %s", kinds(n))
	}
}
