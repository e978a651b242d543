package results

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"
)

// Column is one column of a CSV file whose rows are values of T.
type Column[T any] struct {
	name   string
	digits int
	field  func(*T) any
}

// Col returns a column. digits are those behind the point of a float64, or of a time.Duration, which
// is written in seconds. field returns a pointer to what the column holds: a *string, *bool, *int,
// *int64, *uint64, *float64 or *time.Duration.
func Col[T any](name string, digits int, field func(*T) any) Column[T] {
	return Column[T]{name, digits, field}
}

func (c Column[T]) format(row *T) string {
	switch p := c.field(row).(type) {
	case *string:
		return *p
	case *bool:
		return strconv.FormatBool(*p)
	case *int:
		return strconv.Itoa(*p)
	case *int64:
		return strconv.FormatInt(*p, 10)
	case *uint64:
		return strconv.FormatUint(*p, 10)
	case *float64:
		return strconv.FormatFloat(*p, 'f', c.digits, 64)
	case *time.Duration:
		return strconv.FormatFloat(p.Seconds(), 'f', c.digits, 64)
	}
	return ""
}

func (c Column[T]) parse(row *T, text string) (err error) {
	switch p := c.field(row).(type) {
	case *string:
		*p = text
	case *bool:
		*p, err = strconv.ParseBool(text)
	case *int:
		*p, err = strconv.Atoi(text)
	case *int64:
		*p, err = strconv.ParseInt(text, 10, 64)
	case *uint64:
		*p, err = strconv.ParseUint(text, 10, 64)
	case *float64:
		*p, err = strconv.ParseFloat(text, 64)
	case *time.Duration:
		var secs float64
		secs, err = strconv.ParseFloat(text, 64)
		*p = time.Duration(math.Round(secs * 1e9))
	}
	return err
}

// WriteCSV writes a line with the columns' names and one for each row.
func WriteCSV[T any](w io.Writer, columns []Column[T], rows []T) error {
	cw := csv.NewWriter(w)
	line := make([]string, len(columns))
	for i, c := range columns {
		line[i] = c.name
	}
	_ = cw.Write(line) // its error is kept for Error
	for i := range rows {
		for j, c := range columns {
			line[j] = c.format(&rows[i])
		}
		_ = cw.Write(line)
	}
	cw.Flush()
	return cw.Error()
}

// ReadCSV reads what WriteCSV wrote. Columns go by their names, and those that it does not know are left
// out. The error says in which line the file is not what was written.
func ReadCSV[T any](r io.Reader, columns []Column[T]) ([]T, error) {
	cr := csv.NewReader(r)
	head, err := cr.Read()
	if err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	at := make([]int, len(columns))
	for i, c := range columns {
		if at[i] = slices.Index(head, c.name); at[i] < 0 {
			return nil, fmt.Errorf("there is no column %s", c.name)
		}
	}
	var rows []T
	for n := 2; ; n++ {
		line, err := cr.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		var row T
		for i, c := range columns {
			if err := c.parse(&row, line[at[i]]); err != nil {
				return nil, fmt.Errorf("line %d: column %s: %w", n, c.name, err)
			}
		}
		rows = append(rows, row)
	}
}
