package record_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seed-12ef14e5/capstan/record"
)

func TestAGapSaysWhatIsKnownOfTheLoss(t *testing.T) {
	for _, c := range []struct {
		name string
		gap  record.Gap
		want string
	}{
		{"nothing lost", record.Gap{Cause: record.CauseRollover}, "position lost, overwritten by newer messages: 0 messages lost"},
		{"exact", record.Gap{Cause: record.CauseRollover, Lost: []record.Loss{{Src: "a/1", From: 3, To: 7, Exact: true}}},
			"position lost, overwritten by newer messages: 5 messages lost (a/1: 5, seq 3 to 7)"},
		{"bounds", record.Gap{Cause: record.CauseRollover, Lost: []record.Loss{
			{Src: "a/1", From: 3, To: 7, Exact: true}, {Src: "b/1", From: 1, To: 4}}},
			"position lost, overwritten by newer messages: at least 5 messages lost (a/1: 5, seq 3 to 7; b/1, not seen before: up to 4, seq 1 to 4)"},
		{"a producer not seen since", record.Gap{Cause: record.CauseRollover, Open: []string{"c/1"}, Lost: []record.Loss{{Src: "a/1", From: 3, To: 7, Exact: true}}},
			"position lost, overwritten by newer messages: at least 5 messages lost (a/1: 5, seq 3 to 7; c/1: not seen since, so not counted yet)"},
		{"missing", record.Gap{Cause: record.CauseMissing, Lost: []record.Loss{{Src: "a/1", From: 3, To: 3, Exact: true}}},
			"messages are missing in the stream: 1 messages lost (a/1: 1, seq 3 to 3)"},
		{"uncounted", record.Gap{Cause: record.CauseRecreated, Uncounted: true},
			"position lost, the stream was created anew: its messages have no src and seq, so the loss cannot be counted"},
	} {
		if got := c.gap.String(); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestOutcomeErrorsKeepTheirReasonAndIDs(t *testing.T) {
	id := record.NewID()
	rejected := &record.RejectedError{ID: id, Err: record.ErrExists}
	if !errors.Is(rejected, record.ErrExists) || !strings.Contains(rejected.Error(), id.String()) {
		t.Errorf("rejected: %v", rejected)
	}
	unknown := &record.UnknownOutcomeError{IDs: []record.ID{id}, Attempts: 3, Err: io.ErrUnexpectedEOF}
	if !errors.Is(unknown, io.ErrUnexpectedEOF) || !strings.Contains(unknown.Error(), id.String()) {
		t.Errorf("unknown: %v", unknown)
	}
}

func TestACloneSharesNothing(t *testing.T) {
	a := record.Checkpoint{Name: "n", Marks: map[string]int64{"a": 1}}
	b := a.Clone()
	b.Marks["a"] = 2
	if a.Marks["a"] != 1 {
		t.Error("the clone's marks are the original's")
	}
}

func TestAnEmptyCheckpointStartsWhereTheConfigSays(t *testing.T) {
	otherwise := record.Start{Where: record.Earliest}
	if s := record.StartOf(record.Checkpoint{Name: "n", Fingerprint: "f"}, otherwise); s.Where != record.Earliest {
		t.Errorf("got %+v", s)
	}
	cp := record.Checkpoint{Marks: map[string]int64{"a": 3}, Fingerprint: "f"}
	if s := record.StartOf(cp, otherwise); s.Where != record.After || s.Marks["a"] != 3 || s.Fingerprint != "f" {
		t.Errorf("got %+v", s)
	}
}
