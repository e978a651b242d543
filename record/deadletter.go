package record

import "time"

// DeadLetter is a record that a consumer gave up, with what is needed to look into it and to handle
// it by hand. It is the argument of a consumer's dead-letter store.
type DeadLetter struct {
	// Consumer is the durable name of the consumer that gave up, Stream what it reads.
	Consumer string
	Stream   string
	// Record is what could not be handled. Consumer and Record.Position together identify the letter:
	// the same record of the same consumer is one letter, however often it is given up.
	Record Record
	// Err is the text of the last failure, with the stack if it was a panic.
	Err string
	// Attempts is how often the handler was called with it in this run of the consumer.
	Attempts int
	// Time is when it was given up, by the consumer's clock.
	Time time.Time
}
