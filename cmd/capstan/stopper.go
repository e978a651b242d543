package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// hardGrace is how long a command may take to end after the second signal: enough to kill and reap
// children, too short for anyone to press a third time.
const hardGrace = time.Second

// stopper turns signals into the two stages of stopping: the first ends the context that commands
// get (take no more, drain, say the summary), the second closes hard (stop at once).
type stopper struct {
	hard    chan struct{} // closed by the second signal, after cause is set
	cause   error
	signals chan os.Signal
	pipe    chan os.Signal
	done    chan struct{}
	ended   chan struct{}
	// hangup, once set, gets SIGHUP, which then is no request to stop.
	hangup atomic.Pointer[chan struct{}]
}

// newStopper starts listening to SIGINT, SIGTERM and SIGHUP. The context is the first stage, its
// cause a *stopError. close ends it.
func newStopper(ctx context.Context) (context.Context, *stopper) {
	s := &stopper{
		hard:    make(chan struct{}),
		signals: make(chan os.Signal, 4), // 4: nobody presses faster than listen takes
		pipe:    make(chan os.Signal, 1),
		done:    make(chan struct{}),
		ended:   make(chan struct{}),
	}
	soft, end := context.WithCancelCause(ctx)
	signal.Notify(s.signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// With a handler, a closed stdout is EPIPE from Write and not a silent death (children still get
	// the default, which signal.Ignore would take away).
	signal.Notify(s.pipe, syscall.SIGPIPE)
	go s.listen(soft, end)
	return soft, s
}

func (s *stopper) listen(soft context.Context, end context.CancelCauseFunc) {
	defer close(s.ended)
	defer end(nil)
	for {
		select {
		case sig := <-s.signals:
			if c := s.hangup.Load(); c != nil && sig == syscall.SIGHUP {
				select {
				case *c <- struct{}{}:
				default: // one is waiting already
				}
				continue
			}
			if soft.Err() != nil {
				s.cause = &stopError{sig}
				close(s.hard)
				return
			}
			end(&stopError{sig})
		case <-s.done:
			return
		}
	}
}

// onHangup returns what yields a value for SIGHUP from now on, instead of a stop: a daemon's request to read its configuration again.
func (s *stopper) onHangup() <-chan struct{} {
	c := make(chan struct{}, 1) // 1: a second request before the first is taken up asks for the same
	s.hangup.Store(&c)
	return c
}

// untilHard returns a context with ctx's values that the first signal does not end, only the second:
// for what a drain still has to do.
func (s *stopper) untilHard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	gone := make(chan struct{})
	go func() {
		select {
		case <-s.hard:
			cancel(s.cause)
		case <-gone:
		}
	}()
	return ctx, sync.OnceFunc(func() { // a CancelFunc may be called again
		close(gone)
		cancel(nil)
	})
}

func (s *stopper) close() {
	signal.Stop(s.signals)
	signal.Stop(s.pipe)
	close(s.done)
	<-s.ended
}
