package experiment

import "io"

// ReadLatencyRun reads back what Write put into a folder, without the samples.
func ReadLatencyRun(dir string) (*LatencyRun, error) { return nil, errNotYet }

// CompareLatency writes the ratios of two runs, b divided by a, for people.
func CompareLatency(w io.Writer, a, b *LatencyRun) error { return errNotYet }
