package outage

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-12ef14e5/capstan/experiment/results"
)

// ErrSummary says that a file is not the summary of a failover run, ErrTrials that one is not its trials.
var (
	ErrSummary = errors.New("not the summary of a failover run")
	ErrTrials  = errors.New("not the trials of a failover run")
)

// timeDigits are those behind the point of seconds: the clients' clock has microseconds, but the
// servers' logs only milliseconds.
const timeDigits = 3

// trialLine is a line of trials.csv: a trial, and what its line says in another form.
type trialLine struct {
	Trial
	before, healed, ended time.Duration // relative to the fault
	ok                    bool
	notes                 string
}

// line returns the trial as its line.
func (t *Trial) line() trialLine {
	l := trialLine{Trial: *t, before: t.At.Sub(t.Begun), ok: t.Verdict.OK(), notes: strings.Join(t.Verdict.Notes, "; ")}
	if t.Healed != 0 {
		l.healed = t.Healed.Sub(t.At)
	}
	if t.Ended != 0 {
		l.ended = t.Ended.Sub(t.At)
	}
	return l
}

// trial returns what a line tells, without events. It takes place at the clock's zero.
func (l *trialLine) trial() Trial {
	t := l.Trial
	t.Begun, t.Healed, t.Ended = Moment(0).Add(-l.before), Moment(0).Add(l.healed), Moment(0).Add(l.ended)
	if l.notes != "" {
		t.Verdict.Notes = []string{l.notes}
	}
	return t
}

func trialText(name string, field func(*trialLine) any) results.Column[trialLine] {
	return results.Col(name, timeDigits, field)
}

// trialColumns are in the order of the file.
var trialColumns = []results.Column[trialLine]{
	trialText("fault", func(l *trialLine) any { return &l.Fault }),
	trialText("profile", func(l *trialLine) any { return &l.Profile }),
	trialText("control", func(l *trialLine) any { return &l.Control }),
	trialText("trial", func(l *trialLine) any { return &l.Number }),
	trialText("ok", func(l *trialLine) any { return &l.ok }),
	trialText("outage", func(l *trialLine) any { return &l.Row.Outage }),
	trialText("cluster_outage", func(l *trialLine) any { return &l.Row.ClusterOutage }),
	trialText("reach_outage", func(l *trialLine) any { return &l.Row.ReachOutage }),
	trialText("excess", func(l *trialLine) any { return &l.Row.Excess }),
	trialText("writer_outage", func(l *trialLine) any { return &l.Row.WriterOutage }),
	trialText("read_outage", func(l *trialLine) any { return &l.Row.ReadOutage }),
	trialText("first", func(l *trialLine) any { return &l.Row.First }),
	trialText("election", func(l *trialLine) any { return &l.Row.Election }),
	trialText("transition", func(l *trialLine) any { return &l.Row.Transition }),
	trialText("elections", func(l *trialLine) any { return &l.Row.Elections }),
	trialText("sync_changes", func(l *trialLine) any { return &l.Row.SyncChanges }),
	trialText("part_detection", func(l *trialLine) any { return &l.Row.Detection }),
	trialText("part_election", func(l *trialLine) any { return &l.Row.Elected }),
	trialText("part_transition", func(l *trialLine) any { return &l.Row.Transit }),
	trialText("part_sync_source", func(l *trialLine) any { return &l.Row.SyncSource }),
	trialText("part_client", func(l *trialLine) any { return &l.Row.Client }),
	trialText("max_call", func(l *trialLine) any { return &l.Row.MaxCall }),
	trialText("max_read", func(l *trialLine) any { return &l.Row.MaxRead }),
	trialText("deadline", func(l *trialLine) any { return &l.Row.Deadline }),
	trialText("max_over", func(l *trialLine) any { return &l.Row.MaxOver }),
	trialText("plain_call", func(l *trialLine) any { return &l.Row.PlainCall }),
	trialText("plain_hung", func(l *trialLine) any { return &l.Row.PlainHung }),
	trialText("attempts", func(l *trialLine) any { return &l.Row.Attempts }),
	trialText("doubtful", func(l *trialLine) any { return &l.Row.Doubtful }),
	trialText("conns", func(l *trialLine) any { return &l.Row.Conns }),
	trialText("reads", func(l *trialLine) any { return &l.Row.Reads }),
	trialText("failed_reads", func(l *trialLine) any { return &l.Row.FailedReads }),
	trialText("stale", func(l *trialLine) any { return &l.Row.Stale }),
	trialText("sent", func(l *trialLine) any { return &l.Verdict.Sent }),
	trialText("acknowledged", func(l *trialLine) any { return &l.Verdict.Acknowledged }),
	trialText("lost", func(l *trialLine) any { return &l.Verdict.Lost }),
	trialText("duplicated", func(l *trialLine) any { return &l.Verdict.Doubled }),
	trialText("resurrected", func(l *trialLine) any { return &l.Verdict.Resurrected }),
	trialText("unknown", func(l *trialLine) any { return &l.Verdict.UnknownCalls }),
	trialText("unknown_present", func(l *trialLine) any { return &l.Verdict.UnknownPresent }),
	trialText("unequal_members", func(l *trialLine) any { return &l.Verdict.Unequal }),
	trialText("rolled_back", func(l *trialLine) any { return &l.Verdict.RolledBack }),
	trialText("rolled_back_acknowledged", func(l *trialLine) any { return &l.Verdict.RolledBackAcknowledged }),
	trialText("tail_missed", func(l *trialLine) any { return &l.Verdict.TailMissed }),
	trialText("tail_duplicated", func(l *trialLine) any { return &l.Verdict.TailDoubled }),
	trialText("tail_reordered", func(l *trialLine) any { return &l.Verdict.TailReordered }),
	trialText("tail_gaps", func(l *trialLine) any { return &l.Verdict.TailGaps }),
	trialText("consume_missed", func(l *trialLine) any { return &l.Verdict.ConsumeMissed }),
	trialText("consume_skipped", func(l *trialLine) any { return &l.Verdict.ConsumeSkipped }),
	trialText("linearizable", func(l *trialLine) any { return &l.Verdict.Linearizable }),
	results.Col("load", 2, func(l *trialLine) any { return &l.Load }),
	trialText("before", func(l *trialLine) any { return &l.before }),
	trialText("healed", func(l *trialLine) any { return &l.healed }),
	trialText("ended", func(l *trialLine) any { return &l.ended }),
	trialText("victim", func(l *trialLine) any { return &l.Victim }),
	trialText("new_primary", func(l *trialLine) any { return &l.New }),
	trialText("lane", func(l *trialLine) any { return &l.Lane }),
	trialText("seed", func(l *trialLine) any { return &l.Seed }),
	trialText("notes", func(l *trialLine) any { return &l.notes }),
}

func writeTrials(w io.Writer, trials []Trial) error {
	lines := make([]trialLine, len(trials))
	for i := range trials {
		lines[i] = trials[i].line()
	}
	return results.WriteCSV(w, trialColumns, lines)
}

func readTrials(r io.Reader) ([]Trial, error) {
	lines, err := results.ReadCSV(r, trialColumns)
	if err != nil {
		return nil, fmt.Errorf("read trials: %w: %w", ErrTrials, err)
	}
	trials := make([]Trial, len(lines))
	for i := range lines {
		trials[i] = lines[i].trial()
	}
	return trials, nil
}

// Summary is what the trials of one fault and profile amount to: one line of summary.csv. Controls are
// not in it. P50 is the median, of an even number the lower of the two in the middle, so that a trial
// has it.
type Summary struct {
	Fault, Profile                                            string
	Trials, OK                                                int
	OutageP50, OutageMax, ClusterP50, ClusterMax              time.Duration
	ExcessP50, ExcessMax, ReachP50, ReachMax, WriterMax       time.Duration
	Election, Transition, First                               time.Duration
	Detection, Elected, Transit, SyncSource, Client           time.Duration
	MaxCall, MaxRead, MaxOver, PlainMax, ReadOutage, Stale    time.Duration
	PlainHung, Reads, FailedReads, AttemptsMax, Doubtful      int
	Conns                                                     int64
	Lost, Doubled, Resurrected, Unknown, UnknownPresent       int
	Unequal, RolledBack, TailMissed, TailFaults, ConsumeFault int
	LoadMax                                                   float64
}

func summaryCol(name string, field func(*Summary) any) results.Column[Summary] {
	return results.Col(name, timeDigits, field)
}

// summaryColumns are in the order of the file. Others read it: new columns come at the end.
var summaryColumns = []results.Column[Summary]{
	summaryCol("fault", func(s *Summary) any { return &s.Fault }),
	summaryCol("profile", func(s *Summary) any { return &s.Profile }),
	summaryCol("trials", func(s *Summary) any { return &s.Trials }),
	summaryCol("outage_p50", func(s *Summary) any { return &s.OutageP50 }),
	summaryCol("outage_max", func(s *Summary) any { return &s.OutageMax }),
	summaryCol("cluster_outage_p50", func(s *Summary) any { return &s.ClusterP50 }),
	summaryCol("cluster_outage_max", func(s *Summary) any { return &s.ClusterMax }),
	summaryCol("excess_p50", func(s *Summary) any { return &s.ExcessP50 }),
	summaryCol("excess_max", func(s *Summary) any { return &s.ExcessMax }),
	summaryCol("max_call", func(s *Summary) any { return &s.MaxCall }),
	summaryCol("lost", func(s *Summary) any { return &s.Lost }),
	summaryCol("duplicated", func(s *Summary) any { return &s.Doubled }),
	summaryCol("ok", func(s *Summary) any { return &s.OK }),
	summaryCol("reach_outage_p50", func(s *Summary) any { return &s.ReachP50 }),
	summaryCol("reach_outage_max", func(s *Summary) any { return &s.ReachMax }),
	summaryCol("writer_outage_max", func(s *Summary) any { return &s.WriterMax }),
	summaryCol("first_p50", func(s *Summary) any { return &s.First }),
	summaryCol("election_p50", func(s *Summary) any { return &s.Election }),
	summaryCol("transition_p50", func(s *Summary) any { return &s.Transition }),
	summaryCol("part_detection_p50", func(s *Summary) any { return &s.Detection }),
	summaryCol("part_election_p50", func(s *Summary) any { return &s.Elected }),
	summaryCol("part_transition_p50", func(s *Summary) any { return &s.Transit }),
	summaryCol("part_sync_source_p50", func(s *Summary) any { return &s.SyncSource }),
	summaryCol("part_client_p50", func(s *Summary) any { return &s.Client }),
	summaryCol("plain_call_max", func(s *Summary) any { return &s.PlainMax }),
	summaryCol("plain_hung", func(s *Summary) any { return &s.PlainHung }),
	summaryCol("read_outage_max", func(s *Summary) any { return &s.ReadOutage }),
	summaryCol("max_read", func(s *Summary) any { return &s.MaxRead }),
	summaryCol("max_over", func(s *Summary) any { return &s.MaxOver }),
	summaryCol("reads", func(s *Summary) any { return &s.Reads }),
	summaryCol("failed_reads", func(s *Summary) any { return &s.FailedReads }),
	summaryCol("stale_max", func(s *Summary) any { return &s.Stale }),
	summaryCol("attempts_max", func(s *Summary) any { return &s.AttemptsMax }),
	summaryCol("doubtful", func(s *Summary) any { return &s.Doubtful }),
	summaryCol("conns_max", func(s *Summary) any { return &s.Conns }),
	summaryCol("resurrected", func(s *Summary) any { return &s.Resurrected }),
	summaryCol("unknown", func(s *Summary) any { return &s.Unknown }),
	summaryCol("unknown_present", func(s *Summary) any { return &s.UnknownPresent }),
	summaryCol("unequal_members", func(s *Summary) any { return &s.Unequal }),
	summaryCol("rolled_back_acknowledged", func(s *Summary) any { return &s.RolledBack }),
	summaryCol("tail_missed", func(s *Summary) any { return &s.TailMissed }),
	summaryCol("tail_other", func(s *Summary) any { return &s.TailFaults }),
	summaryCol("consume_faults", func(s *Summary) any { return &s.ConsumeFault }),
	summaryCol("load_max", func(s *Summary) any { return &s.LoadMax }),
}

// Summaries returns a summary of each fault and profile, in the order in which they were first tried.
func (r *Run) Summaries() []Summary {
	var out []Summary
	for _, g := range r.groups() {
		out = append(out, summarize(g))
	}
	return out
}

// groups returns the trials of capstan by fault and profile.
func (r *Run) groups() [][]*Trial {
	var out [][]*Trial
	for i := range r.Trials {
		t := &r.Trials[i]
		if t.Control != "" {
			continue
		}
		at := slices.IndexFunc(out, func(g []*Trial) bool { return g[0].Fault == t.Fault && g[0].Profile == t.Profile })
		if at < 0 {
			at = len(out)
			out = append(out, nil)
		}
		out[at] = append(out[at], t)
	}
	return out
}

func summarize(trials []*Trial) Summary {
	p50 := func(of func(*Row) time.Duration) time.Duration {
		return median(trials, func(t *Trial) time.Duration { return of(&t.Row) })
	}
	s := Summary{
		Fault: trials[0].Fault, Profile: trials[0].Profile, Trials: len(trials), MaxOver: trials[0].Row.MaxOver,
		OutageP50: p50(func(r *Row) time.Duration { return r.Outage }), ClusterP50: p50(func(r *Row) time.Duration { return r.ClusterOutage }),
		ExcessP50: p50(func(r *Row) time.Duration { return r.Excess }), ReachP50: p50(func(r *Row) time.Duration { return r.ReachOutage }),
		Election: p50(func(r *Row) time.Duration { return r.Election }), Transition: p50(func(r *Row) time.Duration { return r.Transition }),
		First: p50(func(r *Row) time.Duration { return r.First }), Detection: p50(func(r *Row) time.Duration { return r.Detection }),
		Elected: p50(func(r *Row) time.Duration { return r.Elected }), Transit: p50(func(r *Row) time.Duration { return r.Transit }),
		SyncSource: p50(func(r *Row) time.Duration { return r.SyncSource }), Client: p50(func(r *Row) time.Duration { return r.Client }),
	}
	for _, t := range trials {
		s.add(&t.Row)
		s.judge(&t.Verdict)
		s.LoadMax = max(s.LoadMax, t.Load)
	}
	return s
}

func (s *Summary) add(r *Row) {
	s.OutageMax, s.ClusterMax, s.ExcessMax = max(s.OutageMax, r.Outage), max(s.ClusterMax, r.ClusterOutage), max(s.ExcessMax, r.Excess)
	s.ReachMax, s.WriterMax, s.ReadOutage = max(s.ReachMax, r.ReachOutage), max(s.WriterMax, r.WriterOutage), max(s.ReadOutage, r.ReadOutage)
	s.MaxCall, s.MaxRead, s.MaxOver = max(s.MaxCall, r.MaxCall), max(s.MaxRead, r.MaxRead), max(s.MaxOver, r.MaxOver)
	s.PlainMax, s.Stale, s.Conns = max(s.PlainMax, r.PlainCall), max(s.Stale, r.Stale), max(s.Conns, r.Conns)
	s.AttemptsMax = max(s.AttemptsMax, r.Attempts)
	s.Doubtful += r.Doubtful
	s.Reads += r.Reads
	s.FailedReads += r.FailedReads
	if r.PlainHung {
		s.PlainHung++
	}
}

func (s *Summary) judge(v *Verdict) {
	if v.OK() {
		s.OK++
	}
	s.Lost += v.Lost
	s.Doubled += v.Doubled
	s.Resurrected += v.Resurrected
	s.Unknown += v.UnknownCalls
	s.UnknownPresent += v.UnknownPresent
	s.Unequal += v.Unequal
	s.RolledBack += v.RolledBackAcknowledged
	s.TailMissed += v.TailMissed
	s.TailFaults += v.TailDoubled + v.TailReordered + v.TailGaps
	s.ConsumeFault += v.ConsumeMissed + v.ConsumeSkipped
}

// median returns the value in the middle, the lower of two.
func median(trials []*Trial, of func(*Trial) time.Duration) time.Duration {
	values := make([]time.Duration, len(trials))
	for i, t := range trials {
		values[i] = of(t)
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// typical returns the trial whose outage is nearest to the median, of those that still have their
// events; nil if none has.
func typical(trials []*Trial) *Trial {
	middle := median(trials, func(t *Trial) time.Duration { return t.Row.Outage })
	kept := slices.DeleteFunc(slices.Clone(trials), func(t *Trial) bool { return len(t.Events) == 0 })
	if len(kept) == 0 {
		return nil
	}
	return slices.MinFunc(kept, func(a, b *Trial) int {
		return cmp.Compare((a.Row.Outage - middle).Abs(), (b.Row.Outage - middle).Abs())
	})
}
