package experiment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CoreReport is what RunCore measured.
type CoreReport struct {
	Machine     Machine      `json:"machine"`
	Config      Settings     `json:"settings"`
	Comparisons []Comparison `json:"comparisons"`
	Limits      []Limit      `json:"limits"`
}

// Settings are the numbers of CoreConfig that shape the result.
type Settings struct {
	Rounds       int     `json:"rounds"`
	Messages     int64   `json:"messages"`
	Payload      int     `json:"payload_bytes"`
	LargePayload int     `json:"large_payload_bytes"`
	StreamBytes  int64   `json:"stream_bytes"`
	Batch        int     `json:"raw_batch"`
	IdleSeconds  float64 `json:"idle_seconds"`
	Seed         uint64  `json:"seed"`
}

func settingsOf(c CoreConfig) Settings {
	return Settings{c.Rounds, c.Messages, c.Payload, c.LargePayload, c.StreamBytes, c.Batch, c.Idle.Seconds(), c.Seed}
}

// Comparison is one thing done by capstan and by others, round by round.
type Comparison struct {
	Name string `json:"name"`
	// Unit is of the values: "msg/s" or "s".
	Unit string `json:"unit"`
	// Target is what Ratio should reach ("msg/s": at least; "s": at most).
	Target float64 `json:"target"`
	Rounds []Round `json:"rounds"`
}

// Round has what each side measured in one round, in the order in which they ran.
type Round []Side

// Side is one side of a round.
type Side struct {
	Who   string  `json:"who"`
	Value float64 `json:"value"`
	// ServerCPU is the server's CPU seconds meanwhile.
	ServerCPU float64 `json:"server_cpu_seconds,omitempty"`
	// Delivered is the seconds from the first send to the last delivery at the tail.
	Delivered float64 `json:"delivered_seconds,omitempty"`
	// Workers are the processes' own outcomes: the producer and its tail, or one tail.
	Workers []Outcome `json:"workers"`
}

// values returns what who measured, a value per round.
func (c Comparison) values(who string) []float64 {
	var v []float64
	for _, r := range c.Rounds {
		for _, s := range r {
			if s.Who == who {
				v = append(v, s.Value)
			}
		}
	}
	return v
}

// Ratios returns capstan's value divided by who's, round by round: both saw the same machine.
func (c Comparison) Ratios(who string) []float64 {
	ours, theirs := c.values(Capstan), c.values(who)
	var r []float64
	for i := range min(len(ours), len(theirs)) {
		r = append(r, ours[i]/theirs[i])
	}
	return r
}

// Met reports whether the median ratio against the raw client reaches the target.
func (c Comparison) Met() bool {
	r := median(c.Ratios(Raw))
	if c.Unit == "s" {
		return r <= c.Target
	}
	return r >= c.Target
}

// Limit is one figure that must stay below a limit.
type Limit struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	// Workers are the outcomes that the figure comes from.
	Workers []Outcome `json:"workers,omitempty"`
}

// Met reports whether the figure stays at or below its limit. A limit of 0 is none.
func (l Limit) Met() bool { return l.Limit == 0 || l.Value <= l.Limit }

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Met reports whether everything measured reaches its target.
func (r *CoreReport) Met() bool {
	for _, c := range r.Comparisons {
		if !c.Met() {
			return false
		}
	}
	for _, l := range r.Limits {
		if !l.Met() {
			return false
		}
	}
	return true
}

// Write puts the report into a folder, which it makes: core.json with every number, core.md with the
// tables.
func (r *CoreReport) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make results folder: %w", err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "core.json"), append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	var md strings.Builder
	r.markdown(&md)
	if err := os.WriteFile(filepath.Join(dir, "core.md"), []byte(md.String()), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

func (r *CoreReport) markdown(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "# Core: speed and memory\n\nMade by `%s` at commit %s, %s. The raw numbers are in core.json.\n\n", m.Command, cmp.Or(m.Commit, "unknown"), m.Time)
	fmt.Fprintf(w, "%s; seed %d.\n\n", m, r.Config.Seed)
	r.Print(w)
}

// Print writes the tables, for people.
func (r *CoreReport) Print(w io.Writer) {
	if len(r.Comparisons) > 0 {
		fmt.Fprintf(w, "| what (%d rounds, medians) | unit | capstan | raw | driver | ÷ raw: median (least to most) | target | met |\n|---|---|---|---|---|---|---|---|\n", r.Config.Rounds)
	}
	for _, c := range r.Comparisons {
		ratios := c.Ratios(Raw)
		sign := "≥"
		if c.Unit == "s" {
			sign = "≤"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %.2f (%.2f to %.2f) | %s %g | %s |\n", c.Name, c.Unit,
			figure(c.values(Capstan), c.Unit), figure(c.values(Raw), c.Unit), figure(c.values(Driver), c.Unit),
			median(ratios), least(ratios), most(ratios), sign, c.Target, yes(c.Met()))
	}
	if len(r.Limits) > 0 {
		fmt.Fprint(w, "\n| what | value | limit | met |\n|---|---|---|---|\n")
	}
	for _, l := range r.Limits {
		limit, met := "none", ""
		if l.Limit > 0 {
			limit, met = fmt.Sprintf("≤ %g %s", l.Limit, l.Unit), yes(l.Met())
		}
		fmt.Fprintf(w, "| %s | %.3g %s | %s | %s |\n", l.Name, l.Value, l.Unit, limit, met)
	}
}

func figure(v []float64, unit string) string {
	switch {
	case len(v) == 0:
		return "–"
	case unit == "s":
		return fmt.Sprintf("%.3f", median(v))
	}
	return fmt.Sprintf("%.0f", median(v))
}

func least(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Min(v)
}

func most(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Max(v)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
