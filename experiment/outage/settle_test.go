package outage

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-12ef14e5/capstan/localcluster"
)

func wrote(src string, seq int64, ok bool, outcome string) Event {
	return Event{Role: Writer, Kind: KindWrite, Src: src, Seq: seq, OK: ok, Outcome: outcome}
}

// TestTheVerdictFindsWhatWasDoneWrong judges broken runs: an oracle that finds nothing proves nothing.
func TestTheVerdictFindsWhatWasDoneWrong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		events []Event
		there  stored
		want   Verdict
	}{
		{"good", []Event{wrote("a", 1, true, ""), wrote("a", 2, true, "")}, stored{"a": {1: 1, 2: 1}}, Verdict{Sent: 2, Acknowledged: 2}},
		{"lost", []Event{wrote("a", 1, true, "")}, stored{}, Verdict{Sent: 1, Acknowledged: 1, Lost: 1}},
		{"doubled", []Event{wrote("a", 1, true, "")}, stored{"a": {1: 2}}, Verdict{Sent: 1, Acknowledged: 1, Doubled: 1}},
		{"resurrected", []Event{wrote("a", 1, false, NotApplied)}, stored{"a": {1: 1}}, Verdict{Sent: 1, Resurrected: 1}},
		{"not written, and not there", []Event{wrote("a", 1, false, NotApplied)}, stored{}, Verdict{Sent: 1}},
		{"unknown, and there", []Event{wrote("a", 1, false, Unknown)}, stored{"a": {1: 1}}, Verdict{Sent: 1, UnknownCalls: 1, UnknownPresent: 1}},
		{"unknown, and not there", []Event{wrote("a", 1, false, Unknown)}, stored{}, Verdict{Sent: 1, UnknownCalls: 1}},
		{"another writer's document is not ours", []Event{wrote("a", 1, true, "")}, stored{"b": {1: 1}}, Verdict{Sent: 1, Acknowledged: 1, Lost: 1}},
	} {
		var v Verdict
		v.count(tt.events, tt.there)
		if v.Sent != tt.want.Sent || v.Acknowledged != tt.want.Acknowledged || v.Lost != tt.want.Lost || v.Doubled != tt.want.Doubled ||
			v.Resurrected != tt.want.Resurrected || v.UnknownCalls != tt.want.UnknownCalls || v.UnknownPresent != tt.want.UnknownPresent {
			t.Errorf("%s: got %+v, want %+v", tt.name, v, tt.want)
		}
	}
}

func TestAFollowerTakesMessagesAndGapsAndNothingElse(t *testing.T) {
	t.Parallel()
	f := &follower{name: tailReader, last: make(map[string]int64)}
	for _, line := range []string{
		`{"_id":{"$oid":"6919"},"src":"a/1","seq":1,"ts":{}}`,
		`{"_id":{"$oid":"6919"},"src":"a/1","seq":{"$numberLong":"2"}}`,
		`{"_id":{"$oid":"6919"},"src":"b/1","seq":1}`,
		`{"level":"warn","message":"the server is gone"}`,
		`gap: 3 messages of a/1 lost`,
		`12:00:00 something lost its way`,
	} {
		f.take([]byte(line + "\n"))
	}
	events, gaps := f.events("a/1")
	if len(events) != 2 || events[1].Key.Seq != 2 || gaps != 1 {
		t.Errorf("got %+v and %d gaps, want seq 1 and 2, and one gap", events, gaps)
	}
	if !f.reached("a/1", 2) || f.reached("a/1", 3) || f.reached("b/1", 2) {
		t.Error("what was reached is wrong")
	}
}

func TestRollbackFilesAreReadDocumentByDocument(t *testing.T) {
	t.Parallel()
	var b []byte
	for i := range 3 {
		doc, err := bson.Marshal(bson.D{{Key: "writer", Value: "w"}, {Key: "seq", Value: int64(i)}})
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, doc...)
	}
	path := filepath.Join(t.TempDir(), "x.bson")
	for _, tt := range []struct {
		bytes []byte
		n     int
		fails bool
	}{{b, 3, false}, {b[:len(b)-1], 2, true}, {append(slices.Clone(b), 1), 3, true}, {nil, 0, false}} {
		if err := os.WriteFile(path, tt.bytes, 0o600); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := eachDocument(path, func(bson.Raw) { n++ })
		if n != tt.n || (err != nil) != tt.fails {
			t.Errorf("%d bytes: %d documents and %v, want %d", len(tt.bytes), n, err, tt.n)
		}
	}
}

func TestEveryFaultOfTheExperimentIsOneOfTheCluster(t *testing.T) {
	t.Parallel()
	known := map[string]localcluster.Fault{}
	for _, f := range localcluster.Faults() {
		known[f.Name] = f
	}
	for _, p := range plans {
		f, ok := known[p.name]
		if !ok {
			t.Errorf("the cluster knows no fault %q", p.name)
		}
		if f.Disk != p.disk || f.Self != p.ends || f.Network == onLoopback(p) && !f.Disk {
			t.Errorf("%s: the plan %+v does not fit the fault %+v", p.name, p, f)
		}
	}
	for _, c := range controls {
		if _, ok := planOf(c.fault); !ok {
			t.Errorf("control %s: no plan for its fault %q", c.name, c.fault)
		}
	}
}

func TestTheMatrixTriesTheMainFaultsThirtyTimesAndAllTheRestFive(t *testing.T) {
	t.Parallel()
	cfg := Config{Network: true}.withDefaults()
	for _, profile := range cfg.Profiles {
		n := map[string]int{}
		for _, s := range cfg.specs(profile, map[string]string{}) {
			if s.control == nil {
				n[s.plan.name]++
			} else {
				n["control "+s.control.name]++
			}
		}
		for _, p := range plans {
			want := MatrixOthers
			if p.main && profile == "fast" {
				want = MatrixTrials
			}
			if n[p.name] != want {
				t.Errorf("%s %s: %d trials, want %d", p.name, profile, n[p.name], want)
			}
		}
		for _, name := range Controls() {
			if n["control "+name] == 0 {
				t.Errorf("%s: the control %s is not tried", profile, name)
			}
		}
	}
	skipped := map[string]string{}
	for _, s := range (Config{}).withDefaults().specs("fast", skipped) {
		if !onLoopback(s.plan) {
			t.Errorf("%s is tried without a network", s)
		}
	}
	if skipped["blackhole"] == "" {
		t.Error("nobody says that the black hole is skipped")
	}
}
