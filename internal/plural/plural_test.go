package plural

import "testing"

func TestOnlyOneIsSingular(t *testing.T) {
	for n, want := range map[int]string{0: "0 attempts", 1: "1 attempt", 2: "2 attempts"} {
		if got := Of(n, "attempt"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
