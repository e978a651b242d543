package experiment

import (
	"github.com/seed-12ef14e5/capstan/internal/latency"
)

// LatencyRun is what RunLatency measured. It is written as run.json.
type LatencyRun struct {
	Machine Machine `json:"machine"`
	// Settings shape the result.
	Settings LatencySettings `json:"settings"`
	// Took is the seconds of wall clock for the whole run.
	Took     float64         `json:"took_seconds"`
	Variants []VariantResult `json:"variants"`
	// Figures are the ratios within this run that have a target.
	Figures []Figure `json:"figures"`
	// Skipped says why a variant that was asked for was not run, by name.
	Skipped map[string]string `json:"skipped,omitempty"`
}

// LatencySettings are the numbers of LatencyConfig that shape the result.
type LatencySettings struct {
	Count int64 `json:"count"`
	// Rate is of the paced variants, in messages per second.
	Rate        float64 `json:"rate"`
	Payload     []int   `json:"payload_bytes"`
	Producers   []int   `json:"producers"`
	StreamBytes int64   `json:"stream_bytes"`
	Slices      int     `json:"slices"`
	Seed        uint64  `json:"seed"`
	// OwnServer: the server was given by its user, so other load may have been on it.
	OwnServer bool `json:"own_server,omitempty"`
}

// VariantResult is what one variant measured. All times are in seconds.
type VariantResult struct {
	Name string `json:"variant"`
	// What says in a few words what was done.
	What string `json:"what"`
	// Deviation2011 is the standard deviation that the experiment of 2011 gives for this variant; 0 if
	// it gives none.
	Deviation2011 float64 `json:"stddev_2011,omitempty"`
	// Base is the variant of which this one is a sweep's step; "" outside of sweeps.
	Base      string  `json:"base,omitempty"`
	Payload   int     `json:"payload_bytes"`
	Producers int     `json:"producers"`
	Rate      float64 `json:"rate,omitempty"` // 0: flat out

	N      int64   `json:"n"`
	Mean   float64 `json:"mean"`
	StdDev float64 `json:"stddev"`
	// StdDevP99 is the standard deviation of the samples up to the 99th percentile.
	StdDevP99 float64 `json:"stddev_p99"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	P999      float64 `json:"p999"`
	Max       float64 `json:"max"`
	// First is the latency of the first message.
	First float64 `json:"first_message"`
	// Throughput is messages per second, from the first Send to the last delivery, without the pauses
	// between slices; of replay variants from the start of reading.
	Throughput float64 `json:"msgs_per_s"`
	// ConsumerCPU and ProducerCPU are user and system time of the two processes while messages flowed.
	ConsumerCPU float64 `json:"consumer_cpu_s"`
	ProducerCPU float64 `json:"producer_cpu_s"`
	// ServerCPU is 0 where the server's process is not known.
	ServerCPU float64 `json:"server_cpu_s,omitempty"`
	// GetMores and Queries are the commands that the consumer sent (getMore; find), from its first query on.
	GetMores int64 `json:"getmores"`
	Queries  int64 `json:"queries"`
	// Inserts is how many insert commands the producer sent, InsertBatch and ReadBatch the mean number of
	// messages in an insert and in a batch that was not empty; 0 where it is not known.
	Inserts     int64   `json:"inserts"`
	InsertBatch float64 `json:"insert_batch_mean"`
	ReadBatch   float64 `json:"read_batch_mean"`
	// Behind is how far the sender was behind its schedule; 0 for variants that have none.
	BehindP50 float64 `json:"behind_p50"`
	BehindP99 float64 `json:"behind_p99"`
	BehindMax float64 `json:"behind_max"`
	// WaitingCPU is the share of one core that the consumer used while nothing happened; 0 if it was
	// not measured.
	WaitingCPU float64 `json:"waiting_cpu,omitempty"`
	// Load is the one-minute load average when the variant began.
	Load string `json:"load"`
	// Samples are the latencies in the order of delivery; they are in the variant's own CSV.
	Samples []latency.Sample `json:"-"`
}

// Figure is one ratio or share with its target.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// AtLeast or AtMost is the target, the other one 0; with neither it is there to compare.
	AtLeast float64 `json:"at_least,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
}

// Met reports whether the target is reached, if there is one.
func (f Figure) Met() bool {
	return f.AtLeast > 0 && f.Value >= f.AtLeast || f.AtLeast == 0 && (f.AtMost == 0 || f.Value <= f.AtMost)
}

// Variant returns the result with that name, nil if there is none.
func (r *LatencyRun) Variant(name string) *VariantResult {
	for i := range r.Variants {
		if r.Variants[i].Name == name {
			return &r.Variants[i]
		}
	}
	return nil
}
