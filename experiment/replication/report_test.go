package replication

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// measured is a run with two rounds, in the second of which the machine was half as fast.
func measured() *FiguresRun {
	r := &FiguresRun{Settings: FiguresSettings{Parts: Parts(), LagRate: 2000}}
	for round, speed := range map[int]float64{1: 1, 2: 0.5} {
		for _, row := range []Row{
			{Part: PartCopySmall, Variant: "capstan", Rate: 22_000, Client: 8, Memory: 90},
			{Part: PartCopySmall, Variant: "naive-1", Rate: 16_000, Client: 12},
			{Part: PartCopySmall, Variant: "naive-2", Rate: 20_000, Client: 11},
			{Part: PartInserts, Variant: "capstan", Rate: 5000, Client: 20, Memory: 150},
			{Part: PartInserts, Variant: "naive-replace", Rate: 3000, Client: 20},
			{Part: PartVerify, Variant: "capstan", Rate: 300_000, Client: 1, Memory: 60},
		} {
			row.Round, row.Count, row.Rate = round, 1000, row.Rate*speed
			row.Seconds = float64(row.Count) / row.Rate
			r.Rows = append(r.Rows, row)
		}
	}
	for i := range 9 {
		r.Lag = append(r.Lag, LagWindow{From: time.Duration(i) * lagWindow, Sent: 20, Seen: 20, P50: 5 * time.Millisecond, P99: time.Duration(10+i) * time.Millisecond, Max: time.Second})
	}
	r.Figures = r.figures()
	return r
}

func TestRatiosAreTakenWithinARoundAgainstTheBestNaiveProgram(t *testing.T) {
	t.Parallel()
	got := map[string]Figure{}
	for _, f := range measured().Figures {
		got[f.Name] = f
	}
	for _, want := range []struct {
		name  string
		value float64
		met   bool
	}{
		{"copy of small documents, by the best naive loop", 1.1, true},
		{"its own CPU per document, by that loop's", 8.0 / 11, true},
		{"live apply of mostly inserts, by the naive applier", 5.0 / 3, false},
		{"lag at 2000 writes a second, the highest p99 of 10s", 0.018, true},
		{"its p99 in the last third, by the first third's", 17.0 / 11, true},
		{"most resident memory of capstan replicate", 150, true},
		{"verify, documents per side", 225_000, true},
	} {
		if f, ok := got[want.name]; !ok || f.Value < want.value*0.999 || f.Value > want.value*1.001 || f.Met() != want.met {
			t.Errorf("%s: %+v, want %v", want.name, f, want.value)
		}
	}
	if measured().Met() {
		t.Error("a target that was missed counts as met")
	}
}

func TestARunComesBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := measured()
	if err := r.write(dir, 300, 200); err != nil {
		t.Fatal(err)
	}
	back, err := ReadFigures(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Table(), back.Table()); diff != "" {
		t.Error(diff)
	}
	for _, want := range []string{"| copy-small | naive-2 | 2 | 1000 | 15000 |", "| ≥ 2.00 × | NO |", "| ≤ 1.000 s | yes |"} {
		if !strings.Contains(r.Table(), want) {
			t.Errorf("no %q in\n%s", want, r.Table())
		}
	}
	for _, name := range []string{rowsFile, summaryFile, lagFile, lagPicture, tableFile, runFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, runFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFigures(dir); !errors.Is(err, ErrRun) {
		t.Error(err)
	}
	if _, err := ReadFigures(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestSeedsComeBackAndAreSummedUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := &SeedsRun{Seeds: []Seed{
		{Seed: 1, Equal: true, Took: time.Second, Documents: 100, Done: 7, Kills: 2, Phases: "copying 1, live 1", SourceFaults: "kill source at 1.00s for 1.0s; cut source at 2.00s for 0.5s", TargetFaults: "-"},
		{Seed: 2, Reason: "a document, \"quoted\"", Kills: 3, Phases: "catching-up 3", SourceFaults: "-", TargetFaults: "freeze target at 0.10s for 2.0s"},
	}, Unequal: []uint64{2}}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	back, err := ReadSeeds(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Error(diff)
	}
	if want := "| 2 | 1 | 7 | 100 | 5 | 1 / 3 / 1 | 2 | 1 |"; !strings.Contains(back.SeedsTable(), want) {
		t.Errorf("%s\nwant %s", back.SeedsTable(), want)
	}
	var b bytes.Buffer
	if err := PrintSeed(&b, &r.Seeds[1]); err != nil || !strings.Contains(b.String(), "NOT EQUAL: a document") {
		t.Error(b.String(), err)
	}
}

func TestDocumentsHaveTheSizesThatTheFiguresName(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for want, doc := range map[int]func(*rand.Rand, bson.ObjectID) bson.D{200: smallDocument, 1024: largeDocument} {
		b, err := bson.Marshal(doc(r, figureID(1)))
		if err != nil || len(b) < want*97/100 || len(b) > want*103/100 {
			t.Errorf("%d bytes, want about %d (%v)", len(b), want, err)
		}
	}
	if a, b := figureID(999), figureID(1000); bytes.Compare(a[:], b[:]) >= 0 {
		t.Error("_ids do not rise")
	}
}

func TestEachRoundBeginsWithAnotherVariant(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]int{3, 1, 2}, turn([]int{1, 2, 3}, 2)); diff != "" {
		t.Error(diff)
	}
}

func TestRandomRunsAreContinuedOnlyAsTheyWereBegun(t *testing.T) {
	t.Parallel()
	before := &SeedsRun{Settings: SeedsSettings{Seeds: 2, First: 1, Ops: 5}, Seeds: []Seed{{Seed: 1, Equal: true}, {Seed: 2}}, Unequal: []uint64{2}}
	r := &SeedsRun{Settings: SeedsSettings{Seeds: 9, First: 1, Ops: 5}}
	done, err := r.resume(before)
	if err != nil || !done[1] || done[2] || done[3] || len(r.Seeds) != 1 || len(r.Unequal) != 0 || len(r.Again) != 1 || len(r.Earlier) != 1 {
		t.Errorf("got %v, %+v, %v", done, r, err)
	}
	other := &SeedsRun{Settings: SeedsSettings{Seeds: 9, First: 1, Ops: 6}}
	if _, err := other.resume(before); !errors.Is(err, ErrOtherSettings) {
		t.Errorf("got %v, want ErrOtherSettings", err)
	}
}
