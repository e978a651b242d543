package verify_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// TestWhateverAKilledRunLeftIsGoneOnFrom also cites I9: from each state of the file that a kill -9 could have left, the
// next run finds exactly what differs, and counts every document once.
func TestWhateverAKilledRunLeftIsGoneOnFrom(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	want, equal := plant(t, rand.New(rand.NewPCG(seed, 0)), 5000, s.source.Collection("c"), s.target.Collection("c"), true, false)
	cfg := s.config()
	cfg.Progress = filepath.Join(t.TempDir(), "progress")
	cfg.Range, cfg.Window, cfg.Workers, cfg.MaxDifferences = 700, 5000, 1, 1_000_000
	var left [][]byte
	watched := cfg
	watched.Hooks.OnWindow = func(record.Namespace, int64, int64) {
		time.Sleep(30 * time.Millisecond) // so that the file is written several times
		now, err := os.ReadFile(cfg.Progress)
		if err != nil {
			t.Error(err)
		}
		if len(left) == 0 || !bytes.Equal(now, left[len(left)-1]) {
			left = append(left, now)
		}
	}
	expect(t, s.run(t, watched), want...)
	if len(left) < 3 {
		t.Fatalf("the file was written %d times", len(left))
	}
	for i, state := range left {
		do(t, os.WriteFile(cfg.Progress, state, 0o600))
		rep := s.run(t, cfg)
		expect(t, rep, want...)
		if n := rep.Namespaces[0]; n.Equal != equal {
			t.Errorf("state %d of %d: %d are equal, want %d", i, len(left), n.Equal, equal)
		}
	}
}
