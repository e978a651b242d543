package record_test

import (
	"strings"
	"testing"

	"github.com/seed-12ef14e5/capstan/record"
)

func TestAFencedErrorSaysWhoTookTheNameOver(t *testing.T) {
	t.Parallel()
	for owner, want := range map[string]string{
		"host-7 pid 12 run x": "now belongs to host-7 pid 12 run x (revision 3): another process",
		record.OwnerByHand:    "was set by hand",
		record.OwnerNobody:    "was deleted",
	} {
		text := (&record.FencedError{Name: "billing", Owner: owner, Revision: 3}).Error()
		if !strings.Contains(text, want) || !strings.Contains(text, "billing") {
			t.Errorf("owner %q: %q, want %q", owner, text, want)
		}
		if process := owner == "host-7 pid 12 run x"; strings.Contains(text, "another process") != process {
			t.Errorf("owner %q: %q", owner, text)
		}
	}
}
