package experiment

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// variant is one row of the table.
type variant struct {
	name, what string
	deviation  float64 // of 2011
	base       string
	payload    int
	producers  int
	rate       float64 // 0: flat out
	slices     int
	send, read end
	// set: it runs on three members.
	set      bool
	majority bool
	unprimed bool
	// lead is how long the reader waits before the first message; 0 means settleTime.
	lead time.Duration
	// replay: everything is sent before the reader starts.
	replay bool
	// waits: what an idle reader costs is measured at the end.
	waits bool
}

// end says who does an end, and how.
type end struct {
	who, style string
	requery    time.Duration
}

var (
	byCapstan = end{who: Capstan}
	byRaw     = end{who: Raw}
	byDriver  = end{who: Driver, style: styleAwait}
)

// unprimedLead is how long a reader looks at an empty stream before the first message. It is no
// multiple of the second that one of them sleeps, so its first message waits for a part of one.
const unprimedLead = 2400 * time.Millisecond

// idleMeasure is how long an idle reader is watched.
const idleMeasure = 5 * time.Second

// setShare is by how much slower the variants on three members are paced. All members, the producer and
// the consumer share one small machine here: at the rate of a standalone server they would measure how
// long its queue is.
const setShare = 3

// Names of variants that figures are made of.
const (
	awaitPrimed        = "await-primed"
	awaitPrimedUnpaced = "await-primed-unpaced"
	floorPaced         = "floor"
	floorUnpaced       = "floor-unpaced"
	replayCapstan      = "replay"
	floorReplay        = "floor-replay"
	naivePaced         = "naive"
	naiveUnpaced       = "naive-unpaced"
	primedAtNaive      = "await-primed-at-naive"
	tightPoll          = "tight-poll"
)

// unpacedRounds is how many slices a variant that runs flat out has: few, as each begins and ends with
// an empty pipe, and enough for two variants to take turns.
const unpacedRounds = 4

// groups returns the variants, those together that take turns, in the order in which they run. Of
// c.Variants only those are left that are asked for, and those that they need.
func (c *LatencyConfig) groups() [][]variant {
	poll := func(style string) end { return end{who: Driver, style: style} }
	unprimed := func(requery time.Duration) end { return end{who: Driver, style: styleAwait, requery: requery} }
	paced := func(name, what string, send, read end) variant {
		return variant{name: name, what: what, rate: c.Rate, slices: c.Slices, send: send, read: read}
	}
	flat := func(v variant) variant {
		v.rate, v.slices = 0, unpacedRounds
		return v
	}
	alone := func(v variant, deviation float64) variant {
		v.slices, v.deviation = 1, deviation
		return v
	}
	waiting := func(v variant) variant {
		v.waits = true
		return v
	}
	rate := perSecond(c.Rate)
	primed := paced(awaitPrimed, "capstan's producer and tailer at "+rate, byCapstan, byCapstan)
	primed.deviation, primed.waits = 0.000662, true
	unpaced := flat(paced(awaitPrimedUnpaced, "capstan's producer and tailer, flat out", byCapstan, byCapstan))
	unpaced.deviation = 0.000753
	spin := alone(paced("await-unprimed-spin", "await on an empty stream, opened again at once until the first message", byCapstan, unprimed(0)), 0)
	spin.unprimed, spin.lead = true, unprimedLead
	sleep := alone(paced("await-unprimed-sleep", "the same, opened again each second", byCapstan, unprimed(time.Second)), 0)
	sleep.unprimed, sleep.lead = true, unprimedLead
	replay := variant{name: replayCapstan, what: "capstan's tailer started after the producer", slices: 1, send: byCapstan, read: end{who: Capstan, style: styleFind}, replay: true}
	rawReplay := replay
	rawReplay.name, rawReplay.what, rawReplay.send, rawReplay.read = floorReplay, "the ideal client's find of the same messages", byCapstan, end{who: Raw, style: styleFind}
	set := func(name, what string, majority bool) variant {
		v := paced(name, what, byCapstan, byCapstan)
		v.set, v.majority, v.rate = true, majority, c.Rate/setShare
		return v
	}
	changes := set("change-stream", "the same collection, read as a change stream", true)
	changes.read.style = styleChanges
	all := [][]variant{
		{alone(paced("sleep-poll", "tailable without await, 1 s sleep at the end of data", byCapstan, poll(styleSleep)), 0.29693)},
		{waiting(alone(paced(tightPoll, "tailable without await, no sleep", byCapstan, poll(styleSpin)), 0.000739))},
		{spin},
		{sleep},
		{primed, paced(floorPaced, "the ideal client at "+rate+", same group commit", byRaw, byRaw)},
		{unpaced, flat(paced(floorUnpaced, "the ideal client, flat out", byRaw, byRaw))},
		{replay, rawReplay},
		{flat(paced(naiveUnpaced, "one InsertOne per message and a plain await cursor, flat out", end{who: Driver}, byDriver))},
		// The rate of these two is set when the one before is known.
		{paced(naivePaced, "one InsertOne per message and a plain await cursor, at half its maximum", end{who: Driver}, byDriver),
			paced(primedAtNaive, "capstan's producer and tailer at naive's rate", byCapstan, byCapstan)},
		{set("majority", "three members, w: majority, majority-visible, "+perSecond(c.Rate/setShare), true), set("local", "the same, locally visible", false), changes},
	}
	all = append(all, c.sweeps(primed, paced(floorPaced, "the ideal client", byRaw, byRaw), unpaced, flat(paced(floorUnpaced, "the ideal client, flat out", byRaw, byRaw)))...)
	for _, g := range all {
		for i := range g {
			v := &g[i]
			v.payload, v.producers = max(v.payload, 0), max(v.producers, 1)
			if v.payload == 0 {
				v.payload = c.Payload[0]
			}
			if v.lead == 0 {
				v.lead = settleTime
			}
		}
	}
	return all
}

// sweeps returns the variants of the further payloads and producers.
func (c *LatencyConfig) sweeps(primed, floor, unpaced, floorFlat variant) [][]variant {
	var out [][]variant
	step := func(suffix, what string, set func(*variant), group ...variant) {
		for i := range group {
			v := &group[i]
			v.base, v.name, v.what, v.deviation, v.waits = v.name, v.name+suffix, v.what+", "+what, 0, false
			set(v)
		}
		out = append(out, group)
	}
	for _, size := range c.Payload[1:] {
		set := func(v *variant) { v.payload = size }
		step(fmt.Sprintf("@%dB", size), fmt.Sprintf("%d bytes of data", size), set, primed, floor)
		step(fmt.Sprintf("@%dB", size), fmt.Sprintf("%d bytes of data", size), set, unpaced, floorFlat)
	}
	for _, n := range c.Producers[1:] {
		set := func(v *variant) { v.producers = n }
		step(fmt.Sprintf("@%dp", n), fmt.Sprintf("%d producers", n), set, primed)
		step(fmt.Sprintf("@%dp", n), fmt.Sprintf("%d producers", n), set, unpaced)
	}
	return out
}

// VariantList returns a line for each variant, its name and what it does, for a help text.
func VariantList() string {
	var b strings.Builder
	c := LatencyConfig{}.withDefaults()
	for _, g := range c.groups() {
		for _, v := range g {
			fmt.Fprintf(&b, "  %-21s %s\n", v.name, v.what)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// Variants returns the names for LatencyConfig.Variants, in the order in which they run.
func Variants() []string {
	c := LatencyConfig{}.withDefaults()
	var names []string
	for _, g := range c.groups() {
		for _, v := range g {
			names = append(names, v.name)
		}
	}
	return names
}

func perSecond(rate float64) string { return humanize.Comma(int64(math.Round(rate))) + " msg/s" }
