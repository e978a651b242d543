package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// DefaultMaxViolations is how many violations a verdict keeps with their details.
const DefaultMaxViolations = 10

// Rules say what a history is judged by. The zero Rules judge the producers alone and whatever
// readers recorded something, each by the zero ReaderRules.
type Rules struct {
	// Readers are the readers that must be there and what holds for each. A reader that is not named
	// here is judged by the zero ReaderRules.
	Readers map[string]ReaderRules
	// Unsettled allows messages that were sent and have no outcome: the producer was killed. Without
	// it each message sent must be acknowledged, rejected or unknown.
	Unsettled bool
	// Stored asks for exactly one Stored event for each acknowledged message, and for none that is
	// rejected or was never sent.
	Stored bool
	// MaxViolations is how many violations the verdict describes; 0 means DefaultMaxViolations. All
	// are counted.
	MaxViolations int
}

// ReaderRules say what a reader promises. The zero value is the strictest delivery: every acknowledged
// message exactly once, in the order of its src.
type ReaderRules struct {
	// AtLeastOnce allows a message again after a Resumed event (counted as redelivery). A message that
	// comes twice without one is a violation all the same.
	AtLeastOnce bool
	// Unordered drops the demand for order per src.
	Unordered bool
	// Partial drops the demand that everything acknowledged is delivered: the reader started later,
	// was stopped earlier, or shares the work.
	Partial bool
	// Handles asks that everything delivered was handled too.
	Handles bool
}

// Rule names what a violation violates.
type Rule string

// The rules. Each is caught by a broken run in the tests.
const (
	// RuleLost: acknowledged, and neither delivered nor reported as lost.
	RuleLost Rule = "lost silently"
	// RuleDoubled: delivered or stored twice where once is allowed.
	RuleDoubled Rule = "doubled"
	// RuleReordered: delivered after a later message of the same src.
	RuleReordered Rule = "out of order"
	// RuleInvented: acknowledged, delivered, handled or stored, but never sent (or never delivered).
	RuleInvented Rule = "invented"
	// RuleResurrected: reported as certainly not written, and delivered or stored all the same.
	RuleResurrected Rule = "rejected, but there"
	// RuleMiscounted: a gap counts what was delivered, was never written, or was counted before.
	RuleMiscounted Rule = "gap miscounted"
	// RuleUnsettled: sent, and no outcome was ever reported.
	RuleUnsettled Rule = "no outcome"
	// RuleContradicted: two outcomes were reported for one message.
	RuleContradicted Rule = "two outcomes"
	// RuleUnhandled: delivered and never handled.
	RuleUnhandled Rule = "not handled"
	// RuleUnstored: acknowledged and not in the destination.
	RuleUnstored Rule = "not stored"
)

// Violation is one broken rule.
type Violation struct {
	Rule Rule
	Key  Key
	// Reader is the reader concerned, "" for producers and the destination.
	Reader string
	// Text says what happened, for people.
	Text string
}

// String returns one line.
func (v Violation) String() string {
	who := ""
	if v.Reader != "" {
		who = " to reader " + v.Reader
	}
	return fmt.Sprintf("%s%s: %s: %s", v.Rule, who, v.Key, v.Text)
}

// message is what the oracle knows of one message.
type message struct {
	key                            Key
	sent, acked, rejected, unknown int
	stored                         int
	readers                        []seen // by the reader's number
}

// seen is what one reader saw of one message.
type seen struct {
	delivered, handled, lost int
	run                      int // the reader's run in which it was delivered last
}

// reader is what the oracle knows of one reader.
type reader struct {
	ReaderCounts
	rules ReaderRules
	index int
	run   int
	// first is the highest seq delivered for the first time, last the one delivered last in this run,
	// both per src.
	first, last map[string]int64
}

// oracle walks once over the events and once over the messages. Not safe for concurrent use.
type oracle struct {
	rules    Rules
	messages map[Key]*message
	order    []*message // by first appearance, so that verdicts are the same every time
	highest  map[string]int64
	readers  map[string]*reader
	list     []*reader // the same, in a fixed order
	verdict  Verdict
}

// Check judges events by rules. It keeps the order of events only within one reader, so the events of
// several files may be concatenated in any order.
func Check(events []Event, rules Rules) Verdict {
	if rules.MaxViolations == 0 {
		rules.MaxViolations = DefaultMaxViolations
	}
	o := &oracle{
		rules:    rules,
		messages: make(map[Key]*message, len(events)/3+1),
		highest:  make(map[string]int64),
		readers:  make(map[string]*reader),
		verdict:  Verdict{ByRule: make(map[Rule]int)},
	}
	for _, name := range slices.Sorted(maps.Keys(rules.Readers)) {
		o.reader(name)
	}
	// First the producers, as their files may come after the readers'.
	for _, e := range events {
		o.produced(e)
	}
	for _, e := range events {
		o.read(e)
	}
	for _, m := range o.order {
		o.settle(m)
		for _, r := range o.list {
			o.complete(r, m)
		}
	}
	for _, r := range o.list {
		o.verdict.Readers = append(o.verdict.Readers, r.ReaderCounts)
	}
	slices.SortFunc(o.verdict.Readers, func(a, b ReaderCounts) int { return strings.Compare(a.Name, b.Name) })
	return o.verdict
}

func (o *oracle) reader(name string) *reader {
	r := o.readers[name]
	if r == nil {
		r = &reader{ReaderCounts: ReaderCounts{Name: name}, rules: o.rules.Readers[name], index: len(o.list),
			first: make(map[string]int64), last: make(map[string]int64)}
		o.readers[name] = r
		o.list = append(o.list, r)
	}
	return r
}

func (o *oracle) message(k Key) *message {
	m := o.messages[k]
	if m == nil {
		m = &message{key: k}
		o.messages[k] = m
		o.order = append(o.order, m)
	}
	return m
}

// by returns what r saw of m, to be changed.
func (m *message) by(r *reader) *seen {
	for len(m.readers) <= r.index {
		m.readers = append(m.readers, seen{})
	}
	return &m.readers[r.index]
}

func (o *oracle) violate(rule Rule, k Key, r *reader, format string, args ...any) {
	o.verdict.Violations++
	o.verdict.ByRule[rule]++
	if len(o.verdict.First) >= o.rules.MaxViolations {
		return
	}
	v := Violation{Rule: rule, Key: k, Text: fmt.Sprintf(format, args...)}
	if r != nil {
		v.Reader = r.Name
	}
	o.verdict.First = append(o.verdict.First, v)
}

// produced takes the events of the producers and of the destination.
func (o *oracle) produced(e Event) {
	switch e.Kind {
	case KindSent:
		o.message(e.Key).sent++
		o.highest[e.Key.Src] = max(o.highest[e.Key.Src], e.Key.Seq)
	case KindAcknowledged:
		o.message(e.Key).acked++
	case KindRejected:
		o.message(e.Key).rejected++
	case KindUnknown:
		o.message(e.Key).unknown++
	case KindStored:
		o.message(e.Key).stored++
	}
}

// read takes the events of the readers.
func (o *oracle) read(e Event) {
	switch e.Kind {
	case KindResumed:
		r := o.reader(e.Reader)
		r.run++
		clear(r.last)
	case KindDelivered:
		o.delivered(o.reader(e.Reader), o.message(e.Key))
	case KindHandled:
		r, m := o.reader(e.Reader), o.message(e.Key)
		s := m.by(r)
		if s.delivered == 0 {
			o.violate(RuleInvented, e.Key, r, "handled before it was delivered")
		}
		if s.handled++; s.handled == 1 {
			r.Handled++
		}
	case KindLost:
		o.lost(o.reader(e.Reader), e)
	}
}

func (o *oracle) delivered(r *reader, m *message) {
	s, src, seq := m.by(r), m.key.Src, m.key.Seq
	again := s.delivered > 0
	s.delivered++
	switch {
	case m.sent == 0:
		o.violate(RuleInvented, m.key, r, "delivered, but nobody sent it")
	case m.rejected > 0 && m.acked == 0:
		o.violate(RuleResurrected, m.key, r, "delivered, but the producer said that it was not written")
	}
	switch {
	case !again:
		r.Delivered++
	case r.rules.AtLeastOnce && s.run != r.run:
		r.Redelivered++
	default:
		r.Duplicated++
		o.violate(RuleDoubled, m.key, r, "delivered %d times", s.delivered)
	}
	s.run = r.run
	// I4: per src, what comes for the first time comes in order; and so does each run by itself.
	if last := max(r.last[src], r.first[src]); !again && seq < last && !r.rules.Unordered {
		o.violate(RuleReordered, m.key, r, "delivered after %s", Key{src, last})
	} else if last := r.last[src]; again && seq < last && !r.rules.Unordered {
		o.violate(RuleReordered, m.key, r, "delivered again after %s", Key{src, last})
	}
	r.last[src] = seq
	if !again {
		r.first[src] = max(r.first[src], seq)
	}
}

func (o *oracle) lost(r *reader, e Event) {
	src, to := e.Key.Src, e.To
	if e.Key.Seq < 1 || to < e.Key.Seq {
		o.violate(RuleMiscounted, e.Key, r, "the gap says seq %d to %d", e.Key.Seq, to)
		return
	}
	if highest := o.highest[src]; to > highest {
		o.violate(RuleMiscounted, e.Key, r, "the gap reaches to seq %d, but no more than %d were sent", to, highest)
		to = highest
	}
	for seq := e.Key.Seq; seq <= to; seq++ {
		m := o.message(Key{src, seq})
		s := m.by(r)
		switch s.lost++; {
		case m.sent == 0:
			o.violate(RuleMiscounted, m.key, r, "counted as lost, but nobody sent it")
		case m.rejected > 0 && m.acked == 0:
			o.violate(RuleMiscounted, m.key, r, "counted as lost, but it was never written")
		case s.lost > 1 && !r.rules.AtLeastOnce:
			o.violate(RuleMiscounted, m.key, r, "counted as lost twice")
		}
		if s.lost == 1 && e.Exact {
			r.Reported++
		} else if s.lost == 1 {
			r.ReportedAtMost++
		}
	}
}

// settle judges the outcomes and the destination for m.
func (o *oracle) settle(m *message) {
	v := &o.verdict
	if m.sent > 0 {
		v.Sent++
	}
	if m.acked > 0 {
		v.Acknowledged++
	}
	if m.rejected > 0 {
		v.Rejected++
	}
	if m.unknown > 0 {
		v.Unknown++
	}
	v.Stored += m.stored
	outcomes := m.acked + m.rejected + m.unknown
	switch {
	case outcomes > 1:
		o.violate(RuleContradicted, m.key, nil, "acknowledged %d times, rejected %d times, unknown %d times", m.acked, m.rejected, m.unknown)
	case m.sent == 0 && outcomes > 0:
		o.violate(RuleInvented, m.key, nil, "has an outcome, but nobody sent it")
	case m.sent > 0 && outcomes == 0:
		v.Unsettled++
		if !o.rules.Unsettled {
			o.violate(RuleUnsettled, m.key, nil, "sent, and never heard of again")
		}
	}
	o.stored(m)
}

func (o *oracle) stored(m *message) {
	switch {
	case m.stored > 0 && m.sent == 0:
		o.violate(RuleInvented, m.key, nil, "stored, but nobody sent it")
	case m.stored > 0 && m.rejected > 0 && m.acked == 0:
		o.violate(RuleResurrected, m.key, nil, "stored, but the producer said that it was not written")
	}
	if m.stored > 1 {
		o.violate(RuleDoubled, m.key, nil, "stored %d times", m.stored)
	}
	if o.rules.Stored && m.acked > 0 && m.stored == 0 {
		o.violate(RuleUnstored, m.key, nil, "acknowledged, but not in the destination")
	}
}

// complete judges what r saw, or did not see, of m when all is over.
func (o *oracle) complete(r *reader, m *message) {
	s := m.by(r)
	switch {
	case s.delivered > 0 && s.lost > 0:
		o.violate(RuleMiscounted, m.key, r, "counted as lost, but it was delivered")
	case s.delivered == 0 && s.lost == 0 && m.acked > 0 && !r.rules.Partial:
		r.Lost++
		o.violate(RuleLost, m.key, r, "acknowledged, but neither delivered nor reported as lost") // I5
	}
	if r.rules.Handles && s.delivered > 0 && s.handled == 0 {
		r.Unhandled++
		o.violate(RuleUnhandled, m.key, r, "delivered, but its handler never finished")
	}
}
