package latency

import "time"

// Outage is a stretch of a run, in time since it began.
type Outage struct {
	// Fault is when the fault was made, Back when the first message was acknowledged after it, and
	// CaughtUp when what had piled up meanwhile was delivered (at or after Back).
	Fault, Back, CaughtUp time.Duration
}

// Length returns how long nothing was acknowledged after the fault.
func (o Outage) Length() time.Duration { return o.Back - o.Fault }

// Phases are samples split by an outage.
type Phases struct{ Before, During, After []Sample }

// Split splits samples: during are those that were under way at any moment between Fault and
// CaughtUp, before were delivered before the fault, after were sent when the pile was gone. The order
// within each is kept.
func Split(samples []Sample, o Outage) Phases {
	var p Phases
	for _, s := range samples {
		switch {
		case s.At+s.Took < o.Fault:
			p.Before = append(p.Before, s)
		case s.At > max(o.Back, o.CaughtUp):
			p.After = append(p.After, s)
		default:
			p.During = append(p.During, s)
		}
	}
	return p
}
