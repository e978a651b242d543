package outage

import (
	"slices"
	"time"
)

// plan says how a fault is tried.
type plan struct {
	name string
	// recovers: the clients are acknowledged again while the fault is in force; it is held until then.
	// Otherwise it is held for fast (with the fast profile) or slow, and they recover after it.
	recovers   bool
	fast, slow time.Duration
	// ends: the fault ends by itself, and is waited for.
	ends bool
	// disk: the members' data are on a small disk.
	disk bool
	// packets: it hits single packets, and no member is away.
	packets bool
	// main: one of the five that are tried most.
	main bool
}

// plans are all faults of the experiment, in the order in which they are reported.
var plans = []plan{
	{name: "kill", recovers: true, main: true},
	{name: "stepdown", recovers: true, ends: true, main: true},
	{name: "freeze", recovers: true, main: true},
	{name: "blackhole", recovers: true, main: true},
	{name: "link-down", recovers: true, main: true},
	{name: "term", recovers: true},
	{name: "one-way-out", recovers: true, fast: 3 * time.Second, slow: 15 * time.Second},
	{name: "one-way-in", recovers: true, fast: 3 * time.Second, slow: 15 * time.Second},
	{name: "client-cut", fast: 4 * time.Second, slow: 12 * time.Second},
	{name: "isolate-with-client", fast: 6 * time.Second, slow: 20 * time.Second},
	{name: "majority-down", fast: 4 * time.Second, slow: 12 * time.Second},
	{name: "blackhole-secondary", recovers: true, fast: 5 * time.Second, slow: 12 * time.Second},
	{name: "loss", recovers: true, fast: 8 * time.Second, slow: 12 * time.Second, packets: true},
	{name: "delay", recovers: true, fast: 8 * time.Second, slow: 12 * time.Second, packets: true},
	{name: "flap", recovers: true, ends: true},
	{name: "rolling-restart", recovers: true, ends: true},
	{name: "disk-full", recovers: true, fast: 3 * time.Second, slow: 3 * time.Second, disk: true},
}

// Faults returns the names of the faults that the experiment knows, in the order of its reports.
func Faults() []string {
	names := make([]string, len(plans))
	for i, p := range plans {
		names[i] = p.name
	}
	return names
}

func planOf(fault string) (plan, bool) {
	i := slices.IndexFunc(plans, func(p plan) bool { return p.name == fault })
	if i < 0 {
		return plan{}, false
	}
	return plans[i], true
}

// control is a negative control: a client that does it wrong, and the fault in which that shows.
type control struct {
	name  string // as a user calls it
	role  Role
	fault string
	// hold is the least time that the fault is in force; until the call in flight has returned, for Plain,
	// or others have been acknowledged, for One.
	hold time.Duration
}

var controls = []control{
	{name: "no-deadline", role: Plain, fault: "blackhole"},
	{name: "fresh-id", role: FreshID, fault: "majority-down", hold: 4 * time.Second},
	{name: "w1", role: One, fault: "isolate-with-client", hold: 3 * time.Second},
}

// Controls returns the names of the negative controls.
func Controls() []string {
	names := make([]string, len(controls))
	for i, c := range controls {
		names[i] = c.name
	}
	return names
}

func controlOf(name string) (control, bool) {
	i := slices.IndexFunc(controls, func(c control) bool { return c.name == name })
	if i < 0 {
		return control{}, false
	}
	return controls[i], true
}
