package history

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestSavedEventsAreLoadedAsTheyWere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.ndjson")
	rapid.Check(t, func(t *rapid.T) {
		events := drawRun(t)
		if err := Save(path, events); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		if err != nil || !slices.Equal(got, events) {
			t.Fatalf("%v: %d events, want %d", err, len(got), len(events))
		}
	})
}

// Kill -9 may leave half a line at the end of a file at any byte: what was whole is still read, and a
// successor writes on behind it.
func TestAFileOfAKilledProcessIsReadAndContinued(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.ndjson")
	write := func(seqs ...int64) {
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, seq := range seqs {
			f.Reader("c").Delivered(Key{"p", seq})
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(1, 2, 3)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range whole {
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		before, err := Load(path)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		write(9)
		after, err := Load(path)
		if err != nil || len(after) != len(before)+1 || after[len(after)-1].Key.Seq != 9 {
			t.Fatalf("cut at %d: %v: %v", cut, err, after)
		}
	}
}

func TestABrokenLineInTheMiddleIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(path, []byte("{\"event\":\"sent\",\"at\":1}\n{\"eve\n{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Fatal("no error")
	}
}

func TestARecorderKeepsEveryEventOfManyGoroutines(t *testing.T) {
	r := &Recorder{}
	var wg sync.WaitGroup
	for _, src := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			for seq := range int64(chunkSize) {
				r.Sent(Key{src, seq + 1})
			}
		})
	}
	wg.Wait()
	last := map[string]int64{}
	for _, e := range r.Events() {
		if e.Key.Seq != last[e.Key.Src]+1 {
			t.Fatalf("%v after %d", e.Key, last[e.Key.Src])
		}
		last[e.Key.Src]++
	}
	if r.Len() != 4*chunkSize || len(last) != 4 {
		t.Fatal(r.Len(), last)
	}
}
