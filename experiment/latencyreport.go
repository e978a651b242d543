package experiment

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/experiment/results"
	"github.com/seed-12ef14e5/capstan/internal/latency"
)

// The files of a run besides those of each variant.
const (
	runFile      = "run.json"
	summaryFile  = "summary.csv"
	tableFile    = "table.md"
	figuresFile  = "figures.md"
	overviewFile = "overview.png"
)

// ErrNoSamples says that a variant has no samples to write. A run that was read back has none.
var ErrNoSamples = errors.New("no samples")

// Write puts the run into a folder, which it makes, over an earlier run:
//
//   - run.json, all but the samples; summary.csv, a line per variant; table.md and figures.md;
//   - overview.png, the percentiles of all variants;
//   - of each variant, under the name that LatencyFile gives: .csv with every sample (.csv.gz with
//     compress), .hlog, a HdrHistogram log, and .png, a picture of every sample.
//
// The same run makes the same bytes. What cannot be written keeps nothing else from being written: the
// run took minutes. The error names all that is missing.
func (r *LatencyRun) Write(dir string, compress bool) error {
	return r.write(dir, output{compress: compress})
}

// output says how the files are written.
type output struct {
	compress bool
	// width and height are of the pictures, in pixels; 0 is the default. Tests make small ones, which
	// takes a fiftieth of the time.
	width, height int
}

func (r *LatencyRun) write(dir string, how output) error {
	if err := r.checkFiles(); err != nil {
		return fmt.Errorf("write latency run: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make results folder: %w", err)
	}
	errs := []error{
		results.WriteFile(dir, runFile, func(w io.Writer) error { return results.PutJSON(w, r) }),
		results.WriteFile(dir, summaryFile, func(w io.Writer) error { return results.WriteCSV(w, summaryColumns, r.Variants) }),
		r.writeTable(dir),
		results.WriteFile(dir, figuresFile, func(w io.Writer) error { return results.PutText(w, LatencyFigures(r.Figures)) }),
	}
	sampled := false
	for i := range r.Variants {
		v := &r.Variants[i]
		if len(v.Samples) == 0 {
			errs = append(errs, fmt.Errorf("variant %s: %w", v.Name, ErrNoSamples))
			continue
		}
		sampled = true
		errs = append(errs, r.writeVariant(dir, v, how))
	}
	if sampled {
		errs = append(errs, results.WriteFile(dir, overviewFile, r.overview(how).WritePNG))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write latency run: %w", err)
	}
	return nil
}

// Print writes the table and the figures, for people.
func (r *LatencyRun) Print(w io.Writer) error {
	var summary bytes.Buffer
	if err := results.WriteCSV(&summary, summaryColumns, r.Variants); err != nil {
		return fmt.Errorf("print latency run: %w", err)
	}
	table, err := LatencyTable(&summary, r)
	if err != nil {
		return fmt.Errorf("print latency run: %w", err)
	}
	if len(r.Figures) > 0 {
		table += "\n" + LatencyFigures(r.Figures)
	}
	if err := results.PutText(w, table); err != nil {
		return fmt.Errorf("print latency run: %w", err)
	}
	return nil
}

// LatencyFile returns the name, without extension, of the files of one variant: the variant's own, with
// "_" for what is special to a file system, a shell or a link.
func LatencyFile(variant string) string { return results.FileName(variant) }

// checkFiles refuses names of variants whose files would replace each other or the run's own.
func (r *LatencyRun) checkFiles() error {
	taken := map[string]string{"run": runFile, "summary": summaryFile, "table": tableFile, "figures": figuresFile, "overview": overviewFile}
	for _, v := range r.Variants {
		name := LatencyFile(v.Name)
		if strings.Trim(name, "._") == "" {
			return fmt.Errorf("variant %q: its name makes no file name", v.Name)
		}
		folded := strings.ToLower(name) // some file systems do
		if other, ok := taken[folded]; ok {
			return fmt.Errorf("variant %q: its files would replace those of %s", v.Name, other)
		}
		taken[folded] = v.Name
	}
	return nil
}

// writeTable makes the table from the summary that was just written, as everybody else has to.
func (r *LatencyRun) writeTable(dir string) error {
	f, err := os.Open(filepath.Join(dir, summaryFile))
	if err != nil {
		return fmt.Errorf("open summary: %w", err)
	}
	defer f.Close() // only read
	table, err := LatencyTable(f, r)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return results.WriteFile(dir, tableFile, func(w io.Writer) error { return results.PutText(w, table) })
}

func (r *LatencyRun) writeVariant(dir string, v *VariantResult, how output) error {
	name := LatencyFile(v.Name)
	samples, stale := name+".csv", name+".csv.gz"
	write := func(w io.Writer) error { return latency.Write(w, v.Samples) }
	if how.compress {
		samples, stale = stale, samples
		write = func(w io.Writer) error { return writeGzip(w, v.Samples) }
	}
	// An earlier run may have left the other form, which would then be of other samples.
	if err := os.Remove(filepath.Join(dir, stale)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove samples of an earlier run: %w", err)
	}
	return errors.Join(
		results.WriteFile(dir, samples, write),
		results.WriteFile(dir, name+".hlog", func(w io.Writer) error { return latency.WriteHDR(w, v.Samples, v.length()) }),
		results.WriteFile(dir, name+".png", r.scatter(v, how).WritePNG),
	)
}

// writeGzip writes the CSV of samples compressed, without a time or a name, so that the same samples
// are the same bytes.
func writeGzip(w io.Writer, samples []latency.Sample) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := latency.Write(z, samples); err != nil {
		return err
	}
	return z.Close()
}

// length returns how long messages flowed: from the samples if they know when they were sent, else
// from the rate at which they came.
func (v *VariantResult) length() time.Duration {
	var last, sent time.Duration
	for _, s := range v.Samples {
		last, sent = max(last, s.At+s.Took), max(sent, s.At)
	}
	if sent == 0 && v.Throughput > 0 {
		return max(last, seconds(float64(len(v.Samples))/v.Throughput))
	}
	return last
}
