package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/lockedfile"
	"github.com/seed-12ef14e5/capstan/record"
)

func newFile(t *testing.T, path string) *File {
	t.Helper()
	f, err := NewFile(path, FileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func position(n int64) record.Position {
	return record.Position{TS: record.Timestamp{T: 1_700_000_000, I: uint32(n)}}
}

// written returns the bytes of a file with one checkpoint at position 7.
func written(t *testing.T, path string) []byte {
	t.Helper()
	f := newFile(t, path)
	cp, err := f.Acquire(t.Context(), "orders", "shop.orders", "one")
	if err != nil {
		t.Fatal(err)
	}
	cp.Position, cp.Marks = position(7), map[string]int64{"a.b/1": 7, "c/2": 123456}
	if _, err := f.Save(t.Context(), cp); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestADamagedFileIsAnErrorThatSaysWhatToDoAndIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.json")
	good := written(t, path)
	edit := func(old, new string) []byte {
		b := bytes.Replace(good, []byte(old), []byte(new), 1)
		if bytes.Equal(b, good) {
			t.Fatalf("no %q in the file", old)
		}
		return b
	}
	damaged := map[string][]byte{
		"empty": {}, "zeroes": make([]byte, len(good)), "one brace": []byte("{"), "null": []byte("null"), "text": []byte("hello\n"),
		"somebody else's JSON": []byte(`{"name": "x"}`), "an empty object": []byte("{}"), "no checkpoints": []byte(`{"format":"capstan checkpoints","version":1,"sum":""}`),
		"another version":  edit(`"version": 1`, `"version": 2`),
		"another format":   edit("capstan checkpoints", "capstan something"),
		"an unknown field": edit(`"format"`, `"new": 1, "format"`),
		"a changed digit":  edit("123456", "123457"),
		"a changed name":   edit(`"orders"`, `"order2"`),
		"more at the end":  append(bytes.Clone(good), '{'),
		"twice":            append(bytes.Clone(good), good...),
	}
	for n := 0; n < len(bytes.TrimSpace(good)); n += 7 {
		damaged[fmt.Sprintf("cut off at %d", n)] = good[:n]
	}
	f := newFile(t, path)
	for name, b := range damaged {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		for what, call := range map[string]func() error{
			"Acquire": func() error { _, err := f.Acquire(t.Context(), "orders", "", "two"); return err },
			"Load":    func() error { _, err := f.Load(t.Context(), "orders"); return err },
			"List":    func() error { _, err := f.List(t.Context()); return err },
			"Set":     func() error { return f.Set(t.Context(), record.Checkpoint{Name: "x"}) },
			"Delete":  func() error { return f.Delete(t.Context(), "orders") },
		} {
			e, ok := errors.AsType[*CorruptError](call())
			if !ok {
				t.Errorf("%s: %s returns %v, want a *CorruptError", name, what, call())
				continue
			}
			if text := fmt.Sprint(e); !strings.Contains(text, path) || !strings.Contains(text, "capstan checkpoint set") {
				t.Errorf("%s: the error %q does not name the file and the way out", name, text)
			}
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, b) {
			t.Errorf("%s: the damaged file was changed", name)
		}
	}
}

func TestEntriesThatCannotBeAreNotRead(t *testing.T) {
	t.Parallel()
	good := entryOf(record.Checkpoint{Name: "a", Revision: 1, Position: position(1), Marks: map[string]int64{"x": 1}})
	for what, change := range map[string]func(*entry){
		"version":       func(e *entry) { e.Version = 2 },
		"name":          func(e *entry) { e.Name = "" },
		"position":      func(e *entry) { e.Position = "1.2" },
		"revision":      func(e *entry) { e.Revision = 0 },
		"lines":         func(e *entry) { e.Lines = -1 },
		"negative mark": func(e *entry) { e.Marks = []mark{{"x", -1}} },
		"mark twice":    func(e *entry) { e.Marks = []mark{{"x", 1}, {"x", 2}} },
		"nameless mark": func(e *entry) { e.Marks = []mark{{"", 1}} },
	} {
		e := good
		change(&e)
		body, err := json.Marshal([]entry{e})
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(fileContent{Format: fileFormat, Version: formatVersion, Sum: lockedfile.Sum(body), Checkpoints: body})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeFile(b); err == nil {
			t.Errorf("an entry with a bad %s is read", what)
		}
	}
	body, err := json.Marshal([]entry{good, good})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(fileContent{Format: fileFormat, Version: formatVersion, Sum: lockedfile.Sum(body), Checkpoints: body})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeFile(b); !errors.Is(err, errTwoEntries) {
		t.Errorf("two entries of one name: error %v", err)
	}
}

func FuzzDecodeFileNeverPanicsAndRoundTrips(f *testing.F) {
	b, err := encodeFile(map[string]record.Checkpoint{"a": {Name: "a", Revision: 3, Position: position(9), Marks: map[string]int64{"ü/$.": 5}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, err := decodeFile(b)
		if err != nil {
			return
		}
		again, err := encodeFile(entries)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeFile(again); err != nil || len(back) != len(entries) {
			t.Fatalf("what was read cannot be written and read again: %v", err)
		}
	})
}

func TestAFailureAtAnyStepOfAWriteLeavesTheOldFileOrTheNewOne(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left on device")
	for step, tc := range map[string]struct {
		fail func(*lockedfile.System)
		new  bool // the new content is in place already
	}{
		"write": {fail: func(s *lockedfile.System) {
			s.Write = func(f *os.File, b []byte) error { _, _ = f.Write(b[:len(b)/2]); return full }
		}},
		"sync":                  {fail: func(s *lockedfile.System) { s.Sync = func(*os.File) error { return full } }},
		"rename":                {fail: func(s *lockedfile.System) { s.Rename = func(string, string) error { return full } }},
		"sync of the directory": {fail: func(s *lockedfile.System) { s.SyncDir = func(string) error { return full } }, new: true},
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "c.json")
			f := newFile(t, path)
			held, err := f.Acquire(t.Context(), "orders", "", "one")
			if err != nil {
				t.Fatal(err)
			}
			held.Position = position(7)
			if held, err = f.Save(t.Context(), held); err != nil {
				t.Fatal(err)
			}
			tc.fail(&f.file.Sys)
			for n := int64(8); n < 11; n++ {
				next := held.Clone()
				next.Position = position(n)
				if _, err := f.Save(t.Context(), next); !errors.Is(err, full) {
					t.Fatalf("Save: error %v, want %v", err, full)
				}
				want := position(7)
				if tc.new {
					want = position(n)
				}
				if got, err := newFile(t, path).Load(t.Context(), "orders"); err != nil || got.Position != want {
					t.Errorf("after a failed save of %d the file holds %s, error %v", n, got.Position, err)
				}
			}
			f.file.Sys = lockedfile.RealSystem()
			next := held.Clone()
			next.Position = position(11)
			if _, err := f.Save(t.Context(), next); err != nil { // not fenced by its own predecessors
				t.Fatal(err)
			}
			if got, err := f.Load(t.Context(), "orders"); err != nil || got.Position != position(11) {
				t.Errorf("after the disk came back: %s, error %v", got.Position, err)
			}
			if left, _ := filepath.Glob(path + "*"); len(left) != 2 { // the file and its lock
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestAnotherProcessThatKeepsTheLockIsWaitedForAndThenReported(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.json")
	written(t, path)
	unlock, err := lockedfile.TryLock(path + ".lock")
	if err != nil || unlock == nil {
		t.Fatal("no lock", err)
	}
	f, err := NewFile(path, FileConfig{LockWait: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Acquire(t.Context(), "orders", "", "two"); err == nil || !strings.Contains(fmt.Sprint(err), path+".lock") {
		t.Errorf("error %v, want one that names the lock", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := newFile(t, path).Acquire(ctx, "orders", "", "two"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	if _, err := f.Load(t.Context(), "orders"); err != nil {
		t.Errorf("reading needs no lock: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, unlock)
	if _, err := newFile(t, path).Acquire(t.Context(), "orders", "", "two"); err != nil {
		t.Errorf("after the other one let go: %v", err)
	}
}

func TestALinkStaysALinkAndALinkToNothingIsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "link.json")
	written(t, real)
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	cp, err := newFile(t, link).Acquire(t.Context(), "orders", "", "two")
	if err != nil || cp.Position != position(7) {
		t.Fatalf("position %s, error %v", cp.Position, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced by a file")
	}
	if got, err := newFile(t, real).Load(t.Context(), "orders"); err != nil || got.Owner != "two" {
		t.Errorf("owner %q, error %v", got.Owner, err)
	}
	if err := os.Remove(real); err != nil {
		t.Fatal(err)
	}
	if _, err := newFile(t, link).Acquire(t.Context(), "orders", "", "two"); err == nil {
		t.Error("a link to nothing is an empty store")
	}
	if _, err := newFile(t, filepath.Join(dir, "no", "such", "dir")).Acquire(t.Context(), "a", "", "b"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if _, err := NewFile("", FileConfig{}); err == nil {
		t.Error("an empty path is accepted")
	}
	if _, err := NewFile("x", FileConfig{LockWait: -1}); err == nil {
		t.Error("a negative LockWait is accepted")
	}
}

func TestASrcThatIsNotTextHasNoMarkAndNothingIsConfused(t *testing.T) {
	t.Parallel()
	f := newFile(t, filepath.Join(t.TempDir(), "c.json"))
	cp, err := f.Acquire(t.Context(), "orders", "", "one")
	if err != nil {
		t.Fatal(err)
	}
	cp.Marks = map[string]int64{"\xff": 1, "\xfe": 2, "good": 3}
	if _, err := f.Save(t.Context(), cp); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Load(t.Context(), "orders"); err != nil || len(got.Marks) != 1 || got.Marks["good"] != 3 {
		t.Errorf("marks %v, error %v", got.Marks, err)
	}
}

const saverEnv = "CAPSTAN_TEST_SAVER_FILE"

// TestSaverProcess is no test: it is the process that the next one kills.
func TestSaverProcess(t *testing.T) {
	path := os.Getenv(saverEnv)
	if path == "" {
		t.Skip("run by TestKillingTheProcessLeavesAFileThatHoldsWhatWasAcknowledged")
	}
	f := newFile(t, path)
	cp, err := f.Acquire(t.Context(), "orders", "", "one")
	for err == nil {
		cp.Position = position(int64(cp.Position.TS.I) + 1)
		cp, err = f.Save(t.Context(), cp)
		fmt.Println("saved", cp.Position.TS.I)
	}
	t.Fatal(err)
}

func TestKillingTheProcessLeavesAFileThatHoldsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.json")
	var acknowledged uint32
	for round := range 8 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSaverProcess$", "-test.count=1")
		cmd.Env = append(os.Environ(), saverEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		goal := acknowledged + uint32(5+10*round)
		for acknowledged < goal {
			if _, err := fmt.Fscanf(out, "saved %d\n", &acknowledged); err != nil {
				t.Fatalf("the process ended after %d: %v", acknowledged, err)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		got, err := newFile(t, path).Load(t.Context(), "orders")
		if err != nil || got.Position.TS.I < acknowledged {
			t.Fatalf("%d was acknowledged, the file holds %s, error %v", acknowledged, got.Position, err)
		}
	}
}
