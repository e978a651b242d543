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

var _ = os.Stdout
var _ = bytes.Equal
var _ = errors.Is
var _ = fmt.Sprint
var _ = png.Decode
var _ = fs.ErrNotExist
var _ = filepath.Join
var _ = slices.Max[[]int]
var _ = strings.Cut
var _ = cmp.Diff
var _ = cmpopts.EquateEmpty
var _ = (*testing.T).Log
