package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/record"
)

const (
	// readBuffer is the buffer of the input reader; a longer line grows its own.
	readBuffer = 256 << 10
	// maxLine bounds a line in memory. The message around it must fit record.MaxDocumentSize too;
	// the producer looks at that.
	maxLine = record.MaxDocumentSize
	// A chunk is handed over when it has this many lines or bytes, or when the input pauses.
	chunkLines = 256
	chunkBytes = 1 << 20
)

// line is one line of the input.
type line struct {
	// number counts from 1 over all files, name and inFile say where it is for people.
	number, inFile int64
	name           string
	// end is the number of bytes up to and with this line, over all files.
	end  int64
	text []byte
	// err says why the line has no text: it is too long.
	err error
}

// where names the line for people.
func (l line) where() string { return fmt.Sprintf("%s: line %d", l.name, l.inFile) }

// markEvery is the number of lines between two that may become the offset of a durable run.
const markEvery = 500

// lineReader reads files, or standard input, as one sequence of lines in bounded memory. A file that
// does not end in a newline ends its last line nevertheless. Not safe for concurrent use.
type lineReader struct {
	files  []string
	stdin  io.Reader
	open   io.ReadCloser
	name   string
	in     *bufio.Reader
	number int64
	inFile int64
	bytes  int64
	ended  bool      // the last line ended in a newline
	sum    hash.Hash // nil unless the run is durable
	// onMark, if not nil, gets every markEvery-th line and the last, if that ends in a newline: a line
	// that is still being written is no place to go on from.
	onMark func(mark)
}

// newLineReader reads stdin if there are no files; "-" among the files is stdin too.
func newLineReader(files []string, stdin io.Reader, durable bool) *lineReader {
	if len(files) == 0 {
		files = []string{"-"}
	}
	r := &lineReader{files: files, stdin: stdin}
	if durable {
		r.sum = sha256.New()
	}
	return r
}

// next returns the next line, whose text is the caller's to keep. io.EOF ends the input; any other
// error is one of reading.
func (r *lineReader) next() (line, error) {
	for {
		if r.in == nil {
			if len(r.files) == 0 {
				if r.ended {
					r.mark()
				}
				return line{}, io.EOF
			}
			if err := r.nextFile(); err != nil {
				return line{}, err
			}
		}
		l, err := r.readLine()
		if err == nil {
			return l, nil
		}
		_ = r.close()
		if !errors.Is(err, io.EOF) {
			return line{}, fmt.Errorf("read %s: %w", r.name, plainError(err))
		}
	}
}

func (r *lineReader) nextFile() error {
	r.name, r.files, r.inFile = r.files[0], r.files[1:], 0
	var from io.Reader = r.stdin
	if r.name == "-" {
		r.name = "standard input"
	} else {
		f, err := os.Open(r.name)
		if err != nil {
			return fmt.Errorf("open %s: %w", r.name, plainError(err))
		}
		r.open, from = f, f
	}
	r.in = bufio.NewReaderSize(from, readBuffer)
	return nil
}

// plainError drops what the operating system's error repeats: the verb and the path.
func plainError(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// close closes the file that is open. Idempotent.
func (r *lineReader) close() error {
	r.in = nil
	if r.open == nil {
		return nil
	}
	f := r.open
	r.open = nil
	return f.Close()
}

// gzipMagic begins every gzip file; no UTF-8 text and no JSON does.
var gzipMagic = []byte{0x1f, 0x8b}

var errGzip = errors.New("looks gzip-compressed; use zcat FILE | capstan produce …")

// readLine returns io.EOF only if there is not one byte more.
func (r *lineReader) readLine() (line, error) {
	var text []byte
	length, tooLong := 0, false
	for {
		part, err := r.in.ReadSlice('\n')
		if r.inFile == 0 && length == 0 && bytes.HasPrefix(part, gzipMagic) {
			return line{}, errGzip
		}
		r.bytes += int64(len(part))
		length += len(part)
		if r.sum != nil {
			_, _ = r.sum.Write(part) // a hash never fails
		}
		if tooLong = tooLong || len(text)+len(part) > maxLine+1; tooLong {
			text = nil // read on to the end of the line, without keeping it
		} else {
			text = append(text, part...)
		}
		if err == nil {
			length--
			r.ended = true
			break
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) && length > 0 {
			r.ended = false
			break
		}
		return line{}, err
	}
	r.number++
	r.inFile++
	l := line{number: r.number, inFile: r.inFile, name: r.name, end: r.bytes, text: bytes.TrimSuffix(text, []byte("\n"))}
	if tooLong {
		l.err = fmt.Errorf("%d bytes long, more than the %d that a message can hold", length, maxLine)
	}
	if r.ended && r.number%markEvery == 0 {
		r.mark()
	}
	return l, nil
}

// mark offers the end of the line that was read last as an offset.
func (r *lineReader) mark() {
	if r.onMark != nil && r.sum != nil {
		r.onMark(mark{lines: r.number, bytes: r.bytes, sum: hex.EncodeToString(r.sum.Sum(nil))})
	}
}

// idle reports whether the next read would wait for the input.
func (r *lineReader) idle() bool { return r.in == nil || r.in.Buffered() == 0 }

// chunk is a run of lines; err is why the input ended (nil: it goes on, io.EOF: all read).
type chunk struct {
	lines []line
	err   error
}

// chunks reads in a goroutine of its own, because a read of standard input cannot be cancelled: the
// goroutine that is stuck in one ends with the process. The channel is closed behind the last chunk.
func (r *lineReader) chunks(ctx context.Context) <-chan chunk {
	out := make(chan chunk, 2) // 2: one being sent, one ready
	go func() {
		defer close(out)
		defer func() { _ = r.close() }()
		for {
			c := r.chunk()
			select {
			case out <- c:
			case <-ctx.Done():
				return
			}
			if c.err != nil {
				return
			}
		}
	}()
	return out
}

func (r *lineReader) chunk() chunk {
	c := chunk{lines: make([]line, 0, chunkLines)}
	size := 0
	for len(c.lines) < chunkLines && size < chunkBytes {
		l, err := r.next()
		if err != nil {
			c.err = err
			return c
		}
		c.lines = append(c.lines, l)
		size += len(l.text)
		if r.idle() {
			return c // what is there must not wait for what comes
		}
	}
	return c
}

// The forms of input.
const (
	inputAuto    = "auto"
	inputLines   = "lines"
	inputNDJSON  = "ndjson"
	inputExtJSON = "extjson"
)

// errBlank says that a line holds no value.
var errBlank = errors.New("blank line")

// decodeLine turns a line into a message's data. errBlank: a blank line between JSON values.
func decodeLine(form string, text []byte) (bson.RawValue, error) {
	if form == inputLines {
		return textToBSON(text)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return bson.RawValue{}, errBlank
	}
	// First: the JSON parsers would replace the bad bytes, and so store something else.
	if err := checkUTF8(text); err != nil {
		return bson.RawValue{}, err
	}
	if form == inputExtJSON {
		return extJSONToBSON(text)
	}
	return jsonToBSON(text)
}

// guessForm looks at the first line: a JSON object means NDJSON, or Extended JSON
// if one of its keys is a type of that ("$oid"); anything else, also a number, is text.
func guessForm(text []byte) string {
	v, err := jsonToBSON(text)
	if err != nil || v.Type != bson.TypeEmbeddedDocument {
		return inputLines
	}
	if doc, ok := v.DocumentOK(); ok && hasTypeWrapper(doc) {
		return inputExtJSON
	}
	return inputNDJSON
}

// typeWrappers are the keys with which Extended JSON v2 writes the types that JSON has not.
var typeWrappers = map[string]bool{
	"$oid": true, "$date": true, "$numberInt": true, "$numberLong": true, "$numberDouble": true, "$numberDecimal": true,
	"$binary": true, "$uuid": true, "$timestamp": true, "$regularExpression": true, "$minKey": true, "$maxKey": true,
	"$symbol": true, "$code": true, "$dbPointer": true, "$undefined": true,
}

func hasTypeWrapper(doc bson.Raw) bool {
	elems, err := doc.Elements()
	if err != nil {
		return false
	}
	for _, e := range elems {
		if typeWrappers[e.Key()] {
			return true
		}
		v := e.Value()
		if sub, ok := v.DocumentOK(); ok && hasTypeWrapper(sub) {
			return true
		}
		if arr, ok := v.ArrayOK(); ok && hasTypeWrapper(bson.Raw(arr)) {
			return true
		}
	}
	return false
}
