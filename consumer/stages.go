package consumer

import (
	"context"
	"errors"
	"time"
)

// stages is the supervisor's state: how far the stop is. Owned by the goroutine that called Run.
type stages struct {
	r           *run
	stopReading context.CancelCauseFunc
	endWork     context.CancelCauseFunc

	errs []error
	read *error // what the reader returned; nil: it has not yet

	live    int              // workers that have not ended and are not given up
	gone    map[*worker]bool // given up
	soft    bool
	hard    bool
	softAt  time.Time
	hardAt  time.Time
	timers  []*time.Timer
	late    <-chan time.Time // half of the drain is over
	drained <-chan time.Time // all of it
	over    <-chan time.Time // the grace after the hard stop
}

func newStages(r *run, stopReading, endWork context.CancelCauseFunc) *stages {
	return &stages{r: r, stopReading: stopReading, endWork: endWork, live: len(r.workers), gone: map[*worker]bool{}}
}

// wait returns when no worker is left that could still finish something.
func (s *stages) wait(ctx context.Context, read <-chan error) {
	var look <-chan time.Time
	if s.r.cfg.HandlerTimeout > 0 {
		t := time.NewTicker(s.r.lookEvery())
		defer t.Stop()
		look = t.C
	}
	stop, hard := ctx.Done(), s.r.cfg.HardStop
	for s.live > 0 {
		select {
		case <-stop:
			stop = nil
			s.softStop()
		case <-hard:
			hard = nil
			s.softStop()
			s.hardStop()
		case err := <-read:
			read = nil
			s.read = &err
			s.join(err) // what was read is all handled: the reader has closed the queues
		case err := <-s.r.failures:
			s.join(err)
			s.softStop()
		case w := <-s.r.exits:
			if !s.gone[w] {
				s.live--
			}
		case <-look:
			s.expire()
			s.lookForHung()
		case <-s.late:
			s.r.last.Store(0)
		case <-s.drained:
			s.hardStop()
		case <-s.over:
			s.giveUp()
		}
	}
	s.collect()
	for _, t := range s.timers {
		t.Stop()
	}
}

// collect takes the failures that came together with the last exit.
func (s *stages) collect() {
	for {
		select {
		case err := <-s.r.failures:
			s.join(err)
		default:
			return
		}
	}
}

func (s *stages) timer(d time.Duration) <-chan time.Time {
	t := time.NewTimer(d)
	s.timers = append(s.timers, t)
	return t.C
}

// softStop ends reading. What has begun is finished. What is in front of that is begun too for half
// of the drain, so that little or nothing of what was finished has to be repeated: a worker that is
// far behind the others may not use up the time that its last handler needs to finish. The rest is
// left to the next run.
func (s *stages) softStop() {
	if s.soft {
		return
	}
	s.soft, s.softAt = true, time.Now()
	var last uint64
	for _, w := range s.r.workers {
		last = max(last, w.current.Load())
	}
	s.r.last.Store(last)
	close(s.r.stopping)
	s.stopReading(errStopped)
	s.late = s.timer(s.r.cfg.DrainTimeout / 2)
	s.drained = s.timer(s.r.cfg.DrainTimeout)
}

// hardStop ends the handlers' context.
func (s *stages) hardStop() {
	if s.hard {
		return
	}
	s.hard, s.hardAt = true, time.Now()
	s.endWork(ErrHardStop)
	s.over = s.timer(handlerGrace)
}

// lookEvery returns how often to look at the handlers' time: a time-out is late by at most that.
func (r *run) lookEvery() time.Duration {
	return min(max(r.cfg.HandlerTimeout/20, 5*time.Millisecond), time.Second)
}

// expire ends the context of every call that has had its time.
func (s *stages) expire() {
	limit := s.r.now() - int64(s.r.cfg.HandlerTimeout)
	for _, w := range s.r.workers {
		w.expire(limit)
	}
}

// lookForHung gives up the workers whose handler did not return after its time-out and grace.
func (s *stages) lookForHung() {
	s.leave(s.r.cfg.HandlerTimeout + s.r.cfg.HangGrace)
	if len(s.gone) > 0 {
		s.softStop()
	}
}

// giveUp leaves all workers behind that have not ended after the hard stop.
func (s *stages) giveUp() {
	s.leave(0)
	s.live = 0
}

// leave gives up the workers whose handler has been running for longer than limit.
func (s *stages) leave(limit time.Duration) {
	var hung *HungError
	for _, w := range s.r.workers {
		since := w.runningSince()
		waited := time.Duration(s.r.now() - since)
		if s.gone[w] || since == 0 || waited <= limit {
			continue
		}
		rec, ok := s.r.front.lookup(w.current.Load())
		if !ok || w.runningSince() != since {
			continue // it returned while we looked
		}
		s.gone[w] = true
		s.live--
		if hung == nil {
			hung = &HungError{Record: rec, Waited: waited}
		} else {
			hung.Others++
		}
	}
	if hung != nil {
		s.join(hung)
	}
}

// end returns when the last checkpoint must be stored.
func (s *stages) end() time.Time {
	switch {
	case s.hard:
		return s.hardAt.Add(handlerGrace + closing)
	case s.soft:
		return s.softAt.Add(s.r.cfg.DrainTimeout + handlerGrace + closing)
	}
	return time.Now().Add(s.r.cfg.DrainTimeout + closing)
}

func (s *stages) join(err error) {
	if err != nil {
		s.errs = append(s.errs, err)
	}
}

// result returns what Run returns: the first failure, and joined to it those of the stop.
func (s *stages) result() error {
	if s.hard && len(s.errs) == 0 {
		if e := s.unfinished(); e != nil {
			s.join(e)
		}
	}
	if len(s.errs) == 1 {
		return s.errs[0]
	}
	return errors.Join(s.errs...)
}

// unfinished returns the records that were begun and are not done, or nil.
func (s *stages) unfinished() *UnfinishedError {
	var e *UnfinishedError
	var lowest uint64
	for _, w := range s.r.workers {
		n := w.current.Load()
		rec, ok := s.r.front.lookup(n)
		if !w.open.Load() || !ok {
			continue
		}
		if e == nil {
			e = &UnfinishedError{}
		}
		e.Records++
		if e.Records == 1 || n < lowest {
			e.First, lowest = rec, n
		}
	}
	return e
}
