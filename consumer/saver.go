package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/seed-12ef14e5/capstan/internal/retry"
	"github.com/seed-12ef14e5/capstan/record"
)

// saver stores the safe position. One goroutine, so that saves are in order and a checkpoint never
// goes back; handling goes on meanwhile.
type saver struct {
	cp      record.Checkpoint // what is stored, as far as known
	version uint64            // of the frontier in cp
	saved   chan struct{}     // closed after the first save
	first   bool              // nothing was saved by this run yet

	waits   *retry.Loop
	failing time.Time // since when saves fail; zero: they do not
	logged  time.Time // when that was logged
}

// The waits between attempts to store a checkpoint or a dead letter. They are shorter than those
// between attempts of a handler: an election is over within seconds, and the worker stands still.
const (
	storeRetryInitial = 100 * time.Millisecond
	storeRetryMax     = 5 * time.Second
)

// logEvery is the least time between two log lines of one outage.
const logEvery = 10 * time.Second

func newSaver(cp record.Checkpoint) *saver {
	return &saver{
		cp: cp, saved: make(chan struct{}), first: true,
		waits: retry.New(retry.Policy{Initial: storeRetryInitial, Max: storeRetryMax}),
	}
}

// run saves when it is due, until stop ends, and then a last time. ctx bounds the calls of the store,
// also that last one. It returns what went wrong with the last save, if anything.
func (s *saver) run(ctx, stop context.Context, r *run) error {
	tick := time.NewTicker(r.cfg.CheckpointEvery)
	defer tick.Stop()
	reported := false
	for {
		select {
		case <-tick.C:
			if hook := r.cfg.Hooks.OnLag; hook != nil {
				hook(r.front.status())
			}
		case <-r.front.ask:
		case <-stop.Done():
			return s.finish(ctx, r)
		}
		err := s.save(ctx, r)
		if err == nil {
			continue
		}
		if _, fenced := errors.AsType[*record.FencedError](err); fenced {
			r.fail(err)
			return nil // the name is another's: no last save
		}
		if since := time.Since(s.failing); r.outage(since) && !reported {
			reported = true
			r.fail(&CheckpointError{Name: r.name, For: since, Err: err})
		}
		_ = s.waits.Wait(stop, err) // when stop ends, the last save follows
	}
}

// finish stores the last checkpoint. It tries until ctx ends, which the supervisor sees to.
func (s *saver) finish(ctx context.Context, r *run) error {
	for {
		err := s.save(ctx, r)
		if err == nil {
			return nil
		}
		if _, fenced := errors.AsType[*record.FencedError](err); fenced {
			return err
		}
		if s.waits.Wait(ctx, err) != nil {
			return &CheckpointError{Name: r.name, For: time.Since(s.failing), Err: err}
		}
	}
}

// save stores the safe position if it has changed since the last time.
func (s *saver) save(ctx context.Context, r *run) error {
	cp, version := r.front.snapshot(s.cp)
	if version == s.version {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckpointTimeout)
	defer cancel()
	saved, err := r.store.Save(ctx, cp)
	if hook := r.cfg.Hooks.OnCheckpoint; hook != nil {
		if err == nil {
			cp = saved
		}
		hook(cp, err)
	}
	if _, fenced := errors.AsType[*record.FencedError](err); fenced {
		return err // no outage: the run ends with it
	}
	if err != nil {
		s.failed(r, err)
		return err
	}
	s.cp, s.version = saved, version
	s.waits.Progress()
	if !s.failing.IsZero() {
		r.log.Info().Dur("outage", time.Since(s.failing)).Msg("checkpoints are stored again")
		s.failing, s.logged = time.Time{}, time.Time{}
	}
	if s.first {
		s.first = false
		close(s.saved)
	}
	return nil
}

func (s *saver) failed(r *run, err error) {
	now := time.Now()
	if s.failing.IsZero() {
		s.failing = now
	}
	if now.Sub(s.logged) >= logEvery {
		s.logged = now
		r.log.Warn().Err(err).Int("attempts", s.waits.Attempts()+1).Dur("outage", now.Sub(s.failing)).
			Msg("checkpoint not stored, handling goes on")
	}
}
