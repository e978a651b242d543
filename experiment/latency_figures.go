package experiment

// figures returns the ratios that the run has both sides of.
func (r *LatencyRun) figures() []Figure {
	var out []Figure
	both := func(a, b string, add func(a, b *VariantResult)) {
		if a, b := r.Variant(a), r.Variant(b); a != nil && b != nil {
			add(a, b)
		}
	}
	least := func(name string, value, target float64) {
		out = append(out, Figure{Name: name, Value: value, AtLeast: target})
	}
	most := func(name string, value, target float64) {
		out = append(out, Figure{Name: name, Value: value, AtMost: target})
	}
	both(awaitPrimed, floorPaced, func(a, b *VariantResult) {
		most("p50: await-primed ÷ floor", a.P50/b.P50, 1.3)
		most("standard deviation up to p99: await-primed ÷ floor", a.StdDevP99/b.StdDevP99, 1.5)
	})
	both(awaitPrimedUnpaced, floorUnpaced, func(a, b *VariantResult) {
		least("messages per second: await-primed-unpaced ÷ floor-unpaced", a.Throughput/b.Throughput, 0.8)
	})
	both(primedAtNaive, naivePaced, func(a, b *VariantResult) {
		most("p50: await-primed-at-naive ÷ naive", a.P50/b.P50, 1)
	})
	both(awaitPrimedUnpaced, naiveUnpaced, func(a, b *VariantResult) {
		least("messages per second: await-primed-unpaced ÷ naive-unpaced", a.Throughput/b.Throughput, 10)
	})
	both(replayCapstan, floorReplay, func(a, b *VariantResult) {
		least("messages per second: replay ÷ floor-replay", a.Throughput/b.Throughput, 0.4)
	})
	both(tightPoll, awaitPrimed, func(a, b *VariantResult) {
		least("consumer CPU while messages come: tight-poll ÷ await-primed", a.ConsumerCPU/b.ConsumerCPU, 10)
		least("consumer CPU while none come: tight-poll ÷ await-primed", a.WaitingCPU/b.WaitingCPU, 10)
	})
	both(tightPoll, floorPaced, func(a, b *VariantResult) {
		out = append(out, Figure{Name: "consumer CPU while messages come: tight-poll ÷ floor", Value: a.ConsumerCPU / b.ConsumerCPU})
	})
	if v := r.Variant(awaitPrimed); v != nil && v.WaitingCPU > 0 {
		most("share of a core that a waiting consumer uses", v.WaitingCPU, 0.01)
	}
	return out
}
