package replication

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

func TestASeedDecidesThePlan(t *testing.T) {
	t.Parallel()
	killed, late := 0, 0
	for seed := range uint64(100) {
		p, q := PlanOf(seed, time.Second), PlanOf(seed, time.Second)
		for _, side := range []Side{Capstan, Source, Target} {
			if p.Text(side) != q.Text(side) {
				t.Fatalf("seed %d: %v and %v", seed, p, q)
			}
		}
		if p.Text(Capstan) == "-" {
			t.Errorf("seed %d: capstan is not killed", seed)
		}
		for _, h := range p.Hits {
			if h.Copied && h.Side == Capstan {
				late++
			}
		}
		if p.Text(Source) != "-" && p.Text(Target) != "-" {
			killed++
		}
	}
	if late < 60 {
		t.Errorf("capstan is killed only %d times after its copy", late)
	}
	if killed < 30 {
		t.Errorf("only %d of 100 seeds break both sides", killed)
	}
}

// A judge that finds nothing wrong with a program that is wrong judges nothing.
func TestTheControlIsFoundUnequal(t *testing.T) {
	t.Parallel()
	mongotest.Mongod(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := NaiveProgram("env", naiveEnv+"=1", self)
	run, err := Seeds(t.Context(), SeedsConfig{Seeds: 1, First: 2, Ops: 400, Documents: 900, Length: 2 * time.Second, Program: program, Keep: dir,
		Patience: 20 * time.Second, Done: func(s *Seed, _ *SeedsRun) error { t.Logf("%+v", *s); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	s := run.Seeds[0]
	if s.Equal || s.Done < 100 || s.Kills == 0 {
		t.Errorf("%+v", s)
	}
	for _, name := range []string{"plan.txt", "capstan.log"} {
		if b, err := os.ReadFile(filepath.Join(dir, "seed-2", name)); err != nil || len(b) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	if err := run.Write(dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, seedsFile)); err != nil || !strings.Contains(string(b), "\n2,false,") {
		t.Errorf("%s, %v", b, err)
	}
}
