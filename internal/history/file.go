package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// line is an event as it stands in a file, one JSON object a line.
type line struct {
	Kind   Kind   `json:"event"`
	Reader string `json:"reader,omitempty"`
	Src    string `json:"src,omitempty"`
	Seq    int64  `json:"seq,omitempty"`
	To     int64  `json:"to,omitempty"`
	Exact  bool   `json:"exact,omitempty"`
	At     int64  `json:"at"`
}

func lineOf(e Event) line {
	return line{Kind: e.Kind, Reader: e.Reader, Src: e.Key.Src, Seq: e.Key.Seq, To: e.To, Exact: e.Exact, At: e.At}
}

func (l line) event() Event {
	return Event{Kind: l.Kind, Reader: l.Reader, Key: Key{Src: l.Src, Seq: l.Seq}, To: l.To, Exact: l.Exact, At: l.At}
}

// File appends events to a file, each by one write of its own, so that what a process recorded before
// kill -9 is in the file. (It does not sync: it is meant to survive the process, not the machine.)
// Safe for concurrent use; each process needs a file of its own.
type File struct {
	mu  sync.Mutex
	f   *os.File
	err error // the first error of a write; Add has none to return
}

// OpenFile opens path for appending, and creates it if it is missing. Half a line at its end, left by
// a killed predecessor, is cut off. The caller closes it.
func OpenFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open event file: %w", err)
	}
	if err := cutTornLine(f); err != nil {
		return nil, errors.Join(fmt.Errorf("open event file %s: %w", path, err), f.Close())
	}
	return &File{f: f}, nil
}

// cutTornLine truncates f behind its last newline and seeks to its end.
func cutTornLine(f *os.File) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	const most = 4096 // longer than any line that is written here
	at := max(0, size-most)
	tail := make([]byte, size-at)
	if _, err := f.ReadAt(tail, at); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	end := at + int64(bytes.LastIndexByte(tail, '\n')+1)
	if end == size {
		return nil
	}
	if err := f.Truncate(end); err != nil {
		return err
	}
	_, err = f.Seek(end, io.SeekStart)
	return err
}

// Add writes e; where e.At is 0 it becomes now. The first error is returned by Close, and nothing is
// written after it.
func (f *File) Add(e Event) {
	if e.At == 0 {
		e.At = time.Now().UnixMicro()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	b, err := json.Marshal(lineOf(e))
	if err == nil {
		_, err = f.f.Write(append(b, '\n'))
	}
	f.err = err
}

// Reader returns a recorder for what the reader of that name sees.
func (f *File) Reader(name string) *Reader { return &Reader{name: name, to: f} }

// Close closes the file and returns the first error of any Add.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.err, f.f.Close())
}

// Save writes events to path, replacing what is there.
func Save(path string, events []Event) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("save events: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<16)
	enc := json.NewEncoder(w)
	for _, e := range events {
		if err := enc.Encode(lineOf(e)); err != nil {
			return fmt.Errorf("save events: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("save events: %w", err)
	}
	return nil
}

// Load reads the events of a file in order. A last line without a newline is what a killed process
// left of its last event: it is ignored. Any other line that is no event is an error with its number.
func Load(path string) ([]Event, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load events: %w", err)
	}
	var events []Event
	for n := 1; ; n++ {
		text, rest, ok := bytes.Cut(b, []byte("\n"))
		if !ok {
			return events, nil
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("load events %s: line %d: %w", path, n, err)
		}
		events, b = append(events, l.event()), rest
	}
}
