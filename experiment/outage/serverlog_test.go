package outage

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The logs in testdata are lines that three members wrote while their primary was told to step down
// (m0, at 07:17:36), frozen for 9 s (m2, at 07:17:57) and ended by SIGTERM (m1, at 07:18:14).

func wall(t time.Time) Moment { return Moment(t.UnixMicro()) }

func clock(t *testing.T, text string) Moment {
	t.Helper()
	at, err := time.Parse(time.DateTime, "2026-12-01 "+text)
	if err != nil {
		t.Fatal(err)
	}
	return wall(at)
}

// recorded returns what the three logs tell of a stretch of time, one line each.
func recorded(t *testing.T, from, to string) []string {
	t.Helper()
	var all []ServerEvent
	for _, m := range []string{"m0", "m1", "m2"} {
		f, err := os.Open(filepath.Join("testdata", m+".log"))
		if err != nil {
			t.Fatal(err)
		}
		events, err := ReadServerLog(f, m, wall, clock(t, from), clock(t, to))
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, events...)
	}
	var lines []string
	for _, e := range (&Trial{Servers: all}).servers() {
		lines = append(lines, time.UnixMicro(int64(e.At)).UTC().Format("05.000 ")+e.Member+" "+e.What+": "+e.Text)
	}
	return lines
}

func TestTheLogsTellOfElectionsAndOfARollback(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		want     []string
	}{
		{"07:17:36", "07:17:38", []string{ // the step-down
			"36.636 m0 stepped down: PRIMARY to SECONDARY",
			"36.638 m1 election started: Skipping dry run and running for election",
			"36.642 m1 election won: Election succeeded, assuming primary role",
			"36.655 m1 transition complete: Transition to primary complete; database writes are now permitted",
			"36.850 m2 sync source changed: 127.0.0.1:24048 to 127.0.0.1:28443",
			"37.641 m0 sync source changed: empty to 127.0.0.1:32681",
		}},
		{"07:17:57", "07:18:07", []string{ // the freeze, and the thaw at 07:18:06
			"58.239 m1 election started: Conducting a dry run election to see if we could be elected",
			"58.243 m1 election won: Election succeeded, assuming primary role",
			"59.249 m1 transition complete: Transition to primary complete; database writes are now permitted",
			"59.599 m0 sync source changed: empty to 127.0.0.1:28443",
			"06.378 m2 stepped down: PRIMARY to SECONDARY",
			"06.387 m2 sync source changed: empty to 127.0.0.1:28443",
			"06.390 m2 rollback: SECONDARY to ROLLBACK",
			"06.497 m2 sync source changed: empty to 127.0.0.1:28443",
		}},
	} {
		if diff := cmp.Diff(c.want, recorded(t, c.from, c.to)); diff != "" {
			t.Errorf("from %s: %s", c.from, diff)
		}
	}
}

func TestTheLogsOfATerminationTellOfTheHandOver(t *testing.T) {
	t.Parallel()
	got := recorded(t, "07:18:14", "07:18:16")
	if len(got) < 4 || !strings.Contains(got[0], "m1 stepped down") || !strings.Contains(got[1], ElectionStarted) ||
		!strings.Contains(got[2], ElectionWon) || !strings.Contains(got[3], TransitionComplete) {
		t.Errorf("got %q", got)
	}
}

const wonLine = `{"t":{"$date":"2026-12-01T07:17:58.243+00:00"},"s":"I",  "c":"ELECTION", "id":21450,   "ctx":"ReplCoord-5","msg":"Election succeeded, assuming primary role","attr":{"term":4}}` + "\n"

func TestWhatIsNoLineOfALogIsLeftOut(t *testing.T) {
	t.Parallel()
	huge := `{"c":"REPL","id":21358,"msg":"` + strings.Repeat("x", 3*logLineBytes) + "\"}\n"
	for name, text := range map[string]string{
		"a huge line":             huge + wonLine,
		"a huge line at the end":  wonLine + huge,
		"half a huge line":        wonLine + huge[:2*logLineBytes],
		"a line that is cut off":  wonLine + wonLine[:len(wonLine)-1],
		"empty lines and NULs":    "\n\n" + wonLine + "\x00\x00\n",
		"text of another program": "terminate called \"c\":\"REPL\"\n" + wonLine,
		"a line without a time":   `{"c":"ELECTION","id":21450}` + "\n" + wonLine,
		"half a line, then whole": wonLine[:40] + "\n" + wonLine,
		"a line of another kind":  strings.Replace(wonLine, "21450", "21451", 1) + wonLine,
		"another member's state":  `{"t":{"$date":"2026-12-01T07:17:58Z"},"c":"REPL","id":21358,"attr":{"newState":"SECONDARY","oldState":"RECOVERING"}}` + "\n" + wonLine,
	} {
		// It must not matter where a read ends.
		for _, r := range []io.Reader{strings.NewReader(text), iotest.HalfReader(strings.NewReader(text))} {
			got, err := ReadServerLog(r, "m1", wall, 0, math.MaxInt64)
			if err != nil || len(got) != 1 || got[0].What != ElectionWon || got[0].Member != "m1" {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
}

func TestOnlyTheStretchThatWasAskedForIsTold(t *testing.T) {
	t.Parallel()
	at := wall(time.Date(2026, 12, 1, 7, 17, 58, 243e6, time.UTC))
	for _, c := range []struct {
		from, to Moment
		want     int
	}{{at, at, 1}, {at + 1, at + 9, 0}, {at - 9, at - 1, 0}} {
		got, err := ReadServerLog(strings.NewReader(wonLine), "m1", wall, c.from, c.to)
		if err != nil || len(got) != c.want {
			t.Errorf("%d to %d: %v, %v", c.from, c.to, got, err)
		}
	}
}

func TestALogThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk on fire")
	got, err := ReadServerLog(io.MultiReader(strings.NewReader(wonLine), iotest.ErrReader(broken)), "m1", wall, 0, math.MaxInt64)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "m1") || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}
