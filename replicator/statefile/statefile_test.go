package statefile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/seed-12ef14e5/capstan/internal/lockedfile"
	"github.com/seed-12ef14e5/capstan/record"
	"github.com/seed-12ef14e5/capstan/replicator"
	"github.com/seed-12ef14e5/capstan/replicator/fidelity"
)

var _ replicator.Store = (*Store)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, path string, cfg Config) *Store {
	t.Helper()
	s, err := New(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func acquire(t testing.TB, s *Store, route, owner string) replicator.State {
	t.Helper()
	st, err := s.Acquire(t.Context(), route, owner, false)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func save(t testing.TB, s *Store, st replicator.State) replicator.State {
	t.Helper()
	st, err := s.Save(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func position(n int) record.Position {
	return record.Position{TS: record.Timestamp{T: uint32(n), I: 1}, ID: record.NewID()}
}

func isFenced(err error, by string) bool {
	f, ok := errors.AsType[*record.FencedError](err)
	return ok && f.Owner == by
}

// sameID compares what has no exported fields.
var sameID = cmp.Comparer(func(a, b record.ID) bool { return a == b })

// fill makes every field something else than zero, and each list one element long.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case record.ID:
		v.Set(reflect.ValueOf(record.NewID()))
		return
	case record.Position:
		v.Set(reflect.ValueOf(position(*n)))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.UnixMilli(1_700_000_000_000).UTC()))
		return
	case bson.Raw:
		doc, err := bson.Marshal(bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, {Key: "n", Value: int64(*n)}, {Key: "$x.y", Value: "ü\x00"}})
		if err != nil {
			panic(err)
		}
		v.Set(reflect.ValueOf(bson.Raw(doc)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d \"ü/$.\x00\n", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n) + 1<<60)
	case reflect.Uint32:
		v.SetUint(uint64(*n))
	default:
		panic("a kind of field that this test does not know: " + v.Kind().String())
	}
}

// What the file forgets, a route that is started again does not know.
func TestEveryFieldOfAStateComesBackFromTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "routes.json")
	s := open(t, path, Config{})
	if _, err := s.Load(t.Context(), "orders/x"); !errors.Is(err, replicator.ErrNoRoute) {
		t.Errorf("without a file: %v", err)
	}
	held := acquire(t, s, "orders/x", "one")
	if held.Phase != "" || held.Revision != 1 || held.Owner != "one" || held.Route != "orders/x" {
		t.Errorf("a new route: %+v", held)
	}
	var st replicator.State
	n := 0
	fill(reflect.ValueOf(&st).Elem(), &n)
	for _, doc := range fidelity.Documents() { // every type of _id
		if id := record.IDOf(doc.ID()); !doc.Large {
			st.Collections[0].Ranges = append(st.Collections[0].Ranges, replicator.Range{From: id, To: id, At: id})
		}
	}
	st.Collections = append(st.Collections, replicator.CollectionState{UUID: "not begun"}, replicator.CollectionState{UUID: "empty", Ranges: []replicator.Range{}})
	st.Route, st.Owner, st.Revision, st.Clean = held.Route, held.Owner, held.Revision, false
	saved := save(t, s, st)
	if saved.Revision != 2 {
		t.Errorf("revision %d", saved.Revision)
	}
	acquire(t, s, "another", "one")
	again := open(t, path, Config{})
	got, err := again.Load(t.Context(), "orders/x")
	if err != nil {
		t.Fatal(err)
	}
	got.Updated = saved.Updated // milliseconds
	if diff := cmp.Diff(saved, got, sameID); diff != "" {
		t.Error(diff)
	}
	if err := s.Release(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Load(t.Context(), "orders/x"); err != nil || !got.Clean {
		t.Error("a release is not stored: ", err)
	}
	next := acquire(t, again, "orders/x", "two")
	saved.Owner, saved.Revision, saved.Updated = "two", 4, next.Updated
	if diff := cmp.Diff(saved, next, sameID); diff != "" {
		t.Error(diff)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Route != "another" || list[1].Route != "orders/x" {
		t.Errorf("list: %v, %v", list, err)
	}
}

func TestARouteInAFileHasOneHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "routes.json")
		s, other := open(t, path, Config{}), open(t, path, Config{})
		st := acquire(t, s, "r", "elsewhere pid 1 x")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Second):
					st = save(t, s, st)
				}
			}
		}()
		_, err := other.Acquire(t.Context(), "r", "two", false)
		if busy, ok := errors.AsType[*replicator.BusyError](err); !ok || busy.Owner != "elsewhere pid 1 x" || busy.Updated.IsZero() {
			t.Errorf("while it moves: %v", err)
		}
		stop()
		<-ended
		begin := time.Now()
		two := acquire(t, other, "r", "two")
		if waited := time.Since(begin); waited < DefaultLease {
			t.Errorf("a holder that stands still is followed after %v, want %v", waited, DefaultLease)
		}
		if _, err := s.Save(t.Context(), st); !isFenced(err, "two") {
			t.Errorf("the former holder saves: %v", err)
		}
		begin = time.Now()
		if _, err := s.Acquire(t.Context(), "r", "three", true); err != nil || time.Since(begin) != 0 {
			t.Errorf("take over: after %v, %v", time.Since(begin), err)
		}
		if err := other.Release(t.Context(), two); !isFenced(err, "three") {
			t.Errorf("a former holder releases: %v", err)
		}
		if got, err := s.Load(t.Context(), "r"); err != nil || got.Clean || got.Owner != "three" {
			t.Errorf("%+v, %v", got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Acquire(ctx, "r", "four", false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for the lease does not end with its context: %v", err)
		}
		if _, err := s.Save(t.Context(), replicator.State{Route: "none", Owner: "x", Revision: 1}); !isFenced(err, record.OwnerNobody) {
			t.Errorf("a route that is not there is saved: %v", err)
		}
	})
}

func TestAHolderWhoseProcessIsGoneIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), "true")
	if err := child.Run(); err != nil {
		t.Skip(err)
	}
	s := open(t, filepath.Join(t.TempDir(), "routes.json"), Config{Lease: time.Hour, Host: "here"})
	acquire(t, s, "r", fmt.Sprintf("here pid %d run x", child.Process.Pid))
	acquire(t, s, "r", fmt.Sprintf("here pid %d run y", os.Getpid())) // or this would take an hour
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Acquire(ctx, "r", "two", false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a holder whose process lives: %v", err)
	}
	if _, err := s.Acquire(t.Context(), "r", "", false); err == nil {
		t.Error("an owner without a name is taken")
	}
	for _, cfg := range []Config{{Lease: -1}, {LockWait: -1}} {
		if _, err := New("x", cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	if _, err := New("", Config{}); err == nil {
		t.Error("an empty path is taken")
	}
}

func TestADamagedFileIsAnErrorAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "routes.json")
	s := open(t, path, Config{})
	st := acquire(t, s, "orders", "one")
	st.Position = position(123456)
	st = save(t, s, st)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(from, to string) []byte {
		b := bytes.Replace(good, []byte(from), []byte(to), 1)
		if bytes.Equal(b, good) {
			t.Fatalf("there is no %s in the file", from)
		}
		return b
	}
	damaged := map[string][]byte{
		"empty": {}, "zeroes": make([]byte, len(good)), "null": []byte("null"), "text": []byte("hello\n"), "an empty object": []byte("{}"),
		"no routes": []byte(`{"format":"capstan routes","version":1,"sum":""}`), "a file of checkpoints": edit("capstan routes", "capstan checkpoints"),
		"another version": edit(`"version": 1`, `"version": 2`), "an unknown field": edit(`"format"`, `"new": 1, "format"`),
		"a changed digit": edit("123456", "123457"), "a changed name": edit(`"orders"`, `"order2"`),
		"more at the end": append(bytes.Clone(good), '{'), "twice": append(bytes.Clone(good), good...),
	}
	for n := 0; n < len(bytes.TrimSpace(good)); n += 97 {
		damaged[fmt.Sprintf("cut off at %d", n)] = good[:n]
	}
	for name, b := range damaged {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for what, call := range map[string]func() error{
			"Acquire": func() error { _, err := s.Acquire(t.Context(), "orders", "two", true); return err },
			"Save":    func() error { _, err := s.Save(t.Context(), st); return err },
			"Release": func() error { return s.Release(t.Context(), st) },
			"Load":    func() error { _, err := s.Load(t.Context(), "orders"); return err },
			"List":    func() error { _, err := s.List(t.Context()); return err },
		} {
			err := call()
			if e, ok := errors.AsType[*CorruptError](err); !ok || e.Path != path {
				t.Errorf("%s: %s returns %v, want a *CorruptError", name, what, err)
			}
			if p, ok := errors.AsType[replicator.Passing](err); ok && p.TryAgain() {
				t.Errorf("%s: %s would be tried again", name, what)
			}
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, b) {
			t.Errorf("%s: the damaged file was changed", name)
		}
	}
}

func TestAFailureAtAnyStepLeavesTheOldStateOrTheNewOneAndFencesNobody(t *testing.T) {
	t.Parallel()
	for step, tc := range map[string]struct {
		fail func(*lockedfile.System)
		new  bool // the new content is in place already
	}{
		"write": {fail: func(s *lockedfile.System) {
			s.Write = func(f *os.File, b []byte) error { _, _ = f.Write(b[:len(b)/2]); return syscall.ENOSPC }
		}},
		"sync":                  {fail: func(s *lockedfile.System) { s.Sync = func(*os.File) error { return syscall.EIO } }},
		"rename":                {fail: func(s *lockedfile.System) { s.Rename = func(string, string) error { return syscall.ENOSPC } }},
		"sync of the directory": {fail: func(s *lockedfile.System) { s.SyncDir = func(string) error { return syscall.EIO } }, new: true},
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "routes.json")
			s := open(t, path, Config{})
			held := acquire(t, s, "orders", "one")
			held.Copies = 7
			held = save(t, s, held)
			tc.fail(&s.file.Sys)
			for n := 8; n < 11; n++ {
				held.Copies = n
				_, err := s.Save(t.Context(), held)
				if p, ok := errors.AsType[replicator.Passing](err); !ok || !p.TryAgain() {
					t.Fatalf("save: %v, want an error after which the same may succeed", err)
				}
				want := 7
				if tc.new {
					want = n
				}
				if got, err := open(t, path, Config{}).Load(t.Context(), "orders"); err != nil || got.Copies != want {
					t.Errorf("after a failed save of %d the file has %d, %v", n, got.Copies, err)
				}
			}
			s.file.Sys = lockedfile.RealSystem()
			held.Copies = 11
			held = save(t, s, held) // not fenced off by its own predecessors
			if got, err := s.Load(t.Context(), "orders"); err != nil || got.Copies != 11 || got.Revision != held.Revision {
				t.Errorf("after the disk came back: %+v, %v", got, err)
			}
			if left, _ := filepath.Glob(path + "*"); len(left) != 2 { // the file and its lock
				t.Errorf("left behind: %v", left)
			}
			if _, err := open(t, path, Config{}).Acquire(t.Context(), "orders", "two", true); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Save(t.Context(), held); !isFenced(err, "two") {
				t.Errorf("the former holder saves: %v", err)
			}
		})
	}
}

func TestAKeptLockIsReportedAndMayPass(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "routes.json")
	s := open(t, path, Config{LockWait: 50 * time.Millisecond})
	unlock, err := lockedfile.TryLock(path + ".lock")
	if err != nil || unlock == nil {
		t.Fatal("no lock", err)
	}
	defer unlock()
	_, err = s.Acquire(t.Context(), "r", "one", false)
	if p, ok := errors.AsType[replicator.Passing](err); !ok || !p.TryAgain() || !strings.Contains(fmt.Sprint(err), path+".lock") {
		t.Errorf("error %v, want one that names the lock and may pass", err)
	}
	if _, err := open(t, filepath.Join(t.TempDir(), "no", "dir"), Config{}).Acquire(t.Context(), "r", "one", false); !errors.Is(err, os.ErrNotExist) || errors.As(err, new(replicator.Passing)) {
		t.Errorf("a directory that does not exist: %v", err)
	}
}

func TestRoutesOfOneFileDoNotLoseEachOthersSaves(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "routes.json")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s := open(t, path, Config{LockWait: time.Minute})
			st, err := s.Acquire(t.Context(), fmt.Sprint("route ", i), "one", false)
			for n := 1; n <= 20 && err == nil; n++ {
				st.Copies = n
				st, err = s.Save(t.Context(), st)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := open(t, path, Config{}).List(t.Context())
	if err != nil || len(list) != 4 {
		t.Fatal(len(list), err)
	}
	for _, st := range list {
		if st.Copies != 20 || st.Revision != 21 {
			t.Errorf("%s: %d, revision %d", st.Route, st.Copies, st.Revision)
		}
	}
}
