package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func TestNumbersLoseNoDigit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`1`:                    `{"$numberInt":"1"}`,
		`-2147483648`:          `{"$numberInt":"-2147483648"}`,
		`2147483648`:           `{"$numberLong":"2147483648"}`,
		`9223372036854775807`:  `{"$numberLong":"9223372036854775807"}`,
		`9223372036854775808`:  `{"$numberDecimal":"9223372036854775808"}`,
		`1.0`:                  `{"$numberDouble":"1.0"}`,
		`-0`:                   `{"$numberDouble":"-0.0"}`,
		`1e3`:                  `{"$numberDouble":"1000.0"}`,
		`{"$oid":"x"}`:         `{"$oid":"x"}`,
		` {"b":[1,{}],"a":""}`: `{"b":[{"$numberInt":"1"},{}],"a":""}`,
		`"\u00e9\ud83d\ude00"`: `"é😀"`,
	} {
		v, err := jsonToBSON([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		got, err := appendValue(nil, v, true)
		if err != nil || string(got) != want {
			t.Errorf("%s became %s (%v), want %s", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "{", `{"a"`, `{"a":}`, `{"a":1,}`, "[1 2]", "01", "1.", "-", "1e", "tru", `"a`, `"\x"`, "\"\n\"", "1 2", `{a:1}`, "nul",
		`{"a\u0000b":1}`, "1e999", strings.Repeat("1", 40), strings.Repeat("[", 200) + strings.Repeat("]", 200),
	} {
		if v, err := jsonToBSON([]byte(in)); err == nil {
			t.Errorf("%.40q is accepted as %v", in, v)
		}
	}
}

// FuzzJSONIsAcceptedAsTheStandardLibraryDoes compares with encoding/json: what is valid, and the value.
func FuzzJSONIsAcceptedAsTheStandardLibraryDoes(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x\n",null,true],"b":{"c":-1e-3}}`, `[]`, `"\ud800"`, ` 1 `, `{"a":1,"a":2}`, `[[[[1]]]]`, `{"":""}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if checkUTF8(in) != nil {
			return
		}
		v, err := jsonToBSON(in)
		if err == nil && !json.Valid(in) {
			t.Fatalf("%q is accepted, and no JSON", in)
		}
		if err != nil || bytes.Contains(in, []byte("$")) {
			return // what is refused although valid has its own test; $ has a meaning in the way back
		}
		back, err := appendValue(nil, v, false)
		if err != nil {
			t.Fatalf("%q: %v", in, err)
		}
		var want, got any
		if err := json.Unmarshal(in, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(back, &got); err != nil {
			t.Fatalf("%q came back as %q: %v", in, back, err)
		}
		if bytes.Contains(back, []byte("$number")) || strings.Count(string(in), `"`) != strings.Count(string(back), `"`) {
			return // decimal128, and keys that appear twice
		}
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("%q came back as %q", in, back)
		}
	})
}

func TestLinesAreReadAsTheyAre(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		var files, want []string
		for i := range rapid.IntRange(1, 3).Draw(t, "files") {
			lines := rapid.SliceOf(rapid.StringMatching(`[a-z\r ]{0,9}`)).Draw(t, "lines")
			text := strings.Join(lines, "\n")
			if rapid.Bool().Draw(t, "ends in a newline") && len(lines) > 0 {
				text += "\n"
			} else if len(lines) > 0 && lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1] // what is not there cannot be read
			}
			path := filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			files, want = append(files, path), append(want, lines...)
		}
		r := newLineReader(files, nil, true)
		var got []string
		var marks []mark
		r.onMark = func(m mark) { marks = append(marks, m) }
		for {
			l, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(l.text))
			if l.number != int64(len(got)) {
				t.Fatalf("line %d has the number %d", len(got), l.number)
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") || len(got) != len(want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for _, m := range marks {
			again := newLineReader(files, nil, true)
			if err := skipTo(t.Context(), again, m); err != nil {
				t.Fatalf("a mark of the same input is refused: %v", err)
			}
		}
	})
}

func TestALongLineTakesNoMemoryAndTheNextOneIsRead(t *testing.T) {
	t.Parallel()
	in := io.MultiReader(strings.NewReader("first\n"), io.LimitReader(zeros{}, 3*maxLine), strings.NewReader("\nlast"))
	r := newLineReader(nil, in, false)
	for i, want := range []string{"first", "", "last"} {
		l, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if string(l.text) != want || (l.err != nil) != (i == 1) {
			t.Errorf("line %d: %.20q, %v", i+1, l.text, l.err)
		}
		if i == 1 && !strings.Contains(l.err.Error(), fmt.Sprint(3*maxLine)) {
			t.Errorf("the length is not said: %v", l.err)
		}
		if cap(l.text) > 2*maxLine {
			t.Errorf("line %d holds %d bytes", i+1, cap(l.text))
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAChangedInputIsNotTakenForTheSame(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "in")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a\nb\nc\n")
	r := newLineReader([]string{path}, nil, true)
	var last mark
	r.onMark = func(m mark) { last = m }
	for {
		if _, err := r.next(); err != nil {
			break
		}
	}
	for text, ok := range map[string]bool{"a\nb\nc\n": true, "a\nb\nc\nd\n": true, "a\nB\nc\n": false, "a\nb\n": false, "a\nb\ncc\n": false, "": false} {
		write(text)
		err := skipTo(t.Context(), newLineReader([]string{path}, nil, true), last)
		if (err == nil) != ok || err != nil && !errors.Is(err, errInputChanged) {
			t.Errorf("%q after %q: %v", text, "a\nb\nc\n", err)
		}
	}
}

// TestAnOffsetNeverPassesALineThatIsNotDone cites I2 and I3: lines are done in any order, and the
// offset is the highest mark with nothing undone below it.
func TestAnOffsetNeverPassesALineThatIsNotDone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start := int64(rapid.IntRange(0, 5).Draw(t, "start"))
		n := int64(rapid.IntRange(1, 60).Draw(t, "lines"))
		order := rapid.Permutation(seq(start+1, start+n)).Draw(t, "order")
		o := newOffsets(mark{lines: start})
		done := map[int64]bool{}
		next := start + 1 // the next line to be read; some are done before later ones are read
		for _, line := range order {
			for ; next <= line || rapid.Bool().Draw(t, "read on") && next <= start+n; next++ {
				if next%3 == 0 {
					o.add(mark{lines: next})
				}
			}
			o.finish(line)
			done[line] = true
			safe := o.current().lines
			want := start
			for l := start + 1; l < next && done[l]; l++ {
				if l%3 == 0 {
					want = l
				}
			}
			if safe != want {
				t.Fatalf("after line %d the offset is %d, want %d", line, safe, want)
			}
		}
	})
}

func seq(from, to int64) []int64 {
	var s []int64
	for ; from <= to; from++ {
		s = append(s, from)
	}
	return s
}

func TestTheFirstLineTellsTheForm(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`1`: inputLines, `"a"`: inputLines, `[1]`: inputLines, `{"a":1`: inputLines, ``: inputLines,
		`{"a":1}`: inputNDJSON, `{"$set":1}`: inputNDJSON, `{"a":[{"b":{"$oid":"x"}}]}`: inputExtJSON, `{"$date":"x"}`: inputExtJSON,
	} {
		if got := guessForm([]byte(in)); got != want {
			t.Errorf("%s is taken for %s, want %s", in, got, want)
		}
	}
}

func TestExtendedJSONCannotLeaveItsWrapping(t *testing.T) {
	t.Parallel()
	for _, in := range []string{`1,"w":2`, `1}`, `{"$oid":"zz"}`, `{"a":`} {
		if v, err := extJSONToBSON([]byte(in)); err == nil {
			t.Errorf("%s is accepted as %v", in, v)
		}
	}
	v, err := extJSONToBSON([]byte(`{"$numberDecimal":"1.10"}`))
	if err != nil || v.Type != bson.TypeDecimal128 {
		t.Errorf("got %v, %v", v, err)
	}
}
