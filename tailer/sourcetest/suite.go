// Package sourcetest is the conformance suite of sources: what everything that yields records of a
// stream must do, whatever is behind it. An implementation's test is a Harness and a call of Run.
//
// It promises that a source that loses, repeats or reorders messages, resumes in the wrong place,
// hands out memory that changes, or hangs, fails at least one case.
package sourcetest

import (
	"context"
	"testing"
	"time"

	"github.com/seed-12ef14e5/capstan/record"
)

// DefaultPatience is how long the suite waits for something that must happen.
const DefaultPatience = 60 * time.Second

// failurePatience bounds a case in Failures: a broken source may hang.
const failurePatience = time.Second

// Source is what is judged. It yields messages, or changes (record.KindChange) whose inserted documents
// are messages.
type Source interface {
	Next(ctx context.Context) (record.Record, error)
	Close() error
}

// Features say what an implementation can do; the cases that need more are skipped.
type Features struct {
	// Overwrites: Harness.Overrun works, and a loss is reported by gaps.
	Overwrites bool
	// Subjects: Options.Subject works.
	Subjects bool
}

// Options are what the suite asks of a source.
type Options struct {
	Start record.Start
	// UntilEnd: Next returns io.EOF at the end of what is there.
	UntilEnd bool
	Subject  string
}

// T is the part of testing.TB that the cases use, so that a test of the suite can watch one fail.
// Fatalf must not return.
type T interface {
	Context() context.Context
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Helper()
}

// Harness is one empty stream and the way to read it.
type Harness interface {
	// Open returns a source that reads the stream from o.Start on. When it returns, a source with
	// record.Latest delivers everything that is sent from then on. The suite closes it.
	Open(t T, o Options) Source
	// Send appends n messages of src, which continue its seq, and returns when they are stored. It is
	// safe for concurrent use with different srcs.
	Send(t T, src, subject string, n int)
	// Overrun sends messages of src until the stream has overwritten everything that it held before, and
	// returns how many it sent.
	Overrun(t T, src string) int
}

// Factory makes a Harness for one case.
type Factory func(t testing.TB) Harness

// Run runs every case that the features allow as a subtest.
func Run(t *testing.T, f Features, factory Factory) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if !c.allowed(f) {
				t.Skip("the source does not have this feature")
			}
			c.run(t, factory(t))
		})
	}
}

// Failures runs every case against harnesses from factory and returns the names of those that failed:
// for tests that show that the suite finds a broken source.
func Failures(t testing.TB, f Features, factory Factory) []string {
	var failed []string
	for _, c := range cases {
		if !c.allowed(f) {
			continue
		}
		func() {
			ctx, cancel := context.WithTimeout(t.Context(), failurePatience)
			defer cancel()
			w := &watcher{ctx: func() context.Context { return ctx }}
			defer func() {
				if p := recover(); p != nil && p != any(stopped) {
					panic(p)
				}
				if w.failed {
					failed = append(failed, c.name)
				}
			}()
			c.run(w, factory(t))
		}()
	}
	return failed
}

// watcher is a T that only notes that the case failed.
type watcher struct {
	ctx    func() context.Context
	failed bool
}

type stop struct{}

var stopped = &stop{}

func (w *watcher) Context() context.Context { return w.ctx() }
func (w *watcher) Errorf(string, ...any)    { w.failed = true }
func (w *watcher) Helper()                  {}
func (w *watcher) Fatalf(string, ...any) {
	w.failed = true
	panic(stopped)
}
