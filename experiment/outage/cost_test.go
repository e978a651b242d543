package outage

import (
	"testing"
	"time"
)

func TestTheCostIsABoundOnceItWasMeasured(t *testing.T) {
	t.Parallel()
	r := &Run{}
	before := len(r.Bounds())
	r.Cost = &Cost{OneDriver: 1000 * time.Microsecond, OneLayer: 1040 * time.Microsecond, ManyDriver: 10 * time.Millisecond, ManyLayer: 11 * time.Millisecond, Rounds: 3}
	bounds := r.Bounds()[before:]
	if len(bounds) != 2 || !bounds[0].Met() || bounds[1].Met() {
		t.Errorf("got %+v, want one that is met at 1.04, and one that is not at 1.10", bounds)
	}
	if got := bounds[1].text(bounds[1].Value); got != "1.10 ×" {
		t.Errorf("got %q", got)
	}
}
