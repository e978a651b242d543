package localcluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// Identifiers of mongod's log lines; they are stable across versions.
const (
	logListening = `"id":23016` // "Waiting for connections"
	logFatal     = `"s":"F"`    // what a server says before it ends itself
)

// quotedLines bounds how much of a server's log an error quotes.
const quotedLines = 6

// quotedBytes bounds the part of the log that is read for it.
const quotedBytes = 256 << 10

// logHas reports whether the log contains text at or after offset.
func logHas(path string, offset int64, text string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, offset, 8<<20))
	return err == nil && bytes.Contains(b, []byte(text))
}

// quoteLog returns the last useful lines of a member's output, at or after offset: its errors and
// warnings if it has any, else simply its last lines. Output that is not a log line (a missing
// library, a bad option) comes from stdout and is always quoted.
func quoteLog(logPath string, offset int64, outPath string) string {
	var severe, plain []string
	for _, line := range tailLines(logPath, offset) {
		text, important := logLine(line)
		if plain = append(plain, text); important {
			severe = append(severe, text)
		}
	}
	lines := severe
	if len(lines) == 0 {
		lines = plain
	}
	out := tailLines(outPath, 0)
	lines = append(last(out, quotedLines), last(lines, quotedLines)...)
	if len(lines) == 0 {
		return "it wrote no output"
	}
	return "its last words:\n    " + strings.Join(lines, "\n    ")
}

func last(s []string, n int) []string { return s[max(0, len(s)-n):] }

func tailLines(path string, offset int64) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		offset = max(offset, info.Size()-quotedBytes)
	}
	var lines []string
	sc := bufio.NewScanner(io.NewSectionReader(f, offset, quotedBytes))
	sc.Buffer(nil, quotedBytes)
	for sc.Scan() {
		if s := strings.TrimSpace(sc.Text()); s != "" {
			lines = append(lines, s)
		}
	}
	return lines
}

// logLine shortens a structured log line for people and says whether it tells of a problem.
func logLine(line string) (text string, important bool) {
	var l struct {
		Severity  string          `json:"s"`
		Component string          `json:"c"`
		Message   string          `json:"msg"`
		Attr      json.RawMessage `json:"attr"`
	}
	if json.Unmarshal([]byte(line), &l) != nil || l.Message == "" {
		return clip(line), true
	}
	text = fmt.Sprintf("%s %s: %s", l.Severity, l.Component, l.Message)
	if len(l.Attr) > 0 {
		text += " " + string(l.Attr)
	}
	return clip(text), l.Severity == "E" || l.Severity == "F"
}

func clip(s string) string {
	const limit = 400
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}
