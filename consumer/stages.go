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
	drain   *time.Timer // from the soft stop to the hard one
	grace   *time.Timer // from the hard stop to giving up
	drained <-chan time.Time
	over    <-chan time.Time
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
		case <-s.drained:
			s.hardStop()
		case <-s.over:
			s.giveUp()
		}
	}
	s.collect()
	stopTimer(s.drain)
	stopTimer(s.grace)
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

// softStop ends reading. What has begun is finished, and what is in front of that, so that nothing
// that was finished has to be repeated; the rest is left to the next run.
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
	s.drain = time.NewTimer(s.r.cfg.DrainTimeout)
	s.drained = s.drain.C
}

// hardStop ends the handlers' context.
func (s *stages) hardStop() {
	if s.hard {
		return
	}
	s.hard, s.hardAt = true, time.Now()
	s.endWork(ErrHardStop)
	s.grace = time.NewTimer(handlerGrace)
	s.over = s.grace.C
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
		if n, first := s.r.front.unfinished(s.r.last.Load()); n > 0 {
			s.join(&UnfinishedError{Records: n, First: first})
		}
	}
	if len(s.errs) == 1 {
		return s.errs[0]
	}
	return errors.Join(s.errs...)
}

func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}
