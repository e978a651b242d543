package consumer

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// ErrUsed says that Run was called a second time: make a new Consumer.
var ErrUsed = errors.New("this consumer has run already")

// ErrHandlerTimeout is the cause of the end of a handler's context after Config.HandlerTimeout.
var ErrHandlerTimeout = errors.New("handler timeout")

// ErrHardStop is the cause of the end of a handler's context when the drain is over or was skipped.
var ErrHardStop = errors.New("hard stop: the drain is over")

// errExited says that a handler ended its goroutine (runtime.Goexit) instead of returning.
var errExited = errors.New("handler ended its goroutine instead of returning")

// Permanent marks err as one that trying again cannot cure: the record goes to the dead letters, or
// stops the consumer, after this attempt. errors.Is and errors.As see err. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

func isPermanent(err error) bool {
	_, ok := errors.AsType[*permanentError](err)
	return ok
}

// Stop marks err as one that is not the record's fault and that further records will meet too, such as
// a full disk: the consumer stops in front of the record after this attempt, and never takes it for a
// dead letter. errors.Is and errors.As see err. Stop(nil) is nil.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err}
}

type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

func isStop(err error) bool {
	_, ok := errors.AsType[*stopError](err)
	return ok
}

// HandlerError says that a record could not be handled and that there is nowhere to put it, so the
// consumer stopped: skipping it silently would be a loss. Or that the handler asked for it: see Stop. The checkpoint is in front of the record.
type HandlerError struct {
	Record record.Record
	// Attempts is how often the handler was called with it in this run.
	Attempts int
	// Err is the last failure.
	Err error
}

func (e *HandlerError) Error() string {
	times := "1 attempt"
	if e.Attempts != 1 {
		times = fmt.Sprintf("%d attempts", e.Attempts)
	}
	return fmt.Sprintf("handle message %s after %s: %v (the checkpoint stays in front of it)", describe(e.Record), times, e.Err)
}

// Unwrap returns the last failure.
func (e *HandlerError) Unwrap() error { return e.Err }

// PanicError is the failure of an attempt in which the handler (or OnGap, Key, the source) panicked.
type PanicError struct {
	Value any
	// Stack is the stack of the goroutine at the panic.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the value of the panic if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// HungError says that a handler did not return although its context had ended. A goroutine cannot
// be killed: it is left behind and may still have effects, so end the process before anything else
// handles the same record. The checkpoint is in front of the record.
type HungError struct {
	Record record.Record
	// Waited is how long the handler had been running.
	Waited time.Duration
	// Others is how many more handlers were left behind with it.
	Others int
}

func (e *HungError) Error() string {
	more := ""
	if e.Others > 0 {
		more = fmt.Sprintf(" (and %d more)", e.Others)
	}
	return fmt.Sprintf("handler of message %s%s did not return %s after it was called and its context had ended; "+
		"its goroutine is left behind: end this process", describe(e.Record), more, e.Waited.Round(time.Millisecond))
}

// UnfinishedError says that the stop was hard: handlers were interrupted. Nothing is lost: the records
// are in front of no checkpoint and are delivered again.
type UnfinishedError struct {
	// Records is how many had been begun.
	Records int
	// First is the first of them.
	First record.Record
}

func (e *UnfinishedError) Error() string {
	if e.Records == 1 {
		return fmt.Sprintf("stopped with message %s unfinished; it is delivered again", describe(e.First))
	}
	return fmt.Sprintf("stopped with %d messages unfinished, the first is %s; they are delivered again", e.Records, describe(e.First))
}

// CheckpointError says that checkpoints could not be stored for longer than Config.OutageLimit, or
// not at the end. What was handled behind the last stored one is delivered again.
type CheckpointError struct {
	Name string
	// For is how long storing had been failing.
	For time.Duration
	Err error
}

func (e *CheckpointError) Error() string {
	return fmt.Sprintf("store checkpoint %q: failing for %s: %v", e.Name, e.For.Round(time.Millisecond), e.Err)
}

// Unwrap returns the last failure.
func (e *CheckpointError) Unwrap() error { return e.Err }

// OnGapError says that Config.OnGap did not accept a gap. The checkpoint is in front of the gap, so
// it is reported again.
type OnGapError struct {
	Record record.Record
	Err    error
}

func (e *OnGapError) Error() string {
	return fmt.Sprintf("%s at %s: %v", e.Record.Gap, e.Record.Position, e.Err)
}

// Unwrap returns what OnGap returned.
func (e *OnGapError) Unwrap() error { return e.Err }

func describe(r record.Record) string {
	if r.Ours() {
		return fmt.Sprintf("%s (src %s, seq %d)", r.Position, r.Src, r.Seq)
	}
	return r.Position.String()
}
