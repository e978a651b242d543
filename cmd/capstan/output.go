package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

// The forms of output.
const (
	outputText = "text"
	outputJSON = "json"
	outputRaw  = "raw"
)

// format appends one message to dst, with its newline.
type format func(dst []byte, r record.Record) ([]byte, error)

// newFormat returns the form of output by its name. canonical is for JSON values: Extended JSON in
// its canonical form, which keeps every type, instead of the relaxed one, which reads better.
func newFormat(name string, canonical bool) (format, error) {
	switch name {
	case outputText:
		return func(dst []byte, r record.Record) ([]byte, error) { return appendTextLine(dst, r, canonical) }, nil
	case outputJSON:
		return func(dst []byte, r record.Record) ([]byte, error) { return appendJSONLine(dst, r, canonical) }, nil
	case outputRaw:
		return func(dst []byte, r record.Record) ([]byte, error) { return appendRawLine(dst, r, canonical) }, nil
	}
	return nil, usageError("--output is text, json or raw, not %q", name)
}

// appendJSONLine writes the whole document with its position in front.
func appendJSONLine(dst []byte, r record.Record, canonical bool) ([]byte, error) {
	doc, err := bson.MarshalExtJSON(r.Raw, canonical, false)
	if err != nil {
		return dst, fmt.Errorf("format message %s: %w", r.Position, err)
	}
	dst = append(dst, `{"position":`...)
	dst = strconv.AppendQuote(dst, r.Position.String()) // digits, letters, "-._~": no escapes
	if inner := bytes.TrimSpace(doc[1:]); inner[0] != '}' {
		dst = append(dst, ',')
	}
	return append(append(dst, doc[1:]...), '\n'), nil
}

// appendRawLine writes the data only: text as it is, everything else as JSON.
func appendRawLine(dst []byte, r record.Record, canonical bool) ([]byte, error) {
	if r.Kind == record.KindChange {
		return appendChangeRaw(dst, r, canonical)
	}
	v := data(r)
	if s, ok := v.StringValueOK(); ok {
		return append(append(dst, s...), '\n'), nil
	}
	dst, err := appendValue(dst, v, canonical)
	return append(dst, '\n'), err
}

// appendTextLine writes time, subject and data, separated by tabs.
func appendTextLine(dst []byte, r record.Record, canonical bool) ([]byte, error) {
	if r.Kind == record.KindChange {
		return appendChangeLine(dst, r, canonical)
	}
	dst = appendTime(dst, r)
	dst = append(dst, '\t')
	if r.Subject == "" {
		dst = append(dst, '-')
	} else {
		dst = appendVisible(dst, r.Subject)
	}
	dst = append(dst, '\t')
	v := data(r)
	if s, ok := v.StringValueOK(); ok {
		return append(appendVisible(dst, s), '\n'), nil
	}
	dst, err := appendValue(dst, v, canonical)
	return append(dst, '\n'), err
}

// data is the message's payload; of other programs' documents it is all.
func data(r record.Record) bson.RawValue {
	if v := r.Data(); v.Type != 0 || r.Ours() {
		return v
	}
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: r.Raw}
}

func appendTime(dst []byte, r record.Record) []byte {
	switch {
	case r.Time != 0:
		return time.UnixMicro(r.Time).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
	case !r.Position.TS.IsZero():
		return time.Unix(int64(r.Position.TS.T), 0).UTC().AppendFormat(dst, time.RFC3339)
	}
	return append(dst, '-')
}

// appendVisible writes text for people on one line: what is in it cannot move the cursor of a
// terminal or forge a second line.
func appendVisible(dst []byte, s string) []byte {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) && r != '\t' {
			return strconv.AppendQuote(dst, s)
		}
	}
	return append(dst, s...)
}

// appendValue writes any value as Extended JSON.
func appendValue(dst []byte, v bson.RawValue, canonical bool) ([]byte, error) {
	if v.Type == 0 {
		return append(dst, "null"...), nil // the message has no data
	}
	doc, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v}}, canonical, false)
	if err != nil {
		return dst, fmt.Errorf("format data: %w", err)
	}
	// {"v":VALUE}
	return append(dst, doc[len(`{"v":`):len(doc)-1]...), nil
}

// recordWriter writes messages to standard output: through a buffer, which the tail flushes when
// nothing is waiting, and message by message on a terminal.
type recordWriter struct {
	out      *bufio.Writer
	format   format
	scratch  []byte
	terminal bool
	failed   bool // what was written may not have left the process
}

// outputBuffer is the size of the buffer before standard output.
const outputBuffer = 64 << 10

func newRecordWriter(w io.Writer, f format) *recordWriter {
	return &recordWriter{out: bufio.NewWriterSize(w, outputBuffer), format: f, terminal: isTerminal(w)}
}

// write formats one message. An error is a *stdoutError, or one of formatting.
func (w *recordWriter) write(r record.Record) error {
	var err error
	if w.scratch, err = w.format(w.scratch[:0], r); err != nil {
		return err
	}
	if _, err = w.out.Write(w.scratch); err != nil {
		w.failed = true
		return &stdoutError{err}
	}
	if w.terminal {
		return w.flush()
	}
	return nil
}

// flush writes out what is buffered. After it, everything handed to write is out of the process.
func (w *recordWriter) flush() error {
	err := w.out.Flush()
	w.failed = w.failed || err != nil
	return stdoutErr(err)
}
