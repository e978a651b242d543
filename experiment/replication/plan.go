package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Side is what a fault hits.
type Side string

// The sides.
const (
	Capstan Side = "capstan"
	Source  Side = "source"
	Target  Side = "target"
)

// Hit is a fault of a plan.
type Hit struct {
	// At is when, from the start of capstan; Hold how long the fault stays before it is undone.
	At, Hold time.Duration
	// Copied: At is from when the route has its copy, which no clock knows beforehand.
	Copied bool
	Side   Side
	// Fault is "kill" of capstan; of a set one of its primary: kill, term, freeze, stepdown, cut, or kill-secondary.
	Fault string
}

// String returns the hit for people.
func (h Hit) String() string {
	s := fmt.Sprintf("%s %s at %.2fs", h.Fault, h.Side, h.At.Seconds())
	if h.Copied {
		s = fmt.Sprintf("%s %s %.2fs after the copy", h.Fault, h.Side, h.At.Seconds())
	}
	if h.Hold > 0 {
		s += fmt.Sprintf(" for %.1fs", h.Hold.Seconds())
	}
	return s
}

// Plan is what a seed decides of a random run, beside the workload.
type Plan struct {
	Seed uint64
	// Hits are the faults, in the order of time, those after the copy last.
	Hits []Hit
	// Rename maps the names of the first database to another, Filter drops documents of one collection.
	Rename, Filter bool
}

// PlanOf returns the plan of a seed for a run whose workload takes about that long.
func PlanOf(seed uint64, length time.Duration) Plan {
	r := rand.New(rand.NewPCG(seed, 0xfa17))
	p := Plan{Seed: seed, Rename: seed%2 == 1, Filter: seed%3 == 0}
	moment := func(from, to float64) time.Duration {
		return time.Duration((from + (to-from)*r.Float64()) * float64(length)).Round(time.Millisecond)
	}
	// capstan: when it copies, or at any time, and most often when it catches up with what was written during the copy, or soon after.
	p.Hits = append(p.Hits, Hit{At: 30*time.Millisecond + time.Duration(r.IntN(700))*time.Millisecond, Side: Capstan, Fault: "kill"})
	for range r.IntN(2) {
		p.Hits = append(p.Hits, Hit{At: moment(0.15, 1.3), Side: Capstan, Fault: "kill"})
	}
	var late []Hit
	for range []int{0, 1, 1, 2}[r.IntN(4)] {
		late = append(late, Hit{At: time.Duration(r.IntN(1500)) * time.Millisecond, Copied: true, Side: Capstan, Fault: "kill"})
	}
	for _, side := range []Side{Source, Target} {
		for range r.IntN(3) { // none on either side now and then
			h := Hit{At: moment(0, 0.9), Side: side, Fault: faults[r.IntN(len(faults))]}
			switch h.Fault {
			case "stepdown": // is over at once
			case "cut":
				h.Hold = time.Duration(100+r.IntN(900)) * time.Millisecond
			default:
				h.Hold = time.Duration(500+r.IntN(2500)) * time.Millisecond
			}
			p.Hits = append(p.Hits, h)
		}
	}
	slices.SortStableFunc(p.Hits, func(a, b Hit) int { return int(a.At - b.At) })
	p.Hits = append(p.Hits, late...)
	return p
}

// faults are those of a set; what is listed twice comes twice as often.
var faults = []string{"kill", "kill", "freeze", "freeze", "stepdown", "cut", "cut", "term", "kill-secondary"}

// Text returns the hits on one side, "-" if there is none.
func (p Plan) Text(side Side) string {
	var all []string
	for _, h := range p.Hits {
		if h.Side == side {
			all = append(all, h.String())
		}
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, "; ")
}
