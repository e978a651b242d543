package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/rs/zerolog"

	"github.com/seed-12ef14e5/capstan/experiment"
	"github.com/seed-12ef14e5/capstan/experiment/replication/workload"
	"github.com/seed-12ef14e5/capstan/experiment/results"
)

// Defaults of SeedsConfig.
const (
	DefaultSeeds     = 10
	DefaultFirstSeed = 1
	// DefaultLength is about how long a workload takes where no fault holds it up.
	DefaultLength = 5 * time.Second
	// DefaultOps is how many operations a workload has in all.
	DefaultOps = 1200
	// DefaultDocuments is how many documents there are to be copied.
	DefaultDocuments = 6000
	// DefaultPatience bounds the wait for a destination that has to catch up.
	DefaultPatience = 2 * time.Minute
)

// SeedsConfig says what Seeds does. The zero value is ten runs.
type SeedsConfig struct {
	// Seeds is how many runs, First the seed of the first of them; the next ones count up.
	Seeds int
	First uint64
	// Ops, Documents and Length describe the workload; 0 means the defaults.
	Ops, Documents int
	Length         time.Duration
	// Without leaves kinds of operations out (workload.Kinds); NoFaults all faults.
	Without  []string
	NoFaults bool
	// Program is what replicates; the zero Program is `capstan replicate` of the running program.
	Program Program
	// Verify compares with package verify too; nil compares with Compare only.
	Verify Verify
	// Keep is the folder for what is left of a run that failed: the log of the replicator, the reports, the plan.
	Keep string
	// Patience: see DefaultPatience.
	Patience time.Duration
	// Before is what an earlier call with the same settings, except the number of runs, has done: its seeds are not run again, unless they were not equal.
	Before *SeedsRun
	// Pair, if not nil, are the servers to use; else there are two sets of three members, which end with Seeds.
	Pair *Pair
	// Lanes is how many runs are made at once, each lane on servers of its own; 0 means one, and so it is with a Pair.
	Lanes int
	// Logger hears of servers and faults. Note says how far it is. Done is called after each run, with all that was done: never twice at
	// once; an error ends Seeds.
	Logger zerolog.Logger
	Note   func(string)
	Done   func(*Seed, *SeedsRun) error
}

// Verify compares the sides of a route and returns what differs, and a report to keep.
type Verify func(ctx context.Context, p *Pair, r Route) (differences int64, report []byte, err error)

func (c SeedsConfig) withDefaults() SeedsConfig {
	if c.Seeds == 0 {
		c.Seeds = DefaultSeeds
	}
	if c.First == 0 {
		c.First = DefaultFirstSeed
	}
	if c.Ops == 0 {
		c.Ops = DefaultOps
	}
	if c.Documents == 0 {
		c.Documents = DefaultDocuments
	}
	if c.Length == 0 {
		c.Length = DefaultLength
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	if c.Program.Args == nil {
		c.Program = CapstanProgram(c.Program.Path)
	}
	if c.Note == nil {
		c.Note = func(string) {}
	}
	if c.Done == nil {
		c.Done = func(*Seed, *SeedsRun) error { return nil }
	}
	if c.Lanes == 0 || c.Pair != nil {
		c.Lanes = 1
	}
	return c
}

func (c SeedsConfig) validate() error {
	if c.Seeds < 0 || c.Ops < 0 || c.Documents < 0 || c.Length < 0 || c.Patience < 0 || c.Lanes < 0 {
		return errors.New("fields Seeds, Ops, Documents, Length, Patience and Lanes must not be negative")
	}
	_, err := workload.New(workload.Config{Without: c.Without})
	return err
}

// Seed is the result of one random run.
type Seed struct {
	Seed uint64
	// Equal: nothing differs, no dead letter, and the replicator ended well.
	Equal  bool
	Reason string // why not
	// Took is all of it, Catching how long it took until the destination had everything once the workload had ended and all
	// servers were whole.
	Took, Catching time.Duration
	// Documents were compared, Differences found by Compare and Verified by package verify; Letters are dead letters.
	Documents, Differences, Verified, Letters int64
	// Done, Refused and Repeats count operations of the workload.
	Done, Refused, Repeats int
	// Starts counts those of the replicator, Kills how often it was killed, in which phases; Restarts those after it found no server.
	Starts, Kills, Restarts int
	Phases                  string
	// Faults of the source and of the destination, as planned.
	SourceFaults, TargetFaults string
	Rename, Filter             bool
}

var seedColumns = []results.Column[Seed]{
	results.Col("seed", 0, func(s *Seed) any { return &s.Seed }),
	results.Col("equal", 0, func(s *Seed) any { return &s.Equal }),
	results.Col("took", 2, func(s *Seed) any { return &s.Took }),
	results.Col("catching_up", 2, func(s *Seed) any { return &s.Catching }),
	results.Col("documents", 0, func(s *Seed) any { return &s.Documents }),
	results.Col("differences", 0, func(s *Seed) any { return &s.Differences }),
	results.Col("verify_differences", 0, func(s *Seed) any { return &s.Verified }),
	results.Col("dead_letters", 0, func(s *Seed) any { return &s.Letters }),
	results.Col("operations", 0, func(s *Seed) any { return &s.Done }),
	results.Col("refused", 0, func(s *Seed) any { return &s.Refused }),
	results.Col("repeats", 0, func(s *Seed) any { return &s.Repeats }),
	results.Col("kills", 0, func(s *Seed) any { return &s.Kills }),
	results.Col("killed_while", 0, func(s *Seed) any { return &s.Phases }),
	results.Col("starts", 0, func(s *Seed) any { return &s.Starts }),
	results.Col("restarts", 0, func(s *Seed) any { return &s.Restarts }),
	results.Col("source_faults", 0, func(s *Seed) any { return &s.SourceFaults }),
	results.Col("target_faults", 0, func(s *Seed) any { return &s.TargetFaults }),
	results.Col("rename", 0, func(s *Seed) any { return &s.Rename }),
	results.Col("filter", 0, func(s *Seed) any { return &s.Filter }),
	results.Col("reason", 0, func(s *Seed) any { return &s.Reason }),
}

// SeedsRun is what Seeds found.
type SeedsRun struct {
	Machine experiment.Machine `json:"machine"`
	// Earlier are the machines, commits and commands of the calls that this one has continued.
	Earlier  []experiment.Machine `json:"earlier,omitempty"`
	Settings SeedsSettings        `json:"settings"`
	Seeds    []Seed               `json:"-"`
	// Unequal are the seeds of runs that failed.
	Unequal []uint64 `json:"unequal"`
	// Again are the seeds that were not equal in an earlier call, and were made again.
	Again []uint64 `json:"again,omitempty"`
	// Broken says which runs were made again on other servers, and why: what mongod did not survive itself.
	Broken []string `json:"broken,omitempty"`
}

// SeedsSettings say how the runs were made.
type SeedsSettings struct {
	Seeds     int      `json:"seeds"`
	First     uint64   `json:"first_seed"`
	Ops       int      `json:"operations"`
	Documents int      `json:"documents"`
	Length    string   `json:"length"`
	Without   []string `json:"without,omitempty"`
	NoFaults  bool     `json:"no_faults,omitempty"`
}

// ErrOtherSettings says that runs cannot be continued, as they were made in another way.
var ErrOtherSettings = errors.New("the earlier runs were made with other settings (seeds, operations, documents, length, faults): give the same, or another folder")

// resume takes over what an earlier call has done, and returns the seeds that were equal.
func (r *SeedsRun) resume(before *SeedsRun) (map[uint64]bool, error) {
	done := make(map[uint64]bool)
	if before == nil {
		return done, nil
	}
	was := before.Settings
	was.Seeds = r.Settings.Seeds
	if !reflect.DeepEqual(was, r.Settings) {
		return nil, ErrOtherSettings
	}
	r.Again = append(before.Again, before.Unequal...)
	r.Earlier, r.Broken = append(before.Earlier, before.Machine), before.Broken
	for _, s := range before.Seeds {
		if s.Equal {
			done[s.Seed] = true
			r.Seeds = append(r.Seeds, s)
		}
	}
	return done, nil
}

// Write puts seeds.csv and seeds.json into a folder, which it makes.
func (r *SeedsRun) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make results folder: %w", err)
	}
	return errors.Join(
		results.WriteFile(dir, seedsFile, func(w io.Writer) error { return results.WriteCSV(w, seedColumns, r.Seeds) }),
		results.WriteFile(dir, seedsRunFile, func(w io.Writer) error { return results.PutJSON(w, r) }))
}

// The files of Seeds.
const (
	seedsFile    = "seeds.csv"
	seedsRunFile = "seeds.json"
)

// keep puts what is left of a run that failed into a folder of its own and returns its path.
func (c SeedsConfig) keep(seed uint64, files map[string][]byte) (string, error) {
	if c.Keep == "" {
		return "", nil
	}
	dir := filepath.Join(c.Keep, fmt.Sprintf("seed-%d", seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	var errs []error
	for name, content := range files {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	return dir, errors.Join(errs...)
}

// PrintSeed writes a line about a run for people.
func PrintSeed(w io.Writer, s *Seed) error {
	verdict := "equal"
	if !s.Equal {
		verdict = "NOT EQUAL: " + s.Reason
	}
	_, err := fmt.Fprintf(w, "seed %-4d %5.1fs  %d documents, %d operations, capstan killed %d× (%s)  source: %s  target: %s  %s\n", s.Seed, s.Took.Seconds(),
		s.Documents, s.Done, s.Kills, s.Phases, s.SourceFaults, s.TargetFaults, verdict)
	return err
}
