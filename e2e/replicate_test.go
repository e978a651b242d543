package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/experiment/replication"
	"github.com/seed-12ef14e5/capstan/internal/mongotest"
)

// Random changes under random faults, with capstan killed in the copy and later: what comes of them is equal (I2, I7, I9).
// CAPSTAN_E2E_SEED is the first seed of others than usual.
func TestReplicasAreEqualAfterRandomChangesAndFaults(t *testing.T) {
	t.Parallel()
	mongotest.Mongod(t)
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cfg := replication.SeedsConfig{Seeds: sized(10, 30), Ops: 800, Documents: 3000, Length: 3 * time.Second, Program: replication.CapstanProgram(bin),
		Verify: replication.VerifyWithPackage, Keep: filepath.Join(os.TempDir(), "capstan-e2e-seeds"), Patience: patience}
	if text := os.Getenv("CAPSTAN_E2E_SEED"); text != "" {
		if cfg.First, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	kills := 0
	cfg.Done = func(s *replication.Seed, _ *replication.SeedsRun) error {
		var line strings.Builder
		_ = replication.PrintSeed(&line, s) // a Builder never fails
		t.Log(strings.TrimSpace(line.String()))
		kills += s.Kills
		if !s.Equal {
			t.Errorf("seed %d: capstan bench replicate --seeds 1 --first-seed %d --operations %d --documents %d --length %s repeats it", s.Seed, s.Seed, cfg.Ops, cfg.Documents, cfg.Length)
		}
		return nil
	}
	if _, err := replication.Seeds(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if kills < cfg.Seeds {
		t.Errorf("capstan was killed %d times in %d runs", kills, cfg.Seeds)
	}
}

// The benchmark in small: two rounds, as one leaves something behind that the next one meets.
func TestTheReplicationBenchmarkRunsInRounds(t *testing.T) {
	t.Parallel()
	mongotest.Mongod(t)
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	cmd := exec.CommandContext(within(t), bin, "bench", "replicate", "--rounds", "2", "--small", "2000", "--large", "500", "--inserts", "500", "--updates", "500",
		"--only", "copy-small,copy-large,live-inserts,live-updates,verify", "--out", out)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	b, err := os.ReadFile(filepath.Join(out, "measurements.csv"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\ncopy-small,capstan,2,2000,", "\ncopy-large,naive-4,2,500,", "\nlive-inserts,naive-replace,2,", "\nlive-updates,naive-set,2,", "\nverify,capstan,"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no line %q in\n%s", want, b)
		}
	}
}

func TestTheReplicationDemoPasses(t *testing.T) {
	t.Parallel()
	mongotest.Mongod(t)
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	r, err := replication.Demo(t.Context(), replication.DemoConfig{Data: filepath.Join("..", "..", "shared", "data"), Flights: 5000, Capstan: bin, Note: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Equal || r.Letters > 0 || r.Changes < 100 || r.Late < 10 {
		t.Errorf("%+v", r)
	}
}
