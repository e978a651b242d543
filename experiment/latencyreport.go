package experiment

import (
	"errors"
	"io"
)

var errNotYet = errors.New("not written yet")

// Write puts the run into a folder, which it makes: samples, summary, histogram logs, tables, pictures.
// With compress, the CSVs of samples are gzip files.
func (r *LatencyRun) Write(dir string, compress bool) error { return errNotYet }

// Print writes the table and the figures, for people.
func (r *LatencyRun) Print(w io.Writer) error { return errNotYet }

// LatencyFile returns the name, without extension, of the files of one variant's samples.
func LatencyFile(variant string) string { return variant }

// LatencyTable returns the table of a run as markdown. Its figures are those of summary.csv; run, which
// may be nil, says what are sweeps and where it ran.
func LatencyTable(summary io.Reader, run *LatencyRun) (string, error) { return "", errNotYet }

// LatencyFigures returns the figures with their targets as a markdown table.
func LatencyFigures(figures []Figure) string { return "" }
