// Package latency keeps samples of how long messages took: as a CSV file, as percentiles, and split
// by an outage into before, during and after.
package latency

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Header is the first line of a latency CSV: the index of the message and its latency in seconds.
const Header = "loc,val"

// ErrFormat says that a file is not a latency CSV.
var ErrFormat = errors.New("not a latency CSV (want the header " + Header + ", then an index and seconds a line)")

// Sample is the latency of one message.
type Sample struct {
	// Loc is the message's index, from 0.
	Loc int64
	// Took is its latency. It is written in seconds with nanoseconds.
	Took time.Duration
	// At is when the message was sent, as the time since the run began; it is not in the CSV and is 0
	// when a sample was read from one.
	At time.Duration
}

// Writer writes samples as CSV while they arrive. Not safe for concurrent use.
type Writer struct {
	w   *bufio.Writer
	buf []byte
	n   int64
	err error
}

// NewWriter returns a Writer to w. The header is written with the first sample or by Flush.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriter(w)} }

// Add writes a sample under the next index. It returns the first error of any write so far.
func (w *Writer) Add(took time.Duration) error { return w.Put(w.n, took) }

// Put writes a sample under the index loc.
func (w *Writer) Put(loc int64, took time.Duration) error {
	w.header()
	w.n = loc + 1
	w.buf = strconv.AppendInt(w.buf[:0], loc, 10)
	w.buf = append(w.buf, ',')
	w.buf = strconv.AppendFloat(w.buf, took.Seconds(), 'f', 9, 64)
	return w.write(append(w.buf, '\n'))
}

// Flush writes what is buffered; without a sample, the header alone.
func (w *Writer) Flush() error {
	w.header()
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

func (w *Writer) header() {
	if w.buf == nil {
		w.buf = make([]byte, 0, 64)
		_ = w.write([]byte(Header + "\n")) // kept in w.err
	}
}

func (w *Writer) write(b []byte) error {
	if w.err == nil {
		_, w.err = w.w.Write(b)
	}
	return w.err
}

// Write writes all samples to w as CSV, with their own indexes.
func Write(w io.Writer, samples []Sample) error {
	cw := NewWriter(w)
	for _, s := range samples {
		if err := cw.Put(s.Loc, s.Took); err != nil {
			return fmt.Errorf("write latency CSV: %w", err)
		}
	}
	if err := cw.Flush(); err != nil {
		return fmt.Errorf("write latency CSV: %w", err)
	}
	return nil
}

// Read reads a latency CSV. Errors wrap ErrFormat and name the line, or are those of r.
func Read(r io.Reader) ([]Sample, error) {
	cr := csv.NewReader(r)
	cr.FieldsPerRecord = 2
	cr.ReuseRecord = true
	head, err := cr.Read()
	if err != nil || head[0]+","+head[1] != Header {
		return nil, fmt.Errorf("read latency CSV: line 1: %w", errors.Join(ErrFormat, err))
	}
	var samples []Sample
	for n := 2; ; n++ {
		row, err := cr.Read()
		if errors.Is(err, io.EOF) {
			return samples, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read latency CSV: line %d: %w", n, errors.Join(ErrFormat, err))
		}
		loc, err := strconv.ParseInt(row[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read latency CSV: line %d: %w: %w", n, ErrFormat, err)
		}
		secs, err := strconv.ParseFloat(row[1], 64)
		if err != nil || !(secs > -1e9 && secs < 1e9) { // also refuses NaN
			return nil, fmt.Errorf("read latency CSV: line %d: %w: %q is not a number of seconds", n, ErrFormat, row[1])
		}
		samples = append(samples, Sample{Loc: loc, Took: time.Duration(secs*1e9 + half(secs))})
	}
}

// half rounds to the nearest nanosecond when a float is cut to an integer.
func half(x float64) float64 {
	if x < 0 {
		return -0.5
	}
	return 0.5
}
