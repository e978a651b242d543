package outage

import (
	"time"

	"github.com/seed-12ef14e5/capstan/experiment"
)

// Trial is the record of one trial: one fault on one set, with everything that was seen.
type Trial struct {
	// Number counts the trials of a fault, profile and control from 1.
	Number  int
	Fault   string
	Profile string
	// Control names the negative control (a Role: Plain, FreshID, One), "" for a trial of capstan.
	Control string
	Seed    uint64
	// Lane is the set that it ran on, when several run side by side.
	Lane int

	// Begun is when all clients were ready, At when the fault took effect, Healed when it was undone, Ended
	// when the set was whole again and all was read back.
	Begun, At, Healed, Ended Moment
	// Victim is the member that the fault was about ("m1"), New the member that was primary afterwards.
	Victim, New string
	// Load is the machine's one-minute load average when the fault took effect.
	Load float64

	// Events of all clients, by their end. Servers are the events of the members' logs.
	Events  []Event
	Servers []ServerEvent
	Verdict Verdict
	Row     Row
}

// What a member's log tells.
const (
	ElectionStarted    = "election started"
	ElectionWon        = "election won"
	TransitionComplete = "transition complete"
	SyncSourceChanged  = "sync source changed"
	SteppedDown        = "stepped down"
	RollbackBegun      = "rollback"
)

// ServerEvent is a line of a member's log that belongs to an outage.
type ServerEvent struct {
	At     Moment
	Member string
	What   string
	Text   string
}

// Verdict is what was found after healing. The counts are of (writer, seq), not of _id.
type Verdict struct {
	Sent, Acknowledged int
	// Lost: acknowledged, and not there. Doubled: there more than once. Resurrected: reported as not
	// written, and there.
	Lost, Doubled, Resurrected int
	// UnknownCalls were reported as unknown; of these UnknownPresent are there.
	UnknownCalls, UnknownPresent int
	// Unequal counts the members whose data differ from the primary's (dbHash).
	Unequal int
	// RolledBack counts the documents of the writer in the members' rollback files, RolledBackAcknowledged
	// those among them that had been acknowledged.
	RolledBack, RolledBackAcknowledged int
	// Tails are what followed the stream: the oracle's word for each reader.
	TailMissed, TailDoubled, TailReordered, TailGaps int
	ConsumeMissed, ConsumeSkipped                    int
	// Linearizable is porcupine's answer for the per-key set model.
	Linearizable bool
	// Notes are the oracle's violations, in words, the first few.
	Notes []string
}

// OK reports whether nothing was lost, doubled, resurrected, missed or unequal.
func (v Verdict) OK() bool {
	return v.Lost == 0 && v.Doubled == 0 && v.Resurrected == 0 && v.Unequal == 0 && v.RolledBackAcknowledged == 0 &&
		v.TailMissed == 0 && v.TailDoubled == 0 && v.TailReordered == 0 && v.TailGaps == 0 &&
		v.ConsumeMissed == 0 && v.ConsumeSkipped == 0 && v.Linearizable
}

// Row is the figures of one trial: one line of trials.csv. Durations are 0 where there is nothing to
// tell.
type Row struct {
	// Election and Transition run from the fault to the first election that was won, and from that to its
	// completed transition, by the servers' logs.
	Election, Transition time.Duration
	// Elections counts those that were won, SyncChanges the changes of a sync source between the fault
	// and the first acknowledged write.
	Elections, SyncChanges int
	// First is the time from the fault to the first write that was begun after it and acknowledged.
	First time.Duration
	// Outage is the longest interval without an acknowledged write of the prober; WriterOutage the same of
	// the writer (once a second, so it has no finer resolution).
	Outage, WriterOutage time.Duration
	// ClusterOutage is how long no majority write could be acknowledged by any member to somebody whom no
	// fault cuts off; ReachOutage the same for somebody in the clients' place. Excess is Outage less
	// ReachOutage: the layer's own share.
	ClusterOutage, ReachOutage, Excess time.Duration
	// Where the part of Outage that is after the fault went; the five add up to it. Detection ends when a
	// member stands for election, Elected when one has won, Transit when the winner takes writes,
	// SyncSource when a majority write is acknowledged to somebody in the clients' place, Client when
	// the prober's is. Where a step was not seen, its time is in the step before it that was; where no
	// election was, Detection lasts until a majority write is acknowledged.
	Detection, Elected, Transit, SyncSource, Client time.Duration
	// ReadOutage is the longest interval without an answered secondaryPreferred read of the prober.
	ReadOutage time.Duration
	// MaxCall is the longest call of the writer and the prober, MaxRead the longest read; MaxOver the largest
	// excess of any call over its deadline, less what the control timer overran (negative: none).
	MaxCall, MaxRead, MaxOver time.Duration
	// Deadline is the bound of the writer's and the prober's calls, the longest if they differ.
	Deadline time.Duration
	// PlainCall is the longest InsertOne of the plain client without a deadline in the same fault;
	// PlainHung says that it had not returned when the fault was healed. One that never returned counts as
	// long as the client is known to have waited.
	PlainCall time.Duration
	PlainHung bool
	// Attempts is the number of commands of the writer and the prober from the fault to the heal, Doubtful those
	// whose outcome was unknown at first, Conns the pool connections that the writer opened meanwhile.
	Attempts, Doubtful int
	Conns              int64
	// Reads and FailedReads count the reader's and the prober's calls; Stale is the oldest answer.
	Reads, FailedReads int
	Stale              time.Duration
}

// Run is a whole run: what results/failover holds.
type Run struct {
	Machine  experiment.Machine
	Settings Settings
	Trials   []Trial
	// Skipped says which faults were not tried, and why.
	Skipped map[string]string
	// Cost is what the layer costs when nothing fails, nil if that was not measured.
	Cost *Cost
}

// Settings are what a run was asked for.
type Settings struct {
	Faults  []string `json:"faults"`
	Profile []string `json:"profiles"`
	Seed    uint64   `json:"seed"`
	Lanes   int      `json:"lanes"`
	// Trials of each fault and profile, by "fault profile".
	Trials map[string]int `json:"trials"`
	// Attempt is the deadline of one attempt in seconds, by profile; Pool is how many connections a
	// client's pool may hold.
	Attempt map[string]float64 `json:"attempt_seconds"`
	Pool    int                `json:"pool_size"`
}
