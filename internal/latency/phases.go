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

// end returns when the outage is over for those who wait for messages.
func (o Outage) end() time.Duration { return max(o.Back, o.CaughtUp) }

// met reports whether s was under way at any moment of the outage.
func (o Outage) met(s Sample) bool { return s.At+s.Took >= o.Fault && s.At <= o.end() }

// Phases are samples split by outages.
type Phases struct {
	// Calm has one entry more than there are outages: the samples before the first one, between each
	// two, and after the last one.
	Calm [][]Sample
	// During has an entry per outage.
	During [][]Sample
}

// Split splits samples by outages, which are in the order of their faults: a sample that was under way
// at any moment between Fault and CaughtUp is During, of the first such outage; the others are Calm.
// The order within each is kept.
func Split(samples []Sample, outages []Outage) Phases {
	p := Phases{Calm: make([][]Sample, len(outages)+1), During: make([][]Sample, len(outages))}
	for _, s := range samples {
		i := 0 // the outages that were over before it was sent
		for i < len(outages) && s.At > outages[i].end() {
			i++
		}
		if i < len(outages) && outages[i].met(s) {
			p.During[i] = append(p.During[i], s)
			continue
		}
		p.Calm[i] = append(p.Calm[i], s)
	}
	return p
}
