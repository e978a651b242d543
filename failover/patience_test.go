package failover

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOnlyAMemberThatAnswersLateGetsMoreTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p patience
		want := func(addr string, n int) {
			t.Helper()
			if got := p.doublings(addr); got != n {
				t.Errorf("%s: the deadline is doubled %d times, want %d", addr, got, n)
			}
		}
		want("a", 0)
		p.answered("a", true)
		want("a", 0) // it has met its deadline
		p.ranOut("a")
		p.ranOut("a")
		want("a", 0) // it is silent
		p.answered("b", false)
		want("a", 0) // another's answer says nothing of it
		p.answered("a", false)
		want("a", 1)
		want("b", 0)
		for range 10 {
			p.ranOut("a")
			p.answered("a", false)
		}
		want("a", maxPatience) // and not more
		time.Sleep(patienceFor - time.Second)
		p.answered("a", true)
		time.Sleep(patienceFor - time.Second)
		want("a", maxPatience) // it still answers slowly
		p.answered("a", false)
		time.Sleep(2 * time.Second)
		want("a", 0)
		p.ranOut("a")
		p.answered("a", false)
		want("a", 1) // it begins anew
	})
}
