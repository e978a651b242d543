package checkpointtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// checks are the promises. Their names are the list of what a store guarantees.
var checks = []check{
	{"a new name is empty and not an error", newNameIsEmpty},
	{"what was saved is what is loaded", savedIsLoaded},
	{"an _id of any type survives", anyIDSurvives},
	{"a restart in the middle resumes from the last save", restartResumes},
	{"acquiring a name fences its holder", acquireFences},
	{"acquiring fences also a holder with the same owner", acquireFencesSameOwner},
	{"two holders take over from each other and only the last one saves", takeOverAndBack},
	{"a fenced save changes nothing", fencedChangesNothing},
	{"a stale save never takes a checkpoint back", staleSaveIsRefused},
	{"of concurrent saves of one revision one wins", oneOfConcurrentWins},
	{"names do not disturb each other", namesAreApart},
	{"a name of another stream is refused and stays as it was", otherStreamIsRefused},
	{"a name under which nothing was done may go to another stream", emptyNameChangesStream},
	{"set by a person fences the holder and is what the next one gets", setFences},
	{"set makes a name that did not exist", setMakes},
	{"delete removes the name and fences its holder", deleteFences},
	{"a name deleted and acquired anew fences the holder from before", deletedAndMadeAnew},
	{"list is complete and ordered by name", listIsOrdered},
	{"what is not stored is reported as such", missingIsReported},
	{"a checkpoint handed out is a copy", handedOutIsACopy},
	{"ten thousand marks with odd names survive", manyMarks},
	{"a name or owner that is no name is refused", badNames},
	{"an ended context ends the call and changes nothing", endedContext},
}

func newNameIsEmpty(t TB, open func() Store, _ Factory) {
	cp := mustAcquire(t, open(), "a", "one")
	if !cp.IsZero() {
		t.Errorf("a new name gives %+v, want an empty checkpoint", cp)
	}
}

func savedIsLoaded(t TB, open func() Store, _ Factory) {
	s := open()
	want := at(mustAcquire(t, s, "a", "one"), 7)
	want.Lines, want.Bytes = 1234, 1<<40
	saved := mustSave(t, s, want)
	got := mustLoad(t, s, "a")
	sameProgress(t, "Load", got, want)
	if got.Revision != saved.Revision || got.Owner != "one" || got.Stream != stream {
		t.Errorf("Load = revision %d, owner %q, stream %q, want %d, one, %s", got.Revision, got.Owner, got.Stream, saved.Revision, stream)
	}
	if got.Updated.IsZero() {
		t.Errorf("Load: no time of the last change")
	}
}

func anyIDSurvives(t TB, open func() Store, _ Factory) {
	s := open()
	for i, v := range []any{int32(7), int64(7), 7.5, "text: with/slash", true, bson.D{{Key: "a", Value: 1}}, bson.DateTime(1_700_000_000_123)} {
		typ, b, err := bson.MarshalValue(v)
		if err != nil {
			t.Fatalf("encode %v: %v", v, err)
		}
		cp := mustAcquire(t, s, fmt.Sprintf("id-%d", i), "one")
		cp.Position = record.Position{ID: record.IDOf(bson.RawValue{Type: typ, Value: b})}
		mustSave(t, s, cp)
		if got := mustLoad(t, s, cp.Name); got.Position != cp.Position {
			t.Errorf("_id %v (%T): position %s, want %s", v, v, got.Position, cp.Position)
		}
	}
}

func restartResumes(t TB, open func() Store, _ Factory) {
	first := open()
	cp := mustAcquire(t, first, "a", "one")
	for n := 1; n <= 5; n++ {
		cp = mustSave(t, first, at(cp, n))
	}
	second := mustAcquire(t, open(), "a", "two")
	sameProgress(t, "after a restart", second, at(cp, 5))
	if second.Revision <= cp.Revision {
		t.Errorf("Acquire gives revision %d after %d, want a higher one", second.Revision, cp.Revision)
	}
	mustSave(t, open(), at(second, 6)) // a third process may save what the second one holds
}

func acquireFences(t TB, open func() Store, _ Factory) {
	s, other := open(), open()
	cp := mustSave(t, s, at(mustAcquire(t, s, "a", "one"), 1))
	mustAcquire(t, other, "a", "two")
	mustBeFenced(t, s, at(cp, 2), "two")
	mustBeFenced(t, s, at(cp, 2), "two") // and stays fenced
}

func acquireFencesSameOwner(t TB, open func() Store, _ Factory) {
	s := open()
	old := mustAcquire(t, s, "a", "one")
	mustAcquire(t, s, "a", "one")
	mustBeFenced(t, s, at(old, 1), "one")
}

func takeOverAndBack(t TB, open func() Store, _ Factory) {
	a, b := open(), open()
	one := mustAcquire(t, a, "a", "one")
	two := mustAcquire(t, b, "a", "two")
	again := mustAcquire(t, a, "a", "one")
	mustBeFenced(t, a, at(one, 1), "one")
	mustBeFenced(t, b, at(two, 2), "one")
	mustSave(t, a, at(again, 3))
	sameProgress(t, "after three take-overs", mustLoad(t, b, "a"), at(again, 3))
}

func fencedChangesNothing(t TB, open func() Store, _ Factory) {
	s := open()
	old := mustSave(t, s, at(mustAcquire(t, s, "a", "one"), 3))
	held := mustAcquire(t, s, "a", "two")
	mustBeFenced(t, s, at(old, 9), "two")
	got := mustLoad(t, s, "a")
	sameProgress(t, "after a fenced save", got, at(old, 3))
	if got.Revision != held.Revision || got.Owner != "two" {
		t.Errorf("after a fenced save: revision %d of %q, want %d of two", got.Revision, got.Owner, held.Revision)
	}
	mustSave(t, s, at(held, 4)) // the holder is not disturbed
}

func staleSaveIsRefused(t TB, open func() Store, _ Factory) {
	s := open()
	first := mustAcquire(t, s, "a", "one")
	second := mustSave(t, s, at(first, 10))
	third := mustSave(t, s, at(second, 20))
	mustBeFenced(t, s, at(first, 1), "one")
	mustBeFenced(t, s, at(second, 11), "one")
	sameProgress(t, "after stale saves", mustLoad(t, s, "a"), at(third, 20))
}

func oneOfConcurrentWins(t TB, open func() Store, _ Factory) {
	const savers, rounds = 8, 5
	stores := make([]Store, savers)
	for i := range stores {
		stores[i] = open()
	}
	held := mustAcquire(t, stores[0], "a", "one")
	for round := range rounds {
		var wg sync.WaitGroup
		results := make([]record.Checkpoint, savers)
		errs := make([]error, savers)
		for i := range savers {
			wg.Go(func() {
				ctx, cancel := within(t)
				defer cancel()
				results[i], errs[i] = stores[i].Save(ctx, at(held, round*savers+i+1))
			})
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			var fenced *record.FencedError
			switch {
			case err == nil && winner >= 0:
				t.Errorf("round %d: two saves of revision %d succeeded", round, held.Revision)
			case err == nil:
				winner = i
			case !errors.As(err, &fenced):
				t.Errorf("round %d: the loser gets %v, want a *record.FencedError", round, err)
			}
		}
		if winner < 0 {
			t.Fatalf("round %d: no save succeeded", round)
		}
		sameProgress(t, "the winner's", mustLoad(t, stores[0], "a"), at(held, round*savers+winner+1))
		held = results[winner]
	}
}

func namesAreApart(t TB, open func() Store, _ Factory) {
	const names = 6
	s := open()
	var wg sync.WaitGroup
	for i := range names {
		wg.Go(func() {
			ctx, cancel := within(t)
			defer cancel()
			name := fmt.Sprintf("name %d.with/odd$signs", i)
			cp, err := s.Acquire(ctx, name, stream, "one")
			for n := 1; n <= 5 && err == nil; n++ {
				cp, err = s.Save(ctx, at(cp, 100*i+n))
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	for i := range names {
		cp := mustLoad(t, s, fmt.Sprintf("name %d.with/odd$signs", i))
		sameProgress(t, cp.Name, cp, at(cp, 100*i+5))
	}
}

func otherStreamIsRefused(t TB, open func() Store, f Factory) {
	s := open()
	held := mustSave(t, s, at(mustAcquire(t, s, "a", "one"), 5))
	ctx, cancel := within(t)
	defer cancel()
	if _, err := s.Acquire(ctx, "a", "shop.returns", "two"); !f.OtherStream(err) {
		t.Errorf("Acquire for another stream: error %v, want the typed one", err)
	} else if text := fmt.Sprint(err); !strings.Contains(text, stream) || !strings.Contains(text, "shop.returns") {
		t.Errorf("the error %q does not name both streams", err)
	}
	mustSave(t, s, at(held, 6)) // the holder was not fenced by the mistake
	if cp, err := s.Acquire(ctx, "a", "", "three"); err != nil || cp.Stream != stream {
		t.Errorf("Acquire without a stream = stream %q, error %v, want the stored one", cp.Stream, err)
	}
}

func emptyNameChangesStream(t TB, open func() Store, _ Factory) {
	const mistyped = "shop.ordres"
	s := open()
	ctx, cancel := within(t)
	defer cancel()
	old, err := s.Acquire(ctx, "a", mistyped, "one")
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	old.Fingerprint = "of " + mistyped
	old = mustSave(t, s, old) // a save that says nothing was done
	held := mustAcquire(t, open(), "a", "two")
	if held.Stream != stream || held.Fingerprint != "" || !held.IsZero() {
		t.Errorf("Acquire for another stream = stream %q, fingerprint %q, want %s and none", held.Stream, held.Fingerprint, stream)
	}
	mustBeFenced(t, s, old, "two")
	want := mustSave(t, s, at(held, 1))
	got := mustLoad(t, open(), "a")
	sameProgress(t, "after the change", got, want)
	if got.Stream != stream {
		t.Errorf("Load = stream %q, want %s", got.Stream, stream)
	}
}

func setFences(t TB, open func() Store, _ Factory) {
	s := open()
	held := mustSave(t, s, at(mustAcquire(t, s, "a", "one"), 50))
	ctx, cancel := within(t)
	defer cancel()
	back := record.Checkpoint{Name: "a", Position: position(20), Marks: map[string]int64{"x": 20}}
	if err := s.Set(ctx, back); err != nil {
		t.Fatalf("Set: %v", err)
	}
	mustBeFenced(t, s, at(held, 51), "")
	got := mustAcquire(t, s, "a", "two") // the stream is kept where Set names none
	sameProgress(t, "after Set", got, back)
	if got.Revision <= held.Revision {
		t.Errorf("revision %d after Set, want more than %d", got.Revision, held.Revision)
	}
}

func setMakes(t TB, open func() Store, _ Factory) {
	s := open()
	ctx, cancel := within(t)
	defer cancel()
	want := record.Checkpoint{Name: "a", Stream: stream, Position: position(3)}
	if err := s.Set(ctx, want); err != nil {
		t.Fatalf("Set: %v", err)
	}
	sameProgress(t, "after Set", mustAcquire(t, s, "a", "one"), want)
}

func deleteFences(t TB, open func() Store, f Factory) {
	s := open()
	held := mustSave(t, s, at(mustAcquire(t, s, "a", "one"), 5))
	ctx, cancel := within(t)
	defer cancel()
	if err := s.Delete(ctx, "a"); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	if _, err := s.Load(ctx, "a"); !errors.Is(err, f.NotFound) {
		t.Errorf("Load after Delete: error %v, want %v", err, f.NotFound)
	}
	mustBeFenced(t, s, at(held, 6), "")
	if _, err := s.Load(ctx, "a"); !errors.Is(err, f.NotFound) {
		t.Errorf("a fenced save made the deleted name again: error %v", err)
	}
	if cp := mustAcquire(t, s, "a", "two"); !cp.IsZero() {
		t.Errorf("after Delete the name holds %+v, want nothing", cp)
	}
}

func deletedAndMadeAnew(t TB, open func() Store, _ Factory) {
	s := open()
	old := mustAcquire(t, s, "a", "one")
	ctx, cancel := within(t)
	defer cancel()
	if err := s.Delete(ctx, "a"); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	mustAcquire(t, s, "a", "two")
	mustBeFenced(t, s, at(old, 1), "two") // its revision may be the same
}

func listIsOrdered(t TB, open func() Store, _ Factory) {
	s := open()
	ctx, cancel := within(t)
	defer cancel()
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("List of nothing = %d entries, error %v", len(list), err)
	}
	for i, name := range []string{"c", "a", "b"} {
		mustSave(t, s, at(mustAcquire(t, s, name, "one"), i+1))
	}
	list, err := open().List(ctx)
	if err != nil || len(list) != 3 {
		t.Fatalf("List = %d entries, error %v, want 3", len(list), err)
	}
	for i, want := range []struct {
		name string
		n    int
	}{{"a", 2}, {"b", 3}, {"c", 1}} {
		if list[i].Name != want.name {
			t.Errorf("List[%d] is %q, want %q", i, list[i].Name, want.name)
		}
		sameProgress(t, want.name, list[i], at(list[i], want.n))
	}
}

func missingIsReported(t TB, open func() Store, f Factory) {
	s := open()
	ctx, cancel := within(t)
	defer cancel()
	if _, err := s.Load(ctx, "nobody"); !errors.Is(err, f.NotFound) {
		t.Errorf("Load: error %v, want %v", err, f.NotFound)
	}
	if err := s.Delete(ctx, "nobody"); !errors.Is(err, f.NotFound) {
		t.Errorf("Delete: error %v, want %v", err, f.NotFound)
	}
	mustBeFenced(t, s, record.Checkpoint{Name: "nobody", Owner: "one", Revision: 1}, "")
}

func handedOutIsACopy(t TB, open func() Store, _ Factory) {
	s := open()
	mine := at(mustAcquire(t, s, "a", "one"), 5)
	saved := mustSave(t, s, mine)
	mine.Marks["orders.eu/7f3a"] = 99
	saved.Marks["orders.eu/7f3a"] = 98
	mustLoad(t, s, "a").Marks["orders.eu/7f3a"] = 97
	sameProgress(t, "after changing the copies", mustLoad(t, s, "a"), at(saved, 5))
}

func manyMarks(t TB, open func() Store, _ Factory) {
	const many = 10_000
	s := open()
	cp := mustAcquire(t, s, "a", "one")
	cp.Position = position(1)
	cp.Marks = map[string]int64{}
	for i := range many {
		cp.Marks[fmt.Sprintf("$host-%d.example/ \"ü\"\t<%08x>", i, i*2654435761)] = int64(i) << 30
	}
	mustSave(t, s, cp)
	sameProgress(t, "many marks", mustLoad(t, open(), "a"), cp)
}

func badNames(t TB, open func() Store, _ Factory) {
	s := open()
	ctx, cancel := within(t)
	defer cancel()
	for _, name := range []string{"", strings.Repeat("x", 513), "nul\x00", "\xff\xfe"} {
		if _, err := s.Acquire(ctx, name, stream, "one"); err == nil {
			t.Errorf("Acquire(%.20q) succeeds", name)
		}
		if err := s.Set(ctx, record.Checkpoint{Name: name}); err == nil {
			t.Errorf("Set(%.20q) succeeds", name)
		}
	}
	if _, err := s.Acquire(ctx, "a", stream, ""); err == nil {
		t.Errorf("Acquire without an owner succeeds: nobody could be fenced")
	}
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("after refused names List = %d entries, error %v", len(list), err)
	}
}

func endedContext(t TB, open func() Store, _ Factory) {
	s := open()
	cp := mustAcquire(t, s, "a", "one")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Save(ctx, at(cp, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Save: error %v, want %v", err, context.Canceled)
	}
	if _, err := s.Acquire(ctx, "a", stream, "two"); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire: error %v, want %v", err, context.Canceled)
	}
	if _, err := s.Load(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Load: error %v, want %v", err, context.Canceled)
	}
	mustSave(t, s, at(cp, 2)) // the holder still holds
}
