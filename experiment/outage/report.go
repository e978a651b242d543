package outage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seed-12ef14e5/capstan/experiment"
	"github.com/seed-12ef14e5/capstan/experiment/results"
)

// The files of a run besides the timelines.
const (
	runFile     = "run.json"
	trialsFile  = "trials.csv"
	summaryFile = "summary.csv"
	tableFile   = "table.md"
)

// timelines matches the files of timelines.
const timelines = "timeline-*"

// ErrRun says that a run.json is not what Write wrote.
var ErrRun = errors.New("not the result of a failover run")

// runJSON is run.json: all but the trials, which are in trials.csv, and what they amount to.
type runJSON struct {
	Machine  experiment.Machine `json:"machine"`
	Settings Settings           `json:"settings"`
	Skipped  map[string]string  `json:"skipped,omitempty"`
	Cost     *Cost              `json:"cost,omitempty"`
	// Bounds are for other programs: they are made anew from the trials.
	Bounds []Bound `json:"bounds"`
}

// Write puts the run into a folder, which it makes, over an earlier run:
//
//   - trials.csv, a line per trial, controls included; summary.csv, a line per fault and profile;
//   - run.json, where and with what it ran; table.md, the tables and the promises;
//   - timeline-FAULT-PROFILE.csv and .png, what happened in the trial whose outage is the median one. A
//     fault whose trials have lost their events, as those that were read back, has none.
//
// The same run makes the same bytes. What cannot be written keeps nothing else from being written. The
// error names all that is missing.
func (r *Run) Write(dir string) error { return r.write(dir, 0, 0) }

// write is Write with pictures of another size: tests make small ones, which take a part of the time.
func (r *Run) write(dir string, width, height int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make results folder: %w", err)
	}
	errs := []error{
		results.WriteFile(dir, runFile, func(w io.Writer) error {
			return results.PutJSON(w, runJSON{r.Machine, r.Settings, r.Skipped, r.Cost, r.Bounds()})
		}),
		results.WriteFile(dir, trialsFile, func(w io.Writer) error { return writeTrials(w, r.Trials) }),
		results.WriteFile(dir, summaryFile, func(w io.Writer) error { return results.WriteCSV(w, summaryColumns, r.Summaries()) }),
		r.writeTable(dir),
	}
	cleared := false
	for _, g := range r.groups() {
		t := typical(g)
		if t == nil {
			continue
		}
		if !cleared { // pictures of an earlier run's faults would pass for this one's
			errs, cleared = append(errs, removeTimelines(dir)), true
		}
		name := "timeline-" + results.FileName(t.Fault+"-"+t.Profile)
		errs = append(errs,
			results.WriteFile(dir, name+".csv", t.writeTimeline),
			results.WriteFile(dir, name+".png", t.picture(r, len(g), width, height).WritePNG))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write failover run: %w", err)
	}
	return nil
}

func removeTimelines(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, timelines))
	if err != nil {
		return fmt.Errorf("find timelines of an earlier run: %w", err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove timeline of an earlier run: %w", err)
		}
	}
	return nil
}

// writeTable makes the tables from the summary that was just written, as everybody else has to.
func (r *Run) writeTable(dir string) error {
	text, err := tables(dir, r)
	if err != nil {
		return err
	}
	return results.WriteFile(dir, tableFile, func(w io.Writer) error { return results.PutText(w, text) })
}

func tables(dir string, r *Run) (string, error) {
	f, err := os.Open(filepath.Join(dir, summaryFile))
	if err != nil {
		return "", fmt.Errorf("open summary: %w", err)
	}
	defer f.Close() // only read
	table, err := Table(f, r)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Name(), err)
	}
	return table + "\n" + BoundsTable(r.Bounds()), nil
}

// ReadRun reads back what Write put into a folder, without the events of the trials, and makes the
// tables of it (as in table.md) from summary.csv. The error wraps fs.ErrNotExist if there is no run,
// ErrRun, ErrTrials or ErrSummary if it is damaged.
func ReadRun(dir string) (run *Run, table string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, runFile))
	if err != nil {
		return nil, "", fmt.Errorf("read failover run: %w", err)
	}
	var j runJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, "", fmt.Errorf("read failover run: %s: %w: %w", filepath.Join(dir, runFile), ErrRun, err)
	}
	f, err := os.Open(filepath.Join(dir, trialsFile))
	if err != nil {
		return nil, "", fmt.Errorf("read failover run: %w", err)
	}
	defer f.Close() // only read
	r := &Run{Machine: j.Machine, Settings: j.Settings, Skipped: j.Skipped, Cost: j.Cost}
	if r.Trials, err = readTrials(f); err != nil {
		return nil, "", fmt.Errorf("%s: %w", f.Name(), err)
	}
	if table, err = tables(dir, r); err != nil {
		return nil, "", fmt.Errorf("read failover run: %w", err)
	}
	return r, table, nil
}
