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
			if got := p.timeout(time.Second, addr); got != time.Second<<n {
				t.Errorf("%s: the deadline is %v, want it doubled %d times", addr, got, n)
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

// measured is a monitor that has measured something.
type measured time.Duration

func (m *measured) EWMA() time.Duration { return time.Duration(*m) }

func TestAttemptsGetTheRoundTripsThatTheMonitorMeasured(t *testing.T) {
	t.Parallel()
	var p patience
	trip := measured(time.Millisecond)
	want := func(addr string, d time.Duration) {
		t.Helper()
		if got := p.timeout(500*time.Millisecond, addr); got != d {
			t.Errorf("%s: the deadline is %v, want %v", addr, got, d)
		}
	}
	want("a", 500*time.Millisecond) // nobody has measured anything
	p.measures("a", &trip)
	want("a", 500*time.Millisecond) // as it should be
	trip = measured(100 * time.Millisecond)
	want("a", 1300*time.Millisecond)
	want("b", 500*time.Millisecond)
	trip = measured(time.Hour)
	want("a", 4*time.Second) // and not more
	trip = measured(time.Millisecond)
	want("a", 500*time.Millisecond)
}
