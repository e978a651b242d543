// Package results puts what an experiment measured into files, and reads it back: rows as CSV with one
// description of the columns for both ways. It promises that the same rows make the same bytes.
package results

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// WriteFile makes one file in dir. The error names it.
func WriteFile(dir, name string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("make results file: %w", err)
	}
	w := bufio.NewWriter(f)
	if err := write(w); err != nil {
		_ = f.Close() // the first error says more
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}

// PutText writes a text.
func PutText(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// PutJSON writes a value as JSON for people: indented, and with < and > as they are.
func PutJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w) // ends with a newline
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}

// FileName returns name with "_" for what is special to a file system, a shell or a link.
func FileName(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
			return c
		}
		return '_'
	}, name)
}
