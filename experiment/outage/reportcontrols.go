package outage

import (
	"fmt"
	"time"
)

// callSlack is by how much a call may pass its deadline (I8).
const callSlack = 250 * time.Millisecond

// Predicted says of a negative control what it was meant to show and what it showed, in words, and
// whether it failed as it was meant to: a checker that finds nothing wrong with a client that is known to
// be wrong is worth nothing. Of a trial of capstan it returns "", false.
func Predicted(t *Trial) (what string, ok bool) {
	predicted, happened, ok := prediction(t)
	if predicted == "" {
		return "", false
	}
	return predicted + ": " + happened, ok
}

func prediction(t *Trial) (predicted, happened string, ok bool) {
	switch Role(t.Control) {
	case Plain:
		return "without a deadline a call hangs long after the set itself has recovered",
			fmt.Sprintf("the longest lasted %s, the set was back after %s", t.Row.plainText(), text(t.Row.ClusterOutage)),
			t.Row.PlainCall > t.Row.ClusterOutage+plainBeyond
	case FreshID:
		return "with a new _id for each attempt documents are doubled",
			fmt.Sprintf("%d doubled", t.Verdict.Doubled), t.Verdict.Doubled > 0
	case One:
		return "with w: 1 acknowledged documents are lost, as many as the rollback files hold",
			fmt.Sprintf("%d lost, %d in the rollback files", t.Verdict.Lost, t.Verdict.RolledBackAcknowledged),
			t.Verdict.Lost > 0 && t.Verdict.Lost == t.Verdict.RolledBackAcknowledged
	}
	return "", "", false
}

// plainBeyond is how much longer than the set's own outage a call must last to be said to hang.
const plainBeyond = 5 * time.Second

// plainText writes the longest call of the plain client: at least that long if it was never seen to end.
func (r *Row) plainText() string { return hungText(r.PlainCall, r.PlainHung) }

func hungText(d time.Duration, hung bool) string {
	switch {
	case d == 0:
		return "–"
	case hung:
		return "≥ " + text(d)
	}
	return text(d)
}

// controls returns the trials of the controls, by control, fault and profile.
func (r *Run) controls() []*Trial {
	var out []*Trial
	for i := range r.Trials {
		if t := &r.Trials[i]; t.Control != "" {
			out = append(out, t)
		}
	}
	return out
}
