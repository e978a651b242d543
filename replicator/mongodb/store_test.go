package mongodb_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
	"github.com/seed-12ef14e5/capstan/localcluster"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/fidelity"
	"github.com/seed-12ef14e5/capstan/replicator/mongodb"
)

var (
	_ replicator.Store   = (*mongodb.Store)(nil)
	_ replicator.Letters = (*mongodb.Letters)(nil)
)

func store(t testing.TB, dep *mongotest.Deployment, cfg mongodb.StoreConfig) *mongodb.Store {
	t.Helper()
	s, err := mongodb.NewStore(target(t, dep, mongodb.TargetConfig{}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// route returns a name that no other test uses.
func route(t testing.TB) string { return fmt.Sprintf("%s/%d", t.Name(), time.Now().UnixNano()) }

func acquire(t testing.TB, s *mongodb.Store, route, owner string) replicator.State {
	t.Helper()
	st, err := s.Acquire(t.Context(), route, owner, false)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// full returns a state with everything in it.
func full(t testing.TB, st replicator.State) replicator.State {
	t.Helper()
	id := func(v any) record.ID { return record.IDOf(raw(t, d("v", v)).Lookup("v")) }
	pos := record.Position{TS: record.Timestamp{T: 5, I: 6}, ID: id("p")}
	st.Fingerprint, st.Source = "print", replicator.Identity{SetName: "rs", SetID: "id", Version: "6.0.5"}
	st.Target = replicator.Identity{SetName: "rt", SetID: "id2", Version: "6.0.6"}
	st.Phase, st.Paused, st.Reason = replicator.PhaseCatchingUp, true, "why"
	st.Start, st.Position, st.Caught, st.Resync, st.Copies = pos, pos, pos, true, 3
	st.Listed = pos.TS
	st.Was, st.Shared, st.WasLive = replicator.PhaseLive, true, true
	var ranges []replicator.Range
	for _, doc := range fidelity.Documents() {
		if r := record.IDOf(doc.ID()); !doc.Large {
			ranges = append(ranges, replicator.Range{From: r, To: r, At: r, Done: true, Scanned: 4, Matched: 3})
		}
	}
	ns := record.Namespace{DB: "d", Coll: "c.$x y"}
	st.Collections = []replicator.CollectionState{
		{UUID: "u", Source: ns, Target: ns, Kind: replicator.KindCapped, Ranges: ranges, Copied: true, Documents: 7, Bytes: 8, Created: true, Seen: pos.TS, Serial: true},
		{UUID: "not begun"},
		{UUID: "empty", Ranges: []replicator.Range{}},
		{UUID: "natural", Ranges: []replicator.Range{{Natural: true, At: id(int64(5))}}},
	}
	st.Sessions = []bson.Raw{raw(t, d("id", bson.Binary{Subtype: 4, Data: make([]byte, 16)}))}
	st.Held = []replicator.Held{{Namespace: ns, Index: "i", Seconds: 9}}
	st.Delayed = []replicator.Delayed{{Op: "createIndexes", Collection: ns, Description: raw(t, d("indexes", bson.A{d("key", d("a.$**", 1))}))}}
	st.Totals = replicator.Totals{Scanned: 1, Matched: 2, CopiedBytes: 3, Read: 4, Applied: 5, Skipped: 6, Conflicts: 7, Letters: 8}
	return st
}

// complete fails the test unless every field of a struct, and of the first element of each slice of structs, is set: a field that a store
// forgets shows only if the test sets it.
func complete(t testing.TB, name string, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		f, field := v.Field(i), name+"."+v.Type().Field(i).Name
		switch {
		case f.IsZero() && !slices.Contains([]string{"State.Clean", "State.Updated", "State.Collections.Ranges.Natural"}, field):
			t.Errorf("%s is not set", field)
		case f.Kind() == reflect.Slice && f.Len() > 0 && f.Index(0).Kind() == reflect.Struct:
			complete(t, field, f.Index(0))
		}
	}
}

func TestAStateComesBackAsItWas(t *testing.T) {
	t.Parallel()
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r := store(t, dep, mongodb.StoreConfig{}), route(t)
			if _, err := s.Load(t.Context(), r); !errors.Is(err, replicator.ErrNoRoute) {
				t.Errorf("got %v", err)
			}
			st := acquire(t, s, r, "one")
			if st.Phase != "" || st.Revision != 1 || st.Owner != "one" || st.Route != r {
				t.Errorf("a new route: %+v", st)
			}
			complete(t, "State", reflect.ValueOf(full(t, st)))
			saved, err := s.Save(t.Context(), full(t, st))
			if err != nil || saved.Revision != 2 {
				t.Fatal(saved.Revision, err)
			}
			got, err := s.Load(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.Comparer(func(a, b record.ID) bool { return a == b })
			got.Updated = saved.Updated // milliseconds
			if diff := cmp.Diff(saved, got, same); diff != "" {
				t.Error(diff)
			}
			if err := s.Release(t.Context(), saved); err != nil {
				t.Fatal(err)
			}
			next := acquire(t, s, r, "two")
			saved.Owner, saved.Revision, saved.Updated = "two", 4, next.Updated
			if diff := cmp.Diff(saved, next, same); diff != "" {
				t.Error(diff)
			}
			all, err := s.List(t.Context())
			if n := len(all); n == 0 {
				t.Errorf("list: %v, %v", n, err)
			}
		})
	}
}

func TestARouteHasOneHolder(t *testing.T) {
	t.Parallel()
	dep := mongotest.ReplicaSet(t)
	const lease = 3 * time.Second
	s, other, r := store(t, dep, mongodb.StoreConfig{Lease: lease}), store(t, dep, mongodb.StoreConfig{Lease: lease}), route(t)
	st := acquire(t, s, r, "elsewhere pid 1 x")
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			var err error
			if st, err = s.Save(t.Context(), st); err != nil {
				ended <- err
				return
			}
			select {
			case <-stop:
				ended <- nil
				return
			case <-time.After(lease / 20):
			}
		}
	}()
	_, err := other.Acquire(t.Context(), r, "two", false)
	if busy, ok := errors.AsType[*replicator.BusyError](err); !ok || busy.Owner != "elsewhere pid 1 x" || busy.Updated.IsZero() {
		t.Errorf("got %v", err)
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	two := acquire(t, other, r, "two") // it stands still
	if _, err := s.Save(t.Context(), st); !isFenced(err, "two") {
		t.Errorf("the former holder saves: %v", err)
	}
	if _, err := other.Acquire(t.Context(), r, "three", true); err != nil {
		t.Error("take over: ", err)
	}
	if err := other.Release(t.Context(), two); !isFenced(err, "three") {
		t.Errorf("got %v", err)
	}
	if got, err := s.Load(t.Context(), r); err != nil || got.Clean {
		t.Error("a former holder's release counts: ", err)
	}
}

func isFenced(err error, by string) bool {
	f, ok := errors.AsType[*record.FencedError](err)
	return ok && f.Owner == by
}

func TestAHolderOfThisMachineThatIsGoneIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	child := exec.CommandContext(t.Context(), "true")
	if err := child.Run(); err != nil {
		t.Skip(err)
	}
	s, r := store(t, mongotest.ReplicaSet(t), mongodb.StoreConfig{Lease: time.Hour}), route(t)
	acquire(t, s, r, fmt.Sprintf("%s pid %d run x", host, child.Process.Pid))
	acquire(t, s, r, "two") // or this would take an hour
	_, err = s.Acquire(t.Context(), r, "", false)
	if err == nil {
		t.Error("an owner without a name is taken")
	}
}

func TestADamagedStateIsAnError(t *testing.T) {
	t.Parallel()
	dep := mongotest.Own(t, localcluster.Config{})
	client, err := mongo.Connect(dep.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(t.Context()) }()
	c := client.Database("capstan").Collection(mongodb.RoutesCollection)
	s := store(t, dep, mongodb.StoreConfig{})
	acquire(t, s, "good", "one")
	for i, change := range []bson.D{d("version", 99), d("position", "nonsense"), d("revision", "x"), d("collections", bson.A{d("ranges", bson.A{d("from", "~")})}), d("owner", "")} {
		r := fmt.Sprintf("bad %d", i)
		acquire(t, s, r, "one")
		if _, err := c.UpdateByID(t.Context(), r, d("$set", change)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(t.Context(), r); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%v: %v", change, err)
		}
		if _, err := s.Acquire(t.Context(), r, "two", true); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%v: %v", change, err)
		}
	}
	list, err := s.List(t.Context())
	if len(list) != 1 || err == nil {
		t.Errorf("%d routes, %v", len(list), err)
	}
}

func TestALetterIsStoredOnceAndCounts(t *testing.T) {
	t.Parallel()
	for name, dep := range deployments(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ls, r := mongodb.NewLetters(target(t, dep, mongodb.TargetConfig{})), route(t)
			var letters []replicator.Letter
			at := time.Now().UTC().Truncate(time.Millisecond)
			for i, doc := range fidelity.Documents() {
				letters = append(letters, replicator.Letter{Route: r, Source: record.Namespace{DB: "d", Coll: "c.d"}, ID: doc.ID(), Reason: fmt.Sprint("reason ", i), Op: "put",
					Position: record.Position{TS: record.Timestamp{T: 1, I: uint32(i)}}, Time: at.Add(time.Duration(i) * time.Millisecond), Attempts: 1})
			}
			for range 2 {
				if err := ls.Add(t.Context(), letters); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := ls.Count(t.Context(), r); err != nil || n != int64(len(letters)) {
				t.Errorf("%d letters, want %d: %v", n, len(letters), err)
			}
			got, err := ls.List(t.Context(), r, len(letters)+1)
			if err != nil || len(got) != len(letters) {
				t.Fatal(len(got), err)
			}
			for i, l := range letters {
				l.Attempts = 2
				if g := got[i]; !g.ID.Equal(l.ID) || g.Attempts != 2 || g.Reason != l.Reason || g.Position != l.Position || g.Source != l.Source || !g.Time.Equal(l.Time) || g.Op != l.Op {
					t.Errorf("got %.200v, want %.200v", g, l)
				}
			}
			for range 2 {
				if err := ls.Remove(t.Context(), letters[0]); err != nil {
					t.Fatal(err)
				}
			}
			if first, err := ls.List(t.Context(), r, 1); err != nil || len(first) != 1 || !first[0].ID.Equal(letters[1].ID) {
				t.Error(first, err)
			}
		})
	}
}

func TestARouteIsRemovedOnceNobodyHoldsIt(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	dep := mongotest.Standalone(t)
	s, other, r := store(t, dep, mongodb.StoreConfig{Lease: lease}), store(t, dep, mongodb.StoreConfig{Lease: lease}), route(t)
	if err := other.Remove(t.Context(), r); !errors.Is(err, replicator.ErrNoRoute) {
		t.Errorf("nothing is removed: %v", err)
	}
	st := acquire(t, s, r, "one")
	refused := make(chan error, 1)
	go func() { refused <- other.Remove(t.Context(), r) }()
	for alive := true; alive; {
		select {
		case err := <-refused:
			if !errors.As(err, new(*replicator.BusyError)) {
				t.Errorf("a route that runs is removed: %v", err)
			}
			alive = false
		default:
			next, err := s.Save(t.Context(), st)
			if err != nil {
				t.Fatal(err)
			}
			st = next
		}
	}
	// Its owner is silent for the lease: it counts as dead, and is fenced off if it is not.
	if err := other.Remove(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(t.Context(), st); !isFenced(err, record.OwnerNobody) {
		t.Errorf("a holder saves what was removed: %v", err)
	}
	if err := s.Release(t.Context(), acquire(t, s, r, "two")); err != nil {
		t.Fatal(err)
	}
	if err := other.Remove(t.Context(), r); err != nil {
		t.Errorf("a released route: %v", err)
	}
}

func TestTheDeadLettersOfARouteAreForgotten(t *testing.T) {
	t.Parallel()
	dep := mongotest.Standalone(t)
	letters, r := mongodb.NewLetters(target(t, dep, mongodb.TargetConfig{})), route(t)
	var all []replicator.Letter
	for i := range 5 {
		for _, name := range []string{r, r + "/other"} {
			all = append(all, replicator.Letter{Route: name, Source: record.Namespace{DB: "d", Coll: "c"}, ID: raw(t, d("v", i)).Lookup("v"), Time: time.Now()})
		}
	}
	if err := letters.Add(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	for range 2 { // again is no error
		if err := letters.Forget(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{r: 0, r + "/other": 5} {
		if n, err := letters.Count(t.Context(), name); err != nil || n != want {
			t.Errorf("%s has %d letters, want %d: %v", name, n, want, err)
		}
	}
}
