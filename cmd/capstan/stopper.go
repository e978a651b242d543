package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// hardGrace is how long a command may take to end after the second signal: enough to kill and reap
// children, too short for anyone to press a third time.
const hardGrace = time.Second

// stopper turns signals into the two stages of stopping: the first ends the soft context (take no
// more, drain, say the summary), the second the hard one (stop at once).
type stopper struct {
	soft, hard       context.Context
	endSoft, endHard context.CancelCauseFunc
	signals          chan os.Signal
	done             chan struct{}
	ended            chan struct{}
}

// newStopper starts listening to SIGINT, SIGTERM and SIGHUP. close ends it.
func newStopper(ctx context.Context) *stopper {
	s := &stopper{signals: make(chan os.Signal, 4), done: make(chan struct{}), ended: make(chan struct{})}
	s.hard, s.endHard = context.WithCancelCause(ctx)
	s.soft, s.endSoft = context.WithCancelCause(s.hard)
	signal.Notify(s.signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// With a handler, a closed stdout is EPIPE from Write and not a silent death (children still get
	// the default, which signal.Ignore would take away).
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go s.listen()
	return s
}

func (s *stopper) listen() {
	defer close(s.ended)
	for {
		select {
		case sig := <-s.signals:
			if s.soft.Err() != nil {
				s.endHard(&stopError{sig})
				return
			}
			s.endSoft(&stopError{sig})
		case <-s.done:
			return
		}
	}
}

func (s *stopper) close() {
	signal.Stop(s.signals)
	close(s.done)
	<-s.ended
	s.endHard(nil)
	s.endSoft(nil)
}
