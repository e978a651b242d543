package replicator

import (
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// Status is what a Link says of itself. Every position is monotone for as long as its route is not resynced.
type Status struct {
	// Route is the route's name, with "/" and the destination's where it has several.
	Route string `json:"route"`
	// Phase is the state by name: copying, catching-up, live, paused, lost-history, failed or finalized; "starting" before the
	// stored state is known. While it is paused, Paused is the phase that it would be in.
	Phase  Phase `json:"phase"`
	Paused Phase `json:"paused,omitempty"`
	// Reason says why a route is paused, lost or failed; LastError is the last error that was tried again after, "" once it went on.
	Reason    string `json:"reason,omitempty"`
	LastError string `json:"last_error,omitempty"`
	// Source and Target are the deployments.
	Source Identity `json:"source"`
	Target Identity `json:"target"`

	// Read is the position of the last change that was read, Applied of the last with everything up to it applied, Checkpoint what is
	// stored; Head is the time of the source's last committed operation.
	Read       Point `json:"read"`
	Applied    Point `json:"applied"`
	Checkpoint Point `json:"checkpoint"`
	Head       Point `json:"source_head"`
	// LagSeconds is how far Applied is behind Head, in seconds of the source's clock, from a timer; nil while it is not known.
	LagSeconds *float64 `json:"lag_seconds"`
	// LagOperations is the number of operations in the source's oplog behind Applied, of this route's namespaces or not; at most
	// MaxBehind; nil if it may not be read.
	LagOperations *int64 `json:"lag_operations"`
	// OplogLeftSeconds is how long the source's oplog, at its present pace, still holds the checkpoint: after that many seconds without
	// progress it would be lost. nil if it may not be read.
	OplogLeftSeconds *float64 `json:"oplog_left_seconds"`

	// Copy says how far the copy is.
	Copy CopyStatus `json:"copy"`
	// Totals are counted over all runs.
	Totals Totals `json:"totals"`
	// Letters is the number of dead letters that wait for a retry.
	Letters int64 `json:"dead_letters"`
	// HeldTTL counts the TTL indexes that are held back until the route is finalized.
	HeldTTL int `json:"held_ttl_indexes"`
	// Notes say what an operator should know of this route: hazards, and what is not replicated.
	Notes []string `json:"notes,omitempty"`
	// Since is when the phase began, Updated when this was made.
	Since   time.Time `json:"since"`
	Updated time.Time `json:"updated"`
}

// PhaseStarting is the phase of a Status before the stored state is known.
const PhaseStarting Phase = "starting"

// Point is a position in a status.
type Point struct {
	// Time is the cluster time in text, "SECONDS.INCREMENT"; "" if nothing is known.
	Time string `json:"time"`
	// Unix is its seconds.
	Unix uint32 `json:"unix"`
	// Position is the whole position in text, as capstan tail takes it; "" for a head.
	Position string `json:"position,omitempty"`
}

// CopyStatus says how far a copy is.
type CopyStatus struct {
	// Collections counts the collections of the route, Copied those that are done.
	Collections int `json:"collections"`
	Copied      int `json:"copied"`
	// Documents and Bytes are the source's estimates of the whole. Scanned counts the documents that were looked at, Matched those
	// that the filter let pass and that are written, Written their bytes.
	Documents int64 `json:"documents"`
	Bytes     int64 `json:"bytes"`
	Scanned   int64 `json:"scanned"`
	Matched   int64 `json:"matched"`
	Written   int64 `json:"written_bytes"`
	// DocumentsPerSecond counts scanned documents, BytesPerSecond written bytes, both over the last ten seconds. SecondsLeft is an
	// estimate from them; nil while there is none.
	DocumentsPerSecond float64  `json:"documents_per_second"`
	BytesPerSecond     float64  `json:"bytes_per_second"`
	SecondsLeft        *float64 `json:"seconds_left"`
	// PerCollection has one entry per collection that is being copied, in the order of the source's names.
	PerCollection []CollectionProgress `json:"per_collection,omitempty"`
}

// CollectionProgress is the copy of one collection.
type CollectionProgress struct {
	Name      record.Namespace `json:"name"`
	Documents int64            `json:"documents"`
	Scanned   int64            `json:"scanned"`
	Matched   int64            `json:"matched"`
	Done      bool             `json:"done"`
}
