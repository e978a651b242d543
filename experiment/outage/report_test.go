package outage

import (
	"bytes"
	"errors"
	"fmt"
	"image/png"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-12ef14e5/capstan/experiment"
)

// world makes the events of a trial as they usually come: calls that take some milliseconds, and an
// outage with its attempts.
type world struct {
	rng *rand.Rand
	t   *Trial
}

func (w *world) some(typical float64) Moment {
	return Moment(typical * 1000 * math.Exp(0.35*w.rng.NormFloat64()))
}

// calls adds calls of a role, one after the other with a pause; what begins while out lasts fails in
// attempts, or hangs if there are none, until it is over.
func (w *world) calls(role Role, kind Kind, typical float64, pause, until Moment, out interval, attempt Moment) {
	seq := int64(0)
	for at := w.t.Begun; at < until; seq++ {
		e := Event{Role: role, Kind: kind, Start: at, Seq: seq + 1, OK: true, Attempts: 1, Deadline: int64(10 * time.Second / time.Microsecond)}
		took := w.some(typical)
		end := at + took
		for end > out.from && end < out.to {
			if attempt == 0 {
				end = out.to + took
				break
			}
			tried := Event{Role: role, Kind: KindTry, Start: max(at, end-took), Took: int64(attempt + w.some(0.5)), Err: "incomplete read of message header"}
			if end = tried.End() + w.some(40); kind == KindRead {
				e.OK, end = false, tried.End()
				break
			}
			e.Attempts++
			e.Doubtful++
			w.t.Events = append(w.t.Events, tried)
			if end >= out.to {
				end += took
			}
		}
		e.Took = int64(end - at)
		w.t.Events = append(w.t.Events, e)
		at = max(end, at+pause)
	}
}

// blackhole is a trial of 20 s with the fault at 5 s and an outage of about 2.8 s.
func blackhole(number int, seed uint64) Trial {
	t := Trial{Number: number, Fault: "blackhole", Profile: "fast", Seed: seed, Begun: 7_000_000, At: 12_000_000, Healed: 20_000_000, Ended: 40_000_000, Victim: "m0", New: "m1", Load: 0.52}
	w := world{rand.New(rand.NewPCG(seed, 1)), &t}
	shift := Moment(w.rng.IntN(900_000))
	reached := t.At + 2_400_000 + shift
	out := interval{t.At, reached}
	end := t.Healed + 6_000_000
	w.calls(Prober, KindWrite, 6, 20*ms, end, out, 500*ms)
	w.calls(Writer, KindWrite, 8, 1000*ms, end, out, 500*ms)
	w.calls(Prober, KindRead, 2, 20*ms, end, interval{t.At + 3*ms, t.At + 260*ms}, 500*ms)
	w.calls(Members, KindProbe, 5, 10*ms, end, out, 0)
	w.calls(Cluster, KindProbe, 5, 10*ms, end, interval{t.At, reached - 60*ms}, 0)
	w.calls(Plain, KindWrite, 6, 100*ms, end, interval{t.At, t.Healed + 300*ms}, 0)
	t.Servers = []ServerEvent{
		{t.At + 1_080_000, "m1", ElectionStarted, "Conducting a dry run election"}, {t.At + 1_091_000, "m1", ElectionWon, "Election succeeded"},
		{t.At + 2_100_000 + shift/2, "m1", TransitionComplete, "Transition to primary complete"}, {t.At + 2_350_000 + shift, "m2", SyncSourceChanged, "m0 to m1"},
		{t.Healed + 400_000, "m0", SteppedDown, "PRIMARY to SECONDARY"}, {t.Healed + 420_000, "m0", RollbackBegun, "SECONDARY to ROLLBACK"},
	}
	for _, e := range t.Events {
		if e.Kind == KindWrite && (e.Role == Writer || e.Role == Prober) {
			t.Verdict.Sent++
			t.Verdict.Acknowledged++
		}
	}
	t.Verdict.Linearizable = true
	Analyse(&t)
	return t
}

func smallRun() *Run {
	r := &Run{
		Machine:  experiment.Machine{CPU: "a processor", Cores: 2, Memory: "8 GB", Kernel: "Linux 6.1", Go: "go1.26", Driver: "v2.10.0", Mongod: "6.0.5", Load: "0.10", Command: "capstan bench failover", Time: "2026-12-01T00:00:00Z"},
		Settings: Settings{Faults: []string{"blackhole", "kill"}, Profile: []string{"fast"}, Seed: 1, Lanes: 2, Trials: map[string]int{"blackhole fast": 3}, Attempt: map[string]float64{"fast": 0.5}, Pool: 4},
		Skipped:  map[string]string{"full disk": "there is no tmpfs."},
	}
	for i := range 3 {
		r.Trials = append(r.Trials, blackhole(i+1, uint64(i+1)))
	}
	kill := blackhole(1, 9)
	kill.Fault = "kill"
	r.Trials = append(r.Trials, kill)
	for _, c := range []struct {
		role    Role
		verdict Verdict
	}{{Plain, Verdict{Linearizable: true}}, {FreshID, Verdict{Doubled: 4}}, {One, Verdict{Lost: 26, RolledBack: 27, RolledBackAcknowledged: 26}}} {
		t := blackhole(1, 20)
		t.Control, t.Verdict = string(c.role), c.verdict
		r.Trials = append(r.Trials, t)
	}
	return r
}

// written writes a run, with small pictures, and returns the folder.
func written(t *testing.T, r *Run) string {
	t.Helper()
	dir := t.TempDir()
	if err := r.write(dir, 480, 320); err != nil {
		t.Fatal(err)
	}
	return dir
}

func content(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestARunIsWrittenAndReadBack(t *testing.T) {
	t.Parallel()
	r := smallRun()
	r.Trials[1].Verdict.Notes = []string{"m1: one, more"}
	dir := written(t, r)
	back, table, err := ReadRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := content(t, dir, tableFile); table != want {
		t.Errorf("the tables differ:\n%s\n%s", table, want)
	}
	rounded := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() <= time.Millisecond })
	moved := cmpopts.IgnoreFields(Trial{}, "Begun", "At", "Healed", "Ended", "Events", "Servers")
	if diff := cmp.Diff(r, back, rounded, moved); diff != "" {
		t.Error(diff)
	}
	for i, b := range back.Trials {
		if a := r.Trials[i]; a.Healed-a.At != b.Healed-b.At || a.Ended-a.At != b.Ended-b.At || a.Begun-a.At != b.Begun-b.At {
			t.Errorf("trial %d: from %d to %d, healed %d", i, b.Begun, b.Ended, b.Healed)
		}
	}
	again := written(t, back)
	for _, name := range []string{runFile, trialsFile, summaryFile, tableFile} {
		if content(t, dir, name) != content(t, again, name) {
			t.Errorf("%s changes when what was read is written", name)
		}
	}
}

func TestTheSummaryHasTheColumnsThatOthersRead(t *testing.T) {
	t.Parallel()
	lines := strings.Split(content(t, written(t, smallRun()), summaryFile), "\n")
	const first = "fault,profile,trials,outage_p50,outage_max,cluster_outage_p50,cluster_outage_max,excess_p50,excess_max,max_call,lost,duplicated,"
	if !strings.HasPrefix(lines[0], first) {
		t.Errorf("the first line is %s", lines[0])
	}
	if len(lines) != 4 || !strings.HasPrefix(lines[1], "blackhole,fast,3,") || !strings.HasPrefix(lines[2], "kill,fast,1,") {
		t.Errorf("the lines are %q", lines[1:])
	}
}

func TestASummaryIsOfItsTrials(t *testing.T) {
	t.Parallel()
	r := &Run{}
	for i, out := range []int{400, 100, 300, 200} {
		tr := Trial{Fault: "kill", Profile: "fast", Number: i + 1, Load: float64(i), Verdict: Verdict{Linearizable: i != 2, Lost: i / 3, UnknownCalls: i, Unequal: i / 2}}
		tr.Row = Row{Outage: millis(out), Excess: millis(out / 10), MaxOver: millis(-out), MaxCall: millis(out * 2), Attempts: out, Conns: int64(i), PlainHung: i == 1, FailedReads: 2}
		r.Trials = append(r.Trials, tr)
	}
	want := Summary{
		Fault: "kill", Profile: "fast", Trials: 4, OK: 2, OutageP50: millis(200), OutageMax: millis(400), ExcessP50: millis(20), ExcessMax: millis(40),
		MaxOver: millis(-100), MaxCall: millis(800), AttemptsMax: 400, Conns: 3, PlainHung: 1, FailedReads: 8, Lost: 1, Unknown: 6, Unequal: 2, LoadMax: 3,
	}
	if diff := cmp.Diff([]Summary{want}, r.Summaries()); diff != "" {
		t.Error(diff)
	}
}

func TestOfTheTrialsWithEventsTheOneNearestToTheMedianIsShown(t *testing.T) {
	t.Parallel()
	with := []Event{{}}
	trials := []*Trial{
		{Number: 1, Row: Row{Outage: 9}, Events: with}, {Number: 2, Row: Row{Outage: 5}}, {Number: 3, Row: Row{Outage: 4}, Events: with},
		{Number: 4, Row: Row{Outage: 1}, Events: with}, {Number: 5, Row: Row{Outage: 7}, Events: with},
	}
	if got := typical(trials); got.Number != 3 {
		t.Errorf("trial %d", got.Number)
	}
	if got := typical(trials[1:2]); got != nil {
		t.Errorf("trial %d has no events", got.Number)
	}
}

func TestATimelineTellsTheStory(t *testing.T) {
	t.Parallel()
	dir := written(t, smallRun())
	text := content(t, dir, "timeline-blackhole-fast.csv")
	at := -1
	for _, line := range []string{
		"prober,write,true", "experiment,fault,true", "prober,try,false", "server," + ElectionStarted, "server," + ElectionWon,
		"server," + TransitionComplete, "server," + SyncSourceChanged, "prober,write,true", "experiment,healed,true", "server," + RollbackBegun,
	} {
		next := strings.Index(text[at+1:], line)
		if next < 0 {
			t.Fatalf("there is no %q behind the one before", line)
		}
		at += 1 + next
	}
	var last float64
	for i, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		var sec float64
		if _, err := fmt.Sscanf(line, "%g,", &sec); err != nil {
			t.Fatalf("line %d: %v", i+2, err)
		}
		if i > 0 && sec < last {
			t.Fatalf("line %d is earlier than the one before", i+2)
		}
		last = sec
	}
	img, err := png.Decode(strings.NewReader(content(t, dir, "timeline-blackhole-fast.png")))
	if err != nil {
		t.Fatal(err)
	}
	if size := img.Bounds().Size(); size.X != 480 || size.Y != 320 {
		t.Errorf("size %v", size)
	}
}

func TestThePictureTakesTheOutageApart(t *testing.T) {
	t.Parallel()
	tr := blackhole(1, 3)
	p := tr.picture(smallRun(), 5, 0, 0)
	sum := 0.0
	for _, part := range p.Parts {
		sum += part.Length
	}
	if length := p.Band.To - p.Band.From; math.Abs(length-sum) > tr.Row.Outage.Seconds()/50 || math.Abs(length-tr.Row.Outage.Seconds()) > 1e-6 {
		t.Errorf("the band has %g s, its parts %g s, the outage %v", length, sum, tr.Row.Outage)
	}
	if p.From > p.Band.From-1 || p.To < p.Band.To+2 {
		t.Errorf("the picture goes from %g to %g s, the outage from %g to %g s", p.From, p.To, p.Band.From, p.Band.To)
	}
	var names []string
	for _, b := range p.Bars {
		if len(b.Out) != 1 {
			t.Errorf("%s was out %d times", b.Name, len(b.Out))
		}
		names = append(names, b.Name)
	}
	if len(names) != 5 || !strings.Contains(p.Title, "trial 1 of 5") {
		t.Errorf("%s, bars %q", p.Title, names)
	}
	var at []float64
	for _, m := range p.Marks {
		at = append(at, m.At)
	}
	if !slices.IsSorted(at) || p.Marks[0].Label != "fault" || at[0] != 0 {
		t.Errorf("marks %v", p.Marks)
	}
}

func TestAHealFarAwayIsNamedButNotShown(t *testing.T) {
	t.Parallel()
	tr := failedOver()
	tr.Healed, tr.Ended = 90_000*ms, 100_000*ms
	tr.Events = append(tr.Events, steady(Prober, KindWrite, 25_000, 95_000, 20)...)
	Analyse(tr)
	p := tr.picture(&Run{}, 1, 0, 0)
	if p.To > 10 {
		t.Errorf("the picture ends at %g s", p.To)
	}
	if last := p.Marks[len(p.Marks)-1]; !strings.Contains(last.Label, "healed at 80.00 s") || last.At > p.To {
		t.Errorf("the last mark is %v", last)
	}
}

func TestAnEarlierRunsTimelinesAreRemoved(t *testing.T) {
	t.Parallel()
	r := smallRun()
	dir := written(t, r)
	r.Trials = r.Trials[:3] // no kill
	if err := r.write(dir, 480, 320); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "timeline-kill-fast.csv")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the timeline of a fault that was not tried is still there", err)
	}
	for i := range r.Trials { // as if they had been read back
		r.Trials[i].Events = nil
	}
	if err := r.write(dir, 480, 320); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "timeline-blackhole-fast.png")); err != nil {
		t.Error("a picture was removed that cannot be made again", err)
	}
}

func TestPromisesAreJudged(t *testing.T) {
	t.Parallel()
	broken := func(change func(*Run)) []string {
		r := smallRun()
		for i := range r.Trials {
			r.Trials[i].Events = nil
		}
		change(r)
		var out []string
		for _, b := range r.Bounds() {
			if !b.Met() {
				out = append(out, b.Name)
			}
		}
		return out
	}
	if got := broken(func(*Run) {}); len(got) != 0 {
		t.Errorf("broken in a good run: %q", got)
	}
	wrong := "trials with anything wrong"
	for name, c := range map[string]struct {
		change func(*Run)
		want   []string
	}{
		"lost":            {func(r *Run) { r.Trials[1].Verdict.Lost = 1 }, []string{"acknowledged and missing", wrong}},
		"doubled":         {func(r *Run) { r.Trials[1].Verdict.Doubled = 1 }, []string{"there more than once", wrong}},
		"resurrected":     {func(r *Run) { r.Trials[1].Verdict.Resurrected = 1 }, []string{"reported as not written", wrong}},
		"rolled back":     {func(r *Run) { r.Trials[1].Verdict.RolledBackAcknowledged = 1 }, []string{"in a rollback file", wrong}},
		"unequal":         {func(r *Run) { r.Trials[1].Verdict.Unequal = 1 }, []string{"members whose data differ", wrong}},
		"missed":          {func(r *Run) { r.Trials[1].Verdict.TailMissed = 1 }, []string{"tails missed", wrong}},
		"a gap":           {func(r *Run) { r.Trials[1].Verdict.TailGaps = 1 }, []string{"tails doubled", wrong}},
		"skipped":         {func(r *Run) { r.Trials[1].Verdict.ConsumeSkipped = 1 }, []string{"consumers missed", wrong}},
		"not explained":   {func(r *Run) { r.Trials[1].Verdict.Linearizable = false }, []string{wrong}},
		"slow":            {func(r *Run) { r.Trials[1].Row.Excess = millis(1751) }, []string{"own share of an outage, profile fast"}},
		"just in time":    {func(r *Run) { r.Trials[1].Row.Excess = millis(1750) }, nil},
		"late":            {func(r *Run) { r.Trials[1].Row.MaxOver = millis(251) }, []string{"passed its deadline"}},
		"a storm":         {func(r *Run) { r.Trials[1].Row.Conns = 7 }, []string{"connections"}},
		"a blind checker": {func(r *Run) { r.Trials[5].Verdict.Doubled = 0 }, []string{"controls"}},
		"no controls' own faults": {func(r *Run) {
			r.Trials[4].Row.Excess, r.Trials[4].Row.MaxOver, r.Trials[4].Row.Conns = millis(9000), millis(9000), 99
		}, nil},
	} {
		got := broken(c.change)
		if !slices.EqualFunc(got, c.want, strings.Contains) {
			t.Errorf("%s: broken are %q, want %q", name, got, c.want)
		}
	}
}

func TestControlsHaveToFailAsPredicted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trial Trial
		ok    bool
		text  string
	}{
		"hung":                    {Trial{Control: string(Plain), Row: Row{PlainCall: 30 * time.Second, PlainHung: true, ClusterOutage: 2 * time.Second}}, true, "≥ 30.00 s"},
		"back at long last":       {Trial{Control: string(Plain), Row: Row{PlainCall: 30 * time.Second, ClusterOutage: 2 * time.Second}}, true, "lasted 30.00 s"},
		"back with the set":       {Trial{Control: string(Plain), Row: Row{PlainCall: 3 * time.Second, ClusterOutage: 2 * time.Second}}, false, "lasted 3.00 s"},
		"doubled":                 {Trial{Control: string(FreshID), Verdict: Verdict{Doubled: 2}}, true, "2 doubled"},
		"not doubled":             {Trial{Control: string(FreshID), Verdict: Verdict{Lost: 2}}, false, "0 doubled"},
		"lost and in the file":    {Trial{Control: string(One), Verdict: Verdict{Lost: 26, RolledBackAcknowledged: 26}}, true, "26 lost"},
		"lost, not in the file":   {Trial{Control: string(One), Verdict: Verdict{Lost: 26, RolledBackAcknowledged: 25}}, false, "25 in the rollback files"},
		"nothing lost":            {Trial{Control: string(One)}, false, "0 lost"},
		"capstan is no control":   {Trial{Verdict: Verdict{Lost: 1}}, false, ""},
		"unknown controls do not": {Trial{Control: "other", Verdict: Verdict{Lost: 1}}, false, ""},
	} {
		what, ok := Predicted(&c.trial)
		if ok != c.ok || !strings.Contains(what, c.text) || c.text == "" && what != "" {
			t.Errorf("%s: %q, %v", name, what, ok)
		}
	}
}

func TestALineForEachTrialAndOneForEachFault(t *testing.T) {
	t.Parallel()
	r := smallRun()
	r.Trials[0].Row = Row{Outage: millis(2840), ClusterOutage: millis(2710), Excess: millis(130), MaxCall: millis(2900), PlainCall: 30 * time.Second, PlainHung: true}
	bad := r.Trials[1]
	bad.Verdict = Verdict{Lost: 1, Unequal: 2, Linearizable: true, Notes: []string{"seq 7 is missing"}}
	for want, c := range map[string]struct {
		trial *Trial
		of    int
	}{
		"blackhole fast 1/3  outage 2.84 s (cluster 2.71 s, excess 130 ms)  longest call 2.90 s  plain ≥ 30.00 s  lost 0  duplicated 0  members equal\n":                      {&r.Trials[0], 3},
		"lost 1  duplicated 0  MEMBERS UNEQUAL: 2  NOT OK: seq 7 is missing\n":                                                                                                {&bad, 0},
		"blackhole fast 1  control w1: with w: 1 acknowledged documents are lost, as many as the rollback files hold: 26 lost, 26 in the rollback files; as predicted: yes\n": {&r.Trials[6], 0},
	} {
		var b bytes.Buffer
		if err := PrintTrial(&b, c.trial, c.of); err != nil || !strings.HasSuffix(b.String(), want) || strings.Count(b.String(), "\n") != 1 {
			t.Errorf("%q, %v, want %q", b.String(), err, want)
		}
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"blackhole  fast     3 ", "kill       fast     1 ", "w1 ", "26 lost, 26 in the rollback files", "not tried: full disk, there is no tmpfs\n", "own share of an outage"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

func TestADamagedFolderIsAnErrorThatSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	r := smallRun()
	for i := range r.Trials {
		r.Trials[i].Events = nil
	}
	for name, c := range map[string]struct {
		file, text string
		want       error
	}{
		"no run":            {runFile, "", fs.ErrNotExist},
		"no trials":         {trialsFile, "", fs.ErrNotExist},
		"no summary":        {summaryFile, "", fs.ErrNotExist},
		"a damaged run":     {runFile, "{", ErrRun},
		"damaged trials":    {trialsFile, "fault,profile\nx\n", ErrTrials},
		"a damaged summary": {summaryFile, "fault\nx\n", ErrSummary},
	} {
		dir := written(t, r)
		path := filepath.Join(dir, c.file)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if c.text != "" {
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := ReadRun(dir); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
