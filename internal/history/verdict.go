package history

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is what the oracle found.
type Verdict struct {
	// Counts of distinct messages. Unsettled were sent and have no outcome.
	Sent, Acknowledged, Rejected, Unknown, Unsettled int
	// Stored counts the copies found in the destination.
	Stored int
	// Readers are the readers' counts, by name.
	Readers []ReaderCounts
	// Violations counts all broken rules, ByRule each; First describes the first of them.
	Violations int
	ByRule     map[Rule]int
	First      []Violation
}

// ReaderCounts are the counts of one reader.
type ReaderCounts struct {
	Name string
	// Delivered, Handled and Unhandled count distinct messages.
	Delivered, Handled, Unhandled int
	// Redelivered counts repeated deliveries that an at-least-once reader may make, Duplicated those
	// that nobody may.
	Redelivered, Duplicated int
	// Reported and ReportedAtMost count messages that the reader was told it lost, in exact and in
	// inexact gaps.
	Reported, ReportedAtMost int
	// Lost counts acknowledged messages that were neither delivered nor reported: silent loss.
	Lost int
}

// OK reports whether no rule was broken.
func (v Verdict) OK() bool { return v.Violations == 0 }

// Err returns nil, or an error that holds the verdict's text.
func (v Verdict) Err() error {
	if v.OK() {
		return nil
	}
	return &ViolatedError{v}
}

// Reader returns the counts of the reader of that name, or zero counts.
func (v Verdict) Reader(name string) ReaderCounts {
	for _, r := range v.Readers {
		if r.Name == name {
			return r
		}
	}
	return ReaderCounts{Name: name}
}

// String returns the counts and the first violations, several lines without a final newline.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sent %d, acknowledged %d, rejected %d, unknown %d", v.Sent, v.Acknowledged, v.Rejected, v.Unknown)
	if v.Unsettled > 0 {
		fmt.Fprintf(&b, ", without outcome %d", v.Unsettled)
	}
	if v.Stored > 0 {
		fmt.Fprintf(&b, ", stored %d", v.Stored)
	}
	for _, r := range v.Readers {
		fmt.Fprintf(&b, "\nreader %s: delivered %d, lost %d, duplicated %d, redelivered %d", r.Name, r.Delivered, r.Lost, r.Duplicated, r.Redelivered)
		if r.Handled+r.Unhandled > 0 {
			fmt.Fprintf(&b, ", handled %d", r.Handled)
		}
		if r.Reported+r.ReportedAtMost > 0 {
			fmt.Fprintf(&b, ", reported as lost %d exactly and at most %d more", r.Reported, r.ReportedAtMost)
		}
	}
	if v.OK() {
		b.WriteString("\nno violation")
		return b.String()
	}
	fmt.Fprintf(&b, "\n%d violations:", v.Violations)
	for _, rule := range v.rules() {
		fmt.Fprintf(&b, " %s %d;", rule, v.ByRule[rule])
	}
	for _, x := range v.First {
		fmt.Fprintf(&b, "\n  %s", x)
	}
	if n := v.Violations - len(v.First); n > 0 {
		fmt.Fprintf(&b, "\n  … and %d more", n)
	}
	return b.String()
}

func (v Verdict) rules() []Rule {
	var rules []Rule
	for r := range v.ByRule {
		rules = append(rules, r)
	}
	slices.Sort(rules)
	return rules
}

// ViolatedError says that a history broke at least one rule.
type ViolatedError struct{ Verdict Verdict }

func (e *ViolatedError) Error() string { return "history violates its rules: " + e.Verdict.String() }
