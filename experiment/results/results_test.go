package results

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type row struct {
	name  string
	yes   bool
	n     int
	big   int64
	share float64
	took  time.Duration
}

var columns = []Column[row]{
	Col("name", 0, func(r *row) any { return &r.name }),
	Col("yes", 0, func(r *row) any { return &r.yes }),
	Col("n", 0, func(r *row) any { return &r.n }),
	Col("big", 0, func(r *row) any { return &r.big }),
	Col("share", 2, func(r *row) any { return &r.share }),
	Col("took", 3, func(r *row) any { return &r.took }),
}

func TestRowsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	rows := []row{
		{name: `a "b", c` + "\nd", yes: true, n: -3, big: 1 << 60, share: 0.25, took: 2841 * time.Millisecond},
		{took: -250 * time.Millisecond},
	}
	var b bytes.Buffer
	if err := WriteCSV(&b, columns, rows); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "name,yes,n,big,share,took\n") || !strings.Contains(b.String(), ",0.25,2.841\n") {
		t.Errorf("%s", b.String())
	}
	got, err := ReadCSV(&b, columns)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rows, got, cmp.AllowUnexported(row{})); diff != "" {
		t.Error(diff)
	}
}

func TestColumnsGoByTheirNames(t *testing.T) {
	t.Parallel()
	got, err := ReadCSV(strings.NewReader("later,took,name,share,big,n,yes\n?,0.5,x,1,2,3,true\n"), columns)
	if err != nil || len(got) != 1 || got[0].name != "x" || got[0].took != 500*time.Millisecond || got[0].n != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestADamagedFileIsAnErrorThatNamesTheLine(t *testing.T) {
	t.Parallel()
	head := "name,yes,n,big,share,took\n"
	for text, want := range map[string]string{
		"":                             "line 1",
		"name,n\n":                     "no column yes",
		head + "x,true,1,1,1,1\nx":     "line 3",
		head + "x,true,many,1,1,1\n":   "line 2: column n",
		head + "x,perhaps,1,1,1,1\n":   "line 2: column yes",
		head + "x,true,1,1,1,a while":  "line 2: column took",
		head + "x,true,1,1.5,1,1\n":    "line 2: column big",
		head + "x,true,1,1,one,1\n":    "line 2: column share",
		head + "x,true,1,1,1,1,more\n": "line 2",
	} {
		if _, err := ReadCSV(strings.NewReader(text), columns); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestTheErrorOfAFileNamesIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := errors.New("no more words")
	if err := WriteFile(dir, "a.txt", func(io.Writer) error { return broken }); !errors.Is(err, broken) || !strings.Contains(err.Error(), "a.txt") {
		t.Error(err)
	}
	if err := WriteFile(filepath.Join(dir, "none"), "a.txt", nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := WriteFile(dir, "b.txt", func(w io.Writer) error { return PutText(w, "text") }); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "b.txt")); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
}
